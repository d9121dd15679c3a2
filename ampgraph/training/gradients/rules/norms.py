"""Normalisations: y = xh scale + bias with xh = (x - mean) / deviation. All in float32: sums of squares overflow.

With d the gradient of xh, that of x is (d - mean(d) - xh mean(d xh)) / deviation; without a mean in the forward, the
middle term is not there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ..broadcast import sum_to
from ..builder import Builder
from ..registry import Unsupported, attribute, gradient, operand

Value = ir.Value

KEEP = "a normalisation: squares and their sums leave the range of float16"
SMALL = 1e-9  # of an epsilon: its 1 / deviation is 31,623 at most
BATCH = "ampgraph.batch_statistics"
"""The mark of a BatchNormalization whose mean and variance are those of its own data (see `lower_batch_norm`)."""


@gradient("LayerNormalization")
def layer_normalization(
    b: Builder, node: ir.Node, g: Value | None, dmean: Value | None = None, dinverse: Value | None = None
) -> list[Value | None]:
    """The forward gives 1 / deviation; xh is the same operator again, without scale and bias."""
    with b.float32(KEEP):
        x, scale, bias = (*_raised(b, node), None)[:3]
    assert x is not None and scale is not None
    first = b.axis(node, x, -1)
    axes = range(first, b.rank(x))
    with b.float32_as_norms(KEEP):
        normal, inverse = _again(b, node, x, first)
        found = _affine(b, node, g, normal, scale, bias)
        parts = [] if g is None else [_projected(b, node, b.op("Mul", _raise(b, g, x), scale), normal, inverse, axes)]
    with b.float32(KEEP):
        if dmean is not None:
            parts.append(b.op("Expand", b.op("Div", b.cast(dmean, _wide(x)), b.count(x, axes)), b.shape(x)))
        if dinverse is not None:
            parts.append(_by_inverse(b, b.cast(dinverse, _wide(x)), normal, inverse, b.count(x, axes)))
        return _lowered(b, node, [_total(b, parts), *found])


def _again(b: Builder, node: ir.Node, x: Value, first: int) -> tuple[Value, Value]:
    """xh, and 1 / deviation of the forward."""
    shape = None if x.shape is None else ir.Shape([*x.shape[:first], *[1] * (b.rank(x) - first)])
    kind = ir.DataType(attribute(node, "stash_type", ir.DataType.FLOAT))
    sizes = [b.dim(x, axis) for axis in range(first, b.rank(x))]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes) or x.dtype is None:
        mean, inverse = (b.cast(b.output(node, n, kind, shape), _wide(x)) for n in (1, 2))
        with b.float32(KEEP):
            return b.op("Mul", b.op("Sub", x, mean), inverse), inverse
    inverse = b.cast(b.output(node, 2, kind, shape), _wide(x))
    ones = b.constant(np.ones(known, x.dtype.numpy()))
    given = {name: attribute(node, name, default) for name, default in (("epsilon", 1e-5), ("stash_type", 1))}
    return b.typed(b.op("LayerNormalization", x, ones, axis=first, **given), x), inverse


def _projected(b: Builder, node: ir.Node, d: Value, normal: Value, inverse: Value, axes: Sequence[int]) -> Value:
    """(d - (mean(d) + xh mean(d xh))) / deviation, so that one rounding is of the size of d."""
    share = b.op("Mul", normal, b.mean(b.op("Mul", d, normal), axes))
    found = b.op("Sub", d, b.op("Add", share, b.mean(d, axes)))
    small = float(attribute(node, "epsilon", 1e-5)) < SMALL
    with b.float32("1 / deviation leaves the range of float16" if small else ""):
        return b.op("Mul", found, inverse)


@gradient("RMSNormalization", "SimplifiedLayerNormalization", "com.microsoft::SimplifiedLayerNormalization")
def rms_normalization(b: Builder, node: ir.Node, g: Value | None, dinverse: Value | None = None) -> list[Value | None]:
    with b.float32(KEEP):
        x, scale = _raised(b, node)[:2]
        assert x is not None and scale is not None
        axes = range(b.axis(node, x, -1), b.rank(x))
        count = b.count(x, axes)
        inverse = _inverse(b, node, b.op("Mul", x, x), count, x, axes)
        normal = b.op("Mul", x, inverse)
        found = _affine(b, node, g, normal, scale, None)
        d = None if g is None else b.op("Mul", _raise(b, g, x), scale)
        parts = [] if d is None else [_data(b, d, normal, inverse, count, axes, centered=False)]
        if dinverse is not None:
            parts.append(_by_inverse(b, b.cast(dinverse, _wide(x)), normal, inverse, count))
        return _lowered(b, node, [_total(b, parts), *found])


@gradient("InstanceNormalization")
def instance_normalization(b: Builder, node: ir.Node, g: Value) -> list[Value | None]:
    with b.float32(KEEP):
        x, scale, _ = _raised(b, node)
        assert x is not None and scale is not None
        g, axes = _raise(b, g, x), list(range(2, b.rank(x)))
        count = b.count(x, axes)
        normal, inverse = _normalized(b, node, x, count, axes)
        dx = _data(b, b.op("Mul", g, _channels(b, scale, x)), normal, inverse, count, axes)
        dscale, dbias = (b.sum(value, [0, *axes], keep=False) for value in (b.op("Mul", g, normal), g))
        return _lowered(b, node, [dx, dscale, dbias])


@gradient("GroupNormalization")
def group_normalization(b: Builder, node: ir.Node, g: Value) -> list[Value | None]:
    """Scale and bias by channel (opset 21), or by group (18)."""
    groups = int(attribute(node, "num_groups"))
    with b.float32(KEEP):
        x, scale, _ = _raised(b, node)
        assert x is not None and scale is not None
        g, split, axes = _raise(b, g, x), b.ints(0, groups, -1), [0, *range(2, b.rank(x))]
        rows = b.typed(b.op("Reshape", x, split), _wide(x), None, groups, None)
        count = b.op("Div", b.count(x, [1, *axes[1:]]), b.number(groups, x))
        normal, inverse = _normalized(b, node, rows, count, [2])
        by_group = b.graph.opset_imports.get("", 21) < 21
        if by_group:
            g, axes = b.op("Reshape", g, split), [0, 2]
            scaled, weighted = b.op("Mul", g, _channels(b, scale, rows)), b.op("Mul", g, normal)
        else:
            scaled = b.op("Reshape", b.op("Mul", g, _channels(b, scale, x)), split)
            weighted = b.op("Mul", g, b.reshaped(normal, x))
        dx = b.reshaped(_data(b, scaled, normal, inverse, count, [2]), x)
        return _lowered(b, node, [dx, b.sum(weighted, axes, keep=False), b.sum(g, axes, keep=False)])


@gradient("BatchNormalization", constant=(3, 4))
def batch_normalization(b: Builder, node: ir.Node, g: Value, *_: Value | None) -> list[Value | None]:
    """With given statistics; or with those of the data, then what they bring is part of the data's gradient."""
    if attribute(node, "training_mode", 0):
        raise Unsupported("BatchNormalization in training mode is differentiated after lower_batch_norm")
    with b.float32(KEEP):
        x, scale, _bias, mean, variance = _raised(b, node)
        assert x is not None and scale is not None and mean is not None and variance is not None
        g, axes = _raise(b, g, x), [0, *range(2, b.rank(x))]
        epsilon = b.number(float(attribute(node, "epsilon", 1e-5)), variance)
        inverse = b.op("Reciprocal", b.op("Sqrt", b.op("Add", variance, epsilon)))  # read so by running_state
        away = b.op("Sub", x, _channels(b, mean, x))
        dscale = b.op("Mul", b.sum(b.op("Mul", g, away), axes, keep=False), inverse)
        dbias, slope = b.sum(g, axes, keep=False), b.op("Mul", scale, inverse)
        if node.meta.get(BATCH):
            count = b.count(x, axes)
            # by channel where it can be: what goes over all elements takes the time
            share = b.op("Div", b.op("Mul", b.op("Mul", dscale, inverse), slope), count)
            level = b.op("Sub", g, _channels(b, b.op("Div", dbias, count), x))
            dx = b.op("Mul", level, _channels(b, slope, x))
            dx = b.op("Sub", dx, b.op("Mul", away, _channels(b, share, x)))
            return _lowered(b, node, [dx, dscale, dbias])
        dmean = b.op("Neg", b.op("Mul", dbias, slope))
        half = b.op("Mul", b.op("Mul", dscale, b.number(-0.5, x)), inverse)
        dx = b.op("Mul", g, _channels(b, slope, x))
        return _lowered(b, node, [dx, dscale, dbias, dmean, b.op("Mul", half, slope)])


