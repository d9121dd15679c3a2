"""Stored tensors of an ONNX model, read and rounded piece by piece."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from ...core.arrays import Array, DType
from ...core.dataflow import Value
from ..rounding import Rounder

CHUNK = 1 << 16  # elements: 256 KiB of float32, which stay in the second cache
LOW_TYPES: dict[str, DType] = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
STORED_TYPES = {**LOW_TYPES, "float32": np.dtype(np.float32)}  # float32: a mask that is floored and stays
InFile = ir.serde.TensorProtoTensor
FLOAT = ir.DataType.FLOAT.value
IR_TYPES = {"float32": ir.DataType.FLOAT, "float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}


def stored_tensor(native: ir.Value) -> ir.TensorProtocol | None:
    """The tensor behind an initializer or a Constant node's output."""
    node = native.producer()
    if node is None:
        return native.const_value
    attribute = next(iter(node.attributes.values()), None)
    if node.op_type != "Constant" or attribute is None or attribute.is_ref():
        return None
    if attribute.name == "value":
        return attribute.as_tensor()
    if attribute.name == "value_float":
        return ir.tensor(np.asarray(attribute.value, np.float32), name=native.name)
    if attribute.name == "value_floats":
        return ir.tensor(np.asarray(attribute.value, np.float32), name=native.name)
    if attribute.name in ("value_int", "value_ints"):
        return ir.tensor(np.asarray(attribute.value, np.int64), name=native.name)
    return None


def dims(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    """The shape, without the object that onnx_ir makes of it at every look."""
    return tuple(tensor.raw.dims if type(tensor) is InFile else tensor.shape.numpy())


def size(tensor: ir.TensorProtocol) -> int:
    """How many elements a tensor has."""
    return math.prod(dims(tensor))


def nbytes(tensor: ir.TensorProtocol) -> int:
    """How many bytes a tensor takes, as it is stored."""
    return tensor.nbytes if tensor.dtype == ir.DataType.STRING else math.ceil(size(tensor) * tensor.dtype.itemsize)


def flat(tensor: ir.TensorProtocol) -> Array:
    """The elements in one dimension; a view where the tensor is mapped or raw."""
    if type(tensor) is InFile and (raw := tensor.raw).data_type == FLOAT and raw.HasField("raw_data"):
        return np.frombuffer(raw.raw_data, "<f4")
    return np.ascontiguousarray(tensor.numpy()).reshape(-1)


def pieces(data: Array) -> Iterator[Array]:
    """Views of an array of one dimension, one after the other."""
    return (data[start : start + CHUNK] for start in range(0, data.size, CHUNK))


class OnnxWeights:
    """The WeightReader of the dataflow."""

    def size(self, value: Value) -> int:
        tensor = stored_tensor(value.native)
        return size(tensor) if tensor is not None else 0

    def array(self, value: Value, limit: int = 1 << 16) -> Array | None:
        """The whole tensor if it has at most ``limit`` elements, else None."""
        tensor = stored_tensor(value.native)
        if tensor is None or math.prod(shape := dims(tensor)) > limit:
            return None
        return flat(tensor).reshape(shape) if type(tensor) is InFile else np.asarray(tensor.numpy())

    def chunks(self, value: Value) -> Iterator[Array]:
        tensor = stored_tensor(value.native)
        if tensor is None:
            return
        yield from pieces(flat(tensor))

    def key(self, value: Value) -> object:
        """Equal for values that share one stored tensor (a function's constant, seen from each of its calls)."""
        return value.native


class RoundedTensor(ir.LazyTensor):
    """A float32 tensor rounded to ``dtype`` (nearest, ties to even) when it is read, never held.

    Finite elements below ``floor`` become ``floor`` first: only for masks, where the plan says so.
    """

    def __init__(self, source: ir.TensorProtocol, dtype: str, floor: float | None = None) -> None:
        super().__init__(
            self._round,
            IR_TYPES[dtype],
            ir.Shape(dims(source)),
            name=source.name,
            doc_string=source.doc_string,
            metadata_props=dict(source.metadata_props),
        )
        self.source, self.low, self.floor = source, STORED_TYPES[dtype], floor

    def __repr__(self) -> str:
        """Not what it is made by, which is a method of its own."""
        return f"RoundedTensor<{self.dtype},{self.shape}>(name={self.name!r})"

    def _round(self) -> ir.Tensor[Any]:
        data = self.whole().reshape(dims(self.source))
        return ir.Tensor(data, dtype=self.dtype, name=self.name)

    def tobytes(self) -> bytes:
        return self.whole().tobytes()

    def whole(self) -> Array:
        """All elements, rounded, in one piece."""
        data, rounder = flat(self.source), Rounder(self.low)
        rounded = np.empty(data.size, self.low)
        for part, place in zip(pieces(data), pieces(rounded), strict=True):
            self._round_into(part, place, rounder)
        return rounded

    def chunks(self) -> Iterator[Array]:
        """The rounded elements piece by piece, each in the memory of the one before: fresh pages cost more."""
        data, rounder = flat(self.source), Rounder(self.low)
        kept = np.empty(min(CHUNK, data.size), self.low)
        for part in pieces(data):
            self._round_into(part, kept[: part.size], rounder)
            yield kept[: part.size]

    def _round_into(self, part: Array, place: Array, rounder: Rounder) -> None:
        if self.floor is not None:
            part = np.where(np.isfinite(part) & (part < self.floor), np.float32(self.floor), part)
        rounder.round(part, place)


def tensor_chunks(tensor: ir.TensorProtocol) -> Iterator[bytes | memoryview]:
    """The raw little-endian bytes of a tensor, in pieces, each of which holds until the next one is asked for."""
    if isinstance(tensor, RoundedTensor):
        yield from (part.view(np.uint8).data for part in tensor.chunks())
    elif isinstance(tensor, ir.ExternalTensor) and tensor.dtype.bitwidth >= 8:
        yield from (part.view(np.uint8).data for part in pieces(flat(tensor)))
    else:
        yield tensor.tobytes()
