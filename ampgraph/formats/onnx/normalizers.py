"""Softmax and norms as kernels compute them that round each step to a low type.

As ONNX Runtime's WebGPU provider does, bit for bit (tests/webgpu). Softmax: each of 64 lanes (256 for one row) reads
four numbers at a time, two or one where they do not divide the row, and scales its sum anew as its maximum grows; then
lanes are added up, half by half. Of LayerNormalization and InstanceNormalization the moments are float32, then rounded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ...core.arrays import Array
from ...core.dataflow import Shape
from .formulas import Step, exp, step
from .low_nodes import LANES, LANES_OF_ONE, LowNodes

LAST_AXIS = 13  # the opset from which Softmax is over one axis, the last one unless it says so
AXES_AS_INPUT = 18  # the opset from which ReduceMean is told its axes by an operand
STEPS = 8  # of a lane that are written out
WIDTHS = (4, 2, 1)
LEAST = -65504.0
NORMALIZERS = frozenset({"BatchNormalization", "InstanceNormalization", "LayerNormalization", "Softmax"})


class NormalizerNodes(LowNodes):
    """Writes the nodes for Softmax and norms."""

    def of(self, node: ir.Node, dtype: str, shape: Shape | None) -> ir.Value | None:
        """What it makes, each step rounded to ``dtype``; None where ``shape``, of its operand, does not say enough."""
        made: ir.Value | None = None
        if shape is not None:
            made = getattr(self, f"_{node.op_type.lower()}")(node, dtype, shape)
        return made

    # -- softmax ------------------------------------------------------------------------------------------------------

    def _softmax(self, node: ir.Node, dtype: str, shape: Shape) -> ir.Value | None:
        rank, one = len(shape), self.opset >= LAST_AXIS
        axis = (node.attributes["axis"].as_int() if "axis" in node.attributes else -1 if one else 1) % rank
        over = [shape[axis]] if one else shape[axis:]
        known = [n for n in over if isinstance(n, int) and n > 0]
        count = int(np.prod(known))
        lanes = LANES_OF_ONE if all(n == 1 for n in (*shape[:axis], *(shape[axis + 1 :] if one else ()))) else LANES
        if len(known) < len(over) or count > lanes * STEPS * _width(count):
            return None
        order = list(range(rank))
        if one:
            order[axis], order[-1] = rank - 1, axis
        moved = self.do("Transpose", [node.inputs[0]], perm=order)
        rows = step(self, self.do("Flatten", [moved], axis=rank - 1 if one else axis), dtype)
        top, total = self._summed(rows, count, lanes)
        made = self.do("Reshape", [(exp(rows - top) / total).value, self.do("Shape", [moved])])
        return self.do("Transpose", [made], perm=order)

    def _summed(self, rows: Step, count: int, lanes: int) -> tuple[Step, Step]:
        """Of each row the maximum, and the sum of powers: [rows, 1]."""
        width = _width(count)
        blocks = count // width
        places = np.arange(min(blocks, lanes))
        top, total = self._block(rows, places, width, None)
        for first in range(lanes, blocks, lanes):
            places = np.arange(first, min(first + lanes, blocks))
            before = [self._part(one, 0, len(places)) for one in (top, total)]
            largest, added = self._block(rows, places, width, before[0])
            added = before[1] * exp(before[0] - largest) + added
            top, total = (
                self._joined(new, self._part(old, len(places), lanes), lanes > len(places))
                for new, old in ((largest, top), (added, total))
            )
        return self._halves(top, total, min(blocks, lanes), lanes // 2)

    def _block(self, rows: Step, places: Array, width: int, top: Step | None) -> tuple[Step, Step]:
        """Of ``width`` numbers at each of the places: the maximum, at least ``top``, and the sum of powers."""
        parts = [rows.becomes(self.taken(rows.value, places * width + i)) for i in range(width)]
        largest = rows.made("Max", *parts, LEAST if top is None else top)
        total, *others = (exp(part - largest) for part in parts)
        for other in others:
            total = total + other
        return largest, total

    def _halves(self, top: Step, total: Step, size: int, half: int) -> tuple[Step, Step]:
        """``size`` lanes, those from ``half`` on added to the first ones, and so on."""
        while half:
            pairs = size - half
            if pairs > 0:
                left, right = [[self._part(one, *ends) for one in (top, total)] for ends in ((0, pairs), (half, size))]
                largest = top.made("Max", left[0], right[0])
                added = left[1] * exp(left[0] - largest) + right[1] * exp(right[0] - largest)
                top, total = (
                    self._joined(new, self._part(old, pairs, half), half > pairs)
                    for new, old in ((largest, top), (added, total))
                )
                size = half
            half //= 2
        return top, total

    def _part(self, lanes: Step, first: int, end: int) -> Step:
        return lanes.becomes(self.taken(lanes.value, np.arange(first, end)))

    def _joined(self, new: Step, rest: Step, needed: bool) -> Step:
        return new.becomes(self.do("Concat", [new.value, rest.value], axis=1)) if needed else new

    # -- norms --------------------------------------------------------------------------------------------------------

    def _layernormalization(self, node: ir.Node, dtype: str, shape: Shape) -> ir.Value:
        rank = len(shape)
        axis = (node.attributes["axis"].as_int() if "axis" in node.attributes else -1) % rank
        mean, inverse = self._moments(node, range(axis, rank))
        x = step(self, node.inputs[0], dtype) - step(self, self.rounded(mean, dtype), dtype)
        found = x * x.becomes(self.rounded(inverse, dtype)) * x.becomes(node.inputs[1])
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        return (found if bias is None else found + x.becomes(bias)).value

    def _instancenormalization(self, node: ir.Node, dtype: str, shape: Shape) -> ir.Value:
        mean, inverse = self._moments(node, range(2, len(shape)))
        scale, bias = (self.reshape(value, [-1] + [1] * (len(shape) - 2)) for value in node.inputs[1:3])
        factor = self.do("Mul", [inverse, scale])
        shift = self.do("Sub", [bias, self.do("Mul", [mean, factor])])
        x = step(self, node.inputs[0], dtype)
        return (x * x.becomes(self.rounded(factor, dtype)) + x.becomes(self.rounded(shift, dtype))).value

    def _batchnormalization(self, node: ir.Node, dtype: str, shape: Shape) -> ir.Value:
        x = step(self, node.inputs[0], dtype)
        by_channel = [-1] + [1] * (len(shape) - 2)
        scale, bias, mean, variance = (x.becomes(self.reshape(value, by_channel)) for value in node.inputs[1:5])
        root = x.made("Sqrt", variance + _epsilon(node))
        return ((x - mean) * (1.0 / root) * scale + bias).value

    def _moments(self, node: ir.Node, axes: Sequence[int]) -> tuple[ir.Value, ir.Value]:
        """The mean, and one over the deviation."""
        x = node.inputs[0]
        mean, square = (self._mean(value, axes) for value in (x, self.do("Mul", [x, x])))
        variance = self.do("Sub", [square, self.do("Mul", [mean, mean])])
        shifted = self.do("Add", [variance, self.constant(np.array(_epsilon(node), np.float32))])
        return mean, self.do("Reciprocal", [self.do("Sqrt", [shifted])])

    def _mean(self, value: ir.Value | None, axes: Sequence[int]) -> ir.Value:
        if self.opset >= AXES_AS_INPUT:
            return self.do("ReduceMean", [value, self.constant(np.array(axes))])
        return self.do("ReduceMean", [value], axes=list(axes))


def _width(count: int) -> int:
    """How many numbers of a row are read at a time."""
    return next(n for n in WIDTHS if count % n == 0)


def _epsilon(node: ir.Node) -> float:
    return node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5
