"""The update as a graph of its own: it reads state and what the gradients hand over, and writes the next state."""

from __future__ import annotations

import onnx_ir as ir

from ..gradients.builder import Builder
from .state_tensors import StateBuilder

Value = ir.Value


class UpdateGraph:
    """``states``: adds to the graph and commits its state. Until `join` no node of it is one of the gradients'."""

    def __init__(self, gradients: ir.Graph, states: StateBuilder) -> None:
        """``gradients``: the graph whose opsets it has, ``states`` its state so far."""
        self.graph = ir.Graph([], [], nodes=[], opset_imports=dict(gradients.opset_imports), name="update")
        builder = Builder(self.graph, "step")
        builder.fresh = states.builder.fresh
        self.states = states.on(builder)
        self._inputs: dict[Value, Value] = {}
        self._alike: list[tuple[Value, Value]] = []

    def read(self, value: Value) -> Value:
        """The input that is a value of the gradients, or state of theirs."""
        if value not in self._inputs:
            given = ir.Value(name=value.name, type=value.type, shape=value.shape, const_value=value.const_value)
            self.graph.inputs.append(given)
            self._inputs[value] = given
        return self._inputs[value]

    def same(self, outer: Value | None, inner: Value) -> None:
        """Says that the gradients compute ``inner`` too, as ``outer``: one of the two is enough behind `join`."""
        if outer is not None:
            self._alike.append((outer, inner))

    def replaced(self, old: Value, new: Value) -> None:
        """A value of the update is another one from now on; what made it goes."""
        maker = old.producer()
        old.replace_all_uses_with(new)
        if maker is not None:
            self.graph.remove(maker, safe=True)
        self._alike = [(outer, new if inner is old else inner) for outer, inner in self._alike]

    def join(self, graph: ir.Graph) -> None:
        """Moves all of it behind the gradients; it is empty then."""
        for outer, given in self._inputs.items():
            self.graph.inputs.remove(given)
            given.replace_all_uses_with(outer)
        nodes, outputs, inputs = list(self.graph), list(self.graph.outputs), list(self.graph.inputs)
        stored = dict(self.graph.initializers)
        self.graph.outputs.clear()
        self.graph.inputs.clear()
        self.graph.initializers.clear()
        self.graph.remove(nodes)
        graph.extend(nodes)
        graph.inputs.extend(inputs)
        graph.initializers.update(stored)
        graph.outputs.extend(outputs)
        for outer, inner in self._alike:
            maker = outer.producer()
            outer.replace_all_uses_with(inner)
            if maker is not None:
                graph.remove(maker, safe=True)
