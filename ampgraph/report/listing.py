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
    """The report of `lists`: a list of rows that shows itself as the command prints it. ``level``: the name of the
    level for which rows say what becomes of an operator."""

    level: str = ""

    def to_dict(self) -> JsonObject:
        """What `lists` found, as plain data for JSON."""
        return {"level": self.level, "operators": [row.to_dict() for row in self]}

    def lines(self) -> list[str]:
        """The text that `lists` prints, by lines: a table, or one operator in full."""
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
    """The report's lines on one operator of `lists`: its class at a level, why, kernels, slots and ties."""
    unlisted = "no rule of its own" if row.sort else "in no list"
    rows = [(row.sort or "operator", row.operator), ("class", row.cls or unlisted), (f"at {level}", row.at_level)]
    if row.asked:
        rows.insert(0, ("asked", f"{row.asked} of MindSpore, which the lists call {row.operator}"))
    if row.cls or row.sort:
        rows.append(("reason", row.reason))
    if row.source:
        rows.append(("source", row.source))
    if row.rule:
        rows.append(("rule", row.rule))
    rows += [(f"on {target}", f"left to the cut: {reason}") for target, reason in row.inside.items()]
    rows += [("float32", f"{slot}: {reason}") for slot, reason in row.float32_slots.items()]
    rows += [("one type", ", ".join(group)) for group in row.tied]
    return in_rows(rows)


def lists_report(recipe: Recipe, wanted: str = "") -> ListRows:
    """The report of `lists`: the rows of a recipe's policy at its level. ``wanted``: one operator or a glob of them, ""
    for all. Raises AmpError AMP301 to AMP303 for unknown lists, levels and policies, AMP309 for an unknown operator."""
    lists = lists_of(recipe)
    level = level_of(recipe, lists)
    found = ListRows(policy(recipe.policy).rows(lists, level, wanted))
    found.level = level.name
    return found


@dataclass(frozen=True)
class RuleRow(Data):
    """One rule of the planner in the report of `lists --rules`: its name in decisions and in `--rule no-NAME`, what
    trips it, what it does then, at which levels; ``validity``: whether it cannot be switched off."""

    name: str
    trigger: str
    action: str
    levels: str
    validity: bool


def rule_rows() -> list[RuleRow]:
    """The report of `lists --rules`: every rule of the planner as a row of a table, in the order in which they run."""
    return [RuleRow(rule.name, rule.trigger, rule.action, _levels_in_words(rule), rule.validity) for rule in RULES]


def _levels_in_words(rule: Rule) -> str:
    """Report of `lists --rules`: the levels at which a rule acts or only warns, in words; "all" for all with guards."""
    guards = {level.name: level.accuracy_guards for level in load_levels().values() if level.accuracy_guards != "off"}
    warns = [name for name, setting in guards.items() if setting == "warn" and rule.levels == "warned"]
    holds = [name for name, setting in guards.items() if rule.at(setting) and name not in warns]
    if len(holds) == len(guards):
        return "all"
    return ", ".join(holds) + (f"; said at {', '.join(warns)}" if warns else "")


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
    """The report of `export-mixlist`: operator types of Ascend's compiler that a level makes low (``white``) or keeps
    in float32 (``black``); those in neither follow their neighbours."""

    policy: str
    level: str
    white: tuple[str, ...]
    black: tuple[str, ...]
    unnamed: tuple[str, ...]
    """MindSpore operators that would be in one of the lists, but whose operator type is not known."""

    def content(self) -> JsonObject:
        """The content of the file that `export-mixlist` writes, as data. It only adds to the target's own lists: to
        take out of one what it does not have is an error there."""
        return {"black-list": {"to-add": list(self.black)}, "white-list": {"to-add": list(self.white)}}

    def to_json(self) -> str:
        """The text of the mixlist's file."""
        return json.dumps(self.content(), indent=2) + "\n"

    def lines(self) -> list[str]:
        """The text that `export-mixlist` prints, by lines, but for where the file is."""
        rows = [
            ("options", f"level {self.level}, policy {self.policy}"),
            ("white list", f"{len(self.white)} operator types that may compute low"),
            ("black list", f"{len(self.black)} operator types that stay float32"),
        ]
        message = f"{len(self.unnamed)} operators of MindSpore go to neither: no operator type is known"
        rows += [("left out", f"{message} ({first(self.unnamed, 3, ' ...')})")] if self.unnamed else []
        return in_rows(rows)
