"""The types of the values of a model, functions and bodies included: (container, element type) in our spelling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto

from ampgraph.core.dataflow import NONE, Dataflow
from ampgraph.formats.onnx import io as onnx_io
from ampgraph.formats.onnx.graph import OnnxGraph
from ampgraph.formats.onnx.schemas import Schema, element
from ampgraph.formats.onnx.types import element_type

Kind = tuple[str, str]
FLOAT: Kind = ("", "float32")


@dataclass(frozen=True)
class TypedNode:
    """A node with the types of what it reads and makes."""

    native: ir.Node
    reads: list[Kind]
    makes: list[Kind]

    @property
    def all(self) -> list[Kind]:
        return [*self.reads, *self.makes]


def flow_of(model: ModelProto) -> Dataflow:
    return OnnxGraph(onnx_io.deserialize(ModelProto.FromString(model.SerializeToString()), None)).dataflow()


def typed_nodes(model: ModelProto) -> list[TypedNode]:
    """Every node that computes; a call of a function is none."""
    flow = flow_of(model)
    calls = {scope.op for scope in flow.scopes if scope.kind == "function"}
    kinds = [(value.container, value.dtype) for value in flow.values] + [("", "")]  # NONE is the last
    assert NONE == -1
    return [
        TypedNode(op.native, [kinds[v] for v in op.inputs], [kinds[v] for v in op.outputs])
        for op in flow.ops
        if op.id not in calls
    ]


def types_by_name(model: ModelProto) -> dict[str, Kind]:
    """Of the main graph's values."""
    return {value.name: (value.container, value.dtype) for value in flow_of(model).values if value.scope == 0}


def declared(kind: TypeProto) -> Kind:
    """As a file annotates it."""
    return element_type(ir.serde.deserialize_type_proto_for_type(kind))


def admits(schema: Schema, formal: str, kind: Kind) -> bool:
    """Whether a type variable may be a type."""
    return kind in {element(text) for text in schema.constraints.get(formal, ())}


def bodies(node: NodeProto) -> list[GraphProto]:
    """The graphs inside a node."""
    return [graph for a in node.attribute for graph in ([a.g] if a.HasField("g") else a.graphs)]


def graphs(graph: GraphProto | FunctionProto) -> Iterator[GraphProto | FunctionProto]:
    """A graph or function and its bodies, at any depth."""
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from graphs(body)


def every_node(model: ModelProto) -> list[NodeProto]:
    """The nodes of a model at any depth, those of functions too."""
    return [node for owner in (model.graph, *model.functions) for graph in graphs(owner) for node in graph.node]
