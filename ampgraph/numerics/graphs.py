"""Graphs as runs need them: loaded, without functions, what they take and give, what their operators read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..core.dataflow import NONE, Dataflow, Op
from ..core.errors import AmpError
from ..core.graph import Graph
from ..core.runnable import Declared
from ..formats import adapters
from ..formats.adapters import OnnxGraph
from ..formats.kinds import Model, is_graph
from ..runtime.ports import Port


def load_onnx(model: Model | Graph) -> OnnxGraph:
    """The graph of an ONNX model as `convert` takes it, sorted; a Graph as it is. Raises AmpError AMP1xx, AMP304."""
    graph = model if is_graph(model) else adapters.load(model)[0]
    if not isinstance(graph, OnnxGraph):
        raise AmpError("AMP304", f"a {graph.format} model is not run strictly", hint="give an ONNX model")
    graph.prepare()
    return graph


def flat_graph(model: Model | Graph) -> OnnxGraph:
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


def interface_of(graph: OnnxGraph) -> Interface:
    """The inputs and outputs of a graph as its file declares them."""
    inputs, outputs = graph.declared()
    ports = {value.name: port_of(value) for value in inputs if not value.stored}
    optional = frozenset(value.name for value in inputs if value.stored)
    return Interface(ports, {value.name: port_of(value) for value in outputs}, optional)


def port_of(value: Declared) -> Port:
    """An input or output; one that is no tensor has no type."""
    if value.container:
        return Port(value.name, "", ())
    return Port(value.name, {"string": "object"}.get(value.dtype, value.dtype), value.shape)


# -- what is read -----------------------------------------------------------------------------------------------------


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
    """The operator of the main graph that holds this one in a body, at any depth; itself in the main graph."""
    while op.scope != 0:
        op = flow.ops[flow.scopes[op.scope].op]
    return op.id
