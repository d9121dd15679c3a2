"""A ModelProto as objects of onnx_ir, and back, with what onnx_ir has none of: map types, and what was put right.

Map types (ZipMap, DictVectorizer, CoreML's classifiers) are kept beside the model as they are. Most models are one
graph without bodies, sorted, and most of their attributes are alike: the general way, which looks names up in scopes
and makes an object of each attribute, takes half as long again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, MutableSet, Sequence

import onnx
import onnx_ir as ir
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, TensorProto, TypeProto, ValueInfoProto

from ...core.names import FreshNames
from .proto import NUMBERS, Holder, Kind, Parts, holders
from .walk import all_graphs
from .weights import FLOAT, InFile, frozen_shape, put, stored_tensor

KEPT = "ampgraph.map_types"
"""Key in the meta of an onnx_ir graph -> its map types (`Kept`); the main graph of a model with any always has it."""

REPAIRS, DOUBTED = "ampgraph.repairs", "ampgraph.doubted"
"""Keys in the meta of the main graph -> what was put right; names of outputs whose shape is annotated wrongly."""
SORTED = "ampgraph.sorted"  # key in the meta of a main graph that was read in order

OVERLOADS = 10  # the version of the file format from which functions hold the types of their values themselves

INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)
Kept = dict[str, bytes]  # name of a value -> its map type, a serialized TypeProto


def from_proto(proto: ModelProto, held: Sequence[Holder]) -> ir.Model:
    """The onnx_ir model of a ModelProto, whose `holders` are ``held``; values of map types have no type in it, and
    `to_proto` gives them back. The proto is used up: its map types are cleared, and the model refers to its tensors."""
    taken = [_take_map_types(holder.graph) for holder in held]
    model = (flat_model(proto, held[0]) if len(held) == 1 else None) or ir.from_proto(proto)
    if any(taken):
        for graph, kept in zip(all_graphs(model), taken, strict=True):
            if kept or graph is model.graph:
                graph.meta[KEPT] = kept
    return model


def to_proto(model: ir.Model) -> ModelProto:
    """The ModelProto of an onnx_ir model, map types included."""
    proto = ir.to_proto(model)
    if model.functions and proto.ir_version < OVERLOADS:
        _drop_unreadable(proto)
    if holds_maps(model):
        for graph, written in zip(all_graphs(model), holders(proto), strict=True):
            _restore_map_types(written.graph, graph.meta.get(KEPT, {}))
    return proto


def value_info(value: ir.Value) -> ValueInfoProto:
    """The ValueInfoProto of an onnx_ir value, usually an input or output, a map type included."""
    info = ir.serde.serialize_value(value)
    kept: Kept = value.graph.meta.get(KEPT, {}) if value.graph is not None else {}
    if value.name in kept and value.type is None:
        info.type.ParseFromString(kept[value.name])
    return info


def holds_maps(model: ir.Model) -> bool:
    """Whether values of an onnx_ir model have map types, which are kept beside it."""
    return KEPT in model.graph.meta


def is_map(kind: TypeProto) -> bool:
    """Whether an ONNX type is a map, or a sequence or optional of maps."""
    while kind.HasField("sequence_type") or kind.HasField("optional_type"):
        kind = kind.sequence_type.elem_type if kind.HasField("sequence_type") else kind.optional_type.elem_type
    return bool(kind.HasField("map_type"))


def _drop_unreadable(proto: ModelProto) -> None:
    """Drops annotations that onnx_ir writes into a ModelProto and cannot read again: before version 10 it annotates a
    function's value as ``domain::function/value``, and fails where its name has a slash."""
    heads = tuple(f"{function.domain}::{function.name}/" for function in proto.functions)
    kept = [i for i in proto.graph.value_info if not (i.name.startswith(heads) and i.name.count("/") > 1)]
    if len(kept) < len(proto.graph.value_info):
        del proto.graph.value_info[:]
        proto.graph.value_info.extend(kept)


def doubted_shapes(model: ir.Model) -> MutableSet[str]:
    """The set, to be added to, of ONNX outputs whose declared shape cannot be: edits do not repeat it inside."""
    found: set[str] = model.graph.meta.setdefault(DOUBTED, set())
    return found


def remember(model: ir.Model, said: Iterable[str]) -> None:
    """Adds sentences on what was repaired in an ONNX model to those kept with it for `repairs_of`, each once."""
    found = list(dict.fromkeys([*repairs_of(model), *said]))
    if found:
        model.graph.meta[REPAIRS] = found


