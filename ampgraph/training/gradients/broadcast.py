"""Undoing a broadcast: the gradient of what was repeated is the sum over its repetitions."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from .builder import Builder

REASON = "a sum over what was broadcast: 4,096 rows of mean 20 overflow float16"

Dim = int | ir.SymbolicDim


def sum_to(b: Builder, gradient: ir.Value, value: ir.Value, result: ir.Value) -> ir.Value:
    """The gradient of ``value``, given one of the shape of ``result``, to which it was broadcast."""
    return sum_to_dims(b, gradient, value, None if result.shape is None else list(result.shape))


def sum_to_dims(b: Builder, gradient: ir.Value, value: ir.Value, whole: Sequence[Dim] | None) -> ir.Value:
    """The gradient of ``value``, given one of the dimensions ``whole``, to which it was broadcast.

    Dimensions count as equal if they are the same number or the same symbol; a symbol is taken to be 2 or more, as
    torch.export specialises 0 and 1. Where that does not decide, the axes are found when the graph runs.
    """
    if value.shape is None or whole is None:
        return _at_run_time(b, gradient, value)
    own = list(value.shape)
    missing = len(whole) - len(own)
    axes = list(range(missing))
    for position, dim in enumerate(own):
        other = whole[missing + position]
        if dim == 1 and other != 1:
            axes.append(missing + position)
        elif not isinstance(dim, int) and not same(dim, other):
            return _at_run_time(b, gradient, value)
    if not axes:
        return gradient
    summed = b.sum(gradient, axes)
    return b.op("Squeeze", summed, b.ints(*range(missing))) if missing else summed


def same(one: Dim, other: Dim) -> bool:
    """Whether two sizes are known to be equal: the same number or the same symbol."""
    if isinstance(one, int) or isinstance(other, int):
        return one == other
    return one.value is not None and one.value == other.value


def _at_run_time(b: Builder, gradient: ir.Value, value: ir.Value) -> ir.Value:
    """Sums over the axes where the value's shape, filled up with ones in front, has 1."""
    shape = b.shape(value)
    missing = b.op("Sub", b.op("Shape", b.shape(gradient)), b.op("Shape", shape))
    filled = b.op("Concat", b.op("Expand", b.ints(1), missing), shape, axis=0)
    ones = b.op("NonZero", b.op("Equal", filled, b.ints(1)))
    with b.float32(REASON):
        summed = b.op("ReduceSum", gradient, b.op("Squeeze", ones, b.ints(0)), keepdims=1, noop_with_empty_axes=1)
    return b.op("Reshape", summed, shape, allowzero=1)
