"""What is known of the values of a model before it runs: between which numbers they are, and which ones, where few.

One analysis: a constant is an interval without width, whose numbers are known. An interval comes from what is stored,
from what was measured, or from what makes a value; what an operator reads is looked at first, however far back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ...core.arrays import Array
from ...core.dataflow import FLOAT32, NONE, Dataflow, Op
from ...core.low_types import LowType
from ...core.ranges import Range
from ...oplists.traits import Trait, Traits

READ = 1 << 20  # elements of a stored tensor that are read
FEW = 16  # elements: sizes of a tensor, and numbers beside them
STEPS_OF_SLICE = 4  # the operand
INTEGERS = ("int", "uint", "bool")
"""How the names of types begin that hold whole numbers alone."""
EXACT = 2.0**53
"""Whole numbers below this are what they are in float64, in which they are counted here."""
HOLDS: Mapping[str, float] = MappingProxyType(
    {
        "float16": 2.0**11,
        "bfloat16": 2.0**8,
        "float64": EXACT,
        "int8": 2.0**7,
        "int16": 2.0**15,
        "int32": 2.0**31,
        "int64": EXACT,
    }
)
"""Of types, whole numbers of smaller magnitude are held as they are."""
ARITHMETIC: Mapping[Trait, np.ufunc] = MappingProxyType(
    {
        "additions": np.add,
        "subtracts": np.subtract,
        "multiplies": np.multiply,
        "divides": np.divide,
        "powers": np.power,
    }
)


class Interval(NamedTuple):
    """The least and the most, whether all elements are whole numbers, and the numbers in their order, as float32 has
    them, where they are few and follow from the file alone; NaN for a size that is open."""

    low: float
    high: float
    whole: bool = False
    row: Array | None = None

    @property
    def size(self) -> float:
        """The largest magnitude, infinite where it is not known."""
        return max(-self.low, self.high)


UNKNOWN = Interval(-math.inf, math.inf)
TRUTHS = Interval(0.0, 1.0, True)


class Extent(NamedTuple):
    """The largest finite magnitude, whether some finite element is below the low minimum and none above the maximum,
    the share of the elements that are beyond the range, and of those that are not zero the share flushed to zero."""

    largest: float
    below: bool
    beyond: float
    flushed: float

    @staticmethod
    def of(parts: Iterable[Array], low: LowType) -> Extent:
        """The facts of a stored tensor's numbers, which come piece by piece."""
        limit, tiny = low.largest, low.smallest_subnormal / 2
        largest, flushed, nonzero, beyond, total = 0.0, 0, 0, 0, 0
        below = above = False
        for part in parts:
            magnitude = np.abs(part)
            total += magnitude.size
            top = float(magnitude.max(initial=0))
            if not math.isfinite(top):
                magnitude = magnitude[np.isfinite(magnitude)]
                top = float(magnitude.max(initial=0))
            largest = max(largest, top)
            if top > limit:
                beyond += int(np.count_nonzero(magnitude > limit))
                finite = part[np.isfinite(part)]
                below |= bool((finite < -limit).any())
                above |= bool((finite > limit).any())
            small = magnitude[magnitude <= magnitude.dtype.type(tiny)]
            lost = int(np.count_nonzero(small))
            flushed += lost
            nonzero += magnitude.size - small.size + lost
        return Extent(largest, below and not above, beyond / max(total, 1), flushed / max(nonzero, 1))


