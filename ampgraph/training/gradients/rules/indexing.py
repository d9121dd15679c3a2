"""Gradients of gathering and scattering.

Where an index may come twice its gradients are added, always by ScatterElements and in float32: ScatterND(add) of ONNX
Runtime's CPU loses sums between threads, and ScatterElements(add) of its CUDA reads bfloat16 as float16.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ....formats.onnx.nodes import attribute, operand
from ..builder import FLOAT, LOW, Builder
from ..registry import PADDING, Unsupported, gradient

Value = ir.Value

ADDED = "values that were read several times are added up"


@gradient("Gather")
def gather(b: Builder, node: ir.Node, g: Value) -> Value:
    """The gradient of Gather: for one constant index g between zeros, else every row of g is added to where it was
    read. An embedding's padding row, marked by `PADDING`, gets none."""
    x, indices = operand(node), operand(node, 1)
    if x.shape is None and b.rank(indices) == 0:  # one index into a value whose rank is not known
        axis = int(attribute(node, "axis", 0))
        row = b.op("Unsqueeze", g, b.ints(axis))
        return b.op("ScatterElements", b.zeros(x), b.op("Expand", indices, b.op("Shape", row)), row, axis=axis)
    axis, rank, count = b.axis(node, x, 0), b.rank(x), b.rank(indices)
    padding = node.metadata_props.get(PADDING, "")
    if padding.isdecimal() and axis == 0:
        kind = np.int64 if indices.dtype is None else indices.dtype.numpy()
        left = b.op("Equal", indices, b.constant(np.array(int(padding), kind)))
        g = b.op("Where", b.op("Unsqueeze", left, b.ints(*range(-1, -rank, -1))), b.number(0, x), g)
    rows = g if count == 1 else _one_row_per_index(b, g, x, indices, axis)
    given = b.known_numbers(indices)
    if given is not None and given.size == 1:
        size, index = b.size(x, axis), int(given.reshape(-1)[0])
        before = b.plus(size, index) if index < 0 else b.ints(index)
        after = b.ints(-1 - index) if index < 0 else b.plus(size, -index - 1)
        return b.padded(rows, rank, before, after, b.ints(axis))
    places = b.op("Reshape", indices, b.ints(-1, *[1] * (rank - 1 - axis)))
    return scatter_add(b, x, b.shape(x), b.op("Expand", places, b.op("Shape", rows)), rows, axis)


def _one_row_per_index(b: Builder, g: Value, x: Value, indices: Value, axis: int) -> Value:
    """The gradient of Gather's result with one axis for all indices: one row an index, along ``axis``."""
    if b.rank(indices) == 0:
        return b.op("Unsqueeze", g, b.ints(axis))
    sizes = [b.size(x, n) for n in range(b.rank(x))]
    behind = [b.known_numbers(size) for size in sizes[axis + 1 :]]
    if axis == 0 and all(size is not None and size[0] for size in behind):
        return b.op("Reshape", g, b.ints(-1, *(int(size[0]) for size in behind if size is not None)))
    sizes[axis] = size_product(b, [b.size(indices, n) for n in range(b.rank(indices))])
    return b.op("Reshape", g, b.joined(sizes), allowzero=1)


@gradient("GatherElements")
def gather_elements(b: Builder, node: ir.Node, g: Value) -> Value:
    """The gradient of GatherElements: each element of g is added to where it was read."""
    x, indices = operand(node), operand(node, 1)
    return scatter_add(b, x, b.shape(x), indices, g, b.axis(node, x, 0))


@gradient("GatherND")
def gather_nd(b: Builder, node: ir.Node, g: Value) -> Value:
    """The gradient of GatherND: rows of g are added to where they were read, with the indexed axes flattened to one, so
    that an index is one number, as ScatterElements wants it."""
    x, indices = operand(node), operand(node, 1)
    batch, depth = int(attribute(node, "batch_dims", 0)), b.dim(indices, -1)
    if depth is None:
        raise ValueError(f"the last dimension of the indices '{indices.name}' is not known")
    sizes = [b.size(x, axis) for axis in range(b.rank(x))]
    leading, rest = sizes[: batch + depth], size_product(b, sizes[batch + depth :])
    places = _flat_index(b, indices, sizes, batch, depth)
    flat = b.op("Reshape", g, b.op("Concat", b.ints(-1), rest, axis=0))
    whole = b.op("Concat", size_product(b, leading), rest, axis=0)
    places = b.op("Expand", b.op("Reshape", places, b.ints(-1, 1)), b.op("Shape", flat))
    return b.reshaped(scatter_add(b, x, whole, places, flat, axis=0), x)


