"""How large the elements of a value may become, as far as that is known: measured, or by what makes them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...core.borders import Borders
from ...core.dataflow import NONE, Dataflow, Op
from ..options import Options
from .measured import MeasuredRanges

UNKNOWN = math.inf
DEPTH = 16  # operators looked back
VANISHING_LIMIT = 0.5  # of the elements that are not zero
READ = 1 << 20  # elements of a stored tensor that are read


class Bounds:
    """Bounds of magnitudes; what was measured goes before what can be derived."""

    def __init__(self, flow: Dataflow, options: Options, borders: Borders, measured: MeasuredRanges) -> None:
        self.flow, self.options, self.traits = flow, options, options.lists.traits
        self._before, self._measured = borders.before, measured.ranges
        self._known: dict[int, float] = {}

    def of(self, value: int, depth: int = 0) -> float:
        """No element is larger than this in magnitude; infinite where nothing is known."""
        if value not in self._known:
            self._known[value] = UNKNOWN  # while it is looked at: a loop's state
            self._known[value] = self._bound(value, depth)
        return self._known[value]

    def is_measured(self, value: int) -> bool:
        """Whether its range is known by data."""
        return value in self._measured

    def vanishes(self, value: int) -> bool:
        """Whether a value was measured to become mostly zero in the low type."""
        held = self._measured.get(value)
        return held is not None and held.vanishing(self.options.dtype) > VANISHING_LIMIT

    def _bound(self, value: int, depth: int) -> float:
        flow = self.flow
        if (held := self._measured.get(value)) is not None:
            return held.absmax * self.options.range_margin
        if flow.values[value].weight:
            array = flow.weights.array(flow.values[value], limit=READ)
            return UNKNOWN if array is None or array.dtype.kind not in "fiu" else _largest(array)
        sources = self._before.get(value)
        if depth > DEPTH:
            return UNKNOWN
        if sources:
            return max(self.of(source, depth + 1) for source in sources)
        op = flow.writer(value)
        return UNKNOWN if op is None else self._made(op, depth + 1)

    def _made(self, op: Op, depth: int) -> float:
        traits, inputs = self.traits, [v for v in op.inputs if v != NONE]
        if traits.has(op.role, "within_two"):
            return 2.0
        if traits.has(op.role, "norms"):
            return self._normed(op)
        if traits.has(op.role, "selects") and inputs:
            return self.of(inputs[0], depth)
        if op.role in traits.operators("joins"):
            places = traits.positions(op.role, "joins")
            return max(self.of(op.inputs[i], depth) for i in places or range(len(op.inputs)) if i < len(op.inputs))
        if traits.has(op.role, "cancels"):
            return sum(self.of(v, depth) for v in inputs)
        if traits.has(op.role, "multiplies"):
            return math.prod(self.of(v, depth) for v in inputs)
        return self._clipped(op, depth) if traits.has(op.role, "bounds") else UNKNOWN

    def _normed(self, op: Op) -> float:
        """A norm over n elements makes none larger than the root of n, before its scale and bias."""
        scale, bias = (self.of(v) if v != NONE else 0.0 for v in (*op.inputs[1:3], NONE, NONE)[:2])
        flow = self.flow
        if len(op.inputs) < 2 or op.inputs[1] == NONE or not flow.values[op.inputs[1]].weight:
            return UNKNOWN  # n is not known
        return math.sqrt(flow.weights.size(flow.values[op.inputs[1]])) * scale + bias

    def _clipped(self, op: Op, depth: int) -> float:
        flow = self.flow
        ends = [flow.number(op, "min"), flow.number(op, "max")]
        ends += [flow.scalar(v) for v in op.inputs[1:3] if v != NONE]
        numbers = [abs(float(end)) for end in ends if end is not None]
        own = self.of(op.inputs[0], depth)
        return min(own, max(numbers)) if len(numbers) == 2 else own


def _largest(array: np.ndarray[Any, Any]) -> float:
    return float(np.abs(array.astype(np.float64)).max(initial=0.0))
