"""Sums and means as kernels compute them that add up in a low type.

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
"""ReductionNodes that overflow inside: what leads from the result to the sum, and back."""
SUMMED = MappingProxyType(
    {
        **dict.fromkeys(("AveragePool", "GlobalAveragePool", "ReduceMean", "ReduceSum"), ""),
        **{"ReduceL1": "Abs", "ReduceL2": "Mul", "ReduceSumSquare": "Mul"},
    }
)
"""Of what is added up in lanes: what is done to each element before, Mul by itself."""
REDUCTIONS = frozenset({*SUMMED, *INNER})
POOLS = frozenset({"AveragePool", "GlobalAveragePool"})
LANES_OF_POOLS = 128


class ReductionNodes(LowNodes):
    """Writes the nodes for reductions and average pools."""

    def of(self, node: ir.Node, dtype: str, shape: Shape | None, stepwise: bool) -> ir.Value | None:
        """A reduction with a sum of ``dtype``; None where its sum shows in its result.

        ``node`` computes in float32; ``shape``: of its operand, where it is known; ``stepwise``: each step of the sum
        is rounded."""
        if stepwise and node.op_type in SUMMED and shape is not None:
            rows = self._windows(node, shape) if node.op_type == "AveragePool" else self._rows(node, shape)
            if rows is not None:
                return self._stepwise(node, dtype, *rows)
        if node.op_type in MEANS:
            return self._mean(node, dtype)
        return self._inner(node, dtype) if node.op_type in INNER else None

    # -- each step rounded --------------------------------------------------------------------------------------------

    def _stepwise(self, node: ir.Node, dtype: str, rows: ir.Value, count: int, lanes: int) -> ir.Value:
        """A reduction of which each step is rounded. ``rows``: [results, elements]; ``count``: of the elements, 0 where
        it is open; ``lanes``: into how many sums a row is divided at first."""
        before = SUMMED[node.op_type]
        if before:
            rows = self.rounded(self.do(before, [rows] * (2 if before == "Mul" else 1)), dtype)
        pool = node.op_type in POOLS
        total = self._lanes(rows, count, lanes, pool, dtype)
        total = self._tree(total, lanes if pool else min(count or lanes, lanes), dtype)
        total = self.do("Reshape", [total, self.do("Shape", [node.outputs[0]])])
        if node.op_type in MEANS:
            return self.do("Div", [total, self.rounded(self._count(node, rows), dtype)])
        return self.do("Sqrt", [total]) if node.op_type == "ReduceL2" else total

    def _lanes(self, rows: ir.Value, count: int, lanes: int, pool: bool, dtype: str) -> ir.Value:
        """The sum of each lane: [results, lanes]; a ``pool`` of fewer places than lanes has one."""

        def turn(inner: LowNodes, totals: Sequence[ir.Value], slices: Sequence[ir.Value]) -> list[ir.Value]:
            return [inner.rounded(inner.do("Add", [totals[0], slices[0]]), dtype)]

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

    def _tree(self, total: ir.Value, size: int, dtype: str) -> ir.Value:
        """For a sum written as kernels round, halves added to halves: [results, size] added up to [results, 1]."""
        while size > 1:
            half, kept = size // 2, size - size // 2
            sides = [self.taken(total, np.arange(half)), self.taken(total, np.arange(kept, size))]
            added = self.rounded(self.do("Add", sides), dtype)
            odd = [self.taken(total, np.array([half]))] if kept > half else []
            total, size = self.do("Concat", [added, *odd], axis=1), kept
        return total

    def _count(self, node: ir.Node, rows: ir.Value) -> ir.Value:
        """For a mean written as kernels round: of how many elements; of a pool those beside the image if it says so."""
        whole = self.do("Cast", [self.length(rows)], to=ir.DataType.FLOAT.value)
        given = {name: a.value for name, a in node.attributes.items()}
        padded = any(given.get("pads", [])) or given.get("auto_pad", "").startswith("SAME")
        if node.op_type != "AveragePool" or given.get("count_include_pad") or not padded:
            return whole
        shape = self.do("Shape", [node.inputs[0]])
        ones = self.do("ConstantOfShape", [shape], value=ir.Tensor(np.ones(1, np.float32)))
        share = self.do("AveragePool", [ones], kernel_shape=given["kernel_shape"], count_include_pad=1)
        self.slides_as(node, share)
        counts = self.do("Add", [self.do("Mul", [share, whole]), self.constant(np.array(0.5, np.float32))])
        return self.do("Floor", [counts])

    # -- rows: [results, elements] -------------------------------------------------------------------------------------

    def _rows(self, node: ir.Node, shape: Shape) -> tuple[ir.Value, int, int] | None:
        """What is reduced as rows, with the number of elements, 0 where it is open, and of lanes. None where it is not
        known what is reduced, or before opset 11 (`OPEN_ROWS`) how much."""
        pool = node.op_type in POOLS
        axes = list(range(2, len(shape))) if pool else _axes(node, len(shape))
        if not axes:
            return None
        sizes = [n if isinstance(n, int) and n > 0 else 0 for n in (shape[axis] for axis in axes)]
        kept = [axis for axis in range(len(shape)) if axis not in axes]
        lanes = LANES_OF_POOLS if pool else LANES_OF_ONE if all(shape[a] == 1 for a in kept) else LANES
        count = int(np.prod(sizes))
        if not count and self.opset < OPEN_ROWS:
            return None
        moved = self.do("Transpose", [node.inputs[0]], perm=[*kept, *axes])
        return self.do("Flatten", [moved], axis=len(kept)), count, lanes

    def _windows(self, node: ir.Node, shape: Shape) -> tuple[ir.Value, int, int] | None:
        """The windows of an average pool as rows, with the number of elements and of lanes; what is beside the image is
        zero. None where they are not known."""
        channels, window = shape[1], list(node.attributes["kernel_shape"].as_ints())
        if not isinstance(channels, int) or attribute(node, "ceil_mode"):
            return None
        count = int(np.prod(window))
        ones = np.tile(np.eye(count, dtype=np.float32), (channels, 1)).reshape(-1, 1, *window)
        columns = self.do("Conv", [node.inputs[0], self.constant(ones)], group=channels)
        self.slides_as(node, columns)
        columns = self.do("Transpose", [self.reshape(columns, [0, channels, count, -1])], perm=[0, 1, 3, 2])
        return self.do("Flatten", [columns], axis=3), count, LANES_OF_POOLS

    # -- the whole sum rounded ----------------------------------------------------------------------------------------

    def _mean(self, node: ir.Node, dtype: str) -> ir.Value:
        """A mean whose sum is rounded (and may overflow) once before it is divided; its single additions are not
        rounded."""
        if "kernel_shape" in node.attributes:
            count = self.constant(np.array(np.prod(node.attributes["kernel_shape"].value), np.float32))
        else:
            sizes = [
                self.do("Cast", [self.do("Size", [v])], to=ir.DataType.FLOAT.value)
                for v in (node.inputs[0], node.outputs[0])
            ]
            count = self.do("Div", sizes)
        return self.do("Div", [self.rounded(self.do("Mul", [node.outputs[0], count]), dtype), count])

    def _inner(self, node: ir.Node, dtype: str) -> ir.Value:
        """A root or logarithm of a sum that is rounded, and may overflow, before it is taken."""
        there, back = INNER[node.op_type]
        total = self.do(there, [node.outputs[0]] * (2 if there == "Mul" else 1))
        return self.do(back, [self.rounded(total, dtype)])


def _axes(node: ir.Node, rank: int) -> list[int] | None:
    """What a reduction that is written out is over, from the front; None where it is not known before a run."""
    if "axes" in node.attributes:
        given = list(node.attributes["axes"].as_ints())
    elif len(node.inputs) > 1 and node.inputs[1] is not None:
        stored = ir.convenience.get_const_tensor(node.inputs[1])
        if stored is None:
            return None
        given = stored.numpy().reshape(-1).tolist()
    else:
        given = []
    if not given and attribute(node, "noop_with_empty_axes"):
        return None
    return sorted(axis % rank for axis in given) if given else list(range(rank))