@dataclass(frozen=True)
class Values:
    """Of one model.

    Attributes:
        before: what a value is passed from across a boundary.
        measured: what values were measured to reach, which counts times ``margin``.
        truths: whether whole numbers of which nothing more is known, as an input, are taken for truths: masks are kept
            in integers too. Only whole numbers are of interest then.
    """

    flow: Dataflow
    traits: Traits
    before: Mapping[int, Sequence[int]] = field(default_factory=dict)
    measured: Mapping[int, Range] = field(default_factory=dict)
    margin: float = 1.0
    truths: bool = False
    _known: dict[int, Interval] = field(default_factory=dict, repr=False)

    def of(self, value: int) -> Interval:
        """The interval of a value, `UNKNOWN` where nothing is known."""
        known, work = self._known, [(value, False)]
        while work:
            one, looked = work.pop()
            if looked:
                known[one] = self._found(one)
            elif one not in known:
                known[one] = UNKNOWN  # while what it is made of is looked at: a loop's state
                work += [(one, True), *((before, False) for before in self._read(one) if before != NONE)]
        return known[value]

    def row(self, value: int) -> Array | None:
        """The numbers of a tensor of few in their order, where they follow from the file alone."""
        return self.of(value).row if value != NONE else None

    def number(self, value: int) -> float | None:
        """The number in a tensor of one element, None where it is not known."""
        row = self.row(value)
        return float(row[0]) if row is not None and row.size == 1 and np.isfinite(row[0]) else None

    def _read(self, value: int) -> Sequence[int]:
        """The values whose intervals must be known first."""
        item, op = self.flow.values[value], self.flow.writer(value)
        if item.weight or item.dtype == "bool":
            return ()
        if value in self.before:
            return self.before[value]
        rule = None if op is None else self._rules.get(op.role)
        return () if op is None or rule is None else rule.reads(self.traits, op)

    @cached_property
    def _rules(self) -> Mapping[str, Derivation]:
        """Operator -> the first derivation that applies to it."""
        named = ((rule, trait) for rule in reversed(DERIVATIONS) for trait in rule.traits)
        return {role: rule for rule, trait in named for role in self.traits.operators(trait)}

    def _found(self, value: int) -> Interval:
        """The interval of one value, whose operands are known: stored numbers, what its operator makes, narrowed by
        what was measured."""
        item, op = self.flow.values[value], self.flow.writer(value)
        unknown = TRUTHS if self.truths and item.dtype.startswith(INTEGERS) else UNKNOWN
        if item.weight:
            array = self.flow.weights.array(item, limit=READ)
            return unknown if array is None else _of_array(array)
        if item.dtype == "bool":
            return unknown
        if value in self.before:
            made = _hull(self._known[source] for source in self.before[value])
        elif op is None or op.role not in self._rules:
            made = UNKNOWN
        else:
            row = _known_numbers(self, op)
            made = self._rules[op.role].makes(self, op) if row is None else _of_array(row)
        if value in self.measured:
            reach = self.measured[value].absmax * self.margin
            made = made._replace(low=max(made.low, -reach), high=min(made.high, reach))
        return made if made.whole or not self.truths else unknown._replace(row=made.row)


# -- intervals --------------------------------------------------------------------------------------------------------


class Derivation(NamedTuple):
    """For operators that have one of some traits: which operands count, and what follows from theirs."""

    traits: tuple[Trait, ...]
    reads: Callable[[Traits, Op], Sequence[int]]
    makes: Callable[[Values, Op], Interval]


def _joined(traits: Traits, op: Op) -> Sequence[int]:
    """For intervals of values: the operands that an operator joins or chooses among: by the trait `joins`, else all."""
    places = traits.positions(op.role, "joins") or range(len(op.inputs))
    return [op.inputs[place] for place in places if place < len(op.inputs)]


def _moved_interval(values: Values, op: Op) -> Interval:
    """The interval of one element of an operand, or of zero, which pads and cut-off parts give."""
    read = _joined(values.traits, op) if values.traits.has(op.role, "joins") else op.inputs[:1]
    return _hull([Interval(0.0, 0.0, True), *(values.of(v) for v in read if v != NONE)])


def _sum_interval(values: Values, op: Op) -> Interval:
    """The interval of a sum of operands, less those that are taken away."""
    taken, ends = values.traits.positions(op.role, "subtracts"), list[Interval]()
    for place, value in enumerate(op.inputs):
        one = values.of(value)
        ends.append(Interval(-one.high, -one.low, one.whole) if place in taken else one)
    return Interval(sum(one.low for one in ends), sum(one.high for one in ends), _whole(ends))


