"""Gradients of normalisations, y = xh scale + bias with xh = (x - mean) / deviation. They are float32 (of the data of
LayerNormalization at the levels whose norms are): sums of squares overflow float16.

With d the gradient of xh, that of x is (d - mean(d) - xh mean(d xh)) / deviation; without a mean in the forward, the
middle term is not there. ``g`` is the gradient of y, ``normal`` is xh, ``inverse`` 1 / deviation.
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
    """Gradients of LayerNormalization's data, scale and bias. 1 / deviation is an output of the forward; xh is the same
    operator again, without scale and bias. ``dmean``, ``dinverse``: of the outputs mean and 1 / deviation."""
    with b.float32(KEEP):
        x, scale, *bias = _wide_inputs(b, node)
    first = b.axis(node, x.value, -1)
    axes = range(first, b.rank(x.value))
    with b.float32_as_norms(KEEP):
        normal, inverse = _renormalize(b, node, x, first)
        found = _affine_gradients(b, node, g, normal, scale, *bias)
        parts = [] if g is None else [_layer_norm_gradient(b, node, _widen(b, g, x) * scale, normal, inverse, axes)]
    with b.float32(KEEP):
        if dmean is not None:
            share = _widen(b, dmean, x) / b.count(x.value, axes)
            parts.append(share.op("Expand", b.shape(x.value)))
        if dinverse is not None:
            parts.append(_gradient_by_inverse(_widen(b, dinverse, x), normal, inverse, b.count(x.value, axes)))
        return _to_input_types(b, node, [functools.reduce(operator.add, parts), *found])


def _renormalize(b: Builder, node: ir.Node, x: Term, first: int) -> tuple[Term, Term]:
    """Gradient of LayerNormalization over the axes from ``first`` on: xh, and 1 / deviation, which the forward node is
    made to output. xh is computed by the operator with a scale of ones; by mean and 1 / deviation for open sizes."""
    data = x.value
    shape = None if data.shape is None else ir.Shape([*data.shape[:first], *[1] * (b.rank(data) - first)])
    kind = ir.DataType(attribute(node, "stash_type", FLOAT))
    sizes = [b.dim(data, axis) for axis in range(first, b.rank(data))]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes) or data.dtype is None:
        mean, inverse = (b.cast(b.output(node, n, kind, shape), _wide_type(data)) for n in (1, 2))
        with b.float32(KEEP):
            return (x - mean) * inverse, Term(b, inverse, data)
    inverse = b.cast(b.output(node, 2, kind, shape), _wide_type(data))
    ones = b.constant(np.ones(known, data.dtype.numpy()))
    given = {name: attribute(node, name, default) for name, default in (("epsilon", 1e-5), ("stash_type", 1))}
    normal = x.op("LayerNormalization", ones, axis=first, **given)
    b.typed(normal.value, data)
    return normal, Term(b, inverse, data)


def _layer_norm_gradient(b: Builder, node: ir.Node, d: Term, normal: Term, inverse: Term, axes: Sequence[int]) -> Term:
    """Gradient of LayerNormalization: that of its data, (d - (mean(d) + xh mean(d xh))) / deviation, in this order, so
    that only one rounding is of the size of d; ``axes`` are those that are normalised."""
    share = normal * b.mean((d * normal).value, axes)
    found = d - (share + b.mean(d.value, axes))
    small = _float_attribute(node, "epsilon", 1e-5) < SMALL
    with b.float32("1 / deviation leaves the range of float16" if small else ""):
        return found * inverse


@gradient("RMSNormalization", "SimplifiedLayerNormalization", "com.microsoft::SimplifiedLayerNormalization")
def rms_normalization(b: Builder, node: ir.Node, g: Value | None, dinverse: Value | None = None) -> list[Value | None]:
    """Gradients of RMSNormalization's data and scale, with xh = x / sqrt(mean(x^2) + epsilon); ``dinverse``: the
    gradient of the second output, 1 / root mean square."""
    with b.float32(KEEP):
        x, scale = _wide_inputs(b, node)[:2]
        axes = range(b.axis(node, x.value, -1), b.rank(x.value))
        count = b.count(x.value, axes)
        inverse = _inverse(b, node, x * x, count, axes)
        normal = x * inverse
        found = _affine_gradients(b, node, g, normal, scale)
        d = None if g is None else _widen(b, g, x) * scale
        parts = [] if d is None else [_data_gradient(b, d, normal, inverse, count, axes, centered=False)]
        if dinverse is not None:
            parts.append(_gradient_by_inverse(_widen(b, dinverse, x), normal, inverse, count))
        return _to_input_types(b, node, [functools.reduce(operator.add, parts), *found])


@gradient("InstanceNormalization")
def instance_normalization(b: Builder, node: ir.Node, given: Value) -> list[Value | None]:
    """Gradients of InstanceNormalization's data, scale and bias; statistics are by sample and channel."""
    with b.float32(KEEP):
        x, scale, _ = _wide_inputs(b, node)
        g, axes = _widen(b, given, x), list(range(2, b.rank(x.value)))
        count = b.count(x.value, axes)
        normal, inverse = _normalized(b, node, x, count, axes)
        dx = _data_gradient(b, g * _by_channel(b, scale, x), normal, inverse, count, axes)
        return _to_input_types(b, node, [dx, *(_sum_over(b, value, [0, *axes]) for value in (g * normal, g))])


