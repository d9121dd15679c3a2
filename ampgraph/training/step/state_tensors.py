"""The state of a training step: inputs with a first value, and outputs that hold the next one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...core.arrays import Array
from ...formats.onnx.editor import States
from ..gradients.builder import Builder

PARAMETER, SLOT, RUNNING, SCALE, COUNTER, SCHEDULE = "parameter", "slot", "running", "scale", "counter", "schedule"
AVERAGE, EMA = "average", "ema/"  # running averages of parameters: ema/NAME
GIVEN = "given"  # parameters that a step reads and another one trains


@dataclass(frozen=True)
class StateTensor:
    """One tensor of the state. ``output`` holds its next value; empty where a step only reads it.

    ``shape``: of one that the graph takes and gives as a vector; None where it has its own shape there."""

    name: str
    kind: str
    output: str = ""
    shape: tuple[int, ...] | None = None

    def fed(self, array: Array) -> Array:
        """As the graph takes it."""
        return array if self.shape is None else array.reshape(-1)

    def seen(self, array: Array) -> Array:
        """In its shape."""
        return array if self.shape is None else array.reshape(self.shape)


class StateBuilder(States):
    """Adds state of several kinds to a graph, and commits it: `add`, `adopt`, then `commit` for each, once."""

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder.graph, lambda name: self.builder.fresh(name), lambda *given: self.builder.op(*given))
        self.builder = builder
        self.kinds: dict[str, str] = {}
        self.next: dict[str, str] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}  # of what is a vector in the graph

    def add(self, name: str, first: Array | np.generic, kind: str) -> ir.Value:
        """A new input with a first value."""
        return self._known(self.state(name, np.asarray(first)), kind)

    def adopt(self, value: ir.Value, kind: str) -> ir.Value:
        """An initializer becomes an input whose first value it is."""
        return self._known(self.keep(value), kind)

    def add_vector(self, name: str, first: Array, kind: str) -> ir.Value:
        """As `add`, a vector in the graph."""
        value = self.add(name, first.reshape(-1), kind)
        if first.ndim != 1:
            self.shapes[value.name or ""] = first.shape
        return value

    def flatten(self, value: ir.Value) -> None:
        """State becomes a vector; what reads it reads it in its shape, through a Reshape."""
        dims = value.shape.numpy() if value.shape is not None else ()
        if len(dims) == 1:
            return
        uses, b = list(value.uses()), self.builder
        if uses:
            shaped = b.typed(b.op("Reshape", value, b.ints(*dims)), value)
            for node, index in uses:
                node.replace_input_with(index, shaped)
        first, value.shape = value.const_value, ir.Shape([math.prod(dims)])
        if first is not None:
            value.const_value = ir.tensor(first.numpy().reshape(-1), name=value.name)
        self.shapes[value.name or ""] = tuple(dims)

    def _known(self, value: ir.Value, kind: str) -> ir.Value:
        self.kinds[value.name or ""] = kind
        return value

    def commit(self, after: Mapping[ir.Value, ir.Value], when: ir.Value | None = None) -> dict[str, str]:
        """The next value of some state is what it is given, or the old one again where ``when`` is false."""
        found = super().commit(after, when)
        self.next.update(found)
        return found

    def on(self, builder: Builder) -> StateBuilder:
        """The same state, further read, added and committed in another graph."""
        other = StateBuilder(builder)
        other.kinds, other.next, other.shapes = self.kinds, self.next, self.shapes
        return other

    def entries(self) -> list[StateTensor]:
        rows = self.kinds.items()
        return [StateTensor(name, kind, self.next.get(name, ""), self.shapes.get(name)) for name, kind in rows]
