"""How much an operator adds up."""

from __future__ import annotations

import math

from ..core.dataflow import NONE, Op
from .context import Context


def summed(context: Context, op: Op) -> int:
    """How many elements go into one result, with unknown dimensions guessed."""
    flow = context.flow
    dims = flow.dims(op.inputs[0], context.options.dims)
    if context.traits.has(op.role, "sums_all_places"):
        return math.prod(dims[2:])
    if context.traits.has(op.role, "sums_windows"):
        return math.prod(flow.attribute(op, "kernel_shape") or ())
    axes = flow.attribute(op, "axes")
    if axes is None and len(op.inputs) > 1 and op.inputs[1] != NONE:
        item = flow.values[op.inputs[1]]
        array = flow.weights.array(item) if item.weight else None
        axes = [-1] if array is None else array.reshape(-1).tolist()
    if not axes:
        return 1 if flow.attribute(op, "noop_with_empty_axes") else math.prod(dims)
    return math.prod(dims[a] for a in axes if -len(dims) <= a < len(dims))
