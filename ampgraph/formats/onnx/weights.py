"""Stored tensors of an ONNX model, read and rounded piece by piece."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ...core.arrays import Array, DType
from ...core.dataflow import Value
from ..rounding import LOW_TYPES, STORED_TYPES, Rounder, pieces
from .nodes import attribute
from .types import DTYPES
from .walk import bodies, outermost

SHORT = 1 << 12  # elements: below it the calls cost more than what they do
NUMBERS = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
"""Attributes of a Constant that hold no tensor."""
InFile = ir.serde.TensorProtoTensor
FLOAT = ir.DataType.FLOAT.value


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
    kind = NUMBERS.get(attribute.name)
    return None if kind is None else ir.tensor(np.asarray(attribute.value, kind), name=native.name)


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
    if isinstance(tensor, RoundedTensor):
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


def stored(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    """The tensors of initializers and of Constant nodes, in bodies and functions too, each with the value that it is
    behind. One walk over the nodes."""
    waiting = outermost(model)
    for graph in waiting:
        yield from ((v, v.const_value) for v in graph.initializers.values() if v.const_value is not None)
        for node in graph:
            if node.attributes.data:
                tensor = stored_tensor(node.outputs[0]) if node.op_type == "Constant" else None
                if tensor is not None:
                    yield node.outputs[0], tensor
                waiting += bodies(node)


class OnnxWeights:
    """Reads stored tensors of an ONNX model for the dataflow, piece by piece."""

    def __init__(self) -> None:
        self._sizes: dict[ir.Value, int] = {}

    def size(self, value: Value) -> int:
        """Number of elements, 0 where nothing is stored."""
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
        """The tensor's elements, flat, in pieces that fit the memory; nothing where nothing is stored."""
        tensor = stored_tensor(value.native)
        if tensor is None:
            return
        yield from pieces(flat(tensor))

    def key(self, value: Value) -> object:
        """Equal for values that share one stored tensor (a function's constant, seen from each of its calls)."""
        return value.native


class RoundedTensor(ir.LazyTensor):
    """A float32 tensor rounded to ``dtype`` (nearest, ties to even) when it is read, never held.

    Finite elements below ``floor`` become ``floor`` first: only for masks, where the plan says so. ``factor``: it is
    multiplied by a number near one, and rounded once; what is finite when rounded plainly stays finite.
    """

    __slots__ = ("dims", "factor", "floor", "low", "source")

    def __init__(self, source: ir.TensorProtocol, dtype: str, floor: float | None = None, factor: float = 1.0) -> None:
        self.source, self.low, self.floor, self.factor = source, STORED_TYPES[dtype], floor, factor
        self.dims = dims(source)
        super().__init__(
            self._round,
            DTYPES[dtype],
            frozen_shape(self.dims),
            name=source.name,
            doc_string=source.doc_string,
            metadata_props=dict(said) if (said := source.metadata_props) else None,
        )

    def __repr__(self) -> str:
        """The tensor's fields as text; LazyTensor would print the function that makes it."""
        return f"RoundedTensor<{self.dtype},{self.shape}>(name={self.name!r})"

    def _round(self) -> ir.Tensor[Any]:
        """The whole tensor rounded, as onnx_ir asks a LazyTensor for it."""
        return ir.Tensor(self.whole().reshape(self.dims), dtype=self.dtype, name=self.name)

    def short_source(self) -> bytes:
        """The float32 bytes of a short tensor that is only rounded (no floor, no factor); b"" for any other."""
        source, plain = self.source, self.floor is None and self.factor == 1.0
        if not plain or type(source) is not InFile or math.prod(self.dims) > SHORT:
            return b""
        return source.raw.raw_data if is_raw_float(source.raw) else b""

    def tobytes(self) -> bytes:
        """The rounded elements as bytes; LazyTensor's own would hold the tensor in memory from then on."""
        return self.whole().tobytes()

    def whole(self) -> Array:
        """All elements, rounded, in one piece."""
        kept, start = np.empty(math.prod(self.dims), self.low), 0
        for part in self.chunks():
            kept[start : start + part.size] = part
            start += part.size
        return kept

    def chunks(self) -> Iterator[Array]:
        """The rounded elements piece by piece, each of which holds until the next one is asked for."""
        return Rounder(self.low, self.floor, self.factor).parts(flat(self.source))


def tensor_chunks(tensor: ir.TensorProtocol) -> Iterator[bytes | memoryview]:
    """The raw little-endian bytes of a tensor, in pieces, each of which holds until the next one is asked for."""
    if isinstance(tensor, RoundedTensor):
        yield from (part.view(np.uint8).data for part in tensor.chunks())
    elif isinstance(tensor, ir.ExternalTensor) and tensor.dtype.bitwidth >= 8:
        yield from (part.view(np.uint8).data for part in pieces(flat(tensor)))
    else:
        yield tensor.tobytes()


def short_rounded(tensors: Iterable[ir.TensorProtocol | None]) -> dict[int, memoryview]:
    """The rounded bytes of those tensors that are short and only rounded, by ``id`` of the tensor.

    All of a type are rounded at once: the calls that round one take longer than its few numbers do.
    """
    sources: dict[DType, dict[int, bytes]] = {}
    for tensor in tensors:
        if type(tensor) is RoundedTensor and (data := tensor.short_source()):
            sources.setdefault(tensor.low, {})[id(tensor)] = data
    return {key: data for low, known in sources.items() for key, data in _rounded_parts(known, low)}


def _rounded_parts(sources: dict[int, bytes], low: DType) -> Iterator[tuple[int, memoryview]]:
    """The rounded bytes of every source, under its key. ``sources``: elements of float32, little-endian."""
    whole = np.frombuffer(b"".join(sources.values()), "<f4")
    rounded = np.empty(whole.size, low)
    Rounder(low).round(whole, rounded)
    start, data = 0, rounded.view(np.uint8).data
    for key, source in sources.items():
        end = start + len(source) // 4 * low.itemsize
        yield key, data[start:end]
        start = end


