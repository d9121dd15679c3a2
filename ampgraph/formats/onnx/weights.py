"""Stored tensors of an ONNX model, read and rounded piece by piece."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from ...core.arrays import Array, DType
from ...core.dataflow import Value
from ..rounding import Rounder

CHUNK = 1 << 16  # elements: 256 KiB of float32, which stay in the second cache
SHORT = 1 << 12  # elements: below it the calls cost more than what they do
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
        is_tensor = attribute.type == ir.AttributeType.TENSOR  # else this raises; its own look at a tensor is slow
        return attribute.value if is_tensor else attribute.as_tensor()
    if attribute.name == "value_float":
        return ir.tensor(np.asarray(attribute.value, np.float32), name=native.name)
    if attribute.name == "value_floats":
        return ir.tensor(np.asarray(attribute.value, np.float32), name=native.name)
    if attribute.name in ("value_int", "value_ints"):
        return ir.tensor(np.asarray(attribute.value, np.int64), name=native.name)
    return None


def put(native: ir.Value, tensor: ir.TensorProtocol) -> None:
    """Puts a tensor behind an initializer or a Constant."""
    node = native.producer()
    if node is None:
        native.const_value = tensor
    else:
        node.attributes.clear()
        node.attributes["value"] = ir.AttrTensor("value", tensor)


@lru_cache(maxsize=1 << 10)
def frozen_shape(dims: tuple[int, ...]) -> ir.Shape:
    """The one shape of all tensors that have it."""
    return ir.Shape(dims, frozen=True)


def dims(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    """The shape, without the object that onnx_ir makes of it at every look."""
    if type(tensor) is InFile:  # asked first: onnx_ir's classes are protocols, of which `isinstance` is slow to say no
        return tuple(tensor.raw.dims)
    return tensor.dims if isinstance(tensor, RoundedTensor) else tuple(tensor.shape.numpy())


def size(tensor: ir.TensorProtocol) -> int:
    """How many elements a tensor has."""
    return math.prod(dims(tensor))


def nbytes(tensor: ir.TensorProtocol) -> int:
    """How many bytes a tensor takes, as it is stored."""
    if type(tensor) is RoundedTensor:
        return tensor.low.itemsize * size(tensor)
    if type(tensor) is InFile and tensor.raw.data_type == FLOAT:
        return 4 * size(tensor)
    return tensor.nbytes if tensor.dtype == ir.DataType.STRING else math.ceil(size(tensor) * tensor.dtype.itemsize)


def flat(tensor: ir.TensorProtocol) -> Array:
    """The elements in one dimension; a view where the tensor is mapped or raw."""
    if type(tensor) is InFile and is_raw_float(tensor.raw):
        return np.frombuffer(tensor.raw.raw_data, "<f4")
    return np.ascontiguousarray(tensor.numpy()).reshape(-1)


def is_raw_float(proto: onnx.TensorProto) -> bool:
    """Whether a tensor is of float32, in the bytes of the model's file."""
    return proto.data_type == FLOAT and proto.HasField("raw_data")


def pieces(data: Array) -> Iterator[Array]:
    """Views of an array of one dimension, one after the other."""
    return (data[start : start + CHUNK] for start in range(0, data.size, CHUNK))


class OnnxWeights:
    """The WeightReader of the dataflow."""

    def __init__(self) -> None:
        self._sizes: dict[ir.Value, int] = {}

    def size(self, value: Value) -> int:
        native = value.native
        known = self._sizes.get(native)
        if known is None:
            tensor = stored_tensor(native)
            known = self._sizes[native] = size(tensor) if tensor is not None else 0
        return known

    def array(self, value: Value, limit: int = 1 << 16) -> Array | None:
        """The whole tensor if it has at most ``limit`` elements, else None."""
        if self.size(value) > limit:
            return None
        tensor = stored_tensor(value.native)
        if type(tensor) is InFile:
            return flat(tensor).reshape(dims(tensor))
        return None if tensor is None else np.asarray(tensor.numpy())

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

    __slots__ = ("dims", "floor", "low", "source")

    def __init__(self, source: ir.TensorProtocol, dtype: str, floor: float | None = None) -> None:
        self.source, self.low, self.floor, self.dims = source, STORED_TYPES[dtype], floor, dims(source)
        super().__init__(
            self._round,
            IR_TYPES[dtype],
            frozen_shape(self.dims),
            name=source.name,
            doc_string=source.doc_string,
            metadata_props=dict(said) if (said := source.metadata_props) else None,
        )

    def __repr__(self) -> str:
        """Not what it is made by, which is a method of its own."""
        return f"RoundedTensor<{self.dtype},{self.shape}>(name={self.name!r})"

    def _round(self) -> ir.Tensor[Any]:
        data = self.whole().reshape(self.dims)
        return ir.Tensor(data, dtype=self.dtype, name=self.name)

    def short_source(self) -> bytes:
        """What is to be rounded, as bytes, where that is all that is done to it and it is short; else nothing."""
        source = self.source
        if self.floor is not None or type(source) is not InFile or math.prod(self.dims) > SHORT:
            return b""
        return source.raw.raw_data if is_raw_float(source.raw) else b""

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


class ScaledTensor(RoundedTensor):
    """A float32 tensor times a factor near one, rounded once. What is finite when rounded plainly stays finite."""

    def __init__(self, source: ir.TensorProtocol, dtype: str, factor: float) -> None:
        super().__init__(source, dtype)
        self.factor = factor

    def _round_into(self, part: Array, place: Array, rounder: Rounder) -> None:
        super()._round_into(part, place, rounder)
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = (part.astype(np.float64) * self.factor).astype(self.low)
        np.copyto(place, scaled, where=np.isfinite(scaled))


def tensor_chunks(tensor: ir.TensorProtocol) -> Iterator[bytes | memoryview]:
    """The raw little-endian bytes of a tensor, in pieces, each of which holds until the next one is asked for."""
    if isinstance(tensor, RoundedTensor):
        yield from (part.view(np.uint8).data for part in tensor.chunks())
    elif isinstance(tensor, ir.ExternalTensor) and tensor.dtype.bitwidth >= 8:
        yield from (part.view(np.uint8).data for part in pieces(flat(tensor)))
    else:
        yield tensor.tobytes()


def short_rounded(tensors: Iterable[ir.TensorProtocol | None]) -> dict[int, memoryview]:
    """The bytes of those of some tensors that are short and only rounded, by identity: all of a type at once, for a
    short tensor takes hardly longer than the calls that round it."""
    sources: dict[DType, dict[int, bytes]] = {}
    for tensor in tensors:
        if type(tensor) is RoundedTensor and (data := tensor.short_source()):
            sources.setdefault(tensor.low, {})[id(tensor)] = data
    return {key: data for low, known in sources.items() for key, data in _rounded_parts(known, low)}


def _rounded_parts(sources: dict[int, bytes], low: DType) -> Iterator[tuple[int, memoryview]]:
    """``sources``: elements of float32."""
    whole = np.frombuffer(b"".join(sources.values()), "<f4")
    rounded = np.empty(whole.size, low)
    Rounder(low).round(whole, rounded)
    start, data = 0, rounded.view(np.uint8).data
    for key, source in sources.items():
        end = start + len(source) // 4 * low.itemsize
        yield key, data[start:end]
        start = end