def _multiplied(values: Values, op: Op) -> Interval:
    """The product of all operands' intervals."""
    return reduce(_product, (values.of(v) for v in op.inputs if v != NONE))


DERIVATIONS = (
    Derivation(("shapes",), lambda traits, op: (), lambda values, op: UNKNOWN),
    Derivation(("within_two",), lambda traits, op: (), lambda values, op: Interval(-2.0, 2.0)),
    Derivation(("signs",), lambda traits, op: (), lambda values, op: Interval(-1.0, 1.0, True)),
    Derivation(("fills",), lambda traits, op: (), lambda values, op: _of_array(fill(values.flow, op))),
    Derivation(("cancels",), lambda traits, op: op.inputs, _sum_interval),
    Derivation(("multiplies",), lambda traits, op: op.inputs, _multiplied),
    Derivation(("joins",), _joined, _moved_interval),
    Derivation(("lookups", "slices"), lambda traits, op: op.inputs, _moved_interval),
    Derivation(("moves", "conversions", "keeps_order"), lambda traits, op: op.inputs[:1], _moved_interval),
    Derivation((*ARITHMETIC, "roots"), lambda traits, op: op.inputs, lambda values, op: UNKNOWN),
)
"""The first that applies counts. What is not said here may be known by its numbers alone."""


def _whole(intervals: Iterable[Interval]) -> bool:
    """Whether all intervals of some values hold whole numbers alone."""
    return all(one.whole for one in intervals)


def _hull(intervals: Iterable[Interval]) -> Interval:
    """The interval of a value that is one of several."""
    found = list(intervals)
    return Interval(min(one.low for one in found), max(one.high for one in found), _whole(found))


def _product(one: Interval, other: Interval) -> Interval:
    """The interval of the products of two values."""
    if math.inf in (one.size, other.size):
        return UNKNOWN
    ends = [first * second for first in one[:2] for second in other[:2]]
    return Interval(min(ends), max(ends), one.whole and other.whole)


def _of_array(array: Array) -> Interval:
    """The interval of some stored numbers of the model."""
    row = array.reshape(-1) if array.size <= FEW and array.dtype.kind in "fiu" else None
    if array.dtype.kind not in "fiub" or not np.isfinite(array).all():
        return UNKNOWN._replace(row=row)
    numbers = array.astype(np.float64)
    if not numbers.size:
        return Interval(0.0, 0.0, row=row)
    whole = bool((np.rint(numbers) == numbers).all())
    return Interval(float(numbers.min()), float(numbers.max()), whole, row)


def constants(flow: Dataflow, traits: Traits) -> frozenset[int]:
    """Facts: values made of nothing but what the file holds; `NONE`, an operand that is left out, counts as one."""
    if constants not in flow.memo:
        found = {NONE, *(value.id for value in flow.values if value.weight)}
        apart = traits.operators("random", "control_flow")
        for op in flow.ops:
            if op.role not in apart and found.issuperset(op.inputs):
                found.update(op.outputs)
        flow.memo[constants] = frozenset(found)
    known: frozenset[int] = flow.memo[constants]
    return known


# -- numbers ----------------------------------------------------------------------------------------------------------


def fill(flow: Dataflow, op: Op) -> Array:
    """For facts: the number that an operator fills with."""
    given = flow.attribute(op, "value")
    return given.reshape(-1)[:1] if isinstance(given, np.ndarray) else np.zeros(1)