def repairs_of(model: ir.Model) -> list[str]:
    """The sentences on what was repaired in an ONNX model, as `remember` was told; most models have none."""
    return list(model.graph.meta.get(REPAIRS, ()))


def bounds_as_vectors(graph: ir.Graph) -> list[str]:
    """Repairs an ONNX model as it is read: makes vectors of one element of the stored scalars that a Slice reads as
    bounds, which torch writes beside an LSTM and ONNX Runtime cannot run. A scalar that others read too stays beside
    its vector. Returns one sentence on what was done, or none."""
    found: dict[ir.Value, list[ir.Node]] = {}
    for node in graph:
        if node.op_type == "Slice" and node.domain in ("", "ai.onnx"):
            for value in node.inputs[1:]:
                tensor = None if value is None else stored_tensor(value)
                if value is not None and tensor is not None and tensor.dtype in INTEGERS and not len(tensor.shape):
                    found.setdefault(value, []).append(node)
    for value, nodes in found.items():
        fresh = FreshNames({*graph.initializers, *(v.name or "" for node in graph for v in node.outputs)})
        vector = ir.tensor(stored_tensor(value).numpy().reshape(1), name=value.name)  # type: ignore[union-attr]
        if len(value.uses()) > len(nodes) or value.is_graph_output() or value.is_graph_input():
            name = fresh(f"{value.name}_as_vector")
            new = ir.Value(name=name, type=ir.TensorType(vector.dtype), shape=ir.Shape([1]), const_value=vector)
            graph.register_initializer(new)
            for use in [use for use in value.uses() if use.node in nodes and use.idx]:
                use.node.replace_input_with(use.idx, new)
        else:
            put(value, vector)
            value.shape = ir.Shape([1])
    count = len({node for nodes in found.values() for node in nodes})
    several = "Slice has" if count == 1 else "Slices have"
    return [f"{count} {several} scalars for bounds: they are vectors now, as ONNX has them"] if count else []


def _annotations(graph: GraphProto | FunctionProto) -> Iterator[ValueInfoProto]:
    """The ValueInfoProtos of a graph: of its values inside, inputs and outputs; of a function those inside alone."""
    yield from graph.value_info
    if isinstance(graph, GraphProto):
        yield from graph.input
        yield from graph.output


def _take_map_types(graph: GraphProto | FunctionProto) -> Kept:
    """Clears the map types in a GraphProto, as onnx_ir cannot read them, and returns them."""
    kept: Kept = {}
    for info in _annotations(graph):
        if is_map(info.type):
            kept[info.name] = info.type.SerializeToString(deterministic=True)
            info.ClearField("type")
    return kept


def _restore_map_types(graph: GraphProto | FunctionProto, kept: Kept) -> None:
    """Writes the map types of `_take_map_types` into a GraphProto, for values that still exist, in the file's order."""
    made = {name for node in graph.node for name in node.output} if kept else set()
    listed = {info.name: info for info in _annotations(graph)}
    for name, content in kept.items():
        if name not in listed and name in made:
            listed[name] = onnx.ValueInfoProto(name=name)
            graph.value_info.append(listed[name])
            listed[name] = graph.value_info[-1]
        if name in listed:
            listed[name].type.ParseFromString(content)


Values = dict[str, ir.Value]  # by name
Infos = dict[str, ValueInfoProto]  # by name


def flat_model(proto: ModelProto, held: Holder) -> ir.Model | None:
    """The onnx_ir model of a ModelProto of one graph, without functions and bodies, read the fast way; ``held``: the
    graph's Holder. None where it says more than onnx_ir's constructors take, is not sorted, or makes no sense."""
    if proto.graph.quantization_annotation or getattr(proto, "configuration", ()):
        return None
    graph = _graph_read_fast(proto.graph, held.parts) if held.parts is not None else None
    if graph is None:
        return None
    graph.opset_imports.update(ir.serde.deserialize_opset_import(proto.opset_import))
    graph.meta[SORTED] = True
    fields = ("producer_name", "producer_version", "domain", "model_version", "doc_string")
    said = {name: getattr(proto, name) for name in fields if proto.HasField(name)}
    props = ir.serde.deserialize_metadata_props(proto.metadata_props)
    return ir.Model(graph, ir_version=proto.ir_version, metadata_props=props, **said)


