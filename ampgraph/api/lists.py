"""`ampgraph.lists`: the lists in force."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.arguments import of_kind
from ..core.recipe import Recipe, RecipeFields
from ..report.listing import ListRows, listed
from .keywords import recipe_for, takes_recipe

if TYPE_CHECKING:
    from typing_extensions import Unpack


@takes_recipe
def lists(
    operator: str | None = None,
    *,
    recipe: Recipe | str | None = None,
    **fields: Unpack[RecipeFields],
) -> ListRows:
    """What the lists say of operators: class, what the level does with it, why, and which line says so.

    Args:
        operator: a name or a glob; all if not given.
        recipe: an `ampgraph.Recipe`, or the short text of one; its policy, level, type, target and lists count.
        **fields: of the recipe; each replaces the recipe's own:

    Raises:
        AmpError: AMP301 to AMP303 for lists, levels and policies that are not there, AMP309 for the operator.
    """
    wanted = recipe_for(lists, recipe, fields)
    of_kind("operator", operator, (str,), 'for example "Softmax"')
    return listed(wanted, operator or "")
