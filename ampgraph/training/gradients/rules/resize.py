"""The gradient of Resize, nearest and linear: Resize is a product with a matrix along each axis, its gradient one with
the transposed matrix.

Row o of the matrix [new, old] says from where output o comes: with x(o) the coordinate in the input, linear takes
max(0, 1 - |x(o) - i|) of input i, nearest the whole of the one it rounds to. Where sizes are known the matrix is a
constant, and if each element is repeated a whole number of times, the gradient is a sum. Coordinates are float32, as
ONNX Runtime computes them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ....formats.onnx.nodes import attribute, operand
from ..builder import FLOAT, INT64, REASON, Builder, EagerTerm, Term, same_size
from ..registry import Unsupported, gradient

Value = ir.Value

TRANSFORMS = ("asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners")


Sizes = tuple[int | None, int | None]
"""The size of an axis before and after, where it is known."""


@dataclass(frozen=True)
class Interpolation:
    """How a Resize finds what an output element is made from, by its attributes."""

    mode: str  # nearest or linear
    transform: str  # of `TRANSFORMS`: from a place in the output to a coordinate in the input
    rounding: str  # of a coordinate to an element, by nearest


@gradient("Resize")
def resize(b: Builder, node: ir.Node, g: Value) -> Value:
    """The gradient of Resize: along each axis that is resized, the product of g with the matrix, or the sum over the
    copies of each element. Raises Unsupported and ValueError as `_interpolation` and `_resized_axes`."""
    x, y, how = operand(node), node.outputs[0], _interpolation(node)
    rank = b.rank(x)
    sizes = [(b.dim(x, axis), b.dim(y, axis)) for axis in range(rank)]
    if all(old is not None and old == new for old, new in sizes):  # ONNX Runtime copies, whatever the scale
        return g
    axes = _resized_axes(b, node, x, rank)
    copied = _copies_at_run(b, x, y, sizes, list(axes.values()))
    for axis, scale in axes.items():
        old, new = sizes[axis]
        if old is not None and new is not None and (copied is None or old != new):
            places, sources = (np.arange(size, dtype=np.float32) for size in (new, old))
            numbers = (places[:, None], sources, new, old, scale or new / old)
            elements = _matrix_elements(how, *(EagerTerm(np.asarray(n, np.float32)) for n in numbers))
            assert isinstance(elements, EagerTerm)
            matrix = elements.array
            times = new // old
            if new == old * times and np.array_equal(matrix, np.repeat(np.eye(old), times, axis=0)):
                g = _summed_copies(b, g, axis, rank, b.ints(old, times))
                continue
            g = _matrix_product(b, g, b.constant(matrix.astype((x.dtype or FLOAT).numpy())), axis, rank)
        else:
            g = _matrix_product(b, g, _computed_matrix(b, x, y, axis, scale, how, copied), axis, rank)
    return g


def _copies_at_run(b: Builder, x: Value, y: Value, sizes: list[Sizes], scales: list[float]) -> Value | None:
    """Gradient of Resize: a truth value of the graph, whether a run finds all sizes unchanged, so that ONNX Runtime
    copies whatever the scales; None where that cannot be: it takes scales from 1 to 2 alone, and open sizes."""
    if not scales or not all(1 < scale < 2 for scale in scales):
        return None
    if any(None not in (old, new) and old != new for old, new in sizes):
        return None
    return b.op("Equal", b.op("Size", x), b.op("Size", y))


def _interpolation(node: ir.Node) -> Interpolation:
    """Gradient of Resize: mode, coordinates and rounding by a node's attributes. Raises Unsupported for others."""
    mode = str(attribute(node, "mode", "nearest"))
    transform = str(attribute(node, "coordinate_transformation_mode", "half_pixel"))
    rounding = str(attribute(node, "nearest_mode", "round_prefer_floor"))
    if mode not in ("nearest", "linear") or transform not in TRANSFORMS or attribute(node, "antialias", 0):
        raise Unsupported(f"Resize has a gradient for nearest and linear by {', '.join(TRANSFORMS)}, without antialias")
    if attribute(node, "keep_aspect_ratio_policy", "stretch") != "stretch":
        raise Unsupported("Resize has a gradient only where it may stretch")
    return Interpolation(mode, transform, rounding)


def _resized_axes(b: Builder, node: ir.Node, x: Value, rank: int) -> dict[int, float]:
    """Gradient of Resize: the axes that are resized -> their scales, 0 where the sizes say it. Raises ValueError where
    the node's scales are neither known nor replaced by sizes."""
    listed = [int(axis) % rank for axis in attribute(node, "axes", range(rank))]
    scales = b.known_numbers(node.inputs[2]) if len(node.inputs) > 2 else None
    if scales is not None and scales.size:
        rows = zip(listed, scales.tolist(), strict=True)
        return {axis: scale for axis, scale in rows if scale != 1}
    if len(node.inputs) < 4 or node.inputs[3] is None:
        raise ValueError("the scales are not known")
    assert x.shape is not None
    old, new, kept = x.shape, node.outputs[0].shape, _leading_sizes_kept(b, node, x)
    return {axis: 0.0 for axis in listed if axis >= kept and (new is None or not same_size(old[axis], new[axis]))}


