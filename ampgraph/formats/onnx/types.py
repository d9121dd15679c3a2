"""Element types of an ONNX model, by name and as the file writes them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ...core.dataflow import FLOAT32
from ...core.graph import Attribute

Type = tuple[str, str]
"""Container (``seq``, ``optional``, ``other`` or nothing) and element type, as a dataflow has them."""

DTYPE_NAMES = {member: member.name.lower() for member in ir.DataType}
DTYPE_NAMES[ir.DataType.FLOAT] = FLOAT32
DTYPE_NAMES[ir.DataType.DOUBLE] = "float64"
DTYPE_NAMES[ir.DataType.UNDEFINED] = ""
DTYPES = {name: member for member, name in DTYPE_NAMES.items()}


def dtype_name(dtype: ir.DataType | None) -> str:
    """``float32`` for ir.DataType.FLOAT; an empty string for no type."""
    return "" if dtype is None else DTYPE_NAMES[dtype]


def type_numbered(number: object) -> str:
    """``float32`` for 1, as attributes name types; an empty string for what is no type."""
    return DTYPE_NAMES[ir.DataType(number)] if isinstance(number, int) and number in DTYPE_NAMES else ""


def declared_type(value: ir.Value) -> Type:
    """(container, element type) as the file annotates a value."""
    return element_type(value.type)


def element_type(kind: ir.TypeProtocol | None) -> Type:
    """A type as (container, element type); of nested containers the outermost."""
    if kind is None:
        return "", ""
    container = ""
    while isinstance(kind, (ir.SequenceType, ir.OptionalType)):
        container = container or ("seq" if isinstance(kind, ir.SequenceType) else "optional")
        kind = kind.elem_type
    if isinstance(kind, (ir.TensorType, ir.SparseTensorType)):
        return container or ("other" if isinstance(kind, ir.SparseTensorType) else ""), dtype_name(kind.dtype)
    return "other", ""


def native_type(container: str, dtype: str) -> ir.TypeProtocol:
    """The type of onnx_ir behind (container, element type)."""
    tensor = ir.TensorType(DTYPES[dtype])
    if container == "seq":
        return ir.SequenceType(tensor)
    return ir.OptionalType(tensor) if container == "optional" else tensor


def with_element(kind: ir.TypeProtocol | None, dtype: ir.DataType, container: str = "") -> ir.TypeProtocol:
    """A type with another element type; ``container`` where the file does not annotate it."""
    if type(kind) is ir.TensorType or (kind is None and not container):  # nearly all; onnx_ir's types are slow to ask
        return ir.TensorType(dtype)
    if isinstance(kind, ir.SequenceType) or (kind is None and container == "seq"):
        return ir.SequenceType(with_element(getattr(kind, "elem_type", None), dtype))
    if isinstance(kind, ir.OptionalType) or (kind is None and container == "optional"):
        return ir.OptionalType(with_element(getattr(kind, "elem_type", None), dtype))
    return ir.TensorType(dtype)


def attributes_of(given: Mapping[str, Attribute]) -> list[ir.Attr]:
    """Attributes of an ONNX node by name, of onnx_ir; an array is a tensor."""
    return [_as_attribute(name, value) for name, value in given.items()]


def _as_attribute(name: str, value: Attribute) -> ir.Attr:
    """A plain number, text, list or array as an attribute of onnx_ir; one float makes a list FLOATS."""
    if isinstance(value, np.ndarray):
        return ir.AttrTensor(name, ir.tensor(value))
    if isinstance(value, str):
        return ir.AttrString(name, value)
    if isinstance(value, (int, float)):
        kind = ir.AttributeType.FLOAT if isinstance(value, float) else ir.AttributeType.INT
        return ir.Attr(name, kind, value)
    if any(isinstance(item, float) for item in value):
        return ir.AttrFloat32s(name, [float(item) for item in value])
    return ir.AttrInt64s(name, [int(item) for item in value])