@gradient("GroupNormalization")
def group_normalization(b: Builder, node: ir.Node, given: Value) -> list[Value | None]:
    """Gradients of GroupNormalization's data, scale and bias; these two are by channel (opset 21), or by group (18)."""
    groups = int(attribute(node, "num_groups"))
    with b.float32(KEEP):
        x, scale, _ = _wide_inputs(b, node)
        g, split, axes = _widen(b, given, x), b.ints(0, groups, -1), [0, *range(2, b.rank(x.value))]
        rows = x.op("Reshape", split)
        b.typed(rows.value, _wide_type(x.value), None, groups, None)
        count = b.op("Div", b.count(x.value, [1, *axes[1:]]), b.number(groups, x.value))
        normal, inverse = _normalized(b, node, rows, count, [2])
        if b.graph.opset_imports.get("", 21) < 21:
            g, axes = g.op("Reshape", split), [0, 2]
            scaled, weighted = g * _by_channel(b, scale, rows), g * normal
        else:
            scaled = (g * _by_channel(b, scale, x)).op("Reshape", split)
            weighted = g * b.reshaped(normal.value, x.value)
        dx = b.reshaped(_data_gradient(b, scaled, normal, inverse, count, [2]).value, x.value)
        return _to_input_types(b, node, [dx, _sum_over(b, weighted, axes), _sum_over(b, g, axes)])


@gradient("BatchNormalization", constant=(3, 4))
def batch_normalization(b: Builder, node: ir.Node, given: Value, *_: Value | None) -> list[Value | None]:
    """Gradients of BatchNormalization's inputs; where its mean and variance are those of its data (marked `BATCH`), of
    data, scale and bias, with the statistics' own gradient as part of the data's. Raises Unsupported in training mode.
    """
    if attribute(node, "training_mode", 0):
        raise Unsupported("BatchNormalization in training mode is differentiated after lower_batch_norm")
    with b.float32(KEEP):
        x, scale, _bias, mean, variance = _wide_inputs(b, node)
        g, axes = _widen(b, given, x), [0, *range(2, b.rank(x.value))]
        inverse = (
            (variance + _float_attribute(node, "epsilon", 1e-5)).op("Sqrt").op("Reciprocal")
        )  # read so by `covered_by_gradients`
        away = x - _by_channel(b, mean, x)
        dscale, dbias = _sum_over(b, g * away, axes) * inverse, _sum_over(b, g, axes)
        slope = scale * inverse
        if node.meta.get(BATCH):
            count = b.count(x.value, axes)
            # by channel where it can be: what goes over all elements takes the time
            share = dscale * inverse * slope / count
            level = g - _by_channel(b, dbias / count, x)
            dx = level * _by_channel(b, slope, x) - away * _by_channel(b, share, x)
            return _to_input_types(b, node, [dx, dscale, dbias])
        half = dscale * -0.5 * inverse
        return _to_input_types(b, node, [g * _by_channel(b, slope, x), dscale, dbias, -(dbias * slope), half * slope])


@gradient("LRN")
def local_response_normalization(b: Builder, node: ir.Node, g: Value) -> list[Value | None]:
    """The gradient of LRN, y = x s^-beta with s = bias + alpha / size times the squares of channels around, summed."""
    size, beta = int(attribute(node, "size")), _float_attribute(node, "beta", 0.75)
    factor, before = _float_attribute(node, "alpha", 1e-4) / size, (size - 1) // 2
    with b.float32(KEEP):
        [x] = _wide_inputs(b, node)
        wide = _widen(b, g, x)
        level = _sum_of_channels(b, x, x * x, before, size) * factor + _float_attribute(node, "bias", 1.0)
        power = level.op("Pow", -beta)
        others = _sum_of_channels(b, x, wide * x * power / level, size - 1 - before, size) * (-2 * beta * factor)
        return _to_input_types(b, node, [wide * power + x * others])


def _sum_of_channels(b: Builder, x: Term, value: Term, before: int, size: int) -> Term:
    """Gradient of LRN: for each channel the sum of ``value`` over ``size`` channels, from ``before`` channels in front
    of it on, by an average pool over the channels; in the shape of ``x``."""
    padded = value.op("Reshape", b.ints(0, 0, -1)).op("Pad", b.ints(0, before, 0, 0, size - 1 - before, 0))
    apart = padded.op("Unsqueeze", b.ints(1))  # between the two: ONNX Runtime 1.23 fuses them and divides wrongly
    means = apart.op("AveragePool", kernel_shape=[size, 1])
    return Term(b, b.reshaped(means.value, x.value), x.value) * size


