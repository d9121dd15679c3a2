"""Pooling: the largest element of a window gets its gradient, or all share it."""

from __future__ import annotations

import math

import onnx_ir as ir

from ..builder import Builder
from ..registry import Unsupported, attribute, gradient, kind_of
from .indexing import added, product
from .windows import Windows, pad, spatial, spread, vector, windows_of

Value = ir.Value

FEW = 16  # places of a window, each a handful of nodes
OVERLAP = "windows overlap, and kernels that add up half precision are missing or inexact"


@gradient("MaxPool")
def max_pool(b: Builder, node: ir.Node, g: Value, *_: Value | None) -> Value:
    """The first of the largest elements of a window gets its gradient, as in torch.

    MaxPool can say where it found what, counted through the whole tensor; where windows lie side by side, looking again
    is quicker: a MaxPool that says so is 20 times as slow on CPU as one that does not.
    """
    x, y = _operand(node), node.outputs[0]
    w = windows_of(b, node, _kernel(node), x, g)
    if len(node.outputs) == 1 and _side_by_side(b, x, w):
        if not _is_rectified(node, x):
            return _first_largest(b, x, y, g, w)
        zero = b.number(0, g)
        found = _first_largest(b, x, y, b.op("Where", b.op("Greater", y, zero), g, zero), w)
        b.rectified.add(found)
        return found
    if attribute(node, "storage_order", 0):
        raise Unsupported("MaxPool with storage_order 1 counts its indices by columns")
    places = b.output(node, 1, ir.DataType.INT64, g.shape)
    flat = b.ints(-1)
    if all(reach <= stride for reach, stride in zip(w.reach, w.strides, strict=True)):
        zeros, rows = b.op("Reshape", b.zeros(x), flat), [b.op("Reshape", value, flat) for value in (places, g)]
        return b.reshaped(b.op("ScatterElements", zeros, *rows, axis=0), x)
    size = product(b, [b.size(x, axis) for axis in range(b.rank(x))])
    return b.reshaped(added(b, x, size, b.op("Reshape", places, flat), b.op("Reshape", g, flat), axis=0), x)


def _is_rectified(node: ir.Node, x: Value) -> bool:
    """Whether a Relu makes what is pooled, for nobody else. It lets the gradient of the largest element through where
    that is positive, which is seen at each window: there are fewer of them than of elements."""
    maker = x.producer()
    alone = [use.node for use in x.uses()] == [node] and not x.is_graph_output()
    return alone and maker is not None and kind_of(maker) == "Relu"


def _side_by_side(b: Builder, x: Value, w: Windows) -> bool:
    """Whether every element is known to be in exactly one window, without gaps or padding; windows of a few places."""
    sizes = [b.dim(x, axis) for axis in w.axes]
    whole = all(size and size % kernel == 0 for size, kernel in zip(sizes, w.kernel, strict=True))
    return whole and w.kernel == w.strides == w.reach and not w.padded and math.prod(w.kernel) <= FEW


def _first_largest(b: Builder, x: Value, y: Value, g: Value, w: Windows) -> Value:
    """Place by place of the window: it gets the gradient where it holds y, and no place before it does."""
    parts: list[Value] = []
    open_: Value | None = None  # windows of which no place held y so far
    zero = b.number(0, g)
    for held in _places(b, x, w):
        smaller = b.op("Less", held, y)  # nothing is smaller than NaN
        left = smaller if open_ is None else b.op("And", open_, smaller)
        chosen = b.op("Not", smaller) if open_ is None else b.op("Xor", open_, left)
        parts.append(b.op("Where", chosen, g, zero))
        open_ = left
    return _side_by_side_again(b, parts, w, x)


def _places(b: Builder, x: Value, w: Windows) -> list[Value]:
    """What stands at each place of the windows."""
    if len(w.kernel) == 2 and w.kernel[0] == w.kernel[1] > 1 and b.dim(x, 1) is not None:
        count = math.prod(w.kernel)
        sizes = b.ints(*[b.dim(x, 1) or 0] * count)
        return b.ops("Split", count, b.op("SpaceToDepth", x, blocksize=w.kernel[0]), sizes, axis=1)
    ends = b.ints(*(b.dim(x, axis) or 0 for axis in w.axes))
    return [b.op("Slice", x, b.ints(*tap), ends, b.ints(*w.axes), b.ints(*w.strides)) for tap in w.taps()]


