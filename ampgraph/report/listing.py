"""The lists in force as a table."""

from __future__ import annotations

from ..core.recipe import Recipe
from ..oplists.rows import ListRow
from ..planner.policies.registry import policy
from ..planner.resolve import level_of, lists_of


def listed(recipe: Recipe, wanted: str = "") -> list[ListRow]:
    """The rows of a recipe's policy at its level. Raises AmpError AMP301 to AMP303 for lists, levels and policies that
    are none, AMP309 for ``wanted``."""
    lists = lists_of(recipe)
    return policy(recipe.policy).rows(lists, level_of(recipe, lists), wanted)