def _leading_sizes_kept(b: Builder, node: ir.Node, x: Value) -> int:
    """Gradient of Resize: how many leading axes keep their size by the way the sizes are computed: exporters
    concatenate a slice of the data's own shape with the new sizes. 0 for anything else."""
    joined = node.inputs[3].producer() if node.inputs[3] is not None else None
    first = joined.inputs[0] if joined is not None and joined.op_type == "Concat" else None
    cut = first.producer() if first is not None else None
    if cut is None or cut.op_type != "Slice" or "axes" in node.attributes:
        return 0
    source, start, end, _, steps = (*cut.inputs, None, None)[:5]
    shape = source.producer() if source is not None else None
    if shape is None or shape.op_type != "Shape" or shape.attributes or shape.inputs[0] is not x:
        return 0
    numbers = [1 if value is None else b.known_numbers(value) for value in (start, end, steps)]
    if any(number is None or np.size(number) != 1 for number in numbers):
        return 0
    begin, until, step = (int(np.reshape(number, ())) for number in numbers if number is not None)
    return until if begin == 0 and step == 1 else 0


def _computed_matrix(
    b: Builder, x: Value, y: Value, axis: int, scale: float, how: Interpolation, copied: Value | None
) -> Value:
    """Gradient of Resize: the matrix [new, old] of one axis, computed in the graph. ``scale``: 0 where the sizes say
    it; ``copied`` as `_copies_at_run` gives it."""
    kind = x.dtype or FLOAT
    with b.float32("positions: float16 counts to 2,048"):
        sizes = [b.typed(b.op("Squeeze", b.size(value, axis), b.ints(0)), INT64) for value in (y, x)]
        places, sources = (Term(b, b.arange(size), INT64).cast(kind) for size in sizes)
        new, old = (Term(b, size, INT64).cast(kind) for size in sizes)
        ratio = new.number(scale) if scale else new / old
        if copied is not None:
            ratio = Term(b, copied, kind).where(1, ratio)
        return _matrix_elements(how, places.op("Unsqueeze", b.ints(1)), sources, new, old, ratio).value


def _matrix_elements(how: Interpolation, place: Term, source: Term, new: Term, old: Term, ratio: Term) -> Term:
    """Gradient of Resize: what the rows ``place`` [new] of the matrix [new, old] take of the columns ``source`` [old];
    ``new``, ``old``: the sizes of the axis, ``ratio``: of new to old."""
    last = old - 1
    if how.transform == "align_corners":
        at = place * last / (new - 1).op("Max", 1)
    elif how.transform == "asymmetric":
        at = place / ratio
    else:
        at = (place + 0.5) / ratio - 0.5
        if how.transform == "pytorch_half_pixel":
            at = (new > 1).where(at, 0)
    if how.mode == "nearest":
        if how.rounding.startswith("round"):
            at = at - 0.5 if how.rounding == "round_prefer_floor" else at + 0.5
        at = at.op("Ceil" if how.rounding in ("ceil", "round_prefer_floor") else "Floor")
    at = at.op("Max", 0).op("Min", last)
    return (1 - (at - source).op("Abs")).op("Max", 0)


def _summed_copies(b: Builder, g: Value, axis: int, rank: int, split: Value) -> Value:
    """Gradient of a Resize that repeats each element: the sum of g over the copies; ``split``: the axis' old size and
    the number of copies, an int64 vector."""
    front = [b.ints(*[0] * axis)] if axis else []
    shape = b.joined([*front, split, b.op("Slice", b.op("Shape", g), b.ints(axis + 1), b.ints(rank))])
    with b.float32(REASON):
        return b.sum(b.op("Reshape", g, shape), [axis + 1], keep=False)


def _matrix_product(b: Builder, g: Value, matrix: Value, axis: int, rank: int) -> Value:
    """Gradient of Resize: the product of g with a matrix [new, old] along one axis of ``rank``, which becomes old."""
    if axis == rank - 1:
        return b.op("MatMul", g, matrix)
    if axis == rank - 2:
        return b.op("MatMul", b.op("Transpose", matrix, perm=[1, 0]), g)
    swapped = list(range(rank))
    swapped[axis], swapped[-1] = rank - 1, axis
    return b.op("Transpose", b.op("MatMul", b.op("Transpose", g, perm=swapped), matrix), perm=swapped)
