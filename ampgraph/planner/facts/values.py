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
"""Type -> the magnitude below which it holds every whole number as it is."""
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
    """Between which numbers the elements of a value are. ``whole``: all are known to be whole numbers; ``row``: the
    numbers in their order (NaN: an open size) where they are few and follow from the file alone, else None."""

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
    """Of a stored tensor: the largest finite magnitude; whether some numbers are below the low type's least and none
    above its largest; the share that is ``beyond``, infinities too; and the share of non-zeros ``flushed`` to zero."""

    largest: float
    below: bool
    beyond: float
    flushed: float

    @staticmethod
    def of(parts: Iterable[Array], low: LowType) -> Extent:
        """The extent of a stored tensor, whose numbers come piece by piece, in the low type."""
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
    """The intervals of one model's values, derived when they are asked for. ``before``: value -> what it is passed from
    across a boundary; ``measured``: what values were measured to reach, times ``margin``; ``truths``: whether integers
    of which nothing is known count as 0 or 1 (masks are kept in them), and others than integers are not looked at."""

    flow: Dataflow
    traits: Traits
    before: Mapping[int, Sequence[int]] = field(default_factory=dict)
    measured: Mapping[int, Range] = field(default_factory=dict)
    margin: float = 1.0
    truths: bool = False
    _known: dict[int, Interval] = field(default_factory=dict, repr=False)

    def interval(self, value: int) -> Interval:
        """The interval of a value, `UNKNOWN` where nothing is known. What it is made of is derived first, without
        recursion; a value that a loop makes of itself counts as `UNKNOWN` meanwhile."""
        known, work = self._known, [(value, False)]
        while work:
            current, operands_known = work.pop()
            if operands_known:
                known[current] = self._derive_interval(current)
            elif current not in known:
                known[current] = UNKNOWN
                work.append((current, True))
                work += [(before, False) for before in self._operands_needed(current) if before != NONE]
        return known[value]

    def row(self, value: int) -> Array | None:
        """The numbers of a tensor of few elements in their order, where they follow from the file alone; else None."""
        return self.interval(value).row if value != NONE else None

    def number(self, value: int) -> float | None:
        """The number in a tensor of one element; None where it is not known, or not finite."""
        row = self.row(value)
        return float(row[0]) if row is not None and row.size == 1 and np.isfinite(row[0]) else None

    def _operands_needed(self, value: int) -> Sequence[int]:
        """The values whose intervals must be known before that of a value can be derived."""
        item, op = self.flow.values[value], self.flow.writer(value)
        if item.weight or item.dtype == "bool":
            return ()
        if value in self.before:
            return self.before[value]
        if op is None or op.role not in self._rules:
            return ()
        return self._rules[op.role].reads(self.traits, op)

    @cached_property
    def _rules(self) -> Mapping[str, Derivation]:
        """Operator -> the first of `DERIVATIONS` that applies to it."""
        found: dict[str, Derivation] = {}
        for rule in DERIVATIONS:
            for role in self.traits.operators(*rule.traits):
                found.setdefault(role, rule)
        return found

    def _derive_interval(self, value: int) -> Interval:
        """The interval of a value whose operands' intervals are known, narrowed by what was measured of it."""
        item, op = self.flow.values[value], self.flow.writer(value)
        unknown = TRUTHS if self.truths and item.dtype.startswith(INTEGERS) else UNKNOWN
        if item.weight:
            array = self.flow.weights.array(item, limit=READ)
            return unknown if array is None else _interval_of_array(array)
        if item.dtype == "bool":
            return unknown
        if value in self.before:
            made = _hull(self._known[source] for source in self.before[value])
        elif op is None or op.role not in self._rules:
            made = UNKNOWN
        else:
            row = _known_numbers(self, op)
            made = self._rules[op.role].makes(self, op) if row is None else _interval_of_array(row)
        if value in self.measured:
            reach = self.measured[value].absmax * self.margin
            made = made._replace(low=max(made.low, -reach), high=min(made.high, reach))
        return made if made.whole or not self.truths else unknown._replace(row=made.row)


