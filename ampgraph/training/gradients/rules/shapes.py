"""Gradients of operators that move values: reshaping, transposing, repeating, joining, splitting, cutting, padding.
Sizes that they need are constants where they are known, and computed in the graph where they are not."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ....formats.onnx.nodes import attribute, operand
from ..builder import INT64, Builder
from ..registry import Unsupported, formula_gradient, gradient

Value = ir.Value


@gradient("Reshape", "Flatten")
def reshape(b: Builder, node: ir.Node, g: Value) -> Value:
    """The gradient of Reshape and Flatten: in the shape of the input."""
    return b.reshaped(g, operand(node))


@gradient("Squeeze", "Unsqueeze")
def squeeze(b: Builder, node: ir.Node, g: Value) -> Value:
    """The gradient of Squeeze and Unsqueeze: the other of the two if the axes are known, else a Reshape."""
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    given = b.known_numbers(axes)
    if given is None or given.size == 0:
        return b.reshaped(g, operand(node))
    return b.op("Unsqueeze" if node.op_type == "Squeeze" else "Squeeze", g, axes)


@gradient("Transpose")
def transpose(b: Builder, node: ir.Node, g: Value) -> Value:
    """The gradient of Transpose, by the inverse permutation; a reversal (no ``perm``) is its own inverse."""
    order = attribute(node, "perm")
    return b.op("Transpose", g, perm=None if order is None else [int(axis) for axis in np.argsort(order)])


formula_gradient("Expand", lambda g, *_: g, broadcasts=True)  # the driver sums it over the axes that were expanded


@gradient("Tile")
def tile(b: Builder, node: ir.Node, g: Value) -> Value:
    """The gradient of Tile: g summed over the copies; an axis of n values repeated r times is seen as [r, n]."""
    x, repeats = operand(node), operand(node, 1)
    rank, counts, sizes = b.rank(x), b.known_numbers(repeats), b.known_numbers(b.shape(x))
    if counts is not None and sizes is not None:
        split = b.ints(*np.stack([counts, sizes], 1).reshape(-1).tolist())
    else:
        columns = (b.op("Unsqueeze", vector, b.ints(1)) for vector in (repeats, b.shape(x)))
        split = b.op("Reshape", b.op("Concat", *columns, axis=1), b.ints(-1))
    with b.float32("a sum over repetitions"):
        return b.sum(b.op("Reshape", g, split, allowzero=1), range(0, 2 * rank, 2), keep=False)


@gradient("Concat")
def concat(b: Builder, node: ir.Node, g: Value) -> list[Value]:
    """The gradients of Concat's operands: pieces of the result's gradient."""
    inputs = [value for value in node.inputs if value is not None]
    if len(inputs) == 1:
        return [g]
    axis = b.axis(node, inputs[0], 0)
    known = [size for size in (b.dim(value, axis) for value in inputs) if size is not None]
    sizes = b.ints(*known) if len(known) == len(inputs) else b.joined([b.size(value, axis) for value in inputs])
    return b.ops("Split", len(inputs), g, sizes, axis=axis)


@gradient("Split")
def split(b: Builder, node: ir.Node, *gradients: Value | None) -> Value:
    """The gradients of all outputs joined, zeros for those that nobody reads."""
    pairs = zip(gradients, node.outputs, strict=True)
    return b.joined([b.zeros(output) if g is None else g for g, output in pairs], attribute(node, "axis", 0))


@gradient("Slice")
def slice_(b: Builder, node: ir.Node, g: Value) -> Value:
    """The gradient of Slice: g between zeros for what was cut away; with steps, g scattered to where it was read."""
    x, y = operand(node), node.outputs[0]
    starts, _, axes, steps = (*node.inputs[1:], None, None)[:4]
    strides = None if steps is None else b.known_numbers(steps)
    if steps is not None and (strides is None or (strides != 1).any()):
        return _scatter_to_positions(b, node, g)
    first, chosen = b.known_numbers(starts), b.known_numbers(axes)
    if axes is None and first is not None:
        chosen = np.arange(first.size)
    if first is not None and chosen is not None:
        dims, kept = ([b.dim(value, int(axis)) for axis in chosen] for value in (x, y))
        if None not in dims and None not in kept:
            whole, part = np.array(dims, np.int64), np.array(kept, np.int64)
            begin = np.clip(np.where(first < 0, first + whole, first), 0, whole)
            return b.padded(g, b.rank(x), b.ints(*begin), b.ints(*(whole - begin - part)), b.ints(*chosen))
    return _padded_at_run_time(b, node, g)


def _padded_at_run_time(b: Builder, node: ir.Node, g: Value) -> Value:
    """The gradient of a Slice without steps whose starts or sizes only a run shows: g between zeros for what was cut
    away, whose amounts are computed in the graph."""
    x, y = operand(node), node.outputs[0]
    starts, axes = operand(node, 1), (*node.inputs[3:], None)[0]
    begin = starts if starts.dtype == INT64 else b.op("Cast", starts, to=int(INT64))
    axes = b.arange(b.op("Size", starts)) if axes is None else axes
    whole, part = (b.op("Gather", b.shape(value), axes) for value in (x, y))
    given = b.known_numbers(starts)
    if given is None or (given < 0).any():
        begin = b.op("Where", b.op("Less", begin, b.ints(0)), b.op("Add", begin, whole), begin)
        begin = b.op("Max", begin, b.ints(0))
    begin = b.op("Min", begin, whole)
    end = b.op("Sub", b.op("Sub", whole, begin), part)
    return b.padded(g, b.rank(x), begin, end, axes)


def _scatter_to_positions(b: Builder, node: ir.Node, g: Value) -> Value:
    """The gradient of a Slice with steps: g scattered to the positions of its elements, which are the numbers 0, 1, ...
    of all elements sliced in the same way."""
    x = operand(node)
    size = b.op("Size", x)
    positions = b.op("Reshape", b.arange(size), b.shape(x), allowzero=1)
    read = b.op("Reshape", b.op("Slice", positions, *node.inputs[1:]), b.ints(-1))
    zeros = b.op("Expand", b.number(0, x), b.op("Reshape", size, b.ints(1)))
    return b.reshaped(b.op("ScatterElements", zeros, read, b.op("Reshape", g, b.ints(-1)), axis=0), x)


@gradient("Pad")
def pad(b: Builder, node: ir.Node, g: Value) -> list[Value | None]:
    """The gradients of Pad: of the data g without the borders (0 for what a negative amount cut off), to which borders
    that reflect or repeat are added; of a constant's value, unless it is stored, the sum of g over the borders."""
    pads, filler, axes = (*node.inputs[1:], None, None)[:3]
    mode = attribute(node, "mode", "constant")
    if mode != "constant":
        return [_fold_borders(b, node, g, mode)]
    if axes is None:
        found = b.op("Pad", g, b.op("Neg", pads))
    else:
        begin, end = b.ops("Split", 2, b.op("Neg", pads), num_outputs=2)
        found = b.padded(g, b.rank(operand(node)), begin, end, axes)
    if filler is None or b.known_numbers(filler) is not None:
        return [found]
    with b.float32("a sum over the borders"):
        rest = b.op("Sub", b.op("ReduceSum", g, keepdims=0), b.op("ReduceSum", found, keepdims=0))
    return [found, None, b.reshaped(rest, filler)]


