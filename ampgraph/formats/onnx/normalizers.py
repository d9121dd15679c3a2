"""Softmax and norms for strict runs, as kernels compute them that round each step to a low type.

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
WIDTHS = (4, 2, 1)  # how many numbers of a row a lane of Softmax reads at a time: the first that divides the row
LEAST = -65504.0  # what a lane's maximum begins at
EPSILON = 1e-5  # where a norm says none
NORMALIZERS = frozenset({"BatchNormalization", "InstanceNormalization", "LayerNormalization", "Softmax"})


class NormalizerNodes(LowNodes):
    """Writes the nodes that compute a Softmax or norm as a kernel rounds. One object writes one."""

    def write(self, node: ir.Node, dtype: str, shape: Shape | None) -> ir.Value | None:
        """Writes a norm or Softmax of `NORMALIZERS` with each step rounded to ``dtype``, and returns its result; None
        where ``shape``, that of its operand, does not say enough."""
        made: ir.Value | None = None
        if shape is not None:
            made = getattr(self, f"_{node.op_type.lower()}")(node, dtype, shape)
        return made

    # -- softmax ------------------------------------------------------------------------------------------------------

    def _softmax(self, node: ir.Node, dtype: str, shape: Shape) -> ir.Value | None:
        """A Softmax written as kernels round, over one axis, which is moved to be the last one. None before opset 13
        where it is over several axes, and before opset 11 where the axis is of unknown length."""
        rank, one_axis = len(shape), self.opset >= ONE_AXIS
        axis = attribute(node, "axis", -1 if one_axis else 1) % rank
        size = shape[axis]
        count = size if isinstance(size, int) and size > 0 else 0
        if not one_axis and axis != rank - 1:
            return None
        if not count and self.opset < OPEN_ROWS:
            return None
        lanes = LANES_OF_ONE if all(n == 1 for n in (*shape[:axis], *shape[axis + 1 :])) else LANES
        order = list(range(rank))
        order[axis], order[-1] = rank - 1, axis
        moved = self.do("Transpose", [node.inputs[0]], perm=order)
        rows = self.do("Flatten", [moved], axis=rank - 1)
        largest, total = self._lane_sums(self._blocks(rows, count, lanes), lanes, dtype)
        largest, total = self._add_halves(largest, total, lanes)
        powers = exp(step(self, rows, dtype) - largest)
        made = self.do("Reshape", [(powers / total).value, self.do("Shape", [moved])])
        return self.do("Transpose", [made], perm=order)

    def _blocks(self, rows: ir.Value, count: int, lanes: int) -> ir.Value:
        """For a Softmax written as kernels round: what each lane reads at each turn, [rows, turns, lanes, 4], minus
        infinity where there is nothing. ``count``: the length of a row, 0 where it is open."""
        width: ir.Value | int = next(n for n in WIDTHS if count % n == 0)
        if not count:
            length, zero, width = self.length(rows), self.constant(np.array(0)), self.constant(np.array(1))
            for n in (2, 4):
                divisor = self.constant(np.array(n))
                divides = self.do("Equal", [self.do("Mod", [length, divisor]), zero])
                width = self.do("Where", [divides, divisor, width])
        return self.blocks(rows, count, (lanes, WIDTHS[0]), (lanes, width), -np.inf)

    def _lane_sums(self, blocks: ir.Value, lanes: int, dtype: str) -> tuple[Step, Step]:
        """For a Softmax written as kernels round: (maximum of each lane, sum of the powers e^(x - maximum)), both
        [rows, lanes]; the sum is scaled anew as the maximum grows. ``blocks``: as `_blocks` makes them."""

        def turn(writer: LowNodes, before: Sequence[ir.Value], slices: Sequence[ir.Value]) -> list[ir.Value]:
            known, total = (step(writer, value, dtype) for value in before)
            places = [writer.constant(np.array(place)) for place in range(WIDTHS[0])]
            parts = [known.with_value(writer.do("Gather", [slices[0], place], axis=2)) for place in places]
            largest = known.apply("Max", known, *parts)
            added, *others = (exp(part - largest) for part in parts)
            for other in others:
                added = added + other
            return [largest.value, (total * exp(known - largest) + added).value]

        count = self.do("Gather", [self.do("Shape", [blocks]), self.constant(np.array([0]))], axis=0)
        shape = self.do("Concat", [count, self.constant(np.array([lanes]))], axis=0)
        starts = [self.do("ConstantOfShape", [shape], value=ir.Tensor(np.array([n], np.float32))) for n in (LEAST, 0.0)]
        largest, total = self.scan(starts, [blocks], [1], 2, turn)
        return step(self, largest, dtype), step(self, total, dtype)

    def _add_halves(self, largest: Step, total: Step, lanes: int) -> tuple[Step, Step]:
        """For a Softmax written as kernels round: the lanes of the second half joined with those of the first, until
        one is left: maximum and sum of powers, [rows, lanes] before and [rows, 1] after. ``lanes``: a power of two."""
        while lanes > 1:
            lanes //= 2
            first, second = np.arange(lanes), np.arange(lanes, 2 * lanes)
            left, right = (largest.with_value(self.columns(largest.value, half)) for half in (first, second))
            sums = [total.with_value(self.columns(total.value, half)) for half in (first, second)]
            largest = left.apply("Max", left, right)
            total = sums[0] * exp(left - largest) + sums[1] * exp(right - largest)
        return largest, total

    # -- norms --------------------------------------------------------------------------------------------------------

    def _layernormalization(self, node: ir.Node, dtype: str, shape: Shape) -> ir.Value:
        """A LayerNormalization written as kernels round: (x - mean) / deviation * scale + bias, from ``axis`` on."""
        rank = len(shape)
        mean, inverse = self._moments(node, range(attribute(node, "axis", -1) % rank, rank))
        x = step(self, node.inputs[0], dtype) - step(self, self.round_to(mean, dtype), dtype)
        found = x * x.with_value(self.round_to(inverse, dtype)) * x.with_value(node.inputs[1])
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        return (found if bias is None else found + x.with_value(bias)).value

    def _instancenormalization(self, node: ir.Node, dtype: str, shape: Shape) -> ir.Value:
        """An InstanceNormalization written as kernels round: x * factor + shift, computed in float32 and rounded."""
        mean, inverse = self._moments(node, range(2, len(shape)))
        scale, bias = (self.reshape(value, [-1] + [1] * (len(shape) - 2)) for value in node.inputs[1:3])
        factor = self.do("Mul", [inverse, scale])
        shift = self.do("Sub", [bias, self.do("Mul", [mean, factor])])
        x = step(self, node.inputs[0], dtype)
        return (x * x.with_value(self.round_to(factor, dtype)) + x.with_value(self.round_to(shift, dtype))).value

    def _batchnormalization(self, node: ir.Node, dtype: str, shape: Shape) -> ir.Value:
        """A BatchNormalization in inference, by stored statistics, written as kernels round."""
        x = step(self, node.inputs[0], dtype)
        by_channel = [-1] + [1] * (len(shape) - 2)
        scale, bias, mean, variance = (x.with_value(self.reshape(value, by_channel)) for value in node.inputs[1:5])
        root = x.apply("Sqrt", variance + attribute(node, "epsilon", EPSILON))
        return ((x - mean) * (1.0 / root) * scale + bias).value

    def _moments(self, node: ir.Node, axes: Sequence[int]) -> tuple[ir.Value, ir.Value]:
        """For a norm written as kernels round: (mean, 1 / deviation) of its operand, in float32, not rounded."""
        x = node.inputs[0]
        mean, square = (self._mean(value, axes) for value in (x, self.do("Mul", [x, x])))
        variance = self.do("Sub", [square, self.do("Mul", [mean, mean])])
        shifted = self.do("Add", [variance, self.constant(np.array(attribute(node, "epsilon", EPSILON), np.float32))])
        return mean, self.do("Reciprocal", [self.do("Sqrt", [shifted])])

    def _mean(self, value: ir.Value | None, axes: Sequence[int]) -> ir.Value:
        """For a norm written as kernels round: a mean in float32 over ``axes``, which stay with length 1."""
        if self.opset >= AXES_AS_INPUT:
            return self.do("ReduceMean", [value, self.constant(np.array(axes))])
        return self.do("ReduceMean", [value], axes=list(axes))


def conv_with_norm(nodes: LowNodes, conv: ir.Node, norm: ir.Node, rank: int, dtype: str) -> ir.Node:
    """Writes a Conv into whose weights the BatchNormalization behind it is taken, each step of that rounded to
    ``dtype``: what ONNX Runtime makes of both when it opens a file (core/optimizer/conv_bn_fusion.cc). Returns its
    node, which computes in float32: a template from which `ProductNodes.write` writes it as its kernel adds up.
    ``rank``: of the weights. Epsilon is added in float32, as there, and rounded with the variance: it is no `Step`."""
    scale, shift, mean, variance = (step(nodes, value, dtype) for value in norm.inputs[1:5])
    root = nodes.do("Add", [variance.value, nodes.constant(np.array(attribute(norm, "epsilon", EPSILON), np.float32))])
    factor = scale / variance.apply("Sqrt", variance.with_value(nodes.round_to(root, dtype)))
    by_channel = nodes.reshape(factor.value, [-1] + [1] * (rank - 1))
    weight = scale.with_value(conv.inputs[1]) * scale.with_value(by_channel)
    bias = conv.inputs[2] if len(conv.inputs) > 2 else None
    added = shift - mean * factor if bias is None else (scale.with_value(bias) - mean) * factor + shift
    made = ir.node("Conv", [conv.inputs[0], weight.value, added.value])
    made.attributes.update(conv.attributes)
    nodes.add(made)
    return made