@gradient("LRN")
def local_response_normalization(b: Builder, node: ir.Node, g: Value) -> list[Value | None]:
    """y = x s^-beta with s = bias + alpha / size times the squares of the channels around."""
    size, beta = int(attribute(node, "size")), float(attribute(node, "beta", 0.75))
    factor, before = float(attribute(node, "alpha", 1e-4)) / size, (size - 1) // 2
    with b.float32(KEEP):
        [x] = _raised(b, node)
        assert x is not None
        g = _raise(b, g, x)
        squares = _around(b, b.op("Mul", x, x), before, size)
        level = b.op("Add", b.op("Mul", squares, b.number(factor, x)), b.number(float(attribute(node, "bias", 1.0)), x))
        power = b.op("Pow", level, b.number(-beta, x))
        share = b.op("Div", b.op("Mul", b.op("Mul", g, x), power), level)
        others = b.op("Mul", _around(b, share, size - 1 - before, size), b.number(-2 * beta * factor, x))
        return _lowered(b, node, [b.op("Add", b.op("Mul", g, power), b.op("Mul", x, others))])


def _around(b: Builder, x: Value, before: int, size: int) -> Value:
    """The sum over ``size`` channels, from ``before`` channels in front of each: an average pool over the channels."""
    rows = b.op("Reshape", x, b.ints(0, 0, -1))
    padded = b.op("Pad", rows, b.ints(0, before, 0, 0, size - 1 - before, 0))
    apart = b.op("Unsqueeze", padded, b.ints(1))  # between the two: ONNX Runtime 1.23 fuses them and divides wrongly
    means = b.op("AveragePool", apart, kernel_shape=[size, 1])
    return b.op("Mul", b.reshaped(means, x), b.number(size, x))


