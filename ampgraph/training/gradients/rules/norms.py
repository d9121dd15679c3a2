"""Normalisations: y = xh scale + bias with xh = (x - mean) / deviation. All in float32: sums of squares overflow.

With d the gradient of xh, that of x is (d - mean(d) - xh mean(d xh)) / deviation; without a mean in the forward, the
middle term is not there.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ....formats.onnx.nodes import attribute, operand
from ..builder import FLOAT, Builder, Term, sum_to
from ..registry import Unsupported, gradient

Value = ir.Value

KEEP = "a normalisation: squares and their sums leave the range of float16"
SMALL = 1e-9  # of an epsilon: its 1 / deviation is 31,623 at most
BATCH = "ampgraph.batch_statistics"
"""The mark of a BatchNormalization whose mean and variance are those of its own data (see `lower_batch_norm`)."""


@gradient("LayerNormalization")
def layer_normalization(
    b: Builder, node: ir.Node, g: Value | None, dmean: Value | None = None, dinverse: Value | None = None
) -> list[Value | None]:
    """Gradients of LayerNormalization. The forward gives 1 / deviation; xh is the same operator again, without scale
    and bias."""
    with b.float32(KEEP):
        x, scale, *bias = _raised(b, node)
    first = b.axis(node, x.value, -1)
    axes = range(first, b.rank(x.value))
    with b.float32_as_norms(KEEP):
        normal, inverse = _normalized_again(b, node, x, first)
        found = _affine(b, node, g, normal, scale, *bias)
        parts = [] if g is None else [_projected(b, node, _raise(b, g, x) * scale, normal, inverse, axes)]
    with b.float32(KEEP):
        if dmean is not None:
            share = _raise(b, dmean, x) / b.count(x.value, axes)
            parts.append(share.op("Expand", b.shape(x.value)))
        if dinverse is not None:
            parts.append(_through_inverse(_raise(b, dinverse, x), normal, inverse, b.count(x.value, axes)))
        return _lowered(b, node, [functools.reduce(operator.add, parts), *found])


def _normalized_again(b: Builder, node: ir.Node, x: Term, first: int) -> tuple[Term, Term]:
    """The normalised data xh, and 1 / deviation of the forward."""
    data = x.value
    shape = None if data.shape is None else ir.Shape([*data.shape[:first], *[1] * (b.rank(data) - first)])
    kind = ir.DataType(attribute(node, "stash_type", FLOAT))
    sizes = [b.dim(data, axis) for axis in range(first, b.rank(data))]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes) or data.dtype is None:
        mean, inverse = (b.cast(b.output(node, n, kind, shape), _computed_type(data)) for n in (1, 2))
        with b.float32(KEEP):
            return (x - mean) * inverse, Term(b, inverse, data)
    inverse = b.cast(b.output(node, 2, kind, shape), _computed_type(data))
    ones = b.constant(np.ones(known, data.dtype.numpy()))
    given = {name: attribute(node, name, default) for name, default in (("epsilon", 1e-5), ("stash_type", 1))}
    normal = x.op("LayerNormalization", ones, axis=first, **given)
    b.typed(normal.value, data)
    return normal, Term(b, inverse, data)


def _projected(b: Builder, node: ir.Node, d: Term, normal: Term, inverse: Term, axes: Sequence[int]) -> Term:
    """(d - (mean(d) + xh mean(d xh))) / deviation, so that one rounding is of the size of d."""
    share = normal * b.mean((d * normal).value, axes)
    found = d - (share + b.mean(d.value, axes))
    small = _float_attribute(node, "epsilon", 1e-5) < SMALL
    with b.float32("1 / deviation leaves the range of float16" if small else ""):
        return found * inverse


@gradient("RMSNormalization", "SimplifiedLayerNormalization", "com.microsoft::SimplifiedLayerNormalization")
def rms_normalization(b: Builder, node: ir.Node, g: Value | None, dinverse: Value | None = None) -> list[Value | None]:
    """Gradients of data and scale; ``dinverse``: of the second output, 1 / root mean square. xh = x / sqrt(mean(x^2) +
    epsilon)."""
    with b.float32(KEEP):
        x, scale = _raised(b, node)[:2]
        axes = range(b.axis(node, x.value, -1), b.rank(x.value))
        count = b.count(x.value, axes)
        inverse = _inverse(b, node, x * x, count, axes)
        normal = x * inverse
        found = _affine(b, node, g, normal, scale)
        d = None if g is None else _raise(b, g, x) * scale
        parts = [] if d is None else [_data_gradient(b, d, normal, inverse, count, axes, centered=False)]
        if dinverse is not None:
            parts.append(_through_inverse(_raise(b, dinverse, x), normal, inverse, count))
        return _lowered(b, node, [functools.reduce(operator.add, parts), *found])


@gradient("InstanceNormalization")
def instance_normalization(b: Builder, node: ir.Node, given: Value) -> list[Value | None]:
    """Gradients of data, scale and bias; mean and deviation are over the spatial axes of each sample and channel."""
    with b.float32(KEEP):
        x, scale, _ = _raised(b, node)
        g, axes = _raise(b, given, x), list(range(2, b.rank(x.value)))
        count = b.count(x.value, axes)
        normal, inverse = _normalized(b, node, x, count, axes)
        dx = _data_gradient(b, g * _channels(b, scale, x), normal, inverse, count, axes)
        return _lowered(b, node, [dx, *(_sum_over(b, value, [0, *axes]) for value in (g * normal, g))])


@gradient("GroupNormalization")
def group_normalization(b: Builder, node: ir.Node, given: Value) -> list[Value | None]:
    """Gradients of GroupNormalization; scale and bias are by channel (opset 21), or by group (18)."""
    groups = int(attribute(node, "num_groups"))
    with b.float32(KEEP):
        x, scale, _ = _raised(b, node)
        g, split, axes = _raise(b, given, x), b.ints(0, groups, -1), [0, *range(2, b.rank(x.value))]
        rows = x.op("Reshape", split)
        b.typed(rows.value, _computed_type(x.value), None, groups, None)
        count = b.op("Div", b.count(x.value, [1, *axes[1:]]), b.number(groups, x.value))
        normal, inverse = _normalized(b, node, rows, count, [2])
        if b.graph.opset_imports.get("", 21) < 21:
            g, axes = g.op("Reshape", split), [0, 2]
            scaled, weighted = g * _channels(b, scale, rows), g * normal
        else:
            scaled = (g * _channels(b, scale, x)).op("Reshape", split)
            weighted = g * b.reshaped(normal.value, x.value)
        dx = b.reshaped(_data_gradient(b, scaled, normal, inverse, count, [2]).value, x.value)
        return _lowered(b, node, [dx, _sum_over(b, weighted, axes), _sum_over(b, g, axes)])


@gradient("BatchNormalization", constant=(3, 4))
def batch_normalization(b: Builder, node: ir.Node, given: Value, *_: Value | None) -> list[Value | None]:
    """Gradients with given statistics; or with those of the data, whose own gradient is then part of the data's."""
    if attribute(node, "training_mode", 0):
        raise Unsupported("BatchNormalization in training mode is differentiated after lower_batch_norm")
    with b.float32(KEEP):
        x, scale, _bias, mean, variance = _raised(b, node)
        g, axes = _raise(b, given, x), [0, *range(2, b.rank(x.value))]
        inverse = (
            (variance + _float_attribute(node, "epsilon", 1e-5)).op("Sqrt").op("Reciprocal")
        )  # read so by `covered_by_gradients`
        away = x - _channels(b, mean, x)
        dscale, dbias = _sum_over(b, g * away, axes) * inverse, _sum_over(b, g, axes)
        slope = scale * inverse
        if node.meta.get(BATCH):
            count = b.count(x.value, axes)
            # by channel where it can be: what goes over all elements takes the time
            share = dscale * inverse * slope / count
            level = g - _channels(b, dbias / count, x)
            dx = level * _channels(b, slope, x) - away * _channels(b, share, x)
            return _lowered(b, node, [dx, dscale, dbias])
        half = dscale * -0.5 * inverse
        return _lowered(b, node, [g * _channels(b, slope, x), dscale, dbias, -(dbias * slope), half * slope])


