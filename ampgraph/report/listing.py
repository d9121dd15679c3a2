"""The lists in force as a table, and the rules that decide beside them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar

from ..core.json_types import JsonObject
from ..core.recipe import Recipe
from ..core.shown import Shown
from ..oplists.levels import load_levels
from ..oplists.rows import ListRow
from ..planner.order import RULES
from ..planner.policies.registry import policy
from ..planner.resolve import level_of, lists_of
from ..planner.rules.rule import Rule
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


@dataclass(frozen=True)
class RuleRow:
    """One rule of the planner: its name in decisions and in `--rule no-NAME`, what trips it, what it does then, at
    which levels; ``validity``: it cannot be switched off."""

    name: str
    trigger: str
    action: str
    levels: str
    validity: bool

    def to_dict(self) -> JsonObject:
        """Plain data for JSON."""
        return asdict(self)


def rule_rows() -> list[RuleRow]:
    """Every rule, in the order in which they run."""
    return [RuleRow(rule.name, rule.trigger, rule.action, _levels(rule), rule.validity) for rule in RULES]


def _levels(rule: Rule) -> str:
    """The levels at which a rule acts."""
    guards = {level.name: level.accuracy_guards for level in load_levels().values() if level.accuracy_guards != "off"}
    warns = [name for name, does in guards.items() if does == "warn" and rule.levels == "warned"]
    holds = [name for name, does in guards.items() if rule.at(does) and name not in warns]
    said = f"; said at {', '.join(warns)}" if warns else ""
    return "all" if len(holds) == len(guards) else f"{', '.join(holds)}{said}"


def rule_lines() -> list[str]:
    """The report of `lists --rules`: a line a rule."""
    table = [("rule", "of", "levels", "trigger -> action")]
    for row in rule_rows():
        table.append((row.name, "validity" if row.validity else "", row.levels, f"{row.trigger} -> {row.action}"))
    widths = [max(len(line[column]) for line in table) for column in range(3)]
    return ["  ".join([*(f"{line[i]:<{widths[i]}}" for i in range(3)), line[3]]) for line in table]


def rule_table() -> str:
    """The table of rules in docs/levels.md."""
    lines = ["| rule | what trips it | what it does | levels |", "|---|---|---|---|"]
    for row in rule_rows():
        name = f"`{row.name}`{' (validity)' if row.validity else ''}"
        lines.append(f"| {name} | {row.trigger} | {row.action} | {row.levels} |")
    return "\n".join(lines)
