"""Learning rates as tables: one float32 number an update, made before training and fed to the graph.

The formulas are PyTorch's: constant (LambdaLR of 1), linear (LinearLR), cosine (CosineAnnealingLR), step (StepLR).
A warmup comes first, as LambdaLR of ``(t + 1) / warmup``, and the schedule proper takes the updates that are left.
A step with several groups of parameters has a table for each, under the group's pattern; else the pattern is ``*``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...core.arrays import Array
from ...core.errors import AmpError, is_number, is_whole, nearest
from ..option_text import BadOption, read_options, split_pattern, types_of
from ..step.training_step import StepLayout

KINDS = {
    "constant": (),
    "linear": ("end",),
    "cosine": ("end",),
    "step": ("every", "gamma"),
}
"""Word -> the options that it has beside ``warmup``."""
WHOLE = {"warmup": 0, "every": 1}
"""Options that are whole numbers, and the least of each."""
_FORMS = "constant, linear:end=0.1, cosine:warmup=100 or step:every=1000,gamma=0.1"


@dataclass(frozen=True)
class Schedule:
    """How the learning rate moves over a training.

    Args:
        kind: a word of `KINDS`.
        warmup: that many updates rise to the full rate; they come first.
        end: linear and cosine end at this part of the full rate.
        every, gamma: step multiplies the rate by ``gamma`` at every ``every``-th update.

    Raises AmpError AMP324 for numbers that make no sense.
    """

    kind: str = "constant"
    warmup: int = 0
    end: float = 0.0
    every: int = 1000
    gamma: float = 0.1

    def __post_init__(self) -> None:
        if self.kind not in tuple(KINDS):
            hint = nearest(str(self.kind), list(KINDS)) or f"one of {_FORMS}"
            raise AmpError("AMP324", f"unknown learning-rate schedule '{self.kind}'", hint=hint)
        for name, least in WHOLE.items():
            value = getattr(self, name)
            if not is_whole(value) or value < least:
                raise AmpError("AMP324", f"{name}={value} is not a whole number from {least}", hint=f"{name}=100")
            object.__setattr__(self, name, int(value))
        for name in ("end", "gamma"):
            value = getattr(self, name)
            if not is_number(value) or not math.isfinite(value) or value < 0:
                raise AmpError("AMP324", f"{name}={value} is not a number from 0", hint=f"{name}=0.1")
            object.__setattr__(self, name, float(value))

    def table(self, rate: float, steps: int) -> Array:
        """The learning rate of each of ``steps`` updates. Raises AmpError AMP324 where the warmup takes them all, and
        for a rate beyond the float32 numbers."""
        if self.warmup >= steps and self.warmup:
            message = f"warmup={self.warmup} takes all {steps} updates of the training"
            raise AmpError("AMP324", message, hint="warm up for less, or train for more epochs")
        rises = [(t + 1) / self.warmup for t in range(self.warmup)]
        left = steps - self.warmup
        factors = rises + [self._factor(t, left) for t in range(left)]
        with np.errstate(over="ignore", invalid="ignore"):
            made = (np.array(factors, np.float64) * rate).astype(np.float32)
        beyond = np.flatnonzero(~np.isfinite(made))
        if beyond.size:
            message = f"the learning rate of update {beyond[0] + 1} is beyond what float32 holds"
            raise AmpError("AMP324", message, hint=f"{self} of a rate of {rate:g}: take smaller numbers")
        return made

    def _factor(self, t: int, steps: int) -> float:
        """The factor of the full learning rate at update ``t`` (from 0) of ``steps``, both without the warmup; inf
        where it overflows."""
        if self.kind == "linear":
            return 1 + (self.end - 1) * t / steps
        if self.kind == "cosine":
            return self.end + (1 - self.end) * (1 + math.cos(math.pi * t / steps)) / 2
        try:
            return self.gamma ** (t // self.every) if self.kind == "step" else 1.0
        except OverflowError:
            return math.inf

    def __str__(self) -> str:
        """The schedule as `parse_schedule` reads it: kind, warmup and the options of that kind."""
        words = [f"{name}={getattr(self, name)}" for name in ("warmup", *KINDS[self.kind])]
        return f"{self.kind}:{','.join(words)}"


OneSchedule = str | Schedule | Sequence[float] | Array
"""A schedule in text or as an object, or the table of learning rates itself."""
Given = OneSchedule | Mapping[str, OneSchedule] | None
"""One schedule for all groups, schedules by the pattern of the group, or None: the rate stays."""
Tables = Mapping[str, Array]
"""The pattern of a group -> the learning rate of each update, float32."""
EACH = "; "  # between schedules of groups in text


def parse_schedule(text: str) -> Schedule:
    """Reads a learning-rate schedule from text: ``KIND``, or ``KIND:KEY=VALUE,...`` as in ``cosine:warmup=100``. Raises
    AmpError AMP324 for another text."""
    kind, colon, rest = text.strip().partition(":")
    if kind not in KINDS or (colon and not rest):
        hint = ("" if kind in KINDS else nearest(kind, list(KINDS))) or f"one of {_FORMS}"
        raise AmpError("AMP324", f"--lr-schedule {text} is not a learning-rate schedule", hint=hint)
    types = types_of(Schedule)
    try:
        return Schedule(kind, **read_options(rest, {name: types[name] for name in ("warmup", *KINDS[kind])}))
    except BadOption as bad:
        raise AmpError("AMP324", f"--lr-schedule {text}: {bad}", hint=bad.hint) from None


def rates(schedule: OneSchedule, rate: float, steps: int) -> Array:
    """The table of learning rates of a schedule in any form, float32: of ``steps`` updates whose full rate is ``rate``,
    or the numbers that were given, as they are. Raises AmpError AMP324."""
    if isinstance(schedule, str):
        schedule = parse_schedule(schedule)
    return schedule.table(rate, steps) if isinstance(schedule, Schedule) else checked_table(schedule)


def checked_table(numbers: OneSchedule) -> Array:
    """Learning rates that a caller gives as numbers, as a float32 vector. Raises AmpError AMP324 for anything but a row
    of one or more finite numbers from 0."""
    try:
        with np.errstate(over="ignore"):
            table = np.array(numbers, np.float32)
    except (TypeError, ValueError, OverflowError):
        table = np.zeros(0, np.float32)
    if table.ndim != 1 or not table.size or not np.isfinite(table).all() or (table < 0).any():
        message = "a table of learning rates is one row of numbers from 0 that float32 holds"
        raise AmpError("AMP324", message, hint=f"or a schedule: {_FORMS}")
    return table


# -- schedules of the groups of a step ---------------------------------------------------------------------------------


def tables_by_group(layout: StepLayout, rate: float, given: Given, steps: int) -> Tables | None:
    """The tables of learning rates of ``steps`` updates; None where nothing is scheduled (``given`` is None). ``rate``:
    the full rate of a step without groups. A mapping schedules the groups that it names; the others keep their rate.
    Raises AmpError AMP324 for a group that is not there, and for one row of numbers for several groups."""
    if given is None:
        return None
    groups = dict(layout.groups) or {"*": rate}
    found = _schedules_by_group(given, groups)
    return {pattern: rates(found.get(pattern, Schedule()), own, steps) for pattern, own in groups.items()}


def rate_state(layout: StepLayout, table: OneSchedule | Mapping[str, OneSchedule]) -> dict[str, Array]:
    """State tensors of a step that hold tables of learning rates, by name: each table, and the number of its last row,
    of the groups that ``table`` has rates for. Raises AmpError AMP324 for a step without learning rate, a group that is
    not there, and numbers that make no sense."""
    if not layout.rate_tables:
        raise AmpError("AMP324", "this step has no learning rate to schedule", hint="build it again")
    patterns = [pattern for pattern, _ in layout.groups] or ["*"]
    given = _schedules_by_group(table, patterns)
    found: dict[str, Array] = {}
    for pattern, (name, last) in zip(patterns, layout.rate_tables, strict=True):
        if pattern in given:
            row = checked_table(given[pattern])
            found |= {name: row, last: np.array(len(row) - 1, np.int64)}
    return found


def _schedules_by_group(
    given: OneSchedule | Mapping[str, OneSchedule], patterns: Collection[str]
) -> Mapping[str, OneSchedule]:
    """The learning-rate schedule of each group by its pattern: one for all, or a mapping as it is, which may leave
    groups out. Raises AmpError AMP324 for an unknown pattern, and for one row of numbers for several groups."""
    if not isinstance(given, Mapping):
        if len(patterns) > 1 and not isinstance(given, (str, Schedule)):
            names = ", ".join(f"'{name}'" for name in patterns)
            message = f"one row of learning rates for a step with {len(patterns)} groups of parameters"
            raise AmpError("AMP324", message, hint=f"a schedule, or a row for each by its pattern: {names}")
        return dict.fromkeys(patterns, given)
    for pattern in given:
        if pattern not in patterns:
            hint = nearest(str(pattern), list(patterns)) or f"there are: {', '.join(patterns)}"
            raise AmpError("AMP324", f"this step has no group of parameters '{pattern}'", hint=hint)
    return given


def rates_after(tables: Tables, past: int) -> Tables:
    """Tables of learning rates for a state that has seen ``past`` updates already: the step counts these too, so each
    table gets as many rows in front."""
    return {name: np.concatenate([np.repeat(table[:1], past), table]) for name, table in tables.items()}


def parse_schedules(words: Sequence[str]) -> str | dict[str, str] | None:
    """The learning-rate schedules of a command line: the last of several ``SCHEDULE``, or of ``PATTERN=SCHEDULE`` texts
    each schedule by its pattern; None for none. Raises AmpError AMP324 for both at once."""
    given = [split_pattern(word, tuple(KINDS)) for word in words]
    if not any(pattern for pattern, _ in given):
        return words[-1] if words else None
    found: dict[str, str] = {}
    for word, (pattern, form) in zip(words, given, strict=True):
        if not pattern or pattern in found:
            message = "is given twice" if pattern else "is not PATTERN=SCHEDULE"
            hint = "one schedule for all, or for each group its own: --lr-schedule 'head.*=cosine'"
            raise AmpError("AMP324", f"--lr-schedule {word} {message}", hint=hint)
        found[pattern] = form
    return found


def schedule_text(given: Given) -> str:
    """A learning-rate schedule, or those of groups, as one line that is equal for equal rates: a checkpoint keeps it.
    "none" for None. Raises AmpError AMP324."""
    if given is None:
        return "none"
    if isinstance(given, Mapping):
        return EACH.join(f"{pattern}={schedule_text(one)}" for pattern, one in sorted(given.items()))
    if isinstance(given, (str, Schedule)):
        return str(parse_schedule(given) if isinstance(given, str) else given)
    table = checked_table(given)
    return f"a table of {len(table)} ({hashlib.blake2b(table.tobytes(), digest_size=4).hexdigest()})"


def kind_by_length(given: Given) -> str:
    """The kind of learning-rate schedule (of one, or the first of those of groups) that depends on the length of the
    training, so that more epochs mean other rates from the start: linear or cosine; "" for none of them."""
    for one in given.values() if isinstance(given, Mapping) else (given,):
        schedule = parse_schedule(one) if isinstance(one, str) else one
        if isinstance(schedule, Schedule) and schedule.kind in ("linear", "cosine"):
            return schedule.kind
    return ""
