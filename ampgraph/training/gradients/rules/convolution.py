"""Conv and ConvTranspose: each is the data gradient of the other; the weight's is products with what each tap meets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import onnx_ir as ir

from ..broadcast import REASON
from ..builder import Builder
from ..registry import attribute, gradient
from .windows import Windows, pad, spatial, spread, windows_of

Value = ir.Value

WIDE = 32  # a product with a matrix of fewer columns costs as much: measured on CPU for 1 to 64 channels


@gradient("Conv")
def conv(b: Builder, node: ir.Node, g: Value) -> list[Value | None]:
    x, weight, *bias = _inputs(node)
    w = windows_of(b, node, _kernel(b, node, weight), x, g)
    group = int(attribute(node, "group", 1))
    dx = spread(b, g, weight, w, x, group)
    return [dx, _weight(b, x, g, weight, w, group), *(_bias(b, g) for _ in bias)]


@gradient("ConvTranspose")
def conv_transpose(b: Builder, node: ir.Node, g: Value) -> list[Value | None]:
    """The windows slide over the result; the data has one element for each of their places."""
    x, weight, *bias = _inputs(node)
    shape = node.outputs[0].shape
    if shape is not None and len(shape) != b.rank(x):  # onnx gives up in the middle: output_shape below the data's
        raise ValueError(f"the shape of '{node.outputs[0].name}' is not known")
    w = _transposed(b, node, windows_of(b, node, _kernel(b, node, weight), g, x), x, g)
    group = int(attribute(node, "group", 1))
    assert isinstance(w.begins, list) and isinstance(w.ends, list)
    dx = b.op(
        "Conv",
        g,
        weight,
        kernel_shape=w.kernel,
        strides=w.strides,
        dilations=w.dilations,
        pads=[*w.begins, *w.ends],
        group=group,
    )
    return [dx, _weight(b, g, x, weight, w, group), *(_bias(b, g) for _ in bias)]


def _inputs(node: ir.Node) -> list[Value]:
    return [value for value in node.inputs if value is not None]


def _kernel(b: Builder, node: ir.Node, weight: Value) -> list[int]:
    given = attribute(node, "kernel_shape")
    sizes = [b.dim(weight, axis) for axis in range(2, b.rank(weight))] if given is None else list(given)
    if any(size is None for size in sizes):
        raise ValueError(f"the kernel size of the weight '{weight.name}' is not known")
    return [int(size) for size in sizes if size is not None]


def _bias(b: Builder, g: Value) -> Value:
    with b.float32(REASON):
        return b.sum(g, [0, *range(2, b.rank(g))], keep=False)


def _transposed(b: Builder, node: ir.Node, w: Windows, x: Value, g: Value) -> Windows:
    """ConvTranspose counts its padding from the size of the result, and splits it the other way round."""
    asked, auto = attribute(node, "output_shape"), attribute(node, "auto_pad", "NOTSET")
    extra = [int(n) for n in attribute(node, "output_padding", [0] * len(w.kernel))]
    upper = auto == "SAME_UPPER"
    if asked is not None:
        sizes = [b.dim(x, axis) for axis in w.axes]
        if any(size is None for size in sizes):
            raise ValueError(f"output_shape needs the spatial sizes of '{x.name}', which are not known")
        wanted = [int(n) for n in asked][-len(w.kernel) :]
        rows = zip(sizes, w.strides, w.reach, extra, wanted, strict=True)
        totals = [(int(n or 0) - 1) * s + reach + e - out for n, s, reach, e, out in rows]
    elif auto.startswith("SAME"):
        totals = [reach + e - s for s, reach, e in zip(w.strides, w.reach, extra, strict=True)]
    else:
        return w
    totals = [max(total, 0) for total in totals]
    halves, rests = [n // 2 for n in totals], [n - n // 2 for n in totals]
    return replace(w, begins=halves if upper else rests, ends=rests if upper else halves)


def _weight(b: Builder, x: Value, g: Value, weight: Value, w: Windows, group: int) -> Value:
    """For each element of the kernel: the part of ``x`` that it meets, times ``g``, summed over batch and places."""
    channels, filters = b.dim(weight, 1), b.dim(weight, 0)
    if filters is None or channels is None:
        raise ValueError(f"the shape of the weight '{weight.name}' is not known")
    x = pad(b, x, w.begins, w.ends)
    if group > 1 and channels == 1 and filters == group:
        with b.float32(REASON):
            found = [b.sum(b.op("Mul", part, g), [0, *w.axes], keep=False) for part in _parts(b, x, g, w)]
        rows = [b.op("Unsqueeze", row, b.ints(1)) for row in found]
        return b.reshaped(rows[0] if len(rows) == 1 else b.op("Concat", *rows, axis=1), weight)
    swapped, flat = [1, 0, *w.axes], b.ints(group, channels, -1)
    x = b.op("Transpose", x, perm=swapped)
    places = b.op("Reshape", b.op("Transpose", g, perm=swapped), b.ints(group, filters // group, -1))
    parts = (b.op("Reshape", part, flat) for part in _parts(b, x, g, w))
    products = [_product(b, places, rows, group) for rows in _wide(b, parts, -(-WIDE // channels))]
    stacked = products[0] if len(products) == 1 else b.op("Concat", *products, axis=2)
    split = b.op("Reshape", stacked, b.ints(group, filters // group, -1, channels))
    return b.reshaped(b.op("Transpose", split, perm=[0, 1, 3, 2]), weight)


def _wide(b: Builder, parts: Iterator[Value], count: int) -> Iterator[Value]:
    """Parts with few channels are put together, ``count`` at a time. Made when asked for: few are alive at once."""
    while chunk := list(itertools.islice(parts, count)):
        yield chunk[0] if len(chunk) == 1 else b.op("Concat", *chunk, axis=1)


def _product(b: Builder, places: Value, rows: Value, group: int) -> Value:
    """[group, m, sum] times [group, n, sum] transposed."""
    if group > 1:
        return b.op("MatMul", places, b.op("Transpose", rows, perm=[0, 2, 1]))
    first = b.ints(0)
    product = b.op("Gemm", b.op("Squeeze", places, first), b.op("Squeeze", rows, first), transB=1)
    return b.op("Unsqueeze", product, first)


def _parts(b: Builder, x: Value, g: Value, w: Windows) -> Iterator[Value]:
    """For each element of the kernel: what it meets in the windows, as many places as ``g`` has."""
    if w.reach == w.strides == [1] * len(w.kernel):
        yield x
        return
    known = [b.dim(g, axis) for axis in w.axes]
    spans = [(size - 1) * step + 1 for size, step in zip(known, w.strides, strict=True) if size is not None]
    span = None
    if len(spans) < len(known):
        last = b.op("Mul", b.op("Sub", spatial(b, g), b.ints(1)), b.ints(*w.strides))
        span = b.op("Add", last, b.ints(1))
    for tap in w.taps():
        if span is None:
            ends = b.ints(*(at + size for at, size in zip(tap, spans, strict=True)))
        else:
            ends = b.op("Add", span, b.ints(*tap))
        yield b.op("Slice", x, b.ints(*tap), ends, b.ints(*w.axes), b.ints(*w.strides))
