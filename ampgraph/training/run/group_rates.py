"""Learning rates of parameter groups: one table each. A schedule for all moves each group by its own rate.

As torch's schedulers, which multiply the rate of every param_group by one factor, or by a factor of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...core.arrays import Array
from ...core.errors import AmpError, nearest
from ..step.training_step import StepLayout
from .schedules import Schedule, described, parse_schedule, rates, table_of

OneSchedule = str | Schedule | Sequence[float] | Array
Given = OneSchedule | Mapping[str, OneSchedule] | None
Tables = Mapping[str, Array]
EACH = "; "


def scheduled(layout: StepLayout, rate: float, given: Given, steps: int) -> Tables | None:
    """The learning rates of ``steps`` updates by the pattern of the group, ``*`` where there are no groups.

    ``rate``: that of a step without groups. A mapping schedules the groups that it names; the others keep their rate.
    Raises AmpError AMP324 for a group that is not there, and for one row of numbers for several groups.
    """
    if given is None:
        return None
    groups = dict(layout.groups) or {"*": rate}
    if not isinstance(given, Mapping):
        _refuse_row(given, groups)
        return {pattern: rates(given, own, steps) for pattern, own in groups.items()}
    _check_names(given, groups)
    constant = Schedule("constant")
    return {pattern: rates(given.get(pattern, constant), own, steps) for pattern, own in groups.items()}


def after(tables: Tables, past: int) -> Tables:
    """The tables of a state that has seen ``past`` updates before."""
    return {name: np.concatenate([np.repeat(table[:1], past), table]) for name, table in tables.items()}


def state_of(layout: StepLayout, table: Sequence[float] | Array | Tables) -> dict[str, Array]:
    """What tables are in the state of a step: all groups, or the one row where there are none.

    Raises AmpError AMP324.
    """
    if not layout.rate_tables:
        raise AmpError("AMP324", "this step has no learning rate to schedule", hint="build it again")
    patterns = [pattern for pattern, _ in layout.groups] or ["*"]
    if not isinstance(table, Mapping):
        _refuse_row(table, dict.fromkeys(patterns, 0.0))
        table = {"*": table_of(table)}
    _check_names(table, dict.fromkeys(patterns, 0.0))
    found: dict[str, Array] = {}
    for pattern, (name, last) in zip(patterns, layout.rate_tables, strict=True):
        if pattern in table:
            row = table_of(table[pattern])
            found |= {name: row, last: np.array(len(row) - 1, np.int64)}
    return found


def parse_schedules(words: Sequence[str]) -> str | dict[str, str] | None:
    """``SCHEDULE``, the last of several, or ``PATTERN=SCHEDULE`` repeated. Raises AmpError AMP324 for both at once."""
    if not any(_pattern(word) for word in words):
        return words[-1] if words else None
    found: dict[str, str] = {}
    for word in words:
        pattern = _pattern(word)
        if not pattern or pattern in found:
            message = "is given twice" if pattern else "is no PATTERN=SCHEDULE"
            hint = "one schedule for all, or for each group its own: --lr-schedule 'head.*=cosine'"
            raise AmpError("AMP324", f"--lr-schedule {word} {message}", hint=hint)
        found[pattern] = word[len(pattern) + 1 :]
    return found


def described_all(given: Given) -> str:
    """A schedule, or those of all groups, in one line; ``none`` for none. Raises AmpError AMP324."""
    if not isinstance(given, Mapping):
        return described(given)
    return EACH.join(f"{pattern}={described(one)}" for pattern, one in sorted(given.items()))


def stretches(message: str) -> str:
    """The kind of schedule that ends with the training, of what `described_all` says; empty for none."""
    for one in message.split(EACH):
        word = one[len(pattern) + 1 :] if (pattern := _pattern(one)) else one
        if word != "none" and not word.startswith("a table") and parse_schedule(word).stretches:
            return word.partition(":")[0]
    return ""


def _pattern(word: str) -> str:
    """What stands in front of a schedule; empty where it is all. A pattern may hold = and :, an option = after a :."""
    front, equals, rest = word.partition("=")
    if not equals or (":" in front and front.partition(":")[0] in ("constant", "linear", "cosine", "step")):
        return ""
    return front if rest else ""


def _refuse_row(given: OneSchedule, groups: Mapping[str, float]) -> None:
    if len(groups) > 1 and not isinstance(given, (str, Schedule)):
        names = ", ".join(f"'{name}'" for name in groups)
        message = f"one row of learning rates for a step with {len(groups)} groups of parameters"
        raise AmpError("AMP324", message, hint=f"a schedule, or a row for each by its pattern: {names}")


def _check_names(given: Mapping[str, object], groups: Mapping[str, float]) -> None:
    for pattern in given:
        if pattern not in groups:
            hint = nearest(str(pattern), list(groups)) or f"there are: {', '.join(groups)}"
            raise AmpError("AMP324", f"this step has no group of parameters '{pattern}'", hint=hint)
