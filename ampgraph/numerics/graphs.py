"""ONNX graphs as runs need them: loaded, their functions inlined, their types known, their bodies walked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from ..core.dataflow import FLOAT32, NONE, Dataflow, Op
from ..core.errors import AmpError
from ..core.graph import LOW
from ..core.runnable import Declared, RunnableGraph
from ..formats import adapters
from ..formats.onnx.graph import OnnxGraph
from ..formats.onnx.walk import bodies
from ..runtime.ports import Port

DEFAULT_OPSET = 17  # of the standard operators, for a model that imports others alone
Attributes = Mapping[str, Any]  # what onnx_ir makes attributes of


def load_onnx(model: Any) -> OnnxGraph:
    """The graph of an ONNX model as `convert` takes it, sorted; a Graph as it is. Raises AmpError AMP1xx, AMP304."""
    graph = model if hasattr(model, "dataflow") else adapters.load(model)[0]
    if not isinstance(graph, OnnxGraph):
        raise AmpError("AMP304", f"a {graph.format} model is not run strictly", hint="give an ONNX model")
    graph.prepare()
    return graph


def flat_graph(model: Any) -> OnnxGraph:
    """A graph of the caller's own, sorted, with its functions inlined. Raises AmpError as `load_onnx`."""
    flat = load_onnx(model).flat()
    return flat.copied() if flat is model else flat


# -- what it takes and gives ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interface:
    """What a model takes and gives; ``optional``: inputs with a default value."""

    inputs: Mapping[str, Port]
    outputs: Mapping[str, Port]
    optional: frozenset[str] = frozenset()


def interface_of(graph: RunnableGraph) -> Interface:
    """As the file declares it."""
    inputs, outputs = graph.declared()
    ports = {value.name: port_of(value) for value in inputs if not value.stored}
    optional = frozenset(value.name for value in inputs if value.stored)
    return Interface(ports, {value.name: port_of(value) for value in outputs}, optional)


def port_of(value: Declared) -> Port:
    """An input or output; one that is no tensor has no type."""
    if value.container:
        return Port(value.name, "", ())
    return Port(value.name, {"string": "object"}.get(value.dtype, value.dtype), value.shape)


# -- values and bodies ------------------------------------------------------------------------------------------------


def reads_of(flow: Dataflow) -> dict[int, list[int]]:
    """Operator of the main graph -> the values of the main graph that it reads, in its bodies too, once each.

    For a model without functions."""
    found: dict[int, dict[int, None]] = {op.id: {} for op in flow.ops if op.scope == 0}
    for op in flow.ops:
        found[_outermost(flow, op)].update(dict.fromkeys(op.inputs))
    for scope in flow.scopes:
        if scope.op != NONE:
            found[_outermost(flow, flow.ops[scope.op])].update(dict.fromkeys(scope.outputs))
    return {op: [i for i in read if i != NONE and flow.values[i].scope == 0] for op, read in found.items()}


def _outermost(flow: Dataflow, op: Op) -> int:
    """The operator of the main graph in whose bodies one stands, itself in the main graph."""
    while op.scope != 0:
        op = flow.ops[flow.scopes[op.scope].op]
    return op.id


@dataclass(frozen=True)
class Types:
    """(container, element type) of values, as inferred once; ``("", "")`` is unknown."""

    of: Mapping[ir.Value, tuple[str, str]]

    @staticmethod
    def read(flow: Dataflow) -> Types:
        """Those of a model without functions: each of its values stands in one scope."""
        return Types({value.native: (value.container, value.dtype) for value in flow.values})

    def tensor(self, value: ir.Value) -> str:
        """The element type of a tensor, empty for what is none."""
        container, dtype = self.of.get(value, ("", ""))
        return "" if container else dtype

    def low(self, value: ir.Value) -> str:
        """The low element type of a tensor or a container, else empty."""
        dtype = self.of.get(value, ("", ""))[1]
        return dtype if dtype in LOW else ""

    def is_float32(self, value: ir.Value) -> bool:
        """Whether it is a float32 tensor."""
        return self.tensor(value) == FLOAT32


def rewire(node: ir.Node, given: Mapping[ir.Value, ir.Value]) -> None:
    """A node, and what its bodies capture, reads other values."""
    for place, value in enumerate(node.inputs):
        if value is not None and value in given:
            node.replace_input_with(place, given[value])
    for body in bodies(node):
        for inner in body:
            rewire(inner, given)
        for place, value in enumerate(body.outputs):
            if value in given:
                body.outputs[place] = given[value]


def outputs_of(graph: ir.Graph) -> list[ir.Value]:
    """What the nodes of a graph make, in order; outputs that are left out are not among them."""
    return [value for node in graph for value in node.outputs if value.name]


def forget_annotations(graph: ir.Graph) -> None:
    """What a graph makes is not annotated: that may be stale, and a runtime infers its own."""
    stored = (value for value in graph.initializers.values() if not value.is_graph_input())
    for value in (*stored, *(value for node in graph for value in node.outputs)):
        if not value.is_graph_output():
            value.type = value.shape = value.doc_string = None
            value.metadata_props.clear()


class Names:
    """Names that nothing in a model has."""

    def __init__(self, *graphs: ir.Graph) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}  # by base, so that many names of one base take no longer each
        for graph in graphs:
            self._collect(graph)

    def _collect(self, graph: ir.Graph) -> None:
        self._taken.update(v.name for v in (*graph.inputs, *graph.initializers.values()) if v.name)
        for node in graph:
            self._taken.update(v.name for v in node.outputs if v.name)
            for body in bodies(node):
                self._collect(body)

    def fresh(self, base: str) -> str:
        """``base``, or the first of base_1, base_2 ... that is free."""
        number = self._next.get(base, 0)
        name = f"{base}_{number}" if number else base
        while name in self._taken:
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        self._next[base] = number + 1
        return name


def new_node(kind: str, inputs: Sequence[ir.Value | None], name: str, attributes: Attributes | None = None) -> ir.Node:
    """A node of the standard domain with one result, which is called ``name``."""
    node = ir.node(kind, list(inputs), attributes, num_outputs=1, name="")
    node.outputs[0].name = name
    return node
