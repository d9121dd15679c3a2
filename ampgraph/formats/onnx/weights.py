"""Stored tensors of an ONNX model, read and rounded piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from ...core.arrays import Array
from ...core.dataflow import Value

CHUNK = 1 << 18  # elements: 1 MiB of float32, which stays in the cache
LOW_TYPES: dict[str, np.dtype[Any]] = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
STORED_TYPES = {**LOW_TYPES, "float32": np.dtype(np.float32)}  # float32: a mask that is floored and stays
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


def flat(tensor: ir.TensorProtocol) -> Array:
    """The elements in one dimension; a view where the tensor is mapped or raw."""
    return np.ascontiguousarray(tensor.numpy()).reshape(-1)


class OnnxWeights:
    """The WeightReader of the dataflow."""

    def size(self, value: Value) -> int:
        tensor = stored_tensor(value.native)
        return int(tensor.size) if tensor is not None else 0

    def array(self, value: Value, limit: int = 1 << 16) -> Array | None:
        """The whole tensor if it has at most ``limit`` elements, else None."""
        tensor = stored_tensor(value.native)
        if tensor is None or tensor.size > limit:
            return None
        return np.asarray(tensor.numpy())

    def chunks(self, value: Value) -> Iterator[Array]:
        tensor = stored_tensor(value.native)
        if tensor is None:
            return
        data = flat(tensor)
        for start in range(0, data.size, CHUNK):
            yield data[start : start + CHUNK]

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
            ir.Shape(source.shape.numpy()),
            name=source.name,
            doc_string=source.doc_string,
            metadata_props=dict(source.metadata_props),
        )
        self.source, self.low, self.floor = source, STORED_TYPES[dtype], floor

    def _round(self) -> ir.Tensor[Any]:
        parts = list(self.chunks())
        data = np.concatenate(parts) if parts else np.empty(0, self.low)
        return ir.Tensor(data.reshape(self.source.shape.numpy()), dtype=self.dtype, name=self.name)

    def tobytes(self) -> bytes:
        return b"".join(part.tobytes() for part in self.chunks())

    def chunks(self) -> Iterator[Array]:
        data = flat(self.source)
        for start in range(0, data.size, CHUNK):
            part = data[start : start + CHUNK]
            if self.floor is not None:
                part = np.where(np.isfinite(part) & (part < self.floor), np.float32(self.floor), part)
            with np.errstate(over="ignore"):
                yield part.astype(self.low)


def tensor_chunks(tensor: ir.TensorProtocol) -> Iterator[bytes | memoryview]:
    """The raw little-endian bytes of a tensor, in pieces."""
    if isinstance(tensor, RoundedTensor):
        for part in tensor.chunks():
            yield part.tobytes()
    elif isinstance(tensor, ir.ExternalTensor) and tensor.dtype.bitwidth >= 8:
        data = flat(tensor)
        for start in range(0, data.size, CHUNK):
            yield data[start : start + CHUNK].tobytes()
    else:
        yield tensor.tobytes()
