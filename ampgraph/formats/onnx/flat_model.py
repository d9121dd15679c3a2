"""A model of one sorted graph as objects of onnx_ir: what `ir.from_proto` makes of it, by its public constructors.

Most models are one graph without bodies, sorted, and most of their attributes are alike: the general way, which looks
names up in scopes and makes an object of each attribute, takes half as long again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import onnx_ir as ir
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, ValueInfoProto

from .node_parts import NUMBERS, Kind, Parts
from .proto import Holder
from .weights import FLOAT, InFile, frozen_shape

SORTED = "ampgraph.sorted"
"""Where the main graph remembers that it was read in order."""

Values = dict[str, ir.Value]
Infos = dict[str, ValueInfoProto]


def flat_model(proto: ModelProto, held: Holder) -> ir.Model | None:
    """The model of a proto without functions and bodies, whose graph is ``held``; None where it says more than the
    constructors of onnx_ir take in, is not sorted, or makes no sense: that is onnx_ir's own to read, or to refuse."""
    if proto.graph.quantization_annotation or getattr(proto, "configuration", ()):
        return None
    graph = _graph(proto.graph, held.parts) if held.parts is not None else None
    if graph is None:
        return None
    graph.opset_imports.update(ir.serde.deserialize_opset_import(proto.opset_import))
    graph.meta[SORTED] = True
    fields = ("producer_name", "producer_version", "domain", "model_version", "doc_string")
    said = {name: getattr(proto, name) for name in fields if proto.HasField(name)}
    props = ir.serde.deserialize_metadata_props(proto.metadata_props)
    return ir.Model(graph, ir_version=proto.ir_version, metadata_props=props, **said)


def _graph(proto: GraphProto, parts: list[Parts]) -> ir.Graph | None:
    inputs = [ir.serde.deserialize_value_info_proto(info, None) for info in proto.input]
    values: Values = {value.name or "": value for value in inputs}
    infos = {info.name: info for info in proto.value_info}
    stored = [_stored(tensor, values, infos) for tensor in proto.initializer]
    if not all(value.name for value in stored):
        return None
    nodes = _Nodes(values, infos).read(parts)
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


def _stored(proto: TensorProto, values: Values, infos: Infos) -> ir.Value:
    """The value of an initializer: a new one, or the input whose default it is."""
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
"""What nodes of a kind have in common: domain, operator, attributes, overload, doc string and metadata."""


class _Nodes:
    """Reads nodes in their order. ``values``: by name, what is there when they are reached."""

    def __init__(self, values: Values, infos: Infos) -> None:
        self._values, self._infos = values, infos
        self._kinds: dict[Kind, Common] = {}
        self._attributes: dict[bytes, ir.Attr] = {}

    def read(self, nodes: Iterable[Parts]) -> list[ir.Node] | None:
        """None where a node reads what is not there yet, or gives what there is already, or a name is no text."""
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
        """A node's results, which have types and shapes where the file says them; None where one is there already."""
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
        proto = kind.proto
        attributes = [self._attribute(attribute) for attribute in proto.attribute]
        props = ir.serde.deserialize_metadata_props(proto.metadata_props) if proto.metadata_props else None
        domain, op_type, doc = sys.intern(proto.domain), sys.intern(proto.op_type), proto.doc_string or None
        found = domain, op_type, attributes, proto.overload, doc, props
        if kind.shared:
            self._kinds[kind] = found
        return found

    def _attribute(self, proto: AttributeProto) -> ir.Attr:
        if proto.type not in NUMBERS:
            return ir.serde.deserialize_attribute(proto)
        key = proto.SerializeToString(deterministic=True)
        found = self._attributes.get(key)
        if found is None:
            found = self._attributes[key] = ir.serde.deserialize_attribute(proto)
        return found