# -- intervals --------------------------------------------------------------------------------------------------------


class Derivation(NamedTuple):
    """How the result's interval follows from operands', for operators with one of some ``traits``. ``reads``: the
    operands whose intervals it needs; ``makes``: the interval, once these are known."""

    traits: tuple[Trait, ...]
    reads: Callable[[Traits, Op], Sequence[int]]
    makes: Callable[[Values, Op], Interval]


def _joined_operands(traits: Traits, op: Op) -> Sequence[int]:
    """For intervals: the operands that an operator joins or chooses among (trait `joins`; without it all)."""
    places = traits.positions(op.role, "joins") or range(len(op.inputs))
    return [op.inputs[place] for place in places if place < len(op.inputs)]


def _moved_interval(values: Values, op: Op) -> Interval:
    """The interval of elements that are moved from operands (of a joining operator all, else the first), or zero."""
    read = _joined_operands(values.traits, op) if values.traits.has(op.role, "joins") else op.inputs[:1]
    return _hull([Interval(0.0, 0.0, True), *(values.interval(v) for v in read if v != NONE)])


def _sum_interval(values: Values, op: Op) -> Interval:
    """The interval of a sum of operands, less those at the places of the trait `subtracts`."""
    subtracted, terms = values.traits.positions(op.role, "subtracts"), list[Interval]()
    for place, value in enumerate(op.inputs):
        term = values.interval(value)
        terms.append(Interval(-term.high, -term.low, term.whole) if place in subtracted else term)
    return Interval(sum(term.low for term in terms), sum(term.high for term in terms), _all_whole(terms))


def _product_interval(values: Values, op: Op) -> Interval:
    """The interval of a product of all operands of an operator."""
    return reduce(_product_of_two, (values.interval(v) for v in op.inputs if v != NONE))


DERIVATIONS = (
    Derivation(("shapes",), lambda traits, op: (), lambda values, op: UNKNOWN),
    Derivation(("within_two",), lambda traits, op: (), lambda values, op: Interval(-2.0, 2.0)),
    Derivation(("signs",), lambda traits, op: (), lambda values, op: Interval(-1.0, 1.0, True)),
    Derivation(("fills",), lambda traits, op: (), lambda values, op: _interval_of_array(fill_number(values.flow, op))),
    Derivation(("cancels",), lambda traits, op: op.inputs, _sum_interval),
    Derivation(("multiplies",), lambda traits, op: op.inputs, _product_interval),
    Derivation(("joins",), _joined_operands, _moved_interval),
    Derivation(("lookups", "slices"), lambda traits, op: op.inputs, _moved_interval),
    Derivation(("moves", "conversions", "keeps_order"), lambda traits, op: op.inputs[:1], _moved_interval),
    Derivation((*ARITHMETIC, "roots"), lambda traits, op: op.inputs, lambda values, op: UNKNOWN),
)
"""The first that applies counts. `UNKNOWN`: the result may be known by its numbers alone (`_known_numbers`)."""


def _all_whole(intervals: Iterable[Interval]) -> bool:
    """Whether all intervals of some values hold whole numbers alone."""
    return all(one.whole for one in intervals)


def _hull(intervals: Iterable[Interval]) -> Interval:
    """The interval of a value that may be any of several, of which there is one at least: it contains all theirs."""
    found = list(intervals)
    return Interval(min(one.low for one in found), max(one.high for one in found), _all_whole(found))


def _product_of_two(one: Interval, other: Interval) -> Interval:
    """The interval of the product of two values; `UNKNOWN` where one is not bounded."""
    if math.inf in (one.size, other.size):
        return UNKNOWN
    ends = [first * second for first in one[:2] for second in other[:2]]
    return Interval(min(ends), max(ends), one.whole and other.whole)


