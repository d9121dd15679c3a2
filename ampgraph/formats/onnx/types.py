"""Element types of an ONNX model, by name and as the file writes them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ...core.dataflow import FLOAT32
from ...core.graph import Attribute

Type = tuple[str, str]
"""(container, element type), as a dataflow has them: the container is ``seq``, ``optional``, ``other`` (a map, a sparse
tensor) or "" for a tensor; an unknown element type is ""."""

DTYPE_NAMES = {member: member.name.lower() for member in ir.DataType}
DTYPE_NAMES[ir.DataType.FLOAT] = FLOAT32
DTYPE_NAMES[ir.DataType.DOUBLE] = "float64"
DTYPE_NAMES[ir.DataType.UNDEFINED] = ""
DTYPES = {name: member for member, name in DTYPE_NAMES.items()}


def dtype_name(dtype: ir.DataType | None) -> str:
    """The name of an onnx_ir element type: ``float32`` for ir.DataType.FLOAT; "" for None and UNDEFINED."""
    return "" if dtype is None else DTYPE_NAMES[dtype]


def type_numbered(number: object) -> str:
    """The name of an ONNX element type by its number, as attributes have it: ``float32`` for 1; "" for what is none."""
    return DTYPE_NAMES[ir.DataType(number)] if isinstance(number, int) and number in DTYPE_NAMES else ""


def declared_type(value: ir.Value) -> Type:
    """(container, element type) of an onnx_ir value as the file annotates it; ("", "") where it does not."""
    return element_type(value.type)


def element_type(kind: ir.TypeProtocol | None) -> Type:
    """(container, element type) of an onnx_ir type; of nested containers the outermost; ("", "") for None."""
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
    """The onnx_ir type of (container, element type); a tensor's for ``other``."""
    tensor = ir.TensorType(DTYPES[dtype])
    if container == "seq":
        return ir.SequenceType(tensor)
    return ir.OptionalType(tensor) if container == "optional" else tensor


def with_element(kind: ir.TypeProtocol | None, dtype: ir.DataType, container: str = "") -> ir.TypeProtocol:
    """An onnx_ir type with another element type, inside containers too. ``container``: used where ``kind`` is None."""
    if type(kind) is ir.TensorType or (kind is None and not container):  # nearly all; onnx_ir's types are slow to ask
        return ir.TensorType(dtype)
    if isinstance(kind, ir.SequenceType) or (kind is None and container == "seq"):
        return ir.SequenceType(with_element(getattr(kind, "elem_type", None), dtype))
    if isinstance(kind, ir.OptionalType) or (kind is None and container == "optional"):
        return ir.OptionalType(with_element(getattr(kind, "elem_type", None), dtype))
    return ir.TensorType(dtype)


def attributes_of(given: Mapping[str, Attribute]) -> list[ir.Attr]:
    """Numbers, texts, lists and arrays by name as onnx_ir's attributes of an ONNX node; an array becomes a tensor."""
    return [_as_attribute(name, value) for name, value in given.items()]


def _as_attribute(name: str, value: Attribute) -> ir.Attr:
    """A number, text, list or array as an attribute of an ONNX node; a list is one of floats if any of it is."""
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
