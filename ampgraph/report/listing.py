"""The lists in force as a table, the rules that decide beside them, and what `export-mixlist` writes of both."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from ..core import sketches
from ..core.json_types import JsonObject
from ..core.recipe import Recipe
from ..core.shown import Data, Shown
from ..oplists.levels import load_levels
from ..oplists.rows import ListRow
from ..planner.order import RULES
from ..planner.policies.registry import policy
from ..planner.resolve import level_of, lists_of
from ..planner.rules.rule import Rule
from .lines import columns, first, in_rows


class ListRows(Shown, list[ListRow]):
    """The rows of a level, which show themselves as the command does. ``level``: its name."""

    level: str = ""

    def to_dict(self) -> JsonObject:
        """What `lists` found, as plain data for JSON."""
        return {"level": self.level, "operators": [row.to_dict() for row in self]}

    def lines(self) -> list[str]:
        """The text that `list` prints: a table, or one operator in full."""
        if len(self) == 1:
            return _one_operator(self[0], self.level)
        head = ("operator", "class", f"at {self.level}", "source", "reason")
        rows = [(row.title, row.cls or "-", row.at_level, row.source or "-", row.reason) for row in self]
        return columns([head, *rows])

    def _overview(self) -> Iterable[sketches.Html]:
        """The top of the report of `lists` as a page: operators with their class and what becomes of them."""
        rows = [(row.title, row.cls or "in no list", row.at_level, row.reason, row.source) for row in self]
        yield sketches.table(("operator", "class", f"at {self.level}", "reason", "source"), rows)


def _one_operator(row: ListRow, level: str) -> list[str]:
    """The report's lines about one operator of `lists`: class, reason, and what kernels, slots and ties say."""
    unlisted = "no rule of its own" if row.sort else "in no list"
    said = [(row.sort or "operator", row.operator), ("class", row.cls or unlisted), (f"at {level}", row.at_level)]
    if row.asked:
        said.insert(0, ("asked", f"{row.asked} of MindSpore, which the lists call {row.operator}"))
    if row.cls or row.sort:
        said.append(("reason", row.reason))
    if row.source:
        said.append(("source", row.source))
    if row.rule:
        said.append(("rule", row.rule))
    said += [(f"on {target}", f"left to the cut: {reason}") for target, reason in row.inside.items()]
    said += [("float32", f"{slot}: {reason}") for slot, reason in row.float32_slots.items()]
    said += [("one type", ", ".join(group)) for group in row.tied]
    return in_rows(said)


def listed(recipe: Recipe, wanted: str = "") -> ListRows:
    """The report of `lists`: the rows of a recipe's policy at its level. AmpError AMP301 to AMP303 for lists, levels
    and policies that are none, AMP309 for ``wanted``."""
    lists = lists_of(recipe)
    level = level_of(recipe, lists)
    found = ListRows(policy(recipe.policy).rows(lists, level, wanted))
    found.level = level.name
    return found


@dataclass(frozen=True)
class RuleRow(Data):
    """One rule of the planner: its name in decisions and in `--rule no-NAME`, what trips it, what it does then, at
    which levels; ``validity``: it cannot be switched off."""

    name: str
    trigger: str
    action: str
    levels: str
    validity: bool


def rule_rows() -> list[RuleRow]:
    """The report of `lists --rules`: every rule of the planner as a row of a table, in the order in which they run."""
    return [RuleRow(rule.name, rule.trigger, rule.action, _levels_in_words(rule), rule.validity) for rule in RULES]


def _levels_in_words(rule: Rule) -> str:
    """Report of `lists --rules`: the levels at which a rule acts, in words."""
    guards = {level.name: level.accuracy_guards for level in load_levels().values() if level.accuracy_guards != "off"}
    warns = [name for name, does in guards.items() if does == "warn" and rule.levels == "warned"]
    holds = [name for name, does in guards.items() if rule.at(does) and name not in warns]
    said = f"; said at {', '.join(warns)}" if warns else ""
    return "all" if len(holds) == len(guards) else f"{', '.join(holds)}{said}"


def rule_lines() -> list[str]:
    """The text that `lists --rules` prints: a line a rule."""
    table = [("rule", "of", "levels", "trigger -> action")]
    for row in rule_rows():
        table.append((row.name, "validity" if row.validity else "", row.levels, f"{row.trigger} -> {row.action}"))
    return columns(table)


def rule_table() -> str:
    """The report's table of rules in docs/levels.md."""
    lines = ["| rule | what trips it | what it does | levels |", "|---|---|---|---|"]
    for row in rule_rows():
        name = f"`{row.name}`{' (validity)' if row.validity else ''}"
        lines.append(f"| {name} | {row.trigger} | {row.action} | {row.levels} |")
    return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class Mixlist(Shown):
    """Operator types of Ascend's compiler by what a level does with them; what is in neither follows its neighbours."""

    policy: str
    level: str
    white: tuple[str, ...]
    black: tuple[str, ...]
    unnamed: tuple[str, ...]
    """MindSpore operators that would be in one of the lists, but whose operator type is not known."""

    def content(self) -> JsonObject:
        """The file that `export-mixlist` reports. Only additions: to take out what a target's own list does not have is
        an error there."""
        return {"black-list": {"to-add": list(self.black)}, "white-list": {"to-add": list(self.white)}}

    def to_json(self) -> str:
        """The text of the mixlist's file."""
        return json.dumps(self.content(), indent=2) + "\n"

    def lines(self) -> list[str]:
        """The text that `export-mixlist` prints, but for where the file is."""
        rows = [
            ("options", f"level {self.level}, policy {self.policy}"),
            ("white list", f"{len(self.white)} operator types that may compute low"),
            ("black list", f"{len(self.black)} operator types that stay float32"),
        ]
        message = f"{len(self.unnamed)} operators of MindSpore go to neither: no operator type is known"
        rows += [("left out", f"{message} ({first(self.unnamed, 3, ' ...')})")] if self.unnamed else []
        return in_rows(rows)