@gradient("LRN")
def local_response_normalization(b: Builder, node: ir.Node, g: Value) -> list[Value | None]:
    """The gradient of LRN: y = x s^-beta with s = bias + alpha / size times the squares of the channels around."""
    size, beta = int(attribute(node, "size")), _float_attribute(node, "beta", 0.75)
    factor, before = _float_attribute(node, "alpha", 1e-4) / size, (size - 1) // 2
    with b.float32(KEEP):
        [x] = _raised(b, node)
        wide = _raise(b, g, x)
        level = _sum_of_channels(b, x, x * x, before, size) * factor + _float_attribute(node, "bias", 1.0)
        power = level.op("Pow", -beta)
        others = _sum_of_channels(b, x, wide * x * power / level, size - 1 - before, size) * (-2 * beta * factor)
        return _lowered(b, node, [wide * power + x * others])


def _sum_of_channels(b: Builder, x: Term, value: Term, before: int, size: int) -> Term:
    """The sum over ``size`` channels, from ``before`` channels in front of each: an average pool over the channels."""
    padded = value.op("Reshape", b.ints(0, 0, -1)).op("Pad", b.ints(0, before, 0, 0, size - 1 - before, 0))
    apart = padded.op("Unsqueeze", b.ints(1))  # between the two: ONNX Runtime 1.23 fuses them and divides wrongly
    means = apart.op("AveragePool", kernel_shape=[size, 1])
    return Term(b, b.reshaped(means.value, x.value), x.value) * size


