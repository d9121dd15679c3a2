"""The state of a training step: inputs with a first value, and outputs that hold the next one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...core.arrays import Array
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
        """An array as the graph takes it: flat where the graph has a vector."""
        return array if self.shape is None else array.reshape(-1)

    def seen(self, array: Array) -> Array:
        """A state array that the graph gave, in the tensor's own shape."""
        return array if self.shape is None else array.reshape(self.shape)


class StateBuilder:
    """Adds state of several kinds to a graph, and commits it: `add`, `adopt`, then `commit` for each, once."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.kinds: dict[str, str] = {}
        self.next: dict[str, str] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}  # of what is a vector in the graph

    def add(self, name: str, first: Array | np.generic, kind: str) -> ir.Value:
        """Adds a tensor of the training state: a new input with a first value."""
        name, init = self.builder.fresh(name), np.asarray(first)
        type_, shape = ir.TensorType(ir.DataType.from_numpy(init.dtype)), ir.Shape(init.shape)
        value = ir.Value(name=name, type=type_, shape=shape, const_value=ir.tensor(init, name=name))
        self.builder.graph.initializers[name] = value
        return self.adopt(value, kind)

    def adopt(self, value: ir.Value, kind: str) -> ir.Value:
        """Makes a tensor of the training state of an initializer: an input whose first value it is."""
        assert value.is_initializer()
        if not value.is_graph_input():
            self.builder.graph.inputs.append(value)
        self.kinds[value.name or ""] = kind
        return value

    def add_vector(self, name: str, first: Array, kind: str) -> ir.Value:
        """A new input with a first value, as `add` makes it, that is a vector in the graph."""
        value = self.add(name, first.reshape(-1), kind)
        if first.ndim != 1:
            self.shapes[value.name or ""] = first.shape
        return value

    def flatten(self, value: ir.Value) -> None:
        """Makes state a vector; its readers read it in its own shape, through a Reshape."""
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

    def commit(self, after: Mapping[ir.Value, ir.Value], when: ir.Value | None = None) -> None:
        """Makes the next value of some state, or the old one where ``when`` is false, an output of its own. A runtime
        copies through an Identity what somebody else reads too: an output takes the value itself, if it may."""
        for old, new in after.items():
            chosen = new if when is None else self.builder.op("Where", when, new, old)
            maker = chosen.producer()
            # what an Identity gives may be a gradient too
            own = maker is not None and maker.op_type != "Identity" and not chosen.is_graph_output()
            output = chosen if own else self.builder.op("Identity", chosen)
            output.name, output.type, output.shape = self.builder.fresh(f"next/{old.name}"), old.type, old.shape
            self.builder.graph.outputs.append(output)
            self.next[old.name or ""] = output.name

    def on(self, builder: Builder) -> StateBuilder:
        """A builder of the same state in another graph: what is read, added and committed there is known here."""
        other = StateBuilder(builder)
        other.kinds, other.next, other.shapes = self.kinds, self.next, self.shapes
        return other

    def entries(self) -> list[StateTensor]:
        """All state with its kind, the output that holds its next value, and its shape where that is open in the
        graph."""
        rows = self.kinds.items()
        return [StateTensor(name, kind, self.next.get(name, ""), self.shapes.get(name)) for name, kind in rows]
