"""Gradients of convolutions and pooling: windows that slide over the spatial axes of [batch, channels, sizes ...].

Conv and ConvTranspose are each the data gradient of the other. The weight's gradient is a product for each tap (each
element of the kernel): what the tap meets at all places of the window, times the result's gradient there. MaxPool gives
a window's gradient to its largest element, AveragePool to all. Sizes may be known only when the graph runs.

Here ``w`` are the windows, ``g`` is the gradient of the node's result, and a place is where a window can stand: one for
each element of Conv's or a pool's result.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ....formats.onnx.nodes import attribute, kind_of, operand
from ..builder import FLOAT, INT64, REASON, Builder
from ..registry import Unsupported, gradient
from .indexing import scatter_add, size_product

Value = ir.Value
Amounts = list[int] | Value
"""Padding on one side by spatial axis: numbers; or, for auto_pad SAME with strides over sizes that are not known, an
int64 vector that is computed from the shapes."""

WIDE = 32  # a product with a matrix of fewer columns costs as much: measured on CPU for 1 to 64 channels
FEW = 16  # elements of a window, each of which takes a handful of nodes
OVERLAP = "windows overlap, and kernels that add up half precision are missing or inexact"


@dataclass(frozen=True)
class Windows:
    """The windows of a Conv or pool: kernel, strides, dilations and padding (``begins``, ``ends``) by spatial axis."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    begins: Amounts
    ends: Amounts

    @property
    def axes(self) -> list[int]:
        """Gradient of a Conv or pool: the spatial axes, from 2 on."""
        return list(range(2, 2 + len(self.kernel)))

    @property
    def reach(self) -> list[int]:
        """Gradient of a Conv or pool: how many elements one window spans by axis: (kernel - 1) dilation + 1."""
        return [step * (size - 1) + 1 for size, step in zip(self.kernel, self.dilations, strict=True)]

    @property
    def attributes(self) -> dict[str, list[int]]:
        """Gradient of a Conv or pool: the attributes of a node with these windows, but for its padding."""
        return {"kernel_shape": self.kernel, "strides": self.strides, "dilations": self.dilations}

    @property
    def padded(self) -> bool:
        """Gradient of a Conv or pool: whether there is padding; also one that is computed and may be 0."""
        return any(not isinstance(amounts, list) or any(amounts) for amounts in (self.begins, self.ends))

    def with_padding(self, less: Amounts, more: Amounts, upper: bool) -> Windows:
        """Gradient of a Conv or pool: these windows with padding for auto_pad SAME: ``more`` (half of it, rounded up)
        behind and ``less`` (rounded down) in front if ``upper``, else the other way round."""
        return replace(self, begins=less if upper else more, ends=more if upper else less)

    def with_total_padding(self, totals: Sequence[int], upper: bool) -> Windows:
        """Gradient of a Conv or pool: these windows with a total padding by axis, half of it on each side; an odd one
        has more behind if ``upper``, else in front."""
        return self.with_padding([n // 2 for n in totals], [n - n // 2 for n in totals], upper)

    def taps(self) -> list[list[int]]:
        """Gradient of a Conv or pool: the offset of each element of the kernel by axis, the last fastest."""
        return [
            [int(at) * step for at, step in zip(position, self.dilations, strict=True)]
            for position in np.ndindex(*self.kernel)
        ]


def windows_of(b: Builder, node: ir.Node, kernel: list[int], whole: Value, moved: Value) -> Windows:
    """The windows of a Conv, ConvTranspose or pool, with padding as its attributes say. ``whole``: what they slide
    over; ``moved``: a value with one element for each place. Raises Unsupported as `_same_padding`."""
    rank = len(kernel)
    strides = [int(n) for n in attribute(node, "strides", [1] * rank)]
    dilations = [int(n) for n in attribute(node, "dilations", [1] * rank)]
    pads = [int(n) for n in attribute(node, "pads", [0] * (2 * rank))]
    found = Windows(kernel, strides, dilations, pads[:rank], pads[rank:])
    auto = attribute(node, "auto_pad", "NOTSET")
    if auto == "VALID":
        return replace(found, begins=[0] * rank, ends=[0] * rank)
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        return _same_padding(b, found, whole, moved, upper=auto == "SAME_UPPER")
    return found


def _same_padding(b: Builder, w: Windows, whole: Value, moved: Value, upper: bool) -> Windows:
    """Gradient of a Conv or pool: its windows with the padding of auto_pad SAME, by which there are ceil(size / stride)
    places, ``upper`` as in `Windows.with_padding`. It is computed in the graph where a stride is above 1 and a size is
    not known. Raises Unsupported where strides pass over elements."""
    sizes, places = [b.dim(whole, axis) for axis in w.axes], [b.dim(moved, axis) for axis in w.axes]
    if all(stride == 1 for stride in w.strides):
        totals = [reach - 1 for reach in w.reach]
    elif all(n is not None for n in (*sizes, *places)):
        rows = zip(sizes, places, w.strides, w.reach, strict=True)
        totals = [(int(count or 0) - 1) * stride + reach - int(size or 0) for size, count, stride, reach in rows]
        if min(totals) < -1:
            raise _cut_off_error(w)
        totals = [max(total, 0) for total in totals]
    else:
        if any(reach < stride - 1 for reach, stride in zip(w.reach, w.strides, strict=True)):
            raise _cut_off_error(w)
        over = b.ints(*(reach - stride for reach, stride in zip(w.reach, w.strides, strict=True)))
        need = b.op("Add", b.op("Mul", spatial_sizes(b, moved), b.ints(*w.strides)), over)
        total = b.op("Max", b.op("Sub", need, spatial_sizes(b, whole)), b.ints(0))
        less = b.op("Div", total, b.ints(2))
        return w.with_padding(less, b.op("Sub", total, less), upper)
    return w.with_total_padding(totals, upper)


def _cut_off_error(w: Windows) -> Unsupported:
    """The error for a Conv or pool whose auto_pad SAME comes out negative, below what rounding explains: by ONNX's
    formula the input is cropped, and ONNX Runtime then starts behind its edge."""
    return Unsupported(f"auto_pad SAME cuts off what strides of {w.strides} pass over with a kernel of {w.kernel}")


def spatial_sizes(b: Builder, value: Value) -> Value:
    """Gradient of a Conv or pool: the sizes of the spatial axes (all but the first two) as an int64 vector."""
    rank = b.rank(value)
    known = [b.dim(value, axis) for axis in range(2, rank)]
    if all(size is not None for size in known):
        return b.ints(*(size for size in known if size is not None))
    return b.op("Slice", b.shape(value), b.ints(2), b.ints(rank))


def pad(b: Builder, x: Value, begins: Amounts, ends: Amounts) -> Value:
    """Gradient of a Conv or pool: a value with zeros around its spatial axes; itself for amounts of 0."""
    if isinstance(begins, list) and isinstance(ends, list):
        amounts = b.ints(0, 0, *begins, 0, 0, *ends) if any(begins) or any(ends) else None
    else:
        amounts = b.op("Concat", b.ints(0, 0), padding_vector(b, begins), b.ints(0, 0), padding_vector(b, ends), axis=0)
    return x if amounts is None else b.op("Pad", x, amounts)


def padding_vector(b: Builder, amounts: Amounts) -> Value:
    """Gradient of a Conv or pool: padding on one side as an int64 vector, a constant where it is known."""
    return b.ints(*amounts) if isinstance(amounts, list) else amounts


def transposed_conv(b: Builder, g: Value, weight: Value, w: Windows, like: Value, group: int = 1) -> Value:
    """Gradient of a Conv or pool: the transposed convolution: every element of ``g`` times the weight is added to its
    window of a result with the shape of ``like``. Padding that is equal in front and behind is an attribute of
    ConvTranspose, since cuDNN knows only that. With other padding, or sizes that are not known, ConvTranspose makes as
    much as there may be, and a Slice cuts out the result."""
    zeros = [0] * len(w.kernel)
    crop = w.begins if isinstance(w.begins, list) and w.begins == w.ends else zeros
    spare = _output_padding(b, w, g, like)
    whole = b.op(
        "ConvTranspose",
        g,
        weight,
        **w.attributes,
        pads=[*crop, *crop],
        output_padding=[stride - 1 for stride in w.strides] if spare is None else spare,
        group=group,
    )
    if spare is not None:
        return whole
    start = padding_vector(b, zeros if crop is w.begins else w.begins)
    return b.op("Slice", whole, start, b.op("Add", start, spatial_sizes(b, like)), b.ints(*w.axes))


def _output_padding(b: Builder, w: Windows, g: Value, like: Value) -> list[int] | None:
    """Gradient of a Conv or pool: ConvTranspose's ``output_padding``: by axis, how many elements of ``like`` the last
    window does not reach. With strides of 1 there are none, whatever the sizes. None where it is not known, is beyond
    what ConvTranspose takes (a stride), or padding differs in front and behind."""
    if not isinstance(w.begins, list) or w.begins != w.ends:
        return None
    sizes, places = [b.dim(like, axis) for axis in w.axes], [b.dim(g, axis) for axis in w.axes]
    if any(n is None for n in (*sizes, *places)):
        return [0] * len(w.kernel) if all(stride == 1 for stride in w.strides) else None
    rows = zip(sizes, places, w.strides, w.reach, w.begins, strict=True)
    found = [
        int(size or 0) - (int(count or 0) - 1) * stride - reach + 2 * pad for size, count, stride, reach, pad in rows
    ]
    return found if all(0 <= n < s for n, s in zip(found, w.strides, strict=True)) else None


@gradient("Conv")
def conv(b: Builder, node: ir.Node, g: Value) -> list[Value]:
    """Gradients of Conv's data [B, C, ...], weight [M, C / group, ...] and bias [M], where it has one."""
    x, weight = operand(node), operand(node, 1)
    w = windows_of(b, node, _kernel_sizes(b, node, weight), x, g)
    dx = transposed_conv(b, g, weight, w, x, int(attribute(node, "group", 1)))
    return [dx, *_parameter_gradients(b, node, x, g, w, g)]


@gradient("ConvTranspose")
def conv_transpose(b: Builder, node: ir.Node, g: Value) -> list[Value]:
    """Gradients of ConvTranspose's data [B, C, ...], weight [C, M / group, ...] and bias [M], where it has one. Its
    windows slide over the result, and the data has one element for each place."""
    x, weight, shape = operand(node), operand(node, 1), node.outputs[0].shape
    if shape is not None and len(shape) != b.rank(x):  # onnx infers half of a shape where output_shape is below x's
        raise ValueError(f"the shape of '{node.outputs[0].name}' is not known")
    w = _transposed_windows(b, node, windows_of(b, node, _kernel_sizes(b, node, weight), g, x), x, g)
    assert isinstance(w.begins, list) and isinstance(w.ends, list)
    dx = b.op("Conv", g, weight, **w.attributes, pads=[*w.begins, *w.ends], group=int(attribute(node, "group", 1)))
    return [dx, *_parameter_gradients(b, node, g, x, w, g)]


def _kernel_sizes(b: Builder, node: ir.Node, weight: Value) -> list[int]:
    """Gradient of a Conv: the spatial sizes of its kernel, by attribute or weight, else ValueError."""
    given = attribute(node, "kernel_shape")
    sizes = [b.dim(weight, axis) for axis in range(2, b.rank(weight))] if given is None else list(given)
    if any(size is None for size in sizes):
        raise ValueError(f"the kernel size of the weight '{weight.name}' is not known")
    return [int(size) for size in sizes if size is not None]


def _parameter_gradients(b: Builder, node: ir.Node, x: Value, places: Value, w: Windows, g: Value) -> list[Value]:
    """The gradients of a Conv's or ConvTranspose's weight and, where it has one, bias. Windows slide over ``x``, and
    ``places`` has one element for each place; ``g`` is the gradient of the node's result, one of the two."""
    made = [_weight_gradient(b, x, places, operand(node, 1), w, int(attribute(node, "group", 1)))]
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        with b.float32(REASON):
            made.append(b.sum(g, [0, *range(2, b.rank(g))], keep=False))
    return made


def _transposed_windows(b: Builder, node: ir.Node, w: Windows, x: Value, g: Value) -> Windows:
    """The windows of a ConvTranspose with the padding that its output_shape or auto_pad SAME stands for: from the size
    of the result, and with the odd element on the other side than Conv has it. ``x`` is its data. Raises ValueError
    where output_shape is given and the data's sizes are not known."""
    asked, auto = attribute(node, "output_shape"), attribute(node, "auto_pad", "NOTSET")
    extra = [int(n) for n in attribute(node, "output_padding", [0] * len(w.kernel))]
    if asked is not None:
        sizes = [b.dim(x, axis) for axis in w.axes]
        if any(size is None for size in sizes):
            raise ValueError(f"output_shape needs the spatial sizes of '{x.name}', which are not known")
        wanted = [int(n) for n in asked][-len(w.kernel) :]
        rows = zip(sizes, w.strides, w.reach, extra, wanted, strict=True)
        totals = [(int(size or 0) - 1) * stride + reach + more - out for size, stride, reach, more, out in rows]
    elif auto.startswith("SAME"):
        totals = [reach + more - stride for stride, reach, more in zip(w.strides, w.reach, extra, strict=True)]
    else:
        return w
    return w.with_total_padding([max(total, 0) for total in totals], upper=auto == "SAME_UPPER")


def _weight_gradient(b: Builder, x: Value, g: Value, weight: Value, w: Windows, group: int) -> Value:
    """The gradient of a Conv's weight: for each element of the kernel what it meets in ``x``, times ``g``, summed over
    batch and places. A depthwise one is a sum of products by element, any other a matrix product for each group. Raises
    ValueError where the weight's shape is not known."""
    channels, filters = b.dim(weight, 1), b.dim(weight, 0)
    if filters is None or channels is None:
        raise ValueError(f"the shape of the weight '{weight.name}' is not known")
    x = pad(b, x, w.begins, w.ends)
    if group > 1 and channels == 1 and filters == group:
        with b.float32(REASON):
            found = [b.sum(b.op("Mul", part, g), [0, *w.axes], keep=False) for part in _slices_by_tap(b, x, g, w)]
        rows = [b.op("Unsqueeze", row, b.ints(1)) for row in found]
        return b.reshaped(b.joined(rows, 1), weight)
    swapped, flat = [1, 0, *w.axes], b.ints(group, channels, -1)
    x = b.op("Transpose", x, perm=swapped)
    places = b.op("Reshape", b.op("Transpose", g, perm=swapped), b.ints(group, filters // group, -1))
    parts = (b.op("Reshape", part, flat) for part in _slices_by_tap(b, x, g, w))
    products = [_grouped_product(b, places, rows, group) for rows in _joined_parts(b, parts, -(-WIDE // channels))]
    split = b.op("Reshape", b.joined(products, 2), b.ints(group, filters // group, -1, channels))
    return b.reshaped(b.op("Transpose", split, perm=[0, 1, 3, 2]), weight)


def _joined_parts(b: Builder, parts: Iterator[Value], count: int) -> Iterator[Value]:
    """Gradient of a Conv: values [group, channels, n] concatenated along the channels, ``count`` at a time, so that
    products are wide. ``parts`` makes nodes when it is iterated: each stands just before what reads it."""
    while chunk := list(itertools.islice(parts, count)):
        yield b.joined(chunk, 1)


def _grouped_product(b: Builder, places: Value, rows: Value, group: int) -> Value:
    """Gradient of a Conv's weight: for each group the product of [group, m, k] and [group, n, k] transposed, as [group,
    m, n]. One group is a Gemm, which transposes by itself."""
    if group > 1:
        return b.op("MatMul", places, b.op("Transpose", rows, perm=[0, 2, 1]))
    first = b.ints(0)
    product = b.op("Gemm", b.op("Squeeze", places, first), b.op("Squeeze", rows, first), transB=1)
    return b.op("Unsqueeze", product, first)


def _slices_by_tap(b: Builder, x: Value, g: Value, w: Windows) -> Iterator[Value]:
    """Gradient of a Conv: for each element of the kernel in the order of `Windows.taps`, the slice of the padded ``x``
    that it meets: one element for each place, as ``g`` has."""
    if w.reach == w.strides == [1] * len(w.kernel):
        yield x
        return
    known = [b.dim(g, axis) for axis in w.axes]
    spans = [(size - 1) * step + 1 for size, step in zip(known, w.strides, strict=True) if size is not None]
    span = None
    if len(spans) < len(known):
        last = b.op("Mul", b.op("Sub", spatial_sizes(b, g), b.ints(1)), b.ints(*w.strides))
        span = b.op("Add", last, b.ints(1))
    for tap in w.taps():
        if span is None:
            ends = b.ints(*(at + size for at, size in zip(tap, spans, strict=True)))
        else:
            ends = b.op("Add", span, b.ints(*tap))
        yield b.op("Slice", x, b.ints(*tap), ends, b.ints(*w.axes), b.ints(*w.strides))


@gradient("MaxPool")
def max_pool(b: Builder, node: ir.Node, g: Value, *_: Value | None) -> Value:
    """The gradient of MaxPool: the first of the largest elements of a window gets all of its gradient, as in torch.
    Where windows lie side by side, the largest element is looked for again. Else MaxPool's second output, which makes
    it 20 times as slow on CPU, says its index in the tensor. Raises Unsupported for storage_order 1."""
    x, y = operand(node), node.outputs[0]
    w = windows_of(b, node, list(attribute(node, "kernel_shape")), x, g)
    if len(node.outputs) == 1 and _is_tiled(b, x, w):
        if not _is_rectified(node, x):
            return _first_largest(b, x, y, g, w)
        zero = b.number(0, g)
        found = _first_largest(b, x, y, b.op("Where", b.op("Greater", y, zero), g, zero), w)
        b.rectified.add(found)
        return found
    if attribute(node, "storage_order", 0):
        raise Unsupported("MaxPool with storage_order 1 counts its indices by columns")
    places = b.output(node, 1, INT64, g.shape)
    flat = b.ints(-1)
    if all(reach <= stride for reach, stride in zip(w.reach, w.strides, strict=True)):
        zeros, rows = b.op("Reshape", b.zeros(x), flat), [b.op("Reshape", value, flat) for value in (places, g)]
        return b.reshaped(b.op("ScatterElements", zeros, *rows, axis=0), x)
    size = size_product(b, [b.size(x, axis) for axis in range(b.rank(x))])
    return b.reshaped(scatter_add(b, x, size, b.op("Reshape", places, flat), b.op("Reshape", g, flat), axis=0), x)


def _is_rectified(node: ir.Node, x: Value) -> bool:
    """Gradient of a MaxPool: whether its input is a Relu's result that nothing else reads. Then the Relu's gradient is
    taken at each window already, of which there are fewer than elements: it is 0 where the largest is not positive."""
    maker = x.producer()
    alone = [use.node for use in x.uses()] == [node] and not x.is_graph_output()
    return alone and maker is not None and kind_of(maker) == "Relu"


def _is_tiled(b: Builder, x: Value, w: Windows) -> bool:
    """Gradient of a MaxPool: whether its windows are known to hold every element of ``x`` exactly once, without gaps or
    padding, and are of `FEW` elements at most."""
    sizes = [b.dim(x, axis) for axis in w.axes]
    whole = all(size and size % kernel == 0 for size, kernel in zip(sizes, w.kernel, strict=True))
    return whole and w.kernel == w.strides == w.reach and not w.padded and math.prod(w.kernel) <= FEW


def _first_largest(b: Builder, x: Value, y: Value, g: Value, w: Windows) -> Value:
    """The gradient of a MaxPool whose windows tile ``x`` (`_is_tiled`): ``g`` goes to the first element of each window
    that is not below the maximum ``y``, and to the last one where none before it is. The gradient that is left is
    multiplied by zeros and ones: a Where takes ten times as long on a CPU."""
    *all_but_last, _ = _slices_by_tile_element(b, x, w)
    parts: list[Value] = []
    for element in all_but_last:
        smaller = b.op("Less", element, y)  # nothing is smaller than NaN
        left = b.op("Mul", g, b.op("Cast", smaller, to=int(g.dtype or FLOAT)))
        parts.append(b.op("Sub", g, left))
        g = left
    return _interleave(b, [*parts, g], w, x)


def _slices_by_tile_element(b: Builder, x: Value, w: Windows) -> list[Value]:
    """Gradient of a MaxPool whose windows tile ``x``: for each element of the window, last axis fastest, its values in
    all windows. Square windows of two axes take one SpaceToDepth and a Split."""
    if len(w.kernel) == 2 and w.kernel[0] == w.kernel[1] > 1 and b.dim(x, 1) is not None:
        count = math.prod(w.kernel)
        sizes = b.ints(*[b.dim(x, 1) or 0] * count)
        return b.ops("Split", count, b.op("SpaceToDepth", x, blocksize=w.kernel[0]), sizes, axis=1)
    ends = b.ints(*(b.dim(x, axis) or 0 for axis in w.axes))
    return [b.op("Slice", x, b.ints(*tap), ends, b.ints(*w.axes), b.ints(*w.strides)) for tap in w.taps()]


def _interleave(b: Builder, parts: list[Value], w: Windows, x: Value) -> Value:
    """Gradient of a MaxPool whose windows tile ``x``: puts what `_slices_by_tile_element` took apart together again, as
    one tensor of the shape of ``x``, one axis after the other from the last."""
    sizes = [0, 0, *(int(b.dim(x, axis) or 0) // size for axis, size in zip(w.axes, w.kernel, strict=True))]
    for size, axis in reversed(list(zip(w.kernel, w.axes, strict=True))):
        sizes[axis] *= size
        wider = b.ints(*sizes)
        rows, parts = [parts[at : at + size] for at in range(0, len(parts), size)], []
        for row in rows:  # their elements take turns along the axis
            if size == 1:
                parts.append(row[0])
                continue
            apart = [b.op("Unsqueeze", part, b.ints(axis + 1)) for part in row]
            parts.append(b.op("Reshape", b.op("Concat", *apart, axis=axis + 1), wider))
    return parts[0]


@gradient("AveragePool")
def average_pool(b: Builder, node: ir.Node, g: Value) -> Value:
    """The gradient of AveragePool: ``g`` divided by the number of elements in each window, and spread over these by a
    transposed convolution with ones, each channel of each image by itself."""
    x = operand(node)
    w = windows_of(b, node, list(attribute(node, "kernel_shape")), x, g)
    sizes, places = [b.dim(g, axis) for axis in w.axes], spatial_sizes(b, g)
    with b.float32(OVERLAP):
        share = 1 / math.prod(w.kernel)
        if attribute(node, "ceil_mode", 0) or (w.padded and not attribute(node, "count_include_pad", 0)):
            g, share = b.op("Div", g, _window_sizes(b, node, x, w, places)), 1.0
        images = b.op("Reshape", g, b.op("Concat", b.ints(-1, 1), places, axis=0))
        images = b.typed(images, x.dtype or FLOAT, None, 1, *sizes)
        return b.reshaped(transposed_conv(b, images, _ones_kernel(b, x, w, share), w, x), x)


def _window_sizes(b: Builder, node: ir.Node, x: Value, w: Windows, places: Value) -> Value:
    """Gradient of an AveragePool: how many elements each window covers, [1, 1, places ...], by a convolution of ones.
    Padding counts where the node counts it; what hangs over the end (ceil_mode) never does. ``places``: how many
    windows there are by axis, an int64 vector."""
    sizes, begins = spatial_sizes(b, x), padding_vector(b, w.begins)
    if attribute(node, "count_include_pad", 0):
        sizes = b.op("Add", sizes, b.op("Add", begins, padding_vector(b, w.ends)))
        begins = b.ints(*[0] * len(w.kernel))
    ones = b.op("Expand", b.number(1, x), b.op("Concat", b.ints(1, 1), sizes, axis=0))
    beyond = b.op("Add", padding_vector(b, w.ends), b.ints(*w.strides))
    found = b.op("Conv", pad(b, ones, begins, beyond), _ones_kernel(b, x, w, 1), **w.attributes)
    return b.op("Slice", found, b.ints(*[0] * len(w.kernel)), places, b.ints(*w.axes))


def _ones_kernel(b: Builder, like: Value, w: Windows, share: float) -> Value:
    """Gradient of an AveragePool: a kernel [1, 1, sizes ...] of the type of ``like`` whose elements are ``share``."""
    return b.op("Expand", b.number(share, like), b.ints(1, 1, *w.kernel))


@gradient("GlobalAveragePool")
def global_average_pool(b: Builder, node: ir.Node, g: Value) -> Value:
    """The gradient of GlobalAveragePool: ``g`` divided by the number of elements, for each of them."""
    x = operand(node)
    return b.op("Expand", b.op("Div", g, b.count(x, range(2, b.rank(x)))), b.shape(x))


@gradient("GlobalMaxPool")
def global_max_pool(b: Builder, node: ir.Node, g: Value) -> Value:
    """The gradient of GlobalMaxPool: ``g`` for the first of the largest elements of a channel, as in torch."""
    x = operand(node)
    rows = b.op("Reshape", x, b.ints(0, 0, -1))
    place = b.op("ArgMax", rows, axis=2, keepdims=1)
    zeros = b.op("Reshape", b.zeros(x), b.ints(0, 0, -1))
    found = b.op("ScatterElements", zeros, place, b.op("Reshape", g, b.ints(0, 0, 1)), axis=2)
    return b.reshaped(found, x)
