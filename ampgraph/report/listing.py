"""The lists in force as a table."""

from __future__ import annotations

from typing import ClassVar

from ..core.json_types import JsonObject
from ..core.recipe import Recipe
from ..core.shown import Shown
from ..oplists.rows import ListRow
from ..planner.policies.registry import policy
from ..planner.resolve import level_of, lists_of
from .text import list_lines


class ListRows(Shown, list[ListRow]):
    """The rows of a level, which show themselves as the command does. ``level``: its name."""

    LINES: ClassVar[str] = f"{__name__}.listing_lines"
    HTML: ClassVar[str] = f"{__package__}.sketched.listing_html"

    level: str = ""

    def to_dict(self) -> JsonObject:
        """Plain data for JSON."""
        return {"level": self.level, "operators": [row.to_dict() for row in self]}


def listing_lines(found: ListRows) -> list[str]:
    """The report of `lists`."""
    return list_lines(found, found.level)


def listed(recipe: Recipe, wanted: str = "") -> ListRows:
    """The rows of a recipe's policy at its level. Raises AmpError AMP301 to AMP303 for lists, levels and policies that
    are none, AMP309 for ``wanted``."""
    lists = lists_of(recipe)
    level = level_of(recipe, lists)
    found = ListRows(policy(recipe.policy).rows(lists, level, wanted))
    found.level = level.name
    return found
