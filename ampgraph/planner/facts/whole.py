"""Whole numbers in float32 that are made of integers and truths, as 1 - mask is, and how large they get."""

from __future__ import annotations

import numpy as np

from ...core.arrays import Array
from ...core.borders import Borders
from ...core.dataflow import FLOAT32, NONE, Dataflow, Op
from ...oplists.traits import Traits

WHOLE = ("int", "uint", "bool")
"""How the names of types begin that hold whole numbers alone."""
STEPS = 64  # operators looked back
TRUTHS = (0.0, 1.0)

Span = tuple[float, float]
"""The least and the most."""


class Whole:
    """Values that are made of integers and truths, stored whole numbers among them, by sums, products and moves."""

    def __init__(self, flow: Dataflow, traits: Traits) -> None:
        self.flow, self.traits = flow, traits

    def has(self, value: int) -> bool:
        """Whether a value is one."""
        return self.span(value) is not None

    def span(self, value: int) -> Span | None:
        """Between which whole numbers the elements of a value are, None where they may be others. What nothing more is
        known of, as an input, is taken for truths: masks are kept in integers too."""
        return _Spans(self.flow, self.traits).of(value, STEPS)


class _Spans:
    def __init__(self, flow: Dataflow, traits: Traits) -> None:
        self.flow, self.traits = flow, traits
        self._known: dict[int, Span | None] = {}

    def of(self, value: int, steps: int) -> Span | None:
        if value not in self._known:
            self._known[value] = self._found(value, steps)
        return self._known[value]

    def _found(self, value: int, steps: int) -> Span | None:
        flow = self.flow
        item, writer = flow.values[value], flow.writer(value)
        whole = item.dtype.startswith(WHOLE)
        if item.weight:
            array = flow.weights.array(item)
            return _span(array) if array is not None else TRUTHS if whole else None
        if writer is not None and steps and item.dtype != "bool":
            if self.traits.has(writer.role, "fills"):
                fill = flow.attribute(writer, "value")
                return _span(fill if isinstance(fill, np.ndarray) else np.zeros(1))
            made = self._made(writer, steps - 1)
            if made is not None:
                return made
        return TRUTHS if whole else None

    def _made(self, op: Op, steps: int) -> Span | None:
        """What an operator makes of whole numbers."""
        traits = self.traits
        if not op.inputs:
            return None
        if traits.has(op.role, "multiplies") or traits.has(op.role, "subtracts"):
            return self._of_two(op, steps)
        if not traits.has(op.role, "mask_path"):
            return None
        read = [v for place, v in enumerate(op.inputs) if v != NONE and traits.at(op.role, "mask_path", place)]
        found = [self.of(v, steps) for v in read]
        spans = [span for span in found if span is not None]
        if not spans or len(spans) < len(found):
            return None
        if traits.has(op.role, "additions"):
            return sum(low for low, _ in spans), sum(high for _, high in spans)
        return min(0.0, *(low for low, _ in spans)), max(0.0, *(high for _, high in spans))

    def _of_two(self, op: Op, steps: int) -> Span | None:
        if len(op.inputs) != 2 or NONE in op.inputs:
            return None
        first, second = (self.of(v, steps) for v in op.inputs)
        if first is None or second is None:
            return None
        (low, high), (least, most) = first, second
        if self.traits.has(op.role, "subtracts"):
            return low - most, high - least
        ends = [one * other for one in (low, high) for other in (least, most)]
        return min(ends), max(ends)


def _span(array: Array) -> Span | None:
    """Of stored numbers."""
    if array.dtype.kind not in "fiub" or not array.size:
        return None
    if not (np.isfinite(array) & (np.rint(array.astype(np.float64)) == array)).all():
        return None
    return float(array.min()), float(array.max())


def from_integers(flow: Dataflow, borders: Borders, op: Op, depth: int = 0) -> bool:
    """Whether an operator sees only constants and integers made float: positions, not activations."""
    if depth > 12:
        return False
    for source in op.inputs:
        for value in borders.origins(source) if source != NONE else ():
            item = flow.values[value]
            if item.weight or item.dtype != FLOAT32 or value in borders.before:
                continue
            writer = flow.writer(value)
            if writer is None or not from_integers(flow, borders, writer, depth + 1):
                return False
    return True