STEPS = 64  # low numbers that are tried on both sides


class NormParameters:
    """Scale, bias, mean and variance of one norm, rounded together: their errors cancel in what it computes.

    y = (x - mean) * scale / sqrt(var + eps) + bias. Rounded one by one, the four shift every channel by up to a step of
    the low type, in every layer in the same direction. Of the low numbers beside each variance and mean the pair is
    taken that leaves factor and shift closest to what float32 parameters give."""

    def __init__(self, sources: list[ir.TensorProtocol], epsilon: float, dtype: str) -> None:
        self.sources, self.epsilon, self.low = sources, epsilon, LOW_TYPES[dtype]

    @cached_property
    def rounded(self) -> list[Array]:
        """The four in the low type; plainly rounded where that is not finite."""
        with np.errstate(over="ignore"):
            plain = [flat(source).astype(self.low) for source in self.sources]
        if not all(np.isfinite(part.astype(np.float64)).all() for part in plain):
            return plain
        scale, bias, mean, var = (flat(source).astype(np.float64) for source in self.sources)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            factor = scale / np.sqrt(var + self.epsilon)
            near = self._neighbours(var)
            scales = self._low(factor * np.sqrt(near + self.epsilon))
            low_scale, low_var = _closest_pairs(scales, near, scales / np.sqrt(near + self.epsilon) - factor)
            factors = low_scale / np.sqrt(low_var + self.epsilon)
            shift = bias - factor * mean
            means, biases = self._neighbours(mean), self._neighbours(bias)
            biases = np.concatenate([self._low(shift + factors * means), biases])
            means = np.concatenate([means, self._low((biases[len(means) :] - shift) / factors)])
            low_bias, low_mean = _closest_pairs(biases, means, biases - factors * means - shift)
        return [part.astype(self.low) for part in (low_scale, low_bias, low_mean, low_var)]

    def _low(self, numbers: Array) -> Array:
        """The numbers rounded to the low type."""
        return numbers.astype(self.low).astype(np.float64)

    def _neighbours(self, numbers: Array) -> Array:
        """For each number its own low number, then those around it by distance; its own again in place of one that is
        not finite or of another sign."""
        low = numbers.astype(self.low)
        bits = low.view(np.int16).astype(np.int32)
        steps = [0, *(side * step for step in range(1, STEPS + 1) for side in (-1, 1))]
        near = np.stack([(bits + step).astype(np.int16) for step in steps]).view(self.low)
        wide = near.astype(np.float64)
        valid = np.isfinite(wide) & (np.signbit(wide) == np.signbit(low.astype(np.float64)))
        return np.where(valid, wide, low.astype(np.float64))


def _closest_pairs(first: Array, second: Array, errors: Array) -> tuple[Array, Array]:
    """For a norm's parameters, rounded together: for each channel the pair (first, second) of least error, the
    earliest."""
    finite = np.isfinite(first) & np.isfinite(second) & np.isfinite(errors)
    best = np.where(finite, np.abs(errors), np.inf).argmin(axis=0), np.arange(errors.shape[1])
    return first[best], second[best]


class NormTensor(RoundedTensor):
    """One of a norm's four parameters, as they are rounded together. ``plain``: the same rounded by itself, of which a
    norm's parameters have neither floor nor factor; ``place``: 0 the scale, 1 the bias, 2 the mean, 3 the variance;
    ``dtype``: the low type."""

    def __init__(self, plain: RoundedTensor, parameters: NormParameters, place: int, dtype: str) -> None:
        super().__init__(plain.source, dtype)
        self.parameters, self.place = parameters, place
        self.name = plain.name

    def chunks(self) -> Iterator[Array]:
        """One piece: all its elements, rounded together with the other three parameters of the norm."""
        yield self.parameters.rounded[self.place]


class ChannelsTensor(RoundedTensor):
    """The stored operand of a product of which each row makes a channel: a row's elements are rounded together, so that
    they keep their sum. ``plain``: the same rounded by itself; ``dtype``: the low type."""

    def __init__(self, plain: RoundedTensor, dtype: str) -> None:
        super().__init__(plain.source, dtype, factor=plain.factor)
        self.name = plain.name

    def chunks(self) -> Iterator[Array]:
        """The rounded elements, some whole rows at a time."""
        data = flat(self.source)
        return Rounder(self.low, factor=self.factor).rows(data, max(1, data.size // max(1, self.dims[0])))


def round_channels(node: ir.Node, dtype: str) -> bool:
    """Rounds each row of a product's stored operand together; False where it has none that was rounded."""
    value = node.inputs[1]
    tensor = None if value is None else stored_tensor(value)
    if value is None or not isinstance(tensor, RoundedTensor) or tensor.low != LOW_TYPES[dtype]:
        return False
    put(value, ChannelsTensor(tensor, dtype))
    return True


def round_together(node: ir.Node, dtype: str) -> bool:
    """Rounds the stored parameters of a norm together; False where it has no four that were rounded."""
    values = [value for value in node.inputs[1:5] if value is not None]
    tensors = [stored_tensor(value) for value in values]
    plain = [tensor for tensor in tensors if isinstance(tensor, RoundedTensor) and tensor.low == LOW_TYPES[dtype]]
    if len(plain) != 4:
        return False
    parameters = NormParameters([t.source for t in plain], attribute(node, "epsilon", 1e-5), dtype)
    for place, (value, tensor) in enumerate(zip(values, plain, strict=True)):
        put(value, NormTensor(tensor, parameters, place, dtype))
    return True
