"""What convolutions and pooling share: windows that slide over the spatial axes, [batch, channels, sizes ...].

Sizes may be known only when the graph runs. Padding is one of: numbers; or, for auto_pad SAME with a stride over sizes
that are not known, two int64 vectors (begins, ends) computed from the shapes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ..builder import Builder
from ..registry import Unsupported, attribute

Value = ir.Value
Amounts = list[int] | Value


@dataclass(frozen=True)
class Windows:
    """Kernel sizes, strides and dilations by spatial axis, and the padding on either side."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    begins: Amounts
    ends: Amounts

    @property
    def axes(self) -> list[int]:
        return list(range(2, 2 + len(self.kernel)))

    @property
    def reach(self) -> list[int]:
        """How many elements one window spans."""
        return [step * (size - 1) + 1 for size, step in zip(self.kernel, self.dilations, strict=True)]

    @property
    def padded(self) -> bool:
        return any(not isinstance(amounts, list) or any(amounts) for amounts in (self.begins, self.ends))

    def taps(self) -> list[list[int]]:
        """Where each element of the kernel meets the first window, last axis fastest."""
        return [
            [int(at) * step for at, step in zip(position, self.dilations, strict=True)]
            for position in np.ndindex(*self.kernel)
        ]


def windows_of(b: Builder, node: ir.Node, kernel: list[int], whole: Value, moved: Value) -> Windows:
    """The windows of a node: ``whole`` is what they slide over, ``moved`` has one element for each of their places."""
    rank = len(kernel)
    strides = [int(n) for n in attribute(node, "strides", [1] * rank)]
    dilations = [int(n) for n in attribute(node, "dilations", [1] * rank)]
    pads = [int(n) for n in attribute(node, "pads", [0] * (2 * rank))]
    found = Windows(kernel, strides, dilations, pads[:rank], pads[rank:])
    auto = attribute(node, "auto_pad", "NOTSET")
    if auto == "VALID":
        return replace(found, begins=[0] * rank, ends=[0] * rank)
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        return _same(b, found, whole, moved, upper=auto == "SAME_UPPER")
    return found


def _same(b: Builder, w: Windows, whole: Value, moved: Value, upper: bool) -> Windows:
    """Padding by which there are ceil(size / stride) places; the odd element goes to the end if ``upper``."""
    sizes, places = [b.dim(whole, axis) for axis in w.axes], [b.dim(moved, axis) for axis in w.axes]
    if all(stride == 1 for stride in w.strides):
        totals = [reach - 1 for reach in w.reach]
    elif all(n is not None for n in (*sizes, *places)):
        rows = zip(sizes, places, w.strides, w.reach, strict=True)
        totals = [(int(o or 0) - 1) * s + reach - int(n or 0) for n, o, s, reach in rows]
        if min(totals) < -1:
            raise _cut_off(w)
        totals = [max(total, 0) for total in totals]
    else:
        if any(reach < stride - 1 for reach, stride in zip(w.reach, w.strides, strict=True)):
            raise _cut_off(w)
        need = b.op("Add", b.op("Mul", spatial(b, moved), b.ints(*w.strides)), _minus(b, w.reach, w.strides))
        total = b.op("Max", b.op("Sub", need, spatial(b, whole)), b.ints(0))
        less = b.op("Div", total, b.ints(2))
        more = b.op("Sub", total, less)
        return replace(w, begins=less if upper else more, ends=more if upper else less)
    halves, rests = [n // 2 for n in totals], [n - n // 2 for n in totals]
    return replace(w, begins=halves if upper else rests, ends=rests if upper else halves)


def _cut_off(w: Windows) -> Unsupported:
    """ONNX counts less than no padding there, and ONNX Runtime then starts behind the edge."""
    return Unsupported(f"auto_pad SAME cuts off what strides of {w.strides} pass over with a kernel of {w.kernel}")


def _minus(b: Builder, one: list[int], other: list[int]) -> Value:
    return b.ints(*(x - y for x, y in zip(one, other, strict=True)))


def spatial(b: Builder, value: Value) -> Value:
    """The sizes of all axes but the first two."""
    rank = b.rank(value)
    known = [b.dim(value, axis) for axis in range(2, rank)]
    if all(size is not None for size in known):
        return b.ints(*(size for size in known if size is not None))
    return b.op("Slice", b.shape(value), b.ints(2), b.ints(rank))


def pad(b: Builder, x: Value, begins: Amounts, ends: Amounts) -> Value:
    """Zeros around the spatial axes."""
    if isinstance(begins, list) and isinstance(ends, list):
        amounts = b.ints(0, 0, *begins, 0, 0, *ends) if any(begins) or any(ends) else None
    else:
        amounts = b.op("Concat", b.ints(0, 0), vector(b, begins), b.ints(0, 0), vector(b, ends), axis=0)
    return x if amounts is None else b.op("Pad", x, amounts)


def vector(b: Builder, amounts: Amounts) -> Value:
    return b.ints(*amounts) if isinstance(amounts, list) else amounts


def spread(b: Builder, g: Value, weight: Value, w: Windows, like: Value, group: int = 1) -> Value:
    """The transposed convolution: every element of ``g`` adds its multiple of the weight to its window of ``like``.

    Equal padding goes into ConvTranspose, as cuDNN knows only that; other padding, and what the last window leaves
    over at the end, is cut off.
    """
    zeros = [0] * len(w.kernel)
    crop = w.begins if isinstance(w.begins, list) and w.begins == w.ends else zeros
    spare = _spare(b, w, g, like)
    whole = b.op(
        "ConvTranspose",
        g,
        weight,
        kernel_shape=w.kernel,
        strides=w.strides,
        dilations=w.dilations,
        pads=[*crop, *crop],
        output_padding=[stride - 1 for stride in w.strides] if spare is None else spare,
        group=group,
    )
    if spare is not None:
        return whole
    start = vector(b, zeros if crop is w.begins else w.begins)
    return b.op("Slice", whole, start, b.op("Add", start, spatial(b, like)), b.ints(*w.axes))


def _spare(b: Builder, w: Windows, g: Value, like: Value) -> list[int] | None:
    """What the windows leave over at the end by axis; None if that is not known, or not for ConvTranspose to add."""
    if not isinstance(w.begins, list) or w.begins != w.ends:
        return None
    sizes, places = [b.dim(like, axis) for axis in w.axes], [b.dim(g, axis) for axis in w.axes]
    if any(n is None for n in (*sizes, *places)):
        return [0] * len(w.kernel) if all(stride == 1 for stride in w.strides) else None
    rows = zip(sizes, places, w.strides, w.reach, w.begins, strict=True)
    found = [int(n or 0) - (int(o or 0) - 1) * s - reach + 2 * p for n, o, s, reach, p in rows]
    return found if all(0 <= n < s for n, s in zip(found, w.strides, strict=True)) else None