def _wide(x: Value) -> ir.DataType:
    """What a gradient is computed in: the forward computes low data in float32 too."""
    return ir.DataType.DOUBLE if x.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT


def _raised(b: Builder, node: ir.Node) -> list[Value | None]:
    """The inputs in the wide type."""
    wide = _wide(operand(node))
    return [value if value is None or value.dtype is None else b.cast(value, wide) for value in node.inputs]


def _raise(b: Builder, g: Value, x: Value) -> Value:
    return g if g.dtype is None else b.cast(g, _wide(x))


def _lowered(b: Builder, node: ir.Node, found: list[Value | None]) -> list[Value | None]:
    """The gradients of the inputs, in their types."""
    wide = _wide(operand(node))
    types = [wide if value is None or value.dtype is None else value.dtype for value in node.inputs]
    rows = zip(found, types[: len(found)], strict=True)
    return [g if g is None or kind == wide else b.op("Cast", g, to=int(kind)) for g, kind in rows]


def _data(
    b: Builder, d: Value, normal: Value, inverse: Value, count: Value, axes: Sequence[int], centered: bool = True
) -> Value:
    along = b.op("Div", b.sum(b.op("Mul", d, normal), axes), count)
    found = b.op("Sub", d, b.op("Mul", normal, along))
    if centered:
        found = b.op("Sub", found, b.op("Div", b.sum(d, axes), count))
    return b.op("Mul", found, inverse)


def _by_inverse(b: Builder, dinverse: Value, normal: Value, inverse: Value, count: Value) -> Value:
    """What the gradient of 1 / deviation brings: -dinverse xh / (deviation^2 n)."""
    share = b.op("Div", b.op("Mul", dinverse, b.op("Mul", inverse, inverse)), count)
    return b.op("Neg", b.op("Mul", normal, share))


def _total(b: Builder, parts: Sequence[Value]) -> Value:
    total = parts[0]
    for part in parts[1:]:
        total = b.op("Add", total, part)
    return total


def _normalized(b: Builder, node: ir.Node, x: Value, count: Value, axes: Sequence[int]) -> tuple[Value, Value]:
    """xh and 1 / deviation, from the data."""
    away = b.op("Sub", x, b.op("Div", b.sum(x, axes), count))
    inverse = _inverse(b, node, b.op("Mul", away, away), count, x, axes)
    return b.op("Mul", away, inverse), inverse


def _inverse(b: Builder, node: ir.Node, squares: Value, count: Value, x: Value, axes: Sequence[int]) -> Value:
    """1 / deviation, from the squares."""
    epsilon = b.number(float(attribute(node, "epsilon", 1e-5)), x)
    return b.op("Reciprocal", b.op("Sqrt", b.op("Add", b.op("Div", b.sum(squares, axes), count), epsilon)))


def _affine(
    b: Builder, node: ir.Node, g: Value | None, normal: Value, scale: Value, bias: Value | None
) -> list[Value | None]:
    """The gradients of scale and bias, which were broadcast; 0 if only the statistics are used."""
    given = [scale] if bias is None else [scale, bias]
    if g is None:
        return [b.zeros(value) for value in given]
    g, y = _raise(b, g, scale), node.outputs[0]
    return [sum_to(b, part, value, y) for part, value in zip((b.op("Mul", g, normal), g), given, strict=False)]


def _channels(b: Builder, vector: Value, x: Value) -> Value:
    """A value by channel, such that it broadcasts against [batch, channels, sizes ...]."""
    rank = b.rank(x)
    return b.op("Unsqueeze", vector, b.ints(*range(1, rank - 1))) if rank > 2 else vector
