"""What a file says of values: entries of the same few types, of which each is made once."""

from __future__ import annotations

import onnx_ir as ir
from onnx import TypeProto

from .wire import number_bytes

INPUT, VALUE_INFO = b"\x5a", b"\x6a"
"""Fields of a graph."""

NAME, TYPE = b"\x0a", b"\x12"
"""Fields of what is said of a value."""


class InfoWriter:
    """Writes what is said of tensors: a name and a type."""

    def __init__(self) -> None:
        self._types: dict[tuple[ir.DataType, tuple[int, ...] | None], bytes] = {}

    def of(self, field: bytes, named: bytes, dtype: ir.DataType, shape: tuple[int, ...] | None) -> bytes:
        """The entry in a field of a graph; ``named``: the field of its name, ``shape``: None where nothing is said of
        it."""
        known = self._types.get((dtype, shape))
        if known is None:
            known = self._types[dtype, shape] = _type_bytes(dtype, shape)
        return field + number_bytes(len(named) + len(known)) + named + known


def _type_bytes(dtype: ir.DataType, shape: tuple[int, ...] | None) -> bytes:
    proto = TypeProto()
    ir.serde.serialize_type_into(proto, ir.TensorType(dtype))
    if shape is not None:
        ir.serde.serialize_shape_into(proto, ir.Shape(shape))
    content: bytes = proto.SerializeToString()
    return TYPE + number_bytes(len(content)) + content
