"""The state of a training step: inputs with a first value, and outputs that hold the next one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...core.arrays import Array
from ..gradients.builder import Builder

PARAMETER, SLOT, RUNNING, SCALE, COUNTER, SCHEDULE = "parameter", "slot", "running", "scale", "counter", "schedule"


@dataclass(frozen=True)
class StateTensor:
    """One tensor of the state. ``output`` holds its next value; empty where a step only reads it."""

    name: str
    kind: str
    output: str = ""


class StateBuilder:
    """Adds state to a graph, and commits it: `add`, `adopt`, then `commit` for each, once."""

    def __init__(self, builder: Builder) -> None:
        self.builder, self.graph = builder, builder.graph
        self.kinds: dict[str, str] = {}
        self.next: dict[str, str] = {}

    def add(self, name: str, first: Array | np.generic, kind: str) -> ir.Value:
        """A new input with a first value."""
        name, first = self.builder.fresh(name), np.asarray(first)
        dtype = ir.DataType.from_numpy(first.dtype)
        tensor = ir.tensor(first, name=name)
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(first.shape), const_value=tensor)
        self.graph.initializers[name] = value
        return self.adopt(value, kind)

    def adopt(self, value: ir.Value, kind: str) -> ir.Value:
        """An initializer becomes an input whose first value it is."""
        assert value.name
        if not value.is_graph_input():
            self.graph.inputs.append(value)
        self.kinds[value.name] = kind
        return value

    def commit(self, old: ir.Value, new: ir.Value, finite: ir.Value | None = None) -> None:
        """The next value is ``new``, or the old one again where a step is not finite."""
        b = self.builder
        assert old.name
        chosen = new if finite is None else b.op("Where", finite, new, old)
        output = b.op("Identity", chosen)
        output.name, output.type, output.shape = b.fresh(f"next/{old.name}"), old.type, old.shape
        self.graph.outputs.append(output)
        self.next[old.name] = output.name

    def entries(self) -> list[StateTensor]:
        return [StateTensor(name, kind, self.next.get(name, "")) for name, kind in self.kinds.items()]