def _flat_index(b: Builder, indices: Value, sizes: Sequence[Value], batch: int, depth: int) -> Value:
    """Gradient of GatherND: the flat position of each index in the ``batch + depth`` leading axes of the data, whose
    sizes are ``sizes``; ``depth`` is how many axes an index names behind the batch."""
    own = sizes[batch : batch + depth]
    indices = b.op("Where", b.op("Less", indices, b.ints(0)), b.op("Add", indices, b.joined(own)), indices)
    steps = b.joined([size_product(b, own[n + 1 :]) for n in range(depth)])
    local = b.op("ReduceSum", b.op("Mul", indices, steps), b.ints(-1), keepdims=0)
    if not batch:
        return local
    count = size_product(b, sizes[:batch])
    number = b.arange(b.op("Squeeze", count))
    before = b.op("Mul", b.op("Unsqueeze", number, b.ints(1)), size_product(b, own))
    return b.op("Add", b.op("Reshape", local, b.op("Concat", count, b.ints(-1), axis=0)), before)


def size_product(b: Builder, sizes: Sequence[Value]) -> Value:
    """For gradients: the product of sizes, as `Builder.size` gives them, as such a vector, constant if known."""
    given = [b.known_numbers(size) for size in sizes]
    known = [int(size[0]) for size in given if size is not None]
    if len(known) == len(sizes):
        return b.ints(int(np.prod(known, dtype=np.int64)))
    total = sizes[0]
    for size in sizes[1:]:
        total = b.op("Mul", total, size)
    return total


@gradient("ScatterElements", "ScatterND")
def scatter(b: Builder, node: ir.Node, g: Value) -> tuple[Value, None, Value]:
    """Gradients of ScatterElements' and ScatterND's data and updates: of overwritten data 0, of data that were added to
    g, of a maximum or minimum g for whatever equals it. Raises Unsupported for another reduction."""
    x, indices, updates = (operand(node, n) for n in range(3))
    reduction, elements = attribute(node, "reduction", "none"), node.op_type == "ScatterElements"
    form = {"axis": b.axis(node, x, 0)} if elements else {}
    if elements and reduction in ("max", "min"):
        return _scatter_extreme(b, node, g, form["axis"])
    second = b.op("GatherElements" if elements else "GatherND", g, indices, **form)
    if reduction not in ("none", "add"):
        raise Unsupported(f"{node.op_type} with reduction {reduction} has no gradient here")
    if reduction == "add":
        return g, None, second
    return b.op(node.op_type, g, indices, b.zeros(updates), **form), None, second


def _scatter_extreme(b: Builder, node: ir.Node, g: Value, axis: int) -> tuple[Value, None, Value]:
    """Gradients of a ScatterElements that takes the maximum or minimum: g is shared evenly among all that equal the
    result, as by torch's scatter_reduce."""
    x, indices, updates = (operand(node, n) for n in range(3))
    y = node.outputs[0]
    kind = int(x.dtype or FLOAT)
    own = b.typed(b.op("Cast", b.op("Equal", x, y), to=kind), x)
    there = b.op("GatherElements", y, indices, axis=axis)
    brought = b.typed(b.op("Cast", b.op("Equal", updates, there), to=kind), updates)
    equal = b.op("Add", own, scatter_add(b, x, b.shape(x), indices, brought, axis))
    share = b.op("Div", g, b.op("Max", equal, b.number(1, x)))
    back = b.op("GatherElements", share, indices, axis=axis)
    return b.op("Mul", own, share), None, b.op("Mul", brought, back)


def scatter_add(b: Builder, x: Value, shape: Value, places: Value, rows: Value, axis: int) -> Value:
    """For gradients: ``rows`` added along an axis to zeros of a ``shape`` at the indices ``places``, in the type of x.
    The sums are float32 at least, as ONNX Runtime's CPU adds nothing lower."""
    kind = x.dtype or FLOAT
    low = kind in LOW
    with b.float32(ADDED):
        empty = b.op("Expand", b.number(0, None if low else x), shape)
        rows = b.op("Cast", rows, to=int(FLOAT)) if low else rows
        found = b.op("ScatterElements", empty, places, rows, axis=axis, reduction="add")
        return b.op("Cast", found, to=int(kind)) if low else found