def _graph_read_fast(proto: GraphProto, parts: list[Parts]) -> ir.Graph | None:
    """The onnx_ir graph of a GraphProto, read the fast way; ``parts``: its nodes, taken apart. None where it is not
    sorted, a name is missing or means two things: it needs the general way."""
    inputs = [ir.serde.deserialize_value_info_proto(info, None) for info in proto.input]
    values: Values = {value.name or "": value for value in inputs}
    infos = {info.name: info for info in proto.value_info}
    stored = [_initializer_value(tensor, values, infos) for tensor in proto.initializer]
    if not all(value.name for value in stored):
        return None
    nodes = _NodeReader(values, infos).read(parts)
    if nodes is None or not all(info.name in values for info in proto.output):
        return None
    return ir.Graph(
        inputs,
        [ir.serde.deserialize_value_info_proto(info, values[info.name]) for info in proto.output],
        nodes=nodes,
        initializers=stored,
        doc_string=proto.doc_string if proto.HasField("doc_string") else None,
        name=proto.name if proto.HasField("name") else None,
        metadata_props=ir.serde.deserialize_metadata_props(proto.metadata_props),
    )


def _initializer_value(proto: TensorProto, values: Values, infos: Infos) -> ir.Value:
    """The onnx_ir value of an initializer: the input of its name, whose default it becomes, or a new one, which is
    added to ``values``, annotated as ``infos`` says."""
    plain = proto.data_type == FLOAT and proto.data_location == TensorProto.DEFAULT
    tensor = InFile(proto) if plain else ir.serde.deserialize_tensor(proto)
    name = proto.name
    value = values.get(name)
    if value is not None:
        value.const_value = tensor
        return value
    value = values[name] = ir.Value(
        name=name, type=ir.TensorType(tensor.dtype), shape=frozen_shape(tuple(proto.dims)), const_value=tensor
    )
    if name in infos:
        ir.serde.deserialize_value_info_proto(infos[name], value)
    return value


Common = tuple[str, str, Sequence[ir.Attr], str, str | None, dict[str, str] | None]
"""What nodes of a kind have in common, as onnx_ir's: domain, operator, attributes, overload, doc string, metadata."""


class _NodeReader:
    """Makes onnx_ir nodes of nodes taken apart, in their order. ``values``: what nodes may read; results are added."""

    def __init__(self, values: Values, infos: Infos) -> None:
        self._values, self._infos = values, infos
        self._kinds: dict[Kind, Common] = {}
        self._attributes: dict[bytes, ir.Attr] = {}  # serialized attribute -> the object that nodes share

    def read(self, nodes: Iterable[Parts]) -> list[ir.Node] | None:
        """An ONNX graph's nodes as onnx_ir's; None where one reads what is not there, makes what is, or is not text."""
        values, made = self._values, []
        for inputs, outputs, name, kind in nodes:
            try:
                given = [values[text.decode()] if text else None for text in inputs]
                results, label = self._results(outputs), name.decode()
            except (KeyError, UnicodeDecodeError):
                return None
            if results is None:
                return None
            domain, op_type, attributes, overload, doc, props = self._kinds.get(kind) or self._common(kind)
            made.append(
                ir.Node(
                    domain,
                    op_type,
                    given,
                    attributes,
                    overload=overload,
                    outputs=results,
                    name=label,
                    doc_string=doc,
                    metadata_props=props,
                )
            )
        return made

    def _results(self, names: Iterable[bytes]) -> list[ir.Value] | None:
        """The values that an ONNX node makes, annotated as the file says; None where one is there already."""
        values, infos = self._values, self._infos
        made: list[ir.Value] = []
        for text in names:
            name = text.decode()
            value = ir.Value(name=name)
            made.append(value)
            if not name:
                continue
            if values.setdefault(name, value) is not value:
                return None
            if name in infos:
                ir.serde.deserialize_value_info_proto(infos[name], value)
        return made

    def _common(self, kind: Kind) -> Common:
        """What all ONNX nodes of one kind have in common, made once a kind that several nodes may have."""
        proto = kind.proto
        attributes = [self._attribute(attribute) for attribute in proto.attribute]
        props = ir.serde.deserialize_metadata_props(proto.metadata_props) if proto.metadata_props else None
        domain, op_type, doc = sys.intern(proto.domain), sys.intern(proto.op_type), proto.doc_string or None
        found = domain, op_type, attributes, proto.overload, doc, props
        if kind.shared:
            self._kinds[kind] = found
        return found

    def _attribute(self, proto: AttributeProto) -> ir.Attr:
        """An ONNX attribute as an object of onnx_ir; all nodes with the same numbers or text share one object."""
        if proto.type not in NUMBERS:
            return ir.serde.deserialize_attribute(proto)
        key = proto.SerializeToString(deterministic=True)
        found = self._attributes.get(key)
        if found is None:
            found = self._attributes[key] = ir.serde.deserialize_attribute(proto)
        return found
