"""Map types (ZipMap, DictVectorizer, CoreML's classifiers), which onnx_ir has none of: kept beside it as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx
import onnx_ir as ir
from onnx import FunctionProto, GraphProto, ModelProto, TypeProto, ValueInfoProto

from .flat_model import flat_model
from .proto import Holder, drop_unreadable, holders
from .walk import all_graphs

KEPT = "ampgraph.map_types"
"""Where a graph of onnx_ir remembers them, by the names of values; the main graph of a model with any always does."""

OVERLOADS = 10  # the version of the file format from which functions hold the types of their values themselves

Kept = dict[str, bytes]


def from_proto(proto: ModelProto, held: Sequence[Holder]) -> ir.Model:
    """An onnx_ir model whose values of map types have no type there; `to_proto` gives it back. Uses up the proto, whose
    graphs are ``held``."""
    taken = [_taken(holder.graph) for holder in held]
    model = (flat_model(proto, held[0]) if len(held) == 1 else None) or ir.from_proto(proto)
    if any(taken):
        for graph, kept in zip(all_graphs(model), taken, strict=True):
            if kept or graph is model.graph:
                graph.meta[KEPT] = kept
    return model


def to_proto(model: ir.Model) -> ModelProto:
    """The proto of a model, map types included."""
    proto = ir.to_proto(model)
    if model.functions and proto.ir_version < OVERLOADS:
        drop_unreadable(proto)
    if holds_maps(model):
        for graph, written in zip(all_graphs(model), holders(proto), strict=True):
            _give_back(written.graph, graph.meta.get(KEPT, {}))
    return proto


def value_info(value: ir.Value) -> ValueInfoProto:
    """What a file says of an input or output, a map type included."""
    info = ir.serde.serialize_value(value)
    kept: Kept = value.graph.meta.get(KEPT, {}) if value.graph is not None else {}
    if value.name in kept and value.type is None:
        info.type.ParseFromString(kept[value.name])
    return info


def holds_maps(model: ir.Model) -> bool:
    """Whether values of a model have map types."""
    return KEPT in model.graph.meta


def is_map(kind: TypeProto) -> bool:
    """Whether a type is a map, or holds one."""
    while kind.HasField("sequence_type") or kind.HasField("optional_type"):
        kind = kind.sequence_type.elem_type if kind.HasField("sequence_type") else kind.optional_type.elem_type
    return bool(kind.HasField("map_type"))


def _infos(graph: GraphProto | FunctionProto) -> Iterator[ValueInfoProto]:
    """What a graph says of its values."""
    yield from graph.value_info
    if isinstance(graph, GraphProto):
        yield from graph.input
        yield from graph.output


def _taken(graph: GraphProto | FunctionProto) -> Kept:
    kept: Kept = {}
    for info in _infos(graph):
        if is_map(info.type):
            kept[info.name] = info.type.SerializeToString(deterministic=True)
            info.ClearField("type")
    return kept


def _give_back(graph: GraphProto | FunctionProto, kept: Kept) -> None:
    """Types the values that are there still; those inside the graph in the order in which they were read."""
    made = {name for node in graph.node for name in node.output} if kept else set()
    listed = {info.name: info for info in _infos(graph)}
    for name, content in kept.items():
        if name not in listed and name in made:
            listed[name] = onnx.ValueInfoProto(name=name)
            graph.value_info.append(listed[name])
            listed[name] = graph.value_info[-1]
        if name in listed:
            listed[name].type.ParseFromString(content)
