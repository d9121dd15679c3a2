"""Types as ampgraph writes them, ``float32`` in a ``seq``, and as onnx_ir does."""

from __future__ import annotations

import onnx_ir as ir

from ...core.dataflow import FLOAT32


def dtype_name(dtype: ir.DataType | None) -> str:
    """``float32`` for ir.DataType.FLOAT; an empty string for no type."""
    return "" if dtype is None or dtype == ir.DataType.UNDEFINED else DTYPE_NAMES[dtype]


DTYPE_NAMES = {member: member.name.lower() for member in ir.DataType}
DTYPE_NAMES[ir.DataType.FLOAT] = FLOAT32
DTYPE_NAMES[ir.DataType.DOUBLE] = "float64"
DTYPES = {name: member for member, name in DTYPE_NAMES.items()}


def declared_type(value: ir.Value) -> tuple[str, str]:
    """(container, element type) as the file annotates a value."""
    return element_type(value.type)


def element_type(kind: ir.TypeProtocol | None) -> tuple[str, str]:
    """(container, element type): of containers in each other the outermost."""
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