def _float_attribute(node: ir.Node, name: str, default: float) -> float:
    """Gradient of a norm: its attribute as a float."""
    return float(attribute(node, name, default))


def _computed_type(x: Value) -> ir.DataType:
    """The float type that a norm's gradient is computed in: float32 for low data, as the forward is."""
    return ir.DataType.DOUBLE if x.dtype == ir.DataType.DOUBLE else FLOAT


def _raised(b: Builder, node: ir.Node) -> list[Term]:
    """The inputs of a norm's node in the type that its gradient is computed in."""
    wide = _computed_type(operand(node))
    given = [value for value in node.inputs if value is not None]
    return b.terms(*(value if value.dtype is None else b.cast(value, wide) for value in given))


def _raise(b: Builder, g: Value, x: Term) -> Term:
    """A gradient in the type that the norm is computed in."""
    return Term(b, g if g.dtype is None else b.cast(g, _computed_type(x.value)), x.value)


def _lowered(b: Builder, node: ir.Node, found: Sequence[Term | Value | None]) -> list[Value | None]:
    """The gradients of a norm's inputs, cast back to the inputs' types."""
    wide = _computed_type(operand(node))
    types = [wide if value is None or value.dtype is None else value.dtype for value in node.inputs]
    values = (g.value if isinstance(g, Term) else g for g in found)
    rows = zip(values, types[: len(found)], strict=True)
    return [g if g is None or kind == wide else b.op("Cast", g, to=int(kind)) for g, kind in rows]


def _sum_over(b: Builder, value: Term, axes: Sequence[int]) -> Term:
    """The sum over some axes, which are dropped."""
    return Term(b, b.sum(value.value, axes, keep=False), value.dtype)


def _mean_over(b: Builder, value: Term, count: Value, axes: Sequence[int]) -> Term:
    """The mean over axes, which stay."""
    return Term(b, b.sum(value.value, axes), value.dtype) / count


def _data_gradient(
    b: Builder, d: Term, normal: Term, inverse: Term, count: Value, axes: Sequence[int], centered: bool = True
) -> Term:
    """The gradient of x from that of xh, ``d``; see the head of the file. ``centered``: whether the forward subtracts a
    mean."""
    found = d - normal * _mean_over(b, d * normal, count, axes)
    return (found - _mean_over(b, d, count, axes) if centered else found) * inverse


def _through_inverse(dinverse: Term, normal: Term, inverse: Term, count: Value) -> Term:
    """What the gradient of 1 / deviation brings: -dinverse xh / (deviation^2 n)."""
    return -(normal * (dinverse * (inverse * inverse) / count))


def _normalized(b: Builder, node: ir.Node, x: Term, count: Value, axes: Sequence[int]) -> tuple[Term, Term]:
    """xh = (x - mean) / deviation, and 1 / deviation, from the data."""
    away = x - _mean_over(b, x, count, axes)
    inverse = _inverse(b, node, away * away, count, axes)
    return away * inverse, inverse


def _inverse(b: Builder, node: ir.Node, squares: Term, count: Value, axes: Sequence[int]) -> Term:
    """1 / deviation: of the mean of ``squares`` over axes, plus epsilon."""
    level = _mean_over(b, squares, count, axes) + _float_attribute(node, "epsilon", 1e-5)
    return level.op("Sqrt").op("Reciprocal")


def _affine(b: Builder, node: ir.Node, g: Value | None, normal: Term, *given: Term) -> list[Value | None]:
    """The gradients of scale and bias, which were broadcast; 0 if only the statistics are used."""
    if g is None:
        return [b.zeros(one.value) for one in given]
    slope, y = _raise(b, g, given[0]), node.outputs[0]
    return [sum_to(b, part.value, one.value, y) for part, one in zip((slope * normal, slope), given, strict=False)]


def _channels(b: Builder, vector: Term, x: Term) -> Term:
    """A vector by channel, shaped to broadcast against [batch, channels, sizes ...]."""
    rank = b.rank(x.value)
    return vector.op("Unsqueeze", b.ints(*range(1, rank - 1))) if rank > 2 else vector