def _known_numbers(values: Values, op: Op) -> Array | None:
    """The numbers that an operator makes, where it reads few and known ones; else None."""
    flow, traits = values.flow, values.traits
    if not op.inputs:
        return None
    if traits.has(op.role, "shapes"):
        return _sizes(flow, op)
    if traits.has(op.role, "fills"):
        return fill(flow, op) if flow.shape(op.outputs[0]) in ((), (1,)) else None
    first = values.row(op.inputs[0])
    dtype = flow.values[op.outputs[0]].dtype
    if first is None:
        return None
    if op.role in traits.operators("conversions", "keeps_order"):
        return _converted_numbers(first, dtype)
    rows = [values.row(v) for v in op.inputs if v != NONE]
    known = [row for row in rows if row is not None]
    if len(known) < len(rows):
        return None
    kind = next((trait for trait in ARITHMETIC if traits.has(op.role, trait)), None)
    if dtype == FLOAT32:
        return _float_arithmetic(kind, known, traits.has(op.role, "roots"))
    if kind is not None:
        return _integer_arithmetic(kind, known) if dtype == "int64" else None
    shape = flow.shape(op.inputs[0])
    return _picked_numbers(traits, op, first, known[1:]) if shape is not None and len(shape) == 1 else None


def _sizes(flow: Dataflow, op: Op) -> Array | None:
    """For facts: the sizes that a Shape gives, if certain; NaN for an open one, None where their number is open."""
    shape = flow.certain_shape(flow.values[op.inputs[0]])
    start, end = (flow.number(op, name) for name in ("start", "end"))
    part = None if shape is None else shape[int(start or 0) : None if end is None else int(end)]
    if part is None or flow.shape(op.outputs[0]) != (len(part),):
        return None
    return np.array([size if isinstance(size, int) else np.nan for size in part])


def _converted_numbers(row: Array, dtype: str) -> Array | None:
    """For facts: numbers cast to a type: whole ones that it holds, or any to float32; None if they would change."""
    if dtype == FLOAT32:
        return row.astype(np.float32)
    known, limit = row[~np.isnan(row)], HOLDS.get(dtype, 0.0)
    return row if bool(((np.rint(known) == known) & (np.abs(known) < limit)).all()) else None


def _picked_numbers(traits: Traits, op: Op, row: Array, where: list[Array]) -> Array | None:
    """For facts: elements of a row of sizes, by indices or as a slice."""
    if traits.has(op.role, "lookups") and len(where) == 1:
        inside = (where[0] >= -row.size) & (where[0] < row.size)
        return row[where[0].astype(np.int64)] if inside.all() else None
    if not traits.has(op.role, "slices") or len(where) < 2 or any(part.size != 1 for part in where):
        return None
    steps = where[-1][0] if len(op.inputs) > STEPS_OF_SLICE and op.inputs[STEPS_OF_SLICE] != NONE else 1
    if steps != 1 or not all(np.isfinite(part[0]) for part in where):
        return None
    return row[int(where[0][0]) : int(where[1][0])]


def _float_arithmetic(kind: Trait | None, rows: list[Array], root: bool) -> Array | None:
    """For facts: arithmetic on single numbers, in float32."""
    if any(row.size != 1 for row in rows):
        return None
    numbers = [row.astype(np.float32) for row in rows]
    with np.errstate(all="ignore"):
        if len(numbers) == 1 and root:
            return np.asarray(np.sqrt(numbers[0]))
        if len(numbers) == 1 and kind == "divides":
            return np.asarray(np.float32(1) / numbers[0])
        return np.asarray(ARITHMETIC[kind](*numbers)) if kind is not None and len(numbers) == 2 else None


def _integer_arithmetic(kind: Trait, rows: list[Array]) -> Array | None:
    """For facts: integer arithmetic on two whole numbers; a quotient is rounded towards zero."""
    if len(rows) != 2 or any(row.size != 1 for row in rows) or kind == "powers":
        return None
    one, other = (row.astype(np.float64) for row in rows)
    if kind != "divides":
        made = np.asarray(ARITHMETIC[kind](one, other))
    elif one >= 0 and other > 0:
        made = np.floor(one / other)
    else:
        return None
    return made if all(abs(float(row[0])) < EXACT for row in (one, other, made)) else None
