"""Who reads a value, changed: inputs of nodes, and outputs of graphs, which keep their names."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from ...core.dataflow import Dataflow, Value
from ...core.graph import UseKey
from .handles import Handles
from .repairs import doubted_shapes
from .types import DTYPES


class Readers:
    """Gives values to the places that read them."""

    def __init__(self, handles: Handles) -> None:
        self._handles = handles
        self._outputs = {
            scope: [value.name for value in handles.graph(scope).outputs] for scope in _named(handles.flow)
        }

    def give(self, result: ir.Value, uses: Iterable[UseKey]) -> None:
        """``result`` is read at the given uses from now on."""
        for use in uses:
            scope, op, position = self._handles.at(use)
            if op is not None:
                node = self._handles.node(op)
                if position >= len(node.inputs):
                    node.resize_inputs(position + 1)
                node.replace_input_with(position, result)
            else:
                self._give_output(scope, position, result)

    def _give_output(self, scope: int, position: int, result: ir.Value) -> None:
        graph = self._handles.graph(scope)
        if scope in self._outputs:
            result = self._as_output(graph, self._outputs[scope][position], position, result)
        elif not is_made_in(graph, result) or any(output is result for output in graph.outputs):
            # no runtime takes a value from outside as the result of a body, nor one for two of a function
            result = self._identity(graph, result, result.shape)
        if scope != 0 and isinstance(graph, ir.Graph):
            self._describe(result, graph.outputs[position])
        graph.outputs[position] = result

    def _describe(self, result: ir.Value, old: ir.Value) -> None:
        """What the file says of an output of a body is said of the value in its place."""
        result.type = self._handles.type_of(result)
        result.shape = result.shape or old.shape

    def _as_output(self, graph: ir.Graph | ir.Function, name: str | None, position: int, result: ir.Value) -> ir.Value:
        """``result`` with the name and the declared shape of an output that is known by its name."""
        old = graph.outputs[position]
        if result.name == name:
            return result  # an output that is listed twice
        if result.is_graph_input() or result.is_graph_output():  # it has a name of its own
            result = self._identity(graph, result, old.shape)
        if old.name == name:
            old.name = self._handles.fresh(f"{name}_{old.dtype.name.lower()}")  # type: ignore[union-attr]
        result.name, result.type, result.shape = name, self._handles.type_of(result), old.shape
        if name in doubted_shapes(self._handles.model):
            old.shape = None
        return result

    def _identity(self, graph: ir.Graph | ir.Function, source: ir.Value, shape: ir.Shape | None) -> ir.Value:
        name = self._handles.fresh(f"{source.name}_result")
        node = ir.Node("", "Identity", [source], num_outputs=1, name=self._handles.fresh(f"{name}_node"))
        result = node.outputs[0]
        result.name, result.type, result.shape = name, self._handles.type_of(source), shape
        graph.append(node)
        return result

    def bypass(self, op: ir.Node, scope: int) -> bool:
        """Readers of a node's only result read its first input, and the node goes.

        It stays, and costs nothing, where a border needs its name or a body a result of its own.
        """
        source, target, graph = op.inputs[0], op.outputs[0], self._handles.graph(scope)
        assert source is not None
        if any(output is target for output in graph.outputs):
            if not is_made_in(graph, source) or source.is_graph_output():
                return False
            if scope in self._outputs:
                name, source.shape = target.name, target.shape
                target.name = self._handles.fresh(f"{name}_given")
                source.name = name
            else:
                self._describe(source, target)
        target.replace_all_uses_with(source, replace_graph_outputs=True)
        self._handles.gone(target, source)
        graph.remove(op, safe=True)
        return True

    def expose(self, value: Value) -> str:
        """A value of the main graph becomes an output; the name under which it comes out."""
        graph, native = self._handles.model.graph, self._handles.value(value)
        if value.scope != 0:
            raise ValueError(f"'{value.name}' is no value of the main graph")
        if native.is_graph_output():
            return native.name or ""
        if native.shape is None and (known := self._handles.shape(value)) is not None:
            native.shape = ir.Shape(known)
        if native.producer() is None:  # an input or a stored tensor has a name of its own
            native = self._identity(graph, native, native.shape)
        native.type = self._handles.type_of(native) or ir.TensorType(DTYPES[value.dtype])
        graph.outputs.append(native)
        self._outputs[0].append(native.name)
        return native.name or ""


def _named(flow: Dataflow) -> list[int]:
    """Scopes whose outputs are known by their names: the model, and bodies of operators that are not ONNX's own, as the
    decoder of a BeamSearch is."""
    bodies = [scope for scope in flow.scopes if scope.kind == "body"]
    return [0, *(scope.id for scope in bodies if "::" in flow.ops[scope.op].kind)]


def is_made_in(graph: ir.Graph | ir.Function, value: ir.Value) -> bool:
    """Whether a node of a graph writes a value."""
    producer = value.producer()
    return producer is not None and producer.graph is getattr(graph, "graph", graph)
