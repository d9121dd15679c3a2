"""Between which numbers the elements of a value are: by what was measured, is stored, or follows from what makes it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple

import numpy as np

from ...core.arrays import Array
from ...core.dataflow import NONE, Dataflow, Op
from ...oplists.traits import Traits

WHOLE = ("int", "uint", "bool")
"""How the names of types begin that hold whole numbers alone."""


class Interval(NamedTuple):
    """The least and the most, and whether all between are whole numbers."""

    low: float
    high: float
    whole: bool = False

    @property
    def size(self) -> float:
        """The largest magnitude, infinite where it is not known."""
        return max(-self.low, self.high)


UNKNOWN = Interval(-math.inf, math.inf)
TRUTHS = Interval(0.0, 1.0, True)


@dataclass(frozen=True)
class Intervals:
    """Of a model's values.

    Attributes:
        before: what a value is passed from across a border, where that is followed.
        measured: what values were measured to reach, which goes before what can be derived.
        truths: whether whole numbers of which nothing more is known, as an input, are taken for truths: masks are kept
            in integers too. Only whole numbers are of interest then.
        depth: operators looked back.
        read: elements of a stored tensor that are read.
    """

    flow: Dataflow
    traits: Traits
    before: Mapping[int, Sequence[int]] = field(default_factory=dict)
    measured: Mapping[int, float] = field(default_factory=dict)
    truths: bool = False
    depth: int = 16
    read: int = 1 << 20
    _known: dict[int, Interval] = field(default_factory=dict)

    def of(self, value: int, depth: int = 0) -> Interval:
        """That of a value, `UNKNOWN` where nothing is known."""
        if value not in self._known:
            self._known[value] = UNKNOWN  # while it is looked at: a loop's state
            self._known[value] = self._found(value, depth)
        return self._known[value]

    def _found(self, value: int, depth: int) -> Interval:
        if value in self.measured:
            return _within(self.measured[value])
        flow, item = self.flow, self.flow.values[value]
        unknown = TRUTHS if self.truths and item.dtype.startswith(WHOLE) else UNKNOWN
        if item.weight:
            array = flow.weights.array(item, limit=self.read)
            return unknown if array is None else _of_array(array)
        if depth > self.depth or item.dtype == "bool":
            return unknown
        if value in self.before:
            return _hull(self.of(source, depth + 1) for source in self.before[value])
        op = flow.writer(value)
        made = UNKNOWN if op is None else self._made(op, depth + 1)
        return made if made.whole or not self.truths else unknown

    def _made(self, op: Op, depth: int) -> Interval:
        """What an operator makes of its operands."""
        traits, inputs = self.traits, [v for v in op.inputs if v != NONE]
        if traits.has(op.role, "within_two"):
            return _within(2.0)
        if traits.has(op.role, "norms"):
            return self._normed(op)
        if traits.has(op.role, "fills"):
            fill = self.flow.attribute(op, "value")
            return _of_array(fill if isinstance(fill, np.ndarray) else np.zeros(1))
        if traits.has(op.role, "cancels"):
            return self._added(op, depth)
        if traits.has(op.role, "multiplies"):
            return reduce(_product, [self.of(v, depth) for v in inputs])
        joins = traits.has(op.role, "joins")
        if joins or any(traits.has(op.role, trait) for trait in ("moves", "conversions")):
            places = (traits.positions(op.role, "joins") or range(len(op.inputs))) if joins else (0,)
            read = [self.of(op.inputs[k], depth) for k in places if k < len(op.inputs) and op.inputs[k] != NONE]
            return _hull([Interval(0.0, 0.0, True), *read])  # what is padded and cut off is zero
        if traits.has(op.role, "bounds"):
            return self._clipped(op, self.of(op.inputs[0], depth))
        return _within(self.of(inputs[0], depth).size) if traits.has(op.role, "selects") and inputs else UNKNOWN

    def _added(self, op: Op, depth: int) -> Interval:
        """The sum of the operands, less those that are taken away."""
        taken, ends = self.traits.positions(op.role, "subtracts"), list[Interval]()
        for place, value in enumerate(op.inputs):
            one = self.of(value, depth)
            ends.append(Interval(-one.high, -one.low, one.whole) if place in taken else one)
        return Interval(sum(one.low for one in ends), sum(one.high for one in ends), _whole(ends))

    def _normed(self, op: Op) -> Interval:
        """A norm over n elements makes none larger than the root of n, before its scale and bias."""
        scale, bias = (self.of(v).size if v != NONE else 0.0 for v in (*op.inputs[1:3], NONE, NONE)[:2])
        if len(op.inputs) < 2 or op.inputs[1] == NONE or not self.flow.values[op.inputs[1]].weight:
            return UNKNOWN  # n is not known
        return _within(math.sqrt(self.flow.weights.size(self.flow.values[op.inputs[1]])) * scale + bias)

    def _clipped(self, op: Op, own: Interval) -> Interval:
        ends = [self.flow.number(op, "min"), self.flow.number(op, "max")]
        ends += [self.flow.scalar(v) for v in op.inputs[1:3] if v != NONE]
        numbers = [float(end) for end in ends if end is not None]
        if len(numbers) != 2:
            return Interval(own.low, own.high)
        least, most = numbers
        return Interval(min(max(own.low, least), most), max(min(own.high, most), least))


def _within(size: float) -> Interval:
    return Interval(-size, size)


def _whole(intervals: Iterable[Interval]) -> bool:
    return all(one.whole for one in intervals)


def _hull(intervals: Iterable[Interval]) -> Interval:
    """Of what is one of several."""
    found = list(intervals)
    return Interval(min(one.low for one in found), max(one.high for one in found), _whole(found))


def _product(one: Interval, other: Interval) -> Interval:
    if math.inf in (one.size, other.size):
        return UNKNOWN
    ends = [first * second for first in one[:2] for second in other[:2]]
    return Interval(min(ends), max(ends), one.whole and other.whole)


def _of_array(array: Array) -> Interval:
    """Of stored numbers."""
    if array.dtype.kind not in "fiub" or not np.isfinite(array).all():
        return UNKNOWN
    numbers = array.astype(np.float64)
    if not numbers.size:
        return Interval(0.0, 0.0)
    return Interval(float(numbers.min()), float(numbers.max()), bool((np.rint(numbers) == numbers).all()))
