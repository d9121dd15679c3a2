"""Learning rates as tables: one float32 number an update, made before training and fed to the graph.

The formulas are PyTorch's: constant (LambdaLR of 1), linear (LinearLR), cosine (CosineAnnealingLR), step (StepLR).
A warmup comes first, as LambdaLR of ``(t + 1) / warmup``, and the schedule proper takes the updates that are left.
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
        """The learning rate of each of ``steps`` updates.

        Raises AmpError AMP324 where the warmup takes them all, and for a rate beyond the float32 numbers.
        """
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
        """What the full rate is multiplied by at update ``t`` of ``steps``, counted behind the warmup; inf where it
        overflows."""
        if self.kind == "linear":
            return 1 + (self.end - 1) * t / steps
        if self.kind == "cosine":
            return self.end + (1 - self.end) * (1 + math.cos(math.pi * t / steps)) / 2
        try:
            return self.gamma ** (t // self.every) if self.kind == "step" else 1.0
        except OverflowError:
            return math.inf

    def __str__(self) -> str:
        """The form that `parse_schedule` reads."""
        words = [f"{name}={getattr(self, name)}" for name in ("warmup", *KINDS[self.kind])]
        return f"{self.kind}:{','.join(words)}"


OneSchedule = str | Schedule | Sequence[float] | Array
Given = OneSchedule | Mapping[str, OneSchedule] | None
Tables = Mapping[str, Array]
EACH = "; "


def parse_schedule(text: str) -> Schedule:
    """``cosine:warmup=100`` and the like. Raises AmpError AMP324."""
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
    """The table of a schedule in any form; numbers are the table itself. Raises AmpError AMP324."""
    if isinstance(schedule, str):
        schedule = parse_schedule(schedule)
    return schedule.table(rate, steps) if isinstance(schedule, Schedule) else table_of(schedule)


def table_of(numbers: OneSchedule) -> Array:
    """Learning rates that a caller gives himself. Raises AmpError AMP324."""
    try:
        with np.errstate(over="ignore"):
            table = np.array(numbers, np.float32)
    except (TypeError, ValueError, OverflowError):
        table = np.zeros(0, np.float32)
    if table.ndim != 1 or not table.size or not np.isfinite(table).all() or (table < 0).any():
        message = "a table of learning rates is one row of numbers from 0 that float32 holds"
        raise AmpError("AMP324", message, hint=f"or a schedule: {_FORMS}")
    return table


# -- of the groups of a step -------------------------------------------------------------------------------------------


def scheduled(layout: StepLayout, rate: float, given: Given, steps: int) -> Tables | None:
    """The learning rates of ``steps`` updates by the pattern of the group, ``*`` where there are no groups.

    ``rate``: that of a step without groups. A mapping schedules the groups that it names; the others keep their rate.
    Raises AmpError AMP324 for a group that is not there, and for one row of numbers for several groups.
    """
    if given is None:
        return None
    groups = dict(layout.groups) or {"*": rate}
    found = _by_group(given, groups)
    return {pattern: rates(found.get(pattern, Schedule()), own, steps) for pattern, own in groups.items()}


def rate_state(layout: StepLayout, table: OneSchedule | Mapping[str, OneSchedule]) -> dict[str, Array]:
    """The state of a step that holds tables of learning rates: of all groups, or the one row where there are none.

    Raises AmpError AMP324.
    """
    if not layout.rate_tables:
        raise AmpError("AMP324", "this step has no learning rate to schedule", hint="build it again")
    patterns = [pattern for pattern, _ in layout.groups] or ["*"]
    given = _by_group(table, patterns)
    found: dict[str, Array] = {}
    for pattern, (name, last) in zip(patterns, layout.rate_tables, strict=True):
        if pattern in given:
            row = table_of(given[pattern])
            found |= {name: row, last: np.array(len(row) - 1, np.int64)}
    return found


def _by_group(given: OneSchedule | Mapping[str, OneSchedule], patterns: Collection[str]) -> Mapping[str, OneSchedule]:
    """The schedule of each group by its pattern; a mapping may leave groups out."""
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
    """The tables of learning rates behind the ``past`` updates that a state has seen."""
    return {name: np.concatenate([np.repeat(table[:1], past), table]) for name, table in tables.items()}


def parse_schedules(words: Sequence[str]) -> str | dict[str, str] | None:
    """``SCHEDULE``, the last of several, or ``PATTERN=SCHEDULE`` repeated. Raises AmpError AMP324 for both at once."""
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


def described(given: Given) -> str:
    """A schedule, or those of all groups, in one line, the same for the same rates; ``none`` for none.

    Raises AmpError AMP324.
    """
    if given is None:
        return "none"
    if isinstance(given, Mapping):
        return EACH.join(f"{pattern}={described(one)}" for pattern, one in sorted(given.items()))
    if isinstance(given, (str, Schedule)):
        return str(parse_schedule(given) if isinstance(given, str) else given)
    table = table_of(given)
    return f"a table of {len(table)} ({hashlib.blake2b(table.tobytes(), digest_size=4).hexdigest()})"


def stretches(given: Given) -> str:
    """The kind of schedule, of one or of those of groups, by which a longer training has other rates from the start on;
    empty for none."""
    for one in given.values() if isinstance(given, Mapping) else (given,):
        schedule = parse_schedule(one) if isinstance(one, str) else one
        if isinstance(schedule, Schedule) and schedule.kind in ("linear", "cosine"):
            return schedule.kind
    return ""