def _float_attribute(node: ir.Node, name: str, default: float) -> float:
    """Gradient of a norm: its attribute as a float."""
    return float(attribute(node, name, default))


def _wide_type(x: Value) -> ir.DataType:
    """Gradient of a norm: the type that it is computed in: float64 for float64 data, else float32."""
    return ir.DataType.DOUBLE if x.dtype == ir.DataType.DOUBLE else FLOAT


def _wide_inputs(b: Builder, node: ir.Node) -> list[Term]:
    """Gradient of a norm: the node's inputs that are there, in the type that the gradient is computed in."""
    wide = _wide_type(operand(node))
    given = [value for value in node.inputs if value is not None]
    return b.terms(*(value if value.dtype is None else b.cast(value, wide) for value in given))


def _widen(b: Builder, g: Value, x: Term) -> Term:
    """Gradient of a norm: the gradient of an output in the type that the norm's gradient is computed in."""
    return Term(b, g if g.dtype is None else b.cast(g, _wide_type(x.value)), x.value)


def _to_input_types(b: Builder, node: ir.Node, found: Sequence[Term | Value | None]) -> list[Value | None]:
    """Gradient of a norm: the gradients ``found`` of the node's inputs, in their order, cast to the inputs' types."""
    wide = _wide_type(operand(node))
    types = [wide if value is None or value.dtype is None else value.dtype for value in node.inputs]
    values = (g.value if isinstance(g, Term) else g for g in found)
    rows = zip(values, types[: len(found)], strict=True)
    return [g if g is None or kind == wide else b.op("Cast", g, to=int(kind)) for g, kind in rows]


def _sum_over(b: Builder, value: Term, axes: Sequence[int]) -> Term:
    """Gradient of a norm: the sum of a value over axes, which are dropped."""
    return Term(b, b.sum(value.value, axes, keep=False), value.dtype)


def _mean_over(b: Builder, value: Term, count: Value, axes: Sequence[int]) -> Term:
    """Gradient of a norm: the mean of a value over axes of ``count`` elements, which stay with a size of 1."""
    return Term(b, b.sum(value.value, axes), value.dtype) / count


def _data_gradient(
    b: Builder, d: Term, normal: Term, inverse: Term, count: Value, axes: Sequence[int], centered: bool = True
) -> Term:
    """Gradient of a norm: that of x from that of xh, ``d``, by the formula at the head of the file. ``centered``:
    whether the forward subtracts a mean; ``count``: of elements over ``axes``."""
    found = d - normal * _mean_over(b, d * normal, count, axes)
    return (found - _mean_over(b, d, count, axes) if centered else found) * inverse


def _gradient_by_inverse(dinverse: Term, normal: Term, inverse: Term, count: Value) -> Term:
    """Gradient of a norm: what that of the output 1 / deviation brings to x: -dinverse xh / (deviation^2 count)."""
    return -(normal * (dinverse * (inverse * inverse) / count))


def _normalized(b: Builder, node: ir.Node, x: Term, count: Value, axes: Sequence[int]) -> tuple[Term, Term]:
    """Gradient of a norm: xh = (x - mean) / deviation, and 1 / deviation, computed from x over ``axes``."""
    away = x - _mean_over(b, x, count, axes)
    inverse = _inverse(b, node, away * away, count, axes)
    return away * inverse, inverse


def _inverse(b: Builder, node: ir.Node, squares: Term, count: Value, axes: Sequence[int]) -> Term:
    """Gradient of a norm: 1 / deviation, 1 / sqrt(mean of ``squares`` over ``axes`` + epsilon)."""
    level = _mean_over(b, squares, count, axes) + _float_attribute(node, "epsilon", 1e-5)
    return level.op("Sqrt").op("Reciprocal")


def _affine_gradients(b: Builder, node: ir.Node, g: Value | None, normal: Term, *given: Term) -> list[Value | None]:
    """Gradient of a norm: those of scale and, where it has one, bias (``given``), summed over what they were broadcast
    to; zeros where g is None, as only the statistics are used."""
    if g is None:
        return [b.zeros(one.value) for one in given]
    slope, y = _widen(b, g, given[0]), node.outputs[0]
    return [sum_to(b, part.value, one.value, y) for part, one in zip((slope * normal, slope), given, strict=False)]


def _by_channel(b: Builder, vector: Term, x: Term) -> Term:
    """Gradient of a norm: a vector by channel, with axes so that it broadcasts against x."""
    rank = b.rank(x.value)
    return vector.op("Unsqueeze", b.ints(*range(1, rank - 1))) if rank > 2 else vector
