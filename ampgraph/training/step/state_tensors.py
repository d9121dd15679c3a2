"""The state of a training step: inputs of its graph with a first value, and outputs that hold the next one."""

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
    """One tensor of a training step's state: the input ``name``, and the ``output`` that holds its next value, "" where
    the step only reads it. ``shape``: its own shape, if the graph has it as a vector; else None."""

    name: str
    kind: str
    output: str = ""
    shape: tuple[int, ...] | None = None

    def fed(self, array: Array) -> Array:
        """A training state array as the graph takes it: flat where the graph has a vector."""
        return array if self.shape is None else array.reshape(-1)

    def seen(self, array: Array) -> Array:
        """A training state array as the graph has it, in the tensor's own shape again: the inverse of `fed`."""
        return array if self.shape is None else array.reshape(self.shape)


class StateBuilder:
    """Adds state to a training step's graph (`add`, `adopt`), and outputs of its next values (`commit`, once for each
    state that changes). ``builder`` adds the nodes; it is replaced where those of the gradients end and the update's
    begin."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.kinds: dict[str, str] = {}  # state -> its kind
        self.next: dict[str, str] = {}  # state -> the output of its next value
        self.shapes: dict[str, tuple[int, ...]] = {}  # state that is a vector in the graph -> its own shape

    def add(self, name: str, first: Array | np.generic, kind: str) -> ir.Value:
        """Adds a tensor of the training state: a new input called ``name``, or like it if that is taken, with a first
        value."""
        name, init = self.builder.fresh(name), np.asarray(first)
        type_, shape = ir.TensorType(ir.DataType.from_numpy(init.dtype)), ir.Shape(init.shape)
        value = ir.Value(name=name, type=type_, shape=shape, const_value=ir.tensor(init, name=name))
        self.builder.graph.initializers[name] = value
        return self.adopt(value, kind)

    def adopt(self, value: ir.Value, kind: str) -> ir.Value:
        """Makes an initializer a tensor of the training state: an input that keeps its numbers as the first value."""
        assert value.is_initializer()
        if not value.is_graph_input():
            self.builder.graph.inputs.append(value)
        self.kinds[value.name or ""] = kind
        return value

    def add_vector(self, name: str, first: Array, kind: str) -> ir.Value:
        """Adds a tensor of the training state, as `add`, that is a vector in the graph."""
        value = self.add(name, first.reshape(-1), kind)
        if first.ndim != 1:
            self.shapes[value.name or ""] = first.shape
        return value

    def flatten(self, value: ir.Value) -> None:
        """Makes a tensor of the training state a vector, which its readers so far read through a Reshape."""
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
        """Adds outputs of the next values of training state (``after``: state -> next value), or of the old ones where
        the truth value ``when`` is false. A value becomes the output itself where it may: an Identity would be a copy.
        """
        for old, new in after.items():
            chosen = new if when is None else self.builder.op("Where", when, new, old)
            maker = chosen.producer()
            # the result of an Identity may be the output of a gradient too
            may_be_output = maker is not None and maker.op_type != "Identity" and not chosen.is_graph_output()
            output = chosen if may_be_output else self.builder.op("Identity", chosen)
            output.name, output.type, output.shape = self.builder.fresh(f"next/{old.name}"), old.type, old.shape
            self.builder.graph.outputs.append(output)
            self.next[old.name or ""] = output.name

    def on(self, builder: Builder) -> StateBuilder:
        """A builder of the same training state that adds to another graph; both know what either has added."""
        other = StateBuilder(builder)
        other.kinds, other.next, other.shapes = self.kinds, self.next, self.shapes
        return other

    def entries(self) -> list[StateTensor]:
        """All tensors of the training state, as the step's layout lists them."""
        rows = self.kinds.items()
        return [StateTensor(name, kind, self.next.get(name, ""), self.shapes.get(name)) for name, kind in rows]
