"""Types of an operator's outputs that its slots do not tell: what onnx infers for that one node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir

from .schemas import ONNX_DOMAINS
from .types import Type, declared_type, element_type, native_type


def inferred_types(node: ir.Node, inputs: Sequence[Type], opsets: Mapping[str, int]) -> list[Type]:
    """(container, element type) of each output by the types of the inputs; ``("", "")`` where onnx infers none."""
    unknown = [("", "")] * len(node.outputs)
    domain = "" if node.domain == "ai.onnx" else node.domain
    if node.domain not in ONNX_DOMAINS:
        return unknown
    try:
        version = opsets.get(domain, opsets.get("ai.onnx", 1))
        schema = onnx.defs.get_schema(node.op_type, version, domain)
        read = zip(node.inputs, inputs, strict=True)
        known = {value.name or "": _proto(value, kind) for value, kind in read if value is not None and kind[1]}
        imports = [onnx.helper.make_opsetid(name, number) for name, number in opsets.items()]
        proto = ir.serde.serialize_node(node)
        found = onnx.shape_inference.infer_node_outputs(schema, proto, known, opset_imports=imports)
    except (onnx.defs.SchemaError, onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        return unknown  # a node that onnx cannot follow: its annotation is asked
    return [_read(found[value.name]) if value.name in found else ("", "") for value in node.outputs]


def _proto(value: ir.Value, kind: Type) -> onnx.TypeProto:
    """The type of an input, with the shape that the file gives: rules may ask for the rank."""
    native = value.type if value.type is not None and declared_type(value) == kind else native_type(*kind)
    proto = onnx.TypeProto()
    ir.serde.serialize_type_into(proto, native)
    if value.shape is not None and isinstance(native, ir.TensorType):
        ir.serde.serialize_shape_into(proto, value.shape)
    return proto


def _read(proto: onnx.TypeProto) -> Type:
    return element_type(ir.serde.deserialize_type_proto_for_type(proto))
