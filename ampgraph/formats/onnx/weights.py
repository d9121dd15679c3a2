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
from ..diffusion import diffuse_errors, factors_for_biases
from ..rounding import LOW_TYPES, STORED_TYPES, Rounder, pieces
from .nodes import attribute
from .types import DTYPES
from .walk import bodies, outermost

SHORT = 1 << 12  # elements: below it the calls cost more than what they do
NUMBERS = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
"""Attributes of a Constant that hold numbers and no tensor -> the type of the tensor that they mean."""
InFile = ir.serde.TensorProtoTensor  # a tensor whose numbers are in the model's file
FLOAT = ir.DataType.FLOAT.value


def stored_tensor(native: ir.Value) -> ir.TensorProtocol | None:
    """The tensor of an ONNX initializer or Constant's output; None for other values, text, and what a caller gives."""
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
    """Makes ``tensor`` that of an ONNX initializer or of a Constant, by its output; the value's annotation stays."""
    node = native.producer()
    if node is None:
        native.const_value = tensor
    else:
        node.attributes.clear()
        node.attributes["value"] = ir.AttrTensor("value", tensor)


@lru_cache(maxsize=1 << 10)
def frozen_shape(dims: tuple[int, ...]) -> ir.Shape:
    """The onnx_ir shape of these dimensions, one object for all tensors of that shape."""
    return ir.Shape(dims, frozen=True)


