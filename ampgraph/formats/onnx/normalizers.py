"""Softmax and norms as kernels compute them that round each step to a low type.

As ONNX Runtime's WebGPU provider does, bit for bit (tests/webgpu). Softmax: each of 64 lanes (256 for one row) reads
four numbers at a time, two or one where they do not divide the row, and scales its sum anew as its maximum grows; then
lanes are added up, half by half. Of LayerNormalization and InstanceNormalization the moments are float32, then rounded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ...core.dataflow import Shape
from .formulas import Step, exp, step
from .low_nodes import LANES, LANES_OF_ONE, OPEN_ROWS, LowNodes
from .nodes import attribute

ONE_AXIS = 13  # the opset from which Softmax is over one axis, the last one unless it says so
AXES_AS_INPUT = 18  # the opset from which ReduceMean is told its axes by an operand
WIDTHS = (4, 2, 1)
LEAST = -65504.0
EPSILON = 1e-5  # where a norm says none
NORMALIZERS = frozenset({"BatchNormalization", "InstanceNormalization", "LayerNormalization", "Softmax"})


class NormalizerNodes(LowNodes):
    """Writes the nodes for Softmax and norms."""

    def of(self, node: ir.Node, dtype: str, shape: Shape | None) -> ir.Value | None:
        """The result of a norm or Softmax, each step rounded to ``dtype``; None where ``shape``, of its operand, does
        not say enough."""
        made: ir.Value | None = None
        if shape is not None:
            made = getattr(self, f"_{node.op_type.lower()}")(node, dtype, shape)
        return made

    # -- softmax ------------------------------------------------------------------------------------------------------

    def _softmax(self, node: ir.Node, dtype: str, shape: Shape) -> ir.Value | None:
        """A Softmax over one axis, moved to be the last one."""
        rank, one = len(shape), self.opset >= ONE_AXIS
        axis = attribute(node, "axis", -1 if one else 1) % rank
        count = n if isinstance(n := shape[axis], int) and n > 0 else 0
        if not (one or axis == rank - 1) or not (count or self.opset >= OPEN_ROWS):
            return None
        lanes = LANES_OF_ONE if all(n == 1 for n in (*shape[:axis], *shape[axis + 1 :])) else LANES
        order = list(range(rank))
        order[axis], order[-1] = rank - 1, axis
        moved = self.do("Transpose", [node.inputs[0]], perm=order)
        rows = self.do("Flatten", [moved], axis=rank - 1)
        top, total = self._halves(*self._turns(self._blocks(rows, count, lanes), lanes, dtype), lanes)
        powers = exp(step(self, rows, dtype) - top)
        made = self.do("Reshape", [(powers / total).value, self.do("Shape", [moved])])
        return self.do("Transpose", [made], perm=order)

    def _blocks(self, rows: ir.Value, count: int, lanes: int) -> ir.Value:
        """What each lane reads at each turn: [rows, turns, lanes, 4], minus infinity where there is nothing."""
        width: ir.Value | int = next(n for n in WIDTHS if count % n == 0)
        if not count:
            length, width = self.length(rows), self._number(1)
            for n in WIDTHS[1::-1]:
                rest = self.do("Mod", [length, self._number(n)])
                width = self.do("Where", [self.do("Equal", [rest, self._number(0)]), self._number(n), width])
        return self.blocks(rows, count, (lanes, WIDTHS[0]), (lanes, width), -np.inf)

    def _turns(self, blocks: ir.Value, lanes: int, dtype: str) -> tuple[Step, Step]:
        """Of each lane the maximum, and the sum of powers: [rows, lanes]."""

        def turn(inner: LowNodes, before: Sequence[ir.Value], slices: Sequence[ir.Value]) -> list[ir.Value]:
            top, total = (step(inner, value, dtype) for value in before)
            places = [inner.constant(np.array(place)) for place in range(WIDTHS[0])]
            parts = [top.becomes(inner.do("Gather", [slices[0], place], axis=2)) for place in places]
            largest = top.made("Max", top, *parts)
            added, *others = (exp(part - largest) for part in parts)
            for other in others:
                added = added + other
            return [largest.value, (total * exp(top - largest) + added).value]

        count = self.do("Gather", [self.do("Shape", [blocks]), self.constant(np.array([0]))], axis=0)
        shape = self.do("Concat", [count, self.constant(np.array([lanes]))], axis=0)
        starts = [self.do("ConstantOfShape", [shape], value=ir.Tensor(np.array([n], np.float32))) for n in (LEAST, 0.0)]
        top, total = self.scan(starts, [blocks], [1], 2, turn)
        return step(self, top, dtype), step(self, total, dtype)

    def _halves(self, top: Step, total: Step, lanes: int) -> tuple[Step, Step]:
        """The lanes of the second half added to those of the first, until one is left: [rows, 1]."""
        while lanes > 1:
            lanes //= 2
            (left, before), (right, after) = (
                [one.becomes(self.taken(one.value, np.arange(first, first + lanes))) for one in (top, total)]
                for first in (0, lanes)
            )
            top = left.made("Max", left, right)
            total = before * exp(left - top) + after * exp(right - top)
        return top, total

    def _number(self, number: int) -> ir.Value:
        """For a norm written as kernels round: a whole number as a scalar Constant."""
        return self.constant(np.array(number))

    # -- norms --------------------------------------------------------------------------------------------------------

    def _layernormalization(self, node: ir.Node, dtype: str, shape: Shape) -> ir.Value:
        """A LayerNormalization: (x - mean) / deviation * scale + bias, over the axes from ``axis`` on."""
        rank = len(shape)
        mean, inverse = self._moments(node, range(attribute(node, "axis", -1) % rank, rank))
        x = step(self, node.inputs[0], dtype) - step(self, self.rounded(mean, dtype), dtype)
        found = x * x.becomes(self.rounded(inverse, dtype)) * x.becomes(node.inputs[1])
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        return (found if bias is None else found + x.becomes(bias)).value

    def _instancenormalization(self, node: ir.Node, dtype: str, shape: Shape) -> ir.Value:
        """An InstanceNormalization, by one factor and one shift for each channel of each sample."""
        mean, inverse = self._moments(node, range(2, len(shape)))
        scale, bias = (self.reshape(value, [-1] + [1] * (len(shape) - 2)) for value in node.inputs[1:3])
        factor = self.do("Mul", [inverse, scale])
        shift = self.do("Sub", [bias, self.do("Mul", [mean, factor])])
        x = step(self, node.inputs[0], dtype)
        return (x * x.becomes(self.rounded(factor, dtype)) + x.becomes(self.rounded(shift, dtype))).value

    def _batchnormalization(self, node: ir.Node, dtype: str, shape: Shape) -> ir.Value:
        """A BatchNormalization in inference, by stored statistics."""
        x = step(self, node.inputs[0], dtype)
        by_channel = [-1] + [1] * (len(shape) - 2)
        scale, bias, mean, variance = (x.becomes(self.reshape(value, by_channel)) for value in node.inputs[1:5])
        root = x.made("Sqrt", variance + attribute(node, "epsilon", EPSILON))
        return ((x - mean) * (1.0 / root) * scale + bias).value

    def _moments(self, node: ir.Node, axes: Sequence[int]) -> tuple[ir.Value, ir.Value]:
        """Of a norm written as kernels round: the mean, and one over the deviation."""
        x = node.inputs[0]
        mean, square = (self._mean(value, axes) for value in (x, self.do("Mul", [x, x])))
        variance = self.do("Sub", [square, self.do("Mul", [mean, mean])])
        shifted = self.do("Add", [variance, self.constant(np.array(attribute(node, "epsilon", EPSILON), np.float32))])
        return mean, self.do("Reciprocal", [self.do("Sqrt", [shifted])])

    def _mean(self, value: ir.Value | None, axes: Sequence[int]) -> ir.Value:
        """A mean in float32 over some axes, which stay with length 1."""
        if self.opset >= AXES_AS_INPUT:
            return self.do("ReduceMean", [value, self.constant(np.array(axes))])
        return self.do("ReduceMean", [value], axes=list(axes))


def conv_with_norm(nodes: LowNodes, conv: ir.Node, norm: ir.Node, rank: int, dtype: str) -> ir.Node:
    """A Conv with a BatchNormalization behind it taken into its weights, each step rounded to ``dtype``: what ONNX
    Runtime makes of both when it opens a file (core/optimizer/conv_bn_fusion.cc). ``rank``: of the weights.

    The Conv itself computes in float32: `ProductNodes.of` writes it anew as its kernel adds up. Epsilon is added in
    float32, as ONNX Runtime does there, and rounded with the variance."""
    scale, shift, mean, variance = (step(nodes, value, dtype) for value in norm.inputs[1:5])
    root = nodes.do("Add", [variance.value, nodes.constant(np.array(attribute(norm, "epsilon", EPSILON), np.float32))])
    factor = scale / variance.made("Sqrt", variance.becomes(nodes.rounded(root, dtype)))
    weight = scale.becomes(conv.inputs[1]) * scale.becomes(nodes.reshape(factor.value, [-1] + [1] * (rank - 1)))
    bias = conv.inputs[2] if len(conv.inputs) > 2 else None
    added = shift - mean * factor if bias is None else (scale.becomes(bias) - mean) * factor + shift
    maker = nodes.do("Conv", [conv.inputs[0], weight.value, added.value]).producer()
    assert maker is not None
    maker.attributes.update(conv.attributes)
    return maker
