"""A model of one sorted graph as objects of onnx_ir: what `ir.from_proto` makes of it, by its public constructors.

Most models are one graph without bodies, sorted, and most of their attributes are alike: the general way, which looks
names up in scopes and makes an object of each attribute, takes half as long again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import onnx_ir as ir
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

SORTED = "ampgraph.sorted"
"""Where the main graph remembers that it was read in order."""

NODES = "ampgraph.nodes"
"""Where it remembers the nodes as the file has them, for whoever reads it: they are true until the first edit."""

NUMBERS = frozenset(
    (AttributeProto.INT, AttributeProto.INTS, AttributeProto.FLOAT, AttributeProto.FLOATS, AttributeProto.STRING)
)
"""Types of attributes of which one object is made for all that are equal."""

Values = dict[str, ir.Value]
Infos = dict[str, ValueInfoProto]


def flat_model(proto: ModelProto) -> ir.Model | None:
    """The model of a proto without functions and bodies; None where it says more than onnx_ir's constructors take in,
    is not sorted, or makes no sense: that is onnx_ir's own to read, or to refuse."""
    if proto.graph.quantization_annotation or getattr(proto, "configuration", ()):
        return None
    graph = _graph(proto.graph)
    if graph is None:
        return None
    graph.opset_imports.update(ir.serde.deserialize_opset_import(proto.opset_import))
    graph.meta[SORTED], graph.meta[NODES] = True, proto.graph.node
    fields = ("producer_name", "producer_version", "domain", "model_version", "doc_string")
    said = {name: getattr(proto, name) for name in fields if proto.HasField(name)}
    props = ir.serde.deserialize_metadata_props(proto.metadata_props)
    return ir.Model(graph, ir_version=proto.ir_version, metadata_props=props, **said)


def _graph(proto: GraphProto) -> ir.Graph | None:
    inputs = [ir.serde.deserialize_value_info_proto(info, None) for info in proto.input]
    values: Values = {value.name or "": value for value in inputs}
    infos = {info.name: info for info in proto.value_info}
    stored = [_stored(tensor, values, infos) for tensor in proto.initializer]
    if not all(value.name for value in stored):
        return None
    nodes = _Nodes(values, infos).read(proto.node)
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
    tensor, name = ir.serde.deserialize_tensor(proto), proto.name
    value = values.get(name)
    if value is not None:
        value.const_value = tensor
        return value
    shape: ir.Shape = tensor.shape  # type: ignore[assignment]
    value = values[name] = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
    if name in infos:
        ir.serde.deserialize_value_info_proto(infos[name], value)
    return value


class _Nodes:
    """Reads nodes in their order. ``values``: by name, what is there when they are reached."""

    def __init__(self, values: Values, infos: Infos) -> None:
        self._values, self._infos = values, infos
        self._attributes: dict[bytes, ir.Attr] = {}

    def read(self, protos: Iterable[NodeProto]) -> list[ir.Node] | None:
        """None where a node reads what is not there yet, or gives what there is already."""
        values, nodes = self._values, []
        for proto in protos:
            try:
                inputs = [values[name] if name else None for name in proto.input]
            except KeyError:
                return None
            outputs = [ir.Value(name=name) for name in proto.output]
            if not self._are_new(outputs):
                return None
            nodes.append(self._node(proto, inputs, outputs))
        return nodes

    def _are_new(self, results: Iterable[ir.Value]) -> bool:
        """Takes a node's results in, which have types and shapes where the file says them; False for a known one."""
        values, infos = self._values, self._infos
        for value in results:
            name = value.name
            if not name:
                continue
            if values.setdefault(name, value) is not value:
                return False
            if name in infos:
                ir.serde.deserialize_value_info_proto(infos[name], value)
        return True

    def _node(self, proto: NodeProto, inputs: Sequence[ir.Value | None], outputs: Sequence[ir.Value]) -> ir.Node:
        props = proto.metadata_props
        return ir.Node(
            sys.intern(proto.domain),
            sys.intern(proto.op_type),
            inputs,
            [self._attribute(attribute) for attribute in proto.attribute],
            overload=proto.overload,
            outputs=outputs,
            name=proto.name,
            doc_string=proto.doc_string or None,
            metadata_props=ir.serde.deserialize_metadata_props(props) if props else None,
        )

    def _attribute(self, proto: AttributeProto) -> ir.Attr:
        if proto.type not in NUMBERS:
            return ir.serde.deserialize_attribute(proto)
        key = proto.SerializeToString(deterministic=True)
        found = self._attributes.get(key)
        if found is None:
            found = self._attributes[key] = ir.serde.deserialize_attribute(proto)
        return found