def dims(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    """The dimensions of an ONNX tensor, without the object that onnx_ir makes of them at every look."""
    if type(tensor) is InFile:  # asked first: onnx_ir's classes are protocols, of which `isinstance` is slow to say no
        return tuple(tensor.raw.dims)
    return tensor.dims if isinstance(tensor, RoundedTensor) else tuple(tensor.shape.numpy())


def size(tensor: ir.TensorProtocol) -> int:
    """How many elements an ONNX tensor has."""
    return math.prod(dims(tensor))


def nbytes(tensor: ir.TensorProtocol) -> int:
    """How many bytes an ONNX tensor takes in the file, or in its data file."""
    if type(tensor) is not InFile and isinstance(tensor, RoundedTensor):
        return tensor.low.itemsize * size(tensor)
    if type(tensor) is InFile and tensor.raw.data_type == FLOAT:
        return 4 * size(tensor)
    return tensor.nbytes if tensor.dtype == ir.DataType.STRING else math.ceil(size(tensor) * tensor.dtype.itemsize)


def flat(tensor: ir.TensorProtocol) -> Array:
    """The elements of an ONNX tensor in one dimension; a view where they are raw bytes of the file or a mapped one."""
    if type(tensor) is InFile and is_raw_float(tensor.raw):
        return np.frombuffer(tensor.raw.raw_data, "<f4")
    return np.ascontiguousarray(tensor.numpy()).reshape(-1)


def is_raw_float(proto: onnx.TensorProto) -> bool:
    """Whether a TensorProto holds float32 numbers as raw bytes, not in the list of floats or a data file."""
    return proto.data_type == FLOAT and proto.HasField("raw_data")


def stored(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    """(value, tensor) of each initializer and Constant of an ONNX model, also in bodies and functions."""
    waiting = outermost(model)  # bodies are added to it while it is walked
    for graph in waiting:
        yield from ((v, v.const_value) for v in graph.initializers.values() if v.const_value is not None)
        for node in graph:
            if node.attributes.data:
                tensor = stored_tensor(node.outputs[0]) if node.op_type == "Constant" else None
                if tensor is not None:
                    yield node.outputs[0], tensor
                waiting += bodies(node)


class OnnxWeights:
    """The `WeightReader` of ONNX models: reads stored tensors for the dataflow, piece by piece."""

    def __init__(self) -> None:
        self._sizes: dict[ir.Value, int] = {}

    def size(self, value: Value) -> int:
        """How many elements an ONNX value has stored; 0 for a value that is not stored. Edits do not change it."""
        native = value.native
        known = self._sizes.get(native)
        if known is None:
            tensor = stored_tensor(native)
            known = self._sizes[native] = size(tensor) if tensor is not None else 0
        return known

    def array(self, value: Value, limit: int = 1 << 16) -> Array | None:
        """The stored tensor of an ONNX value, in its shape; None beyond ``limit`` elements, and if it is not stored."""
        if self.size(value) > limit:
            return None
        tensor = stored_tensor(value.native)
        if type(tensor) is InFile:
            return flat(tensor).reshape(dims(tensor))
        return None if tensor is None else np.asarray(tensor.numpy())

    def chunks(self, value: Value) -> Iterator[Array]:
        """The stored elements of an ONNX value, if any, in one dimension, in pieces that fit the memory."""
        tensor = stored_tensor(value.native)
        if tensor is None:
            return
        yield from pieces(flat(tensor))

    def key(self, value: Value) -> object:
        """A key that is equal for ONNX values of one stored tensor, as a function's constant in each of its calls."""
        return value.native


class RoundedTensor(ir.LazyTensor):
    """A float32 tensor of an ONNX model that is rounded to ``dtype`` (nearest, ties to even) each time it is read, and
    never held rounded. ``dtype``: float16, bfloat16, or float32 for a mask that is only floored. Finite elements below
    ``floor`` become ``floor`` first: only for masks, where the plan says so; None for no floor. ``factor``: elements
    are multiplied by it, a number near one, and rounded once; those that overflow by it are rounded without it."""

    __slots__ = ("dims", "factor", "floor", "low", "source")  # ``low``: the numpy type of what it gives

    def __init__(self, source: ir.TensorProtocol, dtype: str, floor: float | None = None, factor: float = 1.0) -> None:
        self.source, self.low, self.floor, self.factor = source, STORED_TYPES[dtype], floor, factor
        self.dims = dims(source)
        super().__init__(
            self._round,
            DTYPES[dtype],
            frozen_shape(self.dims),
            name=source.name,
            doc_string=source.doc_string,
            metadata_props=dict(source.metadata_props) or None,
        )

    def __repr__(self) -> str:
        """The rounded tensor as text: type, shape, name. LazyTensor's own prints the function that makes it."""
        return f"RoundedTensor<{self.dtype},{self.shape}>(name={self.name!r})"

    def _round(self) -> ir.Tensor[Any]:
        """The whole rounded tensor in its shape: what onnx_ir calls to get the numbers of a LazyTensor."""
        return ir.Tensor(self.whole().reshape(self.dims), dtype=self.dtype, name=self.name)

    def short_source(self) -> bytes:
        """The float32 bytes of a source of at most `SHORT` elements in the file, without floor and factor; else b""."""
        source = self.source
        if self.floor is not None or self.factor != 1.0:
            return b""
        if type(source) is not InFile or not is_raw_float(source.raw) or math.prod(self.dims) > SHORT:
            return b""
        return source.raw.raw_data

    def tobytes(self) -> bytes:
        """The rounded elements as bytes; LazyTensor's own would hold the tensor in memory from then on."""
        return self.whole().tobytes()

    def whole(self) -> Array:
        """All elements, rounded, in one dimension and one piece."""
        kept, start = np.empty(math.prod(self.dims), self.low), 0
        for part in self.chunks():
            kept[start : start + part.size] = part
            start += part.size
        return kept

    def chunks(self) -> Iterator[Array]:
        """The rounded elements in one dimension, piece by piece; each piece is overwritten by the next one."""
        return Rounder(self.low, self.floor, self.factor).parts(flat(self.source))


def tensor_chunks(tensor: ir.TensorProtocol) -> Iterator[bytes | memoryview]:
    """The raw little-endian bytes of an ONNX tensor, in pieces; each piece is overwritten by the next one. A large
    tensor in a data file or one to be rounded is never in memory as a whole."""
    if isinstance(tensor, RoundedTensor):
        yield from (part.view(np.uint8).data for part in tensor.chunks())
    elif isinstance(tensor, ir.ExternalTensor) and tensor.dtype.bitwidth >= 8:
        yield from (part.view(np.uint8).data for part in pieces(flat(tensor)))
    else:
        yield tensor.tobytes()


def short_rounded(tensors: Iterable[ir.TensorProtocol | None]) -> dict[int, memoryview]:
    """``id`` of a tensor -> its rounded bytes, for those RoundedTensors among ``tensors`` that are short and only
    rounded (`RoundedTensor.short_source`); the others are left out. All of a type are rounded at once."""
    sources: dict[DType, dict[int, bytes]] = {}  # type to round to -> id of a tensor -> its float32 bytes
    for tensor in tensors:
        if type(tensor) is RoundedTensor:  # no subclass: they round in another way
            data = tensor.short_source()
            if data:
                sources.setdefault(tensor.low, {})[id(tensor)] = data
    return {key: data for low, of_type in sources.items() for key, data in _round_at_once(of_type, low)}


def _round_at_once(sources: dict[int, bytes], low: DType) -> Iterator[tuple[int, memoryview]]:
    """Rounds several short ONNX tensors in one call: (key, rounded bytes) of each. ``sources``: key -> the
    little-endian float32 elements; ``low``: the type to round to."""
    whole = np.frombuffer(b"".join(sources.values()), "<f4")
    rounded = np.empty(whole.size, low)
    Rounder(low).round(whole, rounded)
    start, data = 0, rounded.view(np.uint8).data
    for key, source in sources.items():
        end = start + len(source) // 4 * low.itemsize
        yield key, data[start:end]
        start = end


STEPS = 64  # low numbers that are tried on each side of a variance, mean or bias


class NormParameters:
    """Scale, bias, mean and variance of one norm, rounded together: their errors cancel in what it computes. y = (x -
    mean) * scale / sqrt(var + eps) + bias. Rounded one by one, the four shift every channel by up to a step of the low
    type, in every layer in the same direction. Of the low numbers beside each variance and mean the pair is taken that
    leaves factor and shift closest to what float32 parameters give. ``sources``: the four in float32, in that order,
    each of one element a channel; ``epsilon``: the norm's; ``dtype``: the low type."""

    def __init__(self, sources: list[ir.TensorProtocol], epsilon: float, dtype: str) -> None:
        self.sources, self.epsilon, self.low = sources, epsilon, LOW_TYPES[dtype]

    @cached_property
    def rounded(self) -> list[Array]:
        """Scale, bias, mean and variance in the low type; each rounded by itself if any of them is not finite then."""
        with np.errstate(over="ignore"):
            plain = [flat(source).astype(self.low) for source in self.sources]
        if not all(np.isfinite(part.astype(np.float64)).all() for part in plain):
            return plain
        scale, bias, mean, var = (flat(source).astype(np.float64) for source in self.sources)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            factor = scale / np.sqrt(var + self.epsilon)  # y = x * factor + shift
            shift = bias - factor * mean
            variances = self._neighbours(var)
            scales = self._low(factor * np.sqrt(variances + self.epsilon))
            errors = scales / np.sqrt(variances + self.epsilon) - factor
            low_scale, low_var = _closest_pairs(scales, variances, errors)
            factors = low_scale / np.sqrt(low_var + self.epsilon)
            means, biases = self._neighbours(mean), self._neighbours(bias)
            biases = np.concatenate([self._low(shift + factors * means), biases])
            means = np.concatenate([means, self._low((biases[len(means) :] - shift) / factors)])
            low_bias, low_mean = _closest_pairs(biases, means, biases - factors * means - shift)
        return [part.astype(self.low) for part in (low_scale, low_bias, low_mean, low_var)]

    def _low(self, numbers: Array) -> Array:
        """A norm's float64 numbers rounded to the low type, as float64."""
        return numbers.astype(self.low).astype(np.float64)

    def _neighbours(self, numbers: Array) -> Array:
        """Low numbers to try for a norm's parameter, as float64 of shape [1 + 2 * STEPS, channels]: the nearest one,
        then those around it by distance; the nearest again in place of one not finite or of another sign."""
        low = numbers.astype(self.low)
        bits = low.view(np.int16).astype(np.int32)
        steps = [0, *(side * step for step in range(1, STEPS + 1) for side in (-1, 1))]
        near = np.stack([(bits + step).astype(np.int16) for step in steps]).view(self.low)
        wide = near.astype(np.float64)
        valid = np.isfinite(wide) & (np.signbit(wide) == np.signbit(low.astype(np.float64)))
        return np.where(valid, wide, low.astype(np.float64))


def _closest_pairs(first: Array, second: Array, errors: Array) -> tuple[Array, Array]:
    """For a norm's parameters, rounded together: in each column (a channel) of three arrays of one shape, the numbers
    of ``first`` and ``second`` in the row of least absolute error, the earliest of several."""
    finite = np.isfinite(first) & np.isfinite(second) & np.isfinite(errors)
    best = np.where(finite, np.abs(errors), np.inf).argmin(axis=0), np.arange(errors.shape[1])
    return first[best], second[best]


class NormTensor(RoundedTensor):
    """One of an ONNX norm's four parameters, which are rounded together. ``plain``: the same rounded by itself, whose
    source and name it takes; it has neither floor nor factor: floors are of masks, factors of products' operands.
    ``parameters``: the four; ``place``: which of them it is, 0 the scale, 1 the bias, 2 the mean, 3 the variance;
    ``dtype``: the low type."""

    def __init__(self, plain: RoundedTensor, parameters: NormParameters, place: int, dtype: str) -> None:
        super().__init__(plain.source, dtype)
        self.parameters, self.place = parameters, place
        self.name = plain.name

    def chunks(self) -> Iterator[Array]:
        """All elements of the norm's parameter in one piece, rounded together with the other three."""
        yield self.parameters.rounded[self.place]


class ChannelsTensor(RoundedTensor):
    """The weights of an ONNX convolution, rounded together: what rounding adds to one of them, or to a bias, is taken
    from those beside it. ``plain``: the weights, each rounded by itself, whose source, name and factor it takes; it has
    no floor, as a mask does. ``bias``: the biases that the same convolution reads, if they are rounded; ``dtype``: the
    low type."""

    def __init__(self, plain: RoundedTensor, bias: RoundedTensor | None, dtype: str) -> None:
        super().__init__(plain.source, dtype, factor=plain.factor)
        self.name, self.bias = plain.name, bias

    def chunks(self) -> Iterator[Array]:
        """As of `RoundedTensor`, whole output channels at a time; one with a number that is not finite, before or after
        rounding, is rounded number by number."""
        weights, factors = flat(self.source).reshape(self.dims), np.full(self.dims[0], self.factor)
        if self.bias is not None:
            biases = flat(self.bias.source).astype(np.float64) * self.bias.factor
            factors *= factors_for_biases(biases, self.bias.whole(), weights)
        return diffuse_errors(weights, factors, self.low)


def round_channels(node: ir.Node, dtype: str) -> bool:
    """Has the weights of an ONNX convolution rounded together, beside its biases; False, and nothing changes, where
    the weights are no stored tensor that was rounded to ``dtype`` before."""
    weights, bias = ([_rounded(value, dtype) for value in node.inputs[1:3]] + [None])[:2]
    if weights is None or (value := node.inputs[1]) is None:
        return False
    fits = bias is not None and bias.dims == weights.dims[:1]
    put(value, ChannelsTensor(weights, bias if fits else None, dtype))
    return True


def _rounded(value: ir.Value | None, dtype: str) -> RoundedTensor | None:
    """The stored tensor of an ONNX value, if it was rounded to ``dtype``."""
    tensor = None if value is None else stored_tensor(value)
    return tensor if isinstance(tensor, RoundedTensor) and tensor.low == LOW_TYPES[dtype] else None


def round_together(node: ir.Node, dtype: str) -> bool:
    """Has the scale, bias, mean and variance of an ONNX BatchNormalization rounded together, so that their errors
    cancel; False, and nothing changes, where not all four are stored tensors that were rounded to ``dtype`` before."""
    values = [value for value in node.inputs[1:5] if value is not None]
    plain = [tensor for value in values if (tensor := _rounded(value, dtype)) is not None]
    if len(plain) != 4:
        return False
    parameters = NormParameters([t.source for t in plain], attribute(node, "epsilon", 1e-5), dtype)
    for place, (value, tensor) in enumerate(zip(values, plain, strict=True)):
        put(value, NormTensor(tensor, parameters, place, dtype))
    return True
