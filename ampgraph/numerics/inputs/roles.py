"""What a model does with each of its inputs, read from the graph: indices and their bounds, masks, sizes, lengths.

An input is followed through what moves or shifts it to the operators that say what it is for. Names decide only where
the graph does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ...core.arrays import Array
from ...core.dataflow import NONE, Dataflow, Op
from ...core.walk import Crossings, upstream
from ...oplists.traits import has, traits

VERY_NEGATIVE = -1e3
LARGE = 1 << 20  # elements: a constant above it is no set of numbers to compare with

Size = Callable[["int | str | None"], int]


@dataclass
class Reading:
    """What a graph says of one input: ``first`` to ``last`` are the values that every reader admits."""

    first: int = -(1 << 62)
    last: int = 1 << 62  # as large where no reader bounds it
    table: str = ""  # what sets ``last``: the tensor that it indexes, or what it is compared with
    equals: int | None = None  # a number that it is compared with: a padding token, maybe
    size: str = ""  # the operator that takes it for a size
    length: int = 0  # the longest sequence that it may be the length of
    masks: bool = False
    one_masks: bool = False  # a one hides its place instead of keeping it
    added: bool = False  # a float mask that is added to scores
    limit: str = ""  # of what is kept: from "above", from "below"
    positive: bool = False  # the argument of a logarithm or a root

    @property
    def bounded(self) -> bool:
        """Whether a reader of a generated input limits its values, as a table of so many rows does."""
        return self.last < 1 << 62

    def narrow(self, first: float, last: float, table: str) -> None:
        """Narrows the range of a generated input to what ``table`` admits, in whole numbers; ``last`` is 0 at least."""
        if math.ceil(first) > self.first:
            self.first = math.ceil(first)
        if math.floor(last) < self.last:
            self.last, self.table = max(math.floor(last), 0), table


@dataclass(frozen=True)
class _Followed:
    """A value computed from the input that is followed: ``scale * input`` plus a constant of ``low`` to ``high``;
    ``flipped``: whether a one of the input is a zero here, and the larger the smaller."""

    value: int
    scale: float = 1.0
    low: float = 0.0
    high: float = 0.0
    flipped: bool = False


class InputReader:
    """Follows inputs through a dataflow. ``size`` gives the size of a dimension, whose name it may be."""

    def __init__(self, flow: Dataflow, size: Size) -> None:
        self.flow, self.size, self.crossings = flow, size, Crossings(flow)

    def read(self, source: int) -> Reading:
        """What the readers of a graph input, the value ``source``, say of it."""
        seen: set[int] = set()
        found, work = Reading(), [_Followed(source)]
        while work:
            state = work.pop()
            for value in self.crossings.copies(state.value) - seen:
                seen.add(value)
                here = replace(state, value=value)
                for use in self.flow.uses[value]:
                    if use.op != NONE:
                        work += self._follow(self.flow.ops[use.op], use.index, here, source, found)
        return found

    def _follow(self, op: Op, index: int, at: _Followed, source: int, found: Reading) -> list[_Followed]:
        """Notes in ``found`` what an operator says of the input ``source``, of which it reads ``at`` as operand
        ``index``; returns the values through which to follow the input further."""
        role, known = op.role, traits()
        if known.at(role, "sizes", index):
            found.size = found.size or op.kind
            return []
        if known.at(role, "indices", index):
            self._bound_by_table(op, at, found)
            return []
        if known.at(role, "sequence_lengths", index):
            found.length = self._axis_size(op.inputs[0], 0) or 16
            return []
        if known.at(role, "attention_mask", index):
            found.masks, found.one_masks = True, at.flipped
            found.added = self.flow.values[source].dtype.startswith(("float", "bfloat"))
            return []
        if has(role, "needs_positive"):
            found.positive = True
            return []
        if has(role, "orders") and self.flow.shape(source) == ():
            is_larger = known.at(role, "orders", index) != at.flipped  # if the comparison is true
            found.limit = "above" if is_larger else "below"
            return []
        if role == "Where" and index == 0:
            return self._follow_where(op, at, found)
        if role == "Equal" or has(role, "affine"):
            return self._follow_arithmetic(op, index, at, source, found)
        if role == "Not":
            return [replace(at, value=v, flipped=not at.flipped) for v in op.outputs]
        if known.at(role, "passes_on", index) or has(role, "pools") or (role == "Where" and index):
            return [replace(at, value=v) for v in op.outputs]
        return []

    # -- indices ------------------------------------------------------------------------------------------------------

    def _bound_by_table(self, op: Op, at: _Followed, found: Reading) -> None:
        """Notes that a generated input must index a table: ``0 <= scale * input + c < size`` for all constants c of
        ``at``; 0 alone where the size is not known."""
        flow = self.flow
        if op.role == "OneHot":
            depth = flow.scalar(op.inputs[1])
            size, name = int(depth) if depth else 0, f"the depth of {op.kind}"
        else:
            size, name = self._table_size(op), f"'{flow.values[op.inputs[0]].name}'"
        if at.scale and size > 0:
            first, last = sorted(((0 - at.low) / at.scale, (size - 1 - at.high) / at.scale))
            found.narrow(first, last, name)
        elif size <= 0:
            found.narrow(0, 0, f"{name} of unknown size")

    def _table_size(self, op: Op) -> int:
        """Generated inputs: how many rows an indexing operator's table has, least of a tuple's axes; 0 for unknown."""
        if has(op.role, "index_tuples"):
            deep = self.flow.shape(op.inputs[1])
            count = deep[-1] if deep and isinstance(deep[-1], int) else 1
            batch = int(self.flow.number(op, "batch_dims") or 0)
            return min((self._axis_size(op.inputs[0], batch + k) for k in range(count)), default=0)
        axis = self.flow.number(op, "axis")
        if axis is None and len(op.inputs) > 2:  # MindIR gives it as an input
            axis = self.flow.scalar(op.inputs[2])
        return self._axis_size(op.inputs[0], int(axis or 0))

    def _axis_size(self, value: int, axis: int) -> int:
        """Generated inputs: the size of one axis of a value; 0 where it is not known."""
        shape = self.flow.shape(value)
        if not shape or not -len(shape) <= axis < len(shape):
            return 0
        return 0 if shape[axis] is None else self.size(shape[axis])

    # -- arithmetic and masks -----------------------------------------------------------------------------------------

    def _follow_arithmetic(self, op: Op, index: int, at: _Followed, source: int, found: Reading) -> list[_Followed]:
        """As `_follow`, for arithmetic with constants: Add, Sub, Mul, Div and Equal. A mask shows by large negative
        constants, and by scores that it is added to; other arithmetic with two computed operands ends the way."""
        other = self._constant_numbers(op.inputs[1 - index]) if len(op.inputs) > 1 and index < 2 else None
        role = op.role
        if other is None:
            if role == "Add" and self._is_added_mask(op, op.inputs[1 - index], source):
                found.masks = found.added = True
            elif role == "Mul" and index < 2 and self._is_size(op.inputs[1 - index], source):
                found.size = found.size or op.kind
            return []
        low, high = float(other.min()), float(other.max())
        if role == "Equal":
            if other.size > 1 and at.scale:
                first, last = sorted(((low - at.low) / at.scale, (high - at.high) / at.scale))
                found.narrow(first, last, "the numbers that it is compared with")
            elif other.size == 1 and at.scale == 1 and at.low == at.high:
                found.equals = int(low - at.low)
            return []
        if role == "Mul" and (
            high <= VERY_NEGATIVE or (low >= -VERY_NEGATIVE and self._is_subtracted_before_softmax(op))
        ):
            found.masks, found.one_masks = True, not at.flipped
        if has(role, "scalings"):
            if low != high or not low or (role == "Div" and index == 1):
                return []
            k = low if role == "Mul" else 1 / low
            low, high = sorted((at.low * k, at.high * k))
            return [_Followed(v, at.scale * k, low, high, at.flipped) for v in op.outputs]
        if role == "Sub" and index == 1:  # a constant minus the input
            return [_Followed(v, -at.scale, low - at.high, high - at.low, not at.flipped) for v in op.outputs]
        low, high = (-high, -low) if role == "Sub" else (low, high)
        return [_Followed(v, at.scale, at.low + low, at.high + high, at.flipped) for v in op.outputs]

    def _is_size(self, value: int, source: int) -> bool:
        """Generated inputs: whether a value that multiplies a whole ``source`` is a size of some tensor's shape."""
        if not self.flow.values[source].dtype.startswith("int"):
            return False
        before = upstream(self.flow, [value], lambda op: op.inputs[:1] if has(op.role, "passes_on") else ())
        return any(op.role == "Shape" for op in before)

    def _constant_numbers(self, value: int) -> Array | None:
        """Generated inputs: the numbers of a constant, float64 with 1e38 for infinity, through moves and from a Range
        of constants; None for a computed value and a constant of more than `LARGE` elements."""
        flow = self.flow
        for _ in range(6):
            item = flow.values[value] if value != NONE else None
            if item is None:
                return None
            if item.weight:
                array = flow.weights.array(item) if 0 < flow.weights.size(item) <= LARGE else None
                if array is None or array.dtype.kind not in "iufb":
                    return None
                return np.nan_to_num(np.asarray(array, np.float64), posinf=1e38, neginf=-1e38)
            op = flow.writer(value)
            if op is None or not op.inputs:
                return None
            if op.role == "Range":
                ends = [flow.scalar(v) for v in op.inputs]
                known = [e for e in ends if e is not None]
                return np.arange(*known) if len(known) == 3 and 0 < abs(known[1] - known[0]) <= LARGE else None
            if not has(op.role, "passes_on"):
                return None
            value = op.inputs[0]
        return None

    def _follow_where(self, op: Op, at: _Followed, found: Reading) -> list[_Followed]:
        """Generated inputs: notes that one is a mask, as the condition of a Where; a branch of very negative numbers
        says which of 0 and 1 hides. The result is not followed: it is the other operands."""
        found.masks = True
        for branch in (1, 2):
            numbers = self._constant_numbers(op.inputs[branch])
            if numbers is not None and float(numbers.max()) <= VERY_NEGATIVE:
                found.one_masks = (branch == 1) != at.flipped
        return []

    def _is_added_mask(self, op: Op, other: int, source: int) -> bool:
        """Generated inputs: whether a float one is a mask that an Add puts upon scores before a Softmax; ``other``: the
        Add's other operand, which must not be computed from the input ``source``."""
        if not self.flow.values[source].dtype.startswith(("float", "bfloat")):
            return False
        return self._reaches_softmax(op) and self._are_scores(other, source)

    def _is_subtracted_before_softmax(self, op: Op) -> bool:
        """Generated inputs: whether an operator's result is subtracted before a Softmax, at once or through Reshapes.

        What it is subtracted from is not looked at: unlike a mask that is added, it has large numbers already.
        """
        for readers in self._readers_along(op, lambda reader: has(reader.role, "passes_on")):
            if any(reader.role == "Sub" and index == 1 for reader, index in readers):
                return any(self._reaches_softmax(reader) for reader, _ in readers if reader.role == "Sub")
        return False

    def _reaches_softmax(self, op: Op) -> bool:
        """Generated inputs: whether a Softmax reads what an operator makes, through moves, additions and Wheres."""
        way = self._readers_along(
            op, lambda r: has(r.role, "passes_on") or has(r.role, "additions") or r.role == "Where"
        )
        return any(has(reader.role, "softmaxes") for readers in way for reader, _ in readers)

    def _readers_along(self, op: Op, leads_on: Callable[[Op], bool]) -> Iterator[list[tuple[Op, int]]]:
        """Generated inputs: the readers of a result, each with the index of the operand; then those of the one reader
        that ``leads_on``, as long as there is only one, 8 operators deep at most."""
        for _ in range(8):
            uses = [use for value in op.outputs for use in self.flow.uses[value] if use.op != NONE]
            yield [(self.flow.ops[use.op], use.index) for use in uses]
            following = [self.flow.ops[use.op] for use in uses if leads_on(self.flow.ops[use.op])]
            if len(following) != 1:
                return
            op = following[0]

    def _are_scores(self, value: int, source: int) -> bool:
        """Generated inputs: whether a value is computed from a product (`scores`), back to products, and not from the
        input ``source``; 64 operators are looked at."""
        seen: set[int] = set()
        work, product = [value], False
        while work and len(seen) < 64:
            current = work.pop()
            if current == source:
                return False
            op = self.flow.writer(current)
            if op is None or op.id in seen:
                continue
            seen.add(op.id)
            product |= has(op.role, "scores")
            if not has(op.role, "scores"):
                work += [v for v in op.inputs if v != NONE]
        return product
