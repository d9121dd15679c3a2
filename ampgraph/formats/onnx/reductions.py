"""Sums and means for strict runs, as kernels compute them that add up in a low type.

As ONNX Runtime's WebGPU provider does, bit for bit (tests/webgpu): in 64 lanes, or 256 where there is one result; a
pool in 128, or in one where it has fewer places. Each lane goes through its elements, each step rounded; then
the lanes behind the first half are added to those in front, until one is left. Where that is not known, as on Arm CPUs,
the whole sum is rounded once: it overflows as theirs does.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from ...core.dataflow import Shape
from .low_nodes import LANES, LANES_OF_ONE, OPEN_ROWS, LowNodes
from .nodes import attribute

MEANS = frozenset({"ReduceMean", "GlobalAveragePool", "AveragePool"})
INNER = MappingProxyType(
    {"ReduceL2": ("Mul", "Sqrt"), **dict.fromkeys(("ReduceLogSum", "ReduceLogSumExp"), ("Exp", "Log"))}
)
"""Reduction -> (operator that leads from its result to the sum inside, which may overflow, operator that leads
back)."""
SUMMED = MappingProxyType(
    {
        **dict.fromkeys(("AveragePool", "GlobalAveragePool", "ReduceMean", "ReduceSum"), ""),
        **{"ReduceL1": "Abs", "ReduceL2": "Mul", "ReduceSumSquare": "Mul"},
    }
)
"""Reduction that adds up in lanes -> what is done to each element before: "" for nothing, Mul by itself."""
REDUCTIONS = frozenset({*SUMMED, *INNER})
POOLS = frozenset({"AveragePool", "GlobalAveragePool"})
LANES_OF_POOLS = 128


class ReductionNodes(LowNodes):
    """Writes the nodes that compute a reduction or average pool as a kernel rounds. One object writes one. *Rows*: a
    matrix [results, elements], of which each row is added up."""

    def write(self, node: ir.Node, dtype: str, shape: Shape | None, stepwise: bool) -> ir.Value | None:
        """Writes a reduction with a sum of ``dtype``, and returns its result; None where the rounded result overflows
        as the sum does, so that nothing is to be written. ``node``: computes the same in float32; ``shape``: of its
        operand, None where unknown; ``stepwise``: whether each step is rounded, or the sum once."""
        if stepwise and node.op_type in SUMMED and shape is not None:
            rows = self._windows(node, shape) if node.op_type == "AveragePool" else self._rows(node, shape)
            if rows is not None:
                return self._stepwise(node, dtype, *rows)
        if node.op_type in MEANS:
            return self._mean(node, dtype)
        return self._round_inside(node, dtype) if node.op_type in INNER else None

    # -- each step rounded --------------------------------------------------------------------------------------------

    def _stepwise(self, node: ir.Node, dtype: str, rows: ir.Value, count: int, lanes: int) -> ir.Value:
        """A reduction written as kernels round, each step of its sum rounded; the last one, a quotient or root, by the
        caller. ``rows``: [results, elements]; ``count``: of them, 0 where open; ``lanes``: of a row."""
        before = SUMMED[node.op_type]
        if before:
            rows = self.round_to(self.do(before, [rows] * (2 if before == "Mul" else 1)), dtype)
        pool = node.op_type in POOLS
        total = self._lane_sums(rows, count, lanes, pool, dtype)
        total = self._add_halves(total, lanes if pool else min(count or lanes, lanes), dtype)
        total = self.do("Reshape", [total, self.do("Shape", [node.outputs[0]])])
        if node.op_type in MEANS:
            return self.do("Div", [total, self.round_to(self._count(node, rows), dtype)])
        return self.do("Sqrt", [total]) if node.op_type == "ReduceL2" else total

    def _lane_sums(self, rows: ir.Value, count: int, lanes: int, pool: bool, dtype: str) -> ir.Value:
        """For a reduction written as kernels round: the sum of each lane, [results, lanes]. A ``pool`` of fewer places
        than lanes adds all up in the first; ``rows``, ``count`` and ``lanes`` as in `_stepwise`."""

        def turn(writer: LowNodes, totals: Sequence[ir.Value], slices: Sequence[ir.Value]) -> list[ir.Value]:
            return [writer.round_to(writer.do("Add", [totals[0], slices[0]]), dtype)]

        used: ir.Value | int = 1 if pool and 0 < count < lanes else lanes
        if pool and not count:
            one, all_lanes = self.constant(np.array(1)), self.constant(np.array(lanes))
            used = self.do("Where", [self.do("Less", [self.length(rows), all_lanes]), one, all_lanes])
        width: ir.Value | int = 1 if count else self.constant(np.array(1))
        blocks = self.blocks(rows, count, (lanes, 1), (used, width), 0.0)
        places = [self.constant(np.array([place])) for place in (0, 2, 3)]
        shape = self.do("Concat", [self.do("Gather", [self.do("Shape", [blocks]), place]) for place in places], axis=0)
        start = self.do("ConstantOfShape", [shape])
        return self.reshape(self.scan([start], [blocks], [1], 3, turn)[0], [0, lanes])

    def _add_halves(self, total: ir.Value, size: int, dtype: str) -> ir.Value:
        """For a reduction written as kernels round: the first ``size`` columns added up to [results, 1], the last half
        of them to the first, rounded, until one is left; of an odd number the middle one waits for the next round."""
        while size > 1:
            half, kept = size // 2, size - size // 2
            halves = [self.columns(total, np.arange(half)), self.columns(total, np.arange(kept, size))]
            added = self.round_to(self.do("Add", halves), dtype)
            middle = [self.columns(total, np.array([half]))] if kept > half else []
            total, size = self.do("Concat", [added, *middle], axis=1), kept
        return total

    def _count(self, node: ir.Node, rows: ir.Value) -> ir.Value:
        """For a mean written as kernels round: by how many elements it divides, as float32: a scalar, or, for a pool
        that does not count padding, one for each result."""
        whole = self.do("Cast", [self.length(rows)], to=ir.DataType.FLOAT.value)
        attributes = {name: a.value for name, a in node.attributes.items()}
        padded = any(attributes.get("pads", [])) or attributes.get("auto_pad", "").startswith("SAME")
        if node.op_type != "AveragePool" or attributes.get("count_include_pad") or not padded:
            return whole
        shape = self.do("Shape", [node.inputs[0]])
        ones = self.do("ConstantOfShape", [shape], value=ir.Tensor(np.ones(1, np.float32)))
        share = self.do("AveragePool", [ones], kernel_shape=attributes["kernel_shape"], count_include_pad=1)
        self.copy_window(node, share)
        counts = self.do("Add", [self.do("Mul", [share, whole]), self.constant(np.array(0.5, np.float32))])
        return self.do("Floor", [counts])

    # -- rows: [results, elements] -------------------------------------------------------------------------------------

    def _rows(self, node: ir.Node, shape: Shape) -> tuple[ir.Value, int, int] | None:
        """For a reduction written as kernels round: (rows, their length, 0 where it is open, number of lanes). None
        where it is not known which axes are reduced, or, before opset 11 (`OPEN_ROWS`), how long rows are."""
        pool = node.op_type in POOLS
        axes = list(range(2, len(shape))) if pool else _axes(node, len(shape))
        if not axes:
            return None
        sizes = [n if isinstance(n, int) and n > 0 else 0 for n in (shape[axis] for axis in axes)]
        kept = [axis for axis in range(len(shape)) if axis not in axes]
        lanes = LANES_OF_ONE if all(shape[axis] == 1 for axis in kept) else LANES
        if pool:
            lanes = LANES_OF_POOLS
        count = int(np.prod(sizes))
        if not count and self.opset < OPEN_ROWS:
            return None
        moved = self.do("Transpose", [node.inputs[0]], perm=[*kept, *axes])
        return self.do("Flatten", [moved], axis=len(kept)), count, lanes

    def _windows(self, node: ir.Node, shape: Shape) -> tuple[ir.Value, int, int] | None:
        """For an average pool written as kernels round: (its windows as rows, with zeros beside the image, their
        length, number of lanes). None for an unknown number of channels, and with ``ceil_mode``."""
        channels, window = shape[1], list(node.attributes["kernel_shape"].as_ints())
        if not isinstance(channels, int) or attribute(node, "ceil_mode"):
            return None
        count = int(np.prod(window))
        ones = np.tile(np.eye(count, dtype=np.float32), (channels, 1)).reshape(-1, 1, *window)
        columns = self.do("Conv", [node.inputs[0], self.constant(ones)], group=channels)
        self.copy_window(node, columns)
        columns = self.do("Transpose", [self.reshape(columns, [0, channels, count, -1])], perm=[0, 1, 3, 2])
        return self.do("Flatten", [columns], axis=3), count, LANES_OF_POOLS

    # -- the whole sum rounded ----------------------------------------------------------------------------------------

    def _mean(self, node: ir.Node, dtype: str) -> ir.Value:
        """A mean or pool written as kernels round, of unknown steps: its whole sum, which may overflow, is rounded."""
        if "kernel_shape" in node.attributes:
            count = self.constant(np.array(np.prod(node.attributes["kernel_shape"].value), np.float32))
        else:
            both = [self.do("Size", [value]) for value in (node.inputs[0], node.outputs[0])]
            count = self.do("Div", [self.do("Cast", [size], to=ir.DataType.FLOAT.value) for size in both])
        return self.do("Div", [self.round_to(self.do("Mul", [node.outputs[0], count]), dtype), count])

    def _round_inside(self, node: ir.Node, dtype: str) -> ir.Value:
        """A reduction of `INNER` written as kernels round: the sum under its root or logarithm, computed back from the
        result, is rounded, and may overflow, before that is taken."""
        to_sum, to_result = INNER[node.op_type]
        total = self.do(to_sum, [node.outputs[0]] * (2 if to_sum == "Mul" else 1))
        return self.do(to_result, [self.round_to(total, dtype)])


def _axes(node: ir.Node, rank: int) -> list[int] | None:
    """The axes, from 0 and sorted, that an ONNX reduction is over; None where they are known only when it runs, and
    where it reduces none (``noop_with_empty_axes``)."""
    axes: list[int] = []
    if "axes" in node.attributes:
        axes = list(node.attributes["axes"].as_ints())
    elif len(node.inputs) > 1 and node.inputs[1] is not None:
        stored = ir.convenience.get_const_tensor(node.inputs[1])
        if stored is None:
            return None
        axes = stored.numpy().reshape(-1).tolist()
    if not axes and attribute(node, "noop_with_empty_axes"):
        return None
    return sorted(axis % rank for axis in axes) if axes else list(range(rank))