def _fold_borders(b: Builder, node: ir.Node, g: Value, mode: str) -> Value:
    """The gradient of a Pad that reflects or repeats, axis by axis: the middle of g, plus the gradient of each border
    at the places that it repeats. Raises Unsupported for another mode, and for pads that are computed or negative."""
    x = operand(node)
    pads, axes = b.known_numbers(node.inputs[1]), b.known_numbers(node.inputs[3] if len(node.inputs) > 3 else None)
    if pads is None or (pads < 0).any() or mode not in ("reflect", "edge", "wrap"):
        raise Unsupported(f"Pad in mode {mode} has a gradient for constant pads of 0 or more")
    rank = b.rank(x)
    chosen = range(rank) if axes is None else [int(axis) % rank for axis in axes]
    for axis, before, after in zip(chosen, *pads.reshape(2, -1).tolist(), strict=True):
        if before or after:
            total = _slice_axis(b, g, axis, before, -after if after else _END)
            for count, front in ((before, True), (after, False)):
                if count:
                    total = b.op("Add", total, _border_gradient(b, x, g, mode, axis, count, front))
            g = total
    return g


_END = np.iinfo(np.int64).max


def _border_gradient(b: Builder, x: Value, g: Value, mode: str, axis: int, count: int, front: bool) -> Value:
    """The gradient of a Pad's border of ``count`` values at the ``front`` or the end of an axis of ``x``, moved to the
    places that it repeats, among zeros. ``g`` is the gradient of the whole result."""
    offset, width = 0, count
    if mode == "reflect":  # in reverse, one value away from the edge
        part = _slice_axis(b, g, axis, count - 1 if front else -1, -_END if front else -count - 1, -1)
        offset = 1
    else:
        part = _slice_axis(b, g, axis, *((0, count) if front else (-count, _END)))
        if mode == "edge":
            with b.float32("a sum over the border"):
                part, width = b.sum(part, [axis]), 1
        else:  # around: the border in front repeats the end
            front = not front
    rest = b.plus(b.size(x, axis), -offset - width)
    sides = (b.ints(offset), rest) if front else (rest, b.ints(offset))
    return b.padded(part, b.rank(x), *sides, b.ints(axis))


def _slice_axis(b: Builder, value: Value, axis: int, start: int, end: int, step: int = 1) -> Value:
    """Gradient of Pad: adds a Slice of a value along one axis, by known numbers."""
    return b.op("Slice", value, b.ints(start), b.ints(end), b.ints(axis), b.ints(step))


# the same triangle, and the way back
gradient("Trilu")(lambda b, node, g: b.op("Trilu", g, *node.inputs[1:], upper=attribute(node, "upper", 1)))
gradient("SpaceToDepth")(lambda b, node, g: b.op("DepthToSpace", g, blocksize=attribute(node, "blocksize")))


@gradient("DepthToSpace")
def depth_to_space(b: Builder, node: ir.Node, g: Value) -> Value:
    """The gradient of DepthToSpace: SpaceToDepth of g, its channels in another order for mode CRD (torch's)."""
    x, y, size = operand(node), node.outputs[0], int(attribute(node, "blocksize"))
    found = b.op("SpaceToDepth", g, blocksize=size)
    if attribute(node, "mode", "DCR") == "DCR":
        return found
    shape = b.op(
        "Concat", b.size(x, 0), b.ints(size * size), *(b.size(v, n) for v, n in ((y, 1), (x, 2), (x, 3))), axis=0
    )
    blocks = b.op("Reshape", found, shape, allowzero=1)
    return b.reshaped(b.op("Transpose", blocks, perm=[0, 2, 1, 3, 4]), x)