def _interval_of_array(array: Array) -> Interval:
    """The interval of numbers that the model stores or that follow from it, with the row of them where they are few;
    `UNKNOWN` bounds where one is not finite, or is no number."""
    row = array.reshape(-1) if array.size <= FEW and array.dtype.kind in "fiu" else None
    if array.dtype.kind not in "fiub" or not np.isfinite(array).all():
        return UNKNOWN._replace(row=row)
    numbers = array.astype(np.float64)
    if not numbers.size:
        return Interval(0.0, 0.0, row=row)
    whole = bool((np.rint(numbers) == numbers).all())
    return Interval(float(numbers.min()), float(numbers.max()), whole, row)


def constants(flow: Dataflow, traits: Traits) -> frozenset[int]:
    """Facts: the ids of values made of nothing but what the file holds; `NONE`, an operand that is left out, counts as
    one. What random operators and nodes with bodies make does not. Computed once for a dataflow."""
    if constants not in flow.memo:
        found = {NONE, *(value.id for value in flow.values if value.weight)}
        never_constant = traits.operators("random", "control_flow")
        for op in flow.ops:
            if op.role not in never_constant and found.issuperset(op.inputs):
                found.update(op.outputs)
        flow.memo[constants] = frozenset(found)
    known: frozenset[int] = flow.memo[constants]
    return known


# -- numbers ----------------------------------------------------------------------------------------------------------


def fill_number(flow: Dataflow, op: Op) -> Array:
    """For facts: the number that a ConstantOfShape fills with, as an array of one element; zero if it says none."""
    given = flow.attribute(op, "value")
    return given.reshape(-1)[:1] if isinstance(given, np.ndarray) else np.zeros(1)


def _known_numbers(values: Values, op: Op) -> Array | None:
    """The numbers that an operator makes (in one dimension), where it reads few and known ones; else None."""
    flow, traits = values.flow, values.traits
    if not op.inputs:
        return None
    if traits.has(op.role, "shapes"):
        return _sizes(flow, op)
    if traits.has(op.role, "fills"):
        return fill_number(flow, op) if flow.shape(op.outputs[0]) in ((), (1,)) else None
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
    if shape is None:
        return None
    start, end = flow.number(op, "start"), flow.number(op, "end")
    part = shape[int(start or 0) : None if end is None else int(end)]
    if flow.shape(op.outputs[0]) != (len(part),):
        return None
    return np.array([size if isinstance(size, int) else np.nan for size in part])


def _converted_numbers(row: Array, dtype: str) -> Array | None:
    """For facts: the numbers of a ``row`` after a cast; to another type than float32 None unless it holds them."""
    if dtype == FLOAT32:
        return row.astype(np.float32)
    known, limit = row[~np.isnan(row)], HOLDS.get(dtype, 0.0)
    return row if bool(((np.rint(known) == known) & (np.abs(known) < limit)).all()) else None


def _picked_numbers(traits: Traits, op: Op, row: Array, others: list[Array]) -> Array | None:
    """For facts: the elements of a ``row`` of sizes that a Gather picks, or a Slice by steps of one; None where that is
    not known. ``others``: the other operands: the indices; or start, end and what else a Slice has."""
    if traits.has(op.role, "lookups") and len(others) == 1:
        inside = (others[0] >= -row.size) & (others[0] < row.size)
        return row[others[0].astype(np.int64)] if inside.all() else None
    if not traits.has(op.role, "slices") or len(others) < 2 or any(part.size != 1 for part in others):
        return None
    has_steps = len(op.inputs) > STEPS_OF_SLICE and op.inputs[STEPS_OF_SLICE] != NONE
    if (has_steps and others[-1][0] != 1) or not all(np.isfinite(part[0]) for part in others):
        return None
    return row[int(others[0][0]) : int(others[1][0])]


def _float_arithmetic(kind: Trait | None, rows: list[Array], root: bool) -> Array | None:
    """For facts: float32 arithmetic on numbers: ``root`` or inverse of one, `ARITHMETIC` on two; else None."""
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
    """For facts: integer arithmetic on two whole numbers, counted in float64; a quotient is rounded down, and only of
    numbers that are not negative. None for a power, and where float64 would not be exact."""
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
