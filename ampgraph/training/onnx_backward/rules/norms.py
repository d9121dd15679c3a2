"""Normalisations: y = xh scale + bias with xh = (x - mean) / deviation. All in float32: sums of squares overflow.

With d the gradient of xh, that of x is (d - mean(d) - xh mean(d xh)) / deviation; without a mean in the forward, the
middle term is not there.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ..broadcast import sum_to
from ..builder import Builder
from ..registry import attribute, gradient

Value = ir.Value

KEEP = "a normalisation: squares and their sums leave the range of float16"
BATCH = "ampgraph.batch_statistics"
"""Metadata of a BatchNormalization whose mean and variance are those of its own data (see `lower_batch_norm`)."""


@gradient("LayerNormalization")
def layer_normalization(b: Builder, node: ir.Node, g: Value, *_: Value | None) -> list[Value | None]:
    """The forward tells its mean and 1 / deviation."""
    x, scale, bias = (*node.inputs, None)[:3]
    assert x is not None and scale is not None
    first = b.axis(node, x, -1)
    axes = range(first, b.rank(x))
    shape = None if x.shape is None else ir.Shape([*x.shape[:first], *[1] * (b.rank(x) - first)])
    kind = ir.DataType.FLOAT if attribute(node, "stash_type", 1) == 1 else ir.DataType(attribute(node, "stash_type"))
    mean, inverse = (b.output(node, n, kind, shape) for n in (1, 2))
    with b.float32(KEEP):
        normal = b.op("Mul", b.op("Sub", x, mean), inverse)
        dx = _data(b, b.op("Mul", g, scale), normal, inverse, b.count(x, axes), axes)
        return [dx, *_affine(b, node, g, normal, scale, bias)]


@gradient("RMSNormalization", "SimplifiedLayerNormalization", "com.microsoft::SimplifiedLayerNormalization")
def rms_normalization(b: Builder, node: ir.Node, g: Value, *_: Value | None) -> list[Value | None]:
    x, scale = node.inputs[:2]
    assert x is not None and scale is not None
    axes = range(b.axis(node, x, -1), b.rank(x))
    with b.float32(KEEP):
        count = b.count(x, axes)
        inverse = _inverse(b, node, b.op("Mul", x, x), count, x, axes)
        normal = b.op("Mul", x, inverse)
        dx = _data(b, b.op("Mul", g, scale), normal, inverse, count, axes, centered=False)
        return [dx, *_affine(b, node, g, normal, scale, None)]


@gradient("InstanceNormalization")
def instance_normalization(b: Builder, node: ir.Node, g: Value) -> list[Value | None]:
    x, scale, _ = node.inputs
    assert x is not None and scale is not None
    axes = list(range(2, b.rank(x)))
    with b.float32(KEEP):
        count = b.count(x, axes)
        normal, inverse = _normalized(b, node, x, count, axes)
        dx = _data(b, b.op("Mul", g, _channels(b, scale, x)), normal, inverse, count, axes)
        return [dx, b.sum(b.op("Mul", g, normal), [0, *axes], keep=False), b.sum(g, [0, *axes], keep=False)]


@gradient("GroupNormalization")
def group_normalization(b: Builder, node: ir.Node, g: Value) -> list[Value | None]:
    """Scale and bias by channel (opset 21), or by group (18)."""
    x, scale, _ = node.inputs
    assert x is not None and scale is not None
    groups = int(attribute(node, "num_groups"))
    split, axes = b.ints(0, groups, -1), [0, *range(2, b.rank(x))]
    with b.float32(KEEP):
        rows = b.typed(b.op("Reshape", x, split), x.dtype or ir.DataType.FLOAT, None, groups, None)
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
        return [dx, b.sum(weighted, axes, keep=False), b.sum(g, axes, keep=False)]


@gradient("BatchNormalization")
def batch_normalization(b: Builder, node: ir.Node, g: Value, *_: Value | None) -> list[Value | None]:
    """With given statistics; or with those of the data, then they are part of the gradient."""
    x, scale, _bias, mean, variance = node.inputs
    assert x is not None and scale is not None and mean is not None and variance is not None
    if attribute(node, "training_mode", 0):
        raise ValueError("BatchNormalization in training mode is differentiated after lower_batch_norm")
    axes = [0, *range(2, b.rank(x))]
    with b.float32(KEEP):
        epsilon = b.number(float(attribute(node, "epsilon", 1e-5)), variance)
        inverse = b.op("Reciprocal", b.op("Sqrt", b.op("Add", variance, epsilon)))
        normal = b.op("Mul", b.op("Sub", x, _channels(b, mean, x)), _channels(b, inverse, x))
        dscale, dbias = b.sum(b.op("Mul", g, normal), axes, keep=False), b.sum(g, axes, keep=False)
        slope = _channels(b, b.op("Mul", scale, inverse), x)
        if node.metadata_props.get(BATCH):
            count = b.count(x, axes)
            shares = [_channels(b, b.op("Div", total, count), x) for total in (dbias, dscale)]
            g = b.op("Sub", b.op("Sub", g, shares[0]), b.op("Mul", normal, shares[1]))
        return [b.op("Mul", g, slope), dscale, dbias]


def _data(
    b: Builder, d: Value, normal: Value, inverse: Value, count: Value, axes: Sequence[int], centered: bool = True
) -> Value:
    along = b.op("Div", b.sum(b.op("Mul", d, normal), axes), count)
    found = b.op("Sub", d, b.op("Mul", normal, along))
    if centered:
        found = b.op("Sub", found, b.op("Div", b.sum(d, axes), count))
    return b.op("Mul", found, inverse)


def _normalized(b: Builder, node: ir.Node, x: Value, count: Value, axes: Sequence[int]) -> tuple[Value, Value]:
    """xh and 1 / deviation, from the data."""
    away = b.op("Sub", x, b.op("Div", b.sum(x, axes), count))
    inverse = _inverse(b, node, b.op("Mul", away, away), count, x, axes)
    return b.op("Mul", away, inverse), inverse


def _inverse(b: Builder, node: ir.Node, squares: Value, count: Value, x: Value, axes: Sequence[int]) -> Value:
    """1 / deviation, from the squares."""
    epsilon = b.number(float(attribute(node, "epsilon", 1e-5)), x)
    return b.op("Reciprocal", b.op("Sqrt", b.op("Add", b.op("Div", b.sum(squares, axes), count), epsilon)))


def _affine(b: Builder, node: ir.Node, g: Value, normal: Value, scale: Value, bias: Value | None) -> list[Value | None]:
    """The gradients of scale and bias, which were broadcast."""
    y = node.outputs[0]
    dscale = sum_to(b, b.op("Mul", g, normal), scale, y)
    return [dscale] if bias is None else [dscale, sum_to(b, g, bias, y)]


def _channels(b: Builder, vector: Value, x: Value) -> Value:
    """A value by channel, such that it broadcasts against [batch, channels, sizes ...]."""
    rank = b.rank(x)
    return b.op("Unsqueeze", vector, b.ints(*range(1, rank - 1))) if rank > 2 else vector