def _side_by_side_again(b: Builder, parts: list[Value], w: Windows, x: Value) -> Value:
    """One tensor like ``x`` of what belongs to each place of its windows, places of the last axis first."""
    sizes = [0, 0, *(int(b.dim(x, axis) or 0) // size for axis, size in zip(w.axes, w.kernel, strict=True))]
    for size, axis in reversed(list(zip(w.kernel, w.axes, strict=True))):
        sizes[axis] *= size
        wider = b.ints(*sizes)
        rows = [parts[at : at + size] for at in range(0, len(parts), size)]
        parts = [_put_between(b, row, axis, wider) for row in rows]
    return parts[0]


def _put_between(b: Builder, row: list[Value], axis: int, sizes: Value) -> Value:
    """Elements of several tensors in turns along an axis."""
    if len(row) == 1:
        return row[0]
    apart = [b.op("Unsqueeze", part, b.ints(axis + 1)) for part in row]
    return b.op("Reshape", b.op("Concat", *apart, axis=axis + 1), sizes)


@gradient("AveragePool")
def average_pool(b: Builder, node: ir.Node, g: Value) -> Value:
    """A transposed convolution with ones, each channel of each image by itself, of g over the sizes of the windows."""
    x = _operand(node)
    w = windows_of(b, node, _kernel(node), x, g)
    sizes, places = [b.dim(g, axis) for axis in w.axes], spatial(b, g)
    with b.float32(OVERLAP):
        share = 1 / math.prod(w.kernel)
        if attribute(node, "ceil_mode", 0) or (w.padded and not attribute(node, "count_include_pad", 0)):
            g, share = b.op("Div", g, _counts(b, node, x, w, places)), 1.0
        images = b.op("Reshape", g, b.op("Concat", b.ints(-1, 1), places, axis=0))
        images = b.typed(images, x.dtype or ir.DataType.FLOAT, None, 1, *sizes)
        return b.reshaped(spread(b, images, _ones(b, x, w, share), w, x), x)


def _counts(b: Builder, node: ir.Node, x: Value, w: Windows, places: Value) -> Value:
    """How many elements each window has: a convolution of ones. What hangs over at the end never counts."""
    sizes, begins = spatial(b, x), vector(b, w.begins)
    if attribute(node, "count_include_pad", 0):
        sizes = b.op("Add", sizes, b.op("Add", begins, vector(b, w.ends)))
        begins = b.ints(*[0] * len(w.kernel))
    ones = b.op("Expand", b.number(1, x), b.op("Concat", b.ints(1, 1), sizes, axis=0))
    beyond = b.op("Add", vector(b, w.ends), b.ints(*w.strides))
    found = b.op(
        "Conv",
        pad(b, ones, begins, beyond),
        _ones(b, x, w, 1),
        kernel_shape=w.kernel,
        strides=w.strides,
        dilations=w.dilations,
    )
    return b.op("Slice", found, b.ints(*[0] * len(w.kernel)), places, b.ints(*w.axes))


def _ones(b: Builder, like: Value, w: Windows, share: float) -> Value:
    return b.op("Expand", b.number(share, like), b.ints(1, 1, *w.kernel))


@gradient("GlobalAveragePool")
def global_average_pool(b: Builder, node: ir.Node, g: Value) -> Value:
    x = _operand(node)
    return b.op("Expand", b.op("Div", g, b.count(x, range(2, b.rank(x)))), b.shape(x))


@gradient("GlobalMaxPool")
def global_max_pool(b: Builder, node: ir.Node, g: Value) -> Value:
    """The first of the largest elements, as in torch: after Relu whole channels are equal."""
    x = _operand(node)
    rows = b.op("Reshape", x, b.ints(0, 0, -1))
    place = b.op("ArgMax", rows, axis=2, keepdims=1)
    zeros = b.op("Reshape", b.zeros(x), b.ints(0, 0, -1))
    found = b.op("ScatterElements", zeros, place, b.op("Reshape", g, b.ints(0, 0, 1)), axis=2)
    return b.reshaped(found, x)


def _operand(node: ir.Node) -> Value:
    [x] = node.inputs
    assert x is not None
    return x


def _kernel(node: ir.Node) -> list[int]:
    return [int(n) for n in attribute(node, "kernel_shape")]
