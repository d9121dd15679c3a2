"""Nodes for strict runs that compute in float32 and round to a low type at each step, as kernels do.

Numbers lie as rows of a matrix. A *lane* is one of several sums that a kernel keeps beside each other; at each *turn*
every lane takes its next number, or numbers. A Scan has a step a turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ...core.arrays import Array
from ...core.dataflow import FLOAT32

AXES_AS_INPUT = 13  # the opset from which Unsqueeze is told its axes by an operand
OPEN_ROWS = 11  # the opset from which rows of any length are read: Range is there
LANES, LANES_OF_ONE = 64, 256  # how many lanes WebGPU's reductions have, and those with a single result

WINDOW = ("auto_pad", "dilations", "output_padding", "output_shape", "pads", "strides")
"""Attributes that say which places a convolution or a pool meets, but for two: kernel_shape follows from the weights
or is given, and with ceil_mode nothing is written."""

Turn = Callable[["LowNodes", Sequence[ir.Value], Sequence[ir.Value]], list[ir.Value]]
"""(writer of the Scan's body, values that the turn before left, slices of this turn) -> what this turn leaves."""


class LowNodes:
    """Writes nodes that round as kernels do, in float32, and keeps them in ``nodes``, in their order, in no graph yet.
    ``opset``: of the standard operators; ``to``: type -> Cast's attribute; ``name``: makes a free name of one;
    ``fused``: products are not rounded, as in fused multiply-adds."""

    def __init__(self, opset: int, to: Mapping[str, ir.Attr], name: Callable[[str], str], fused: bool) -> None:
        self.opset, self._to, self._name, self.fused = opset, to, name, fused
        self.nodes: list[ir.Node] = []

    def scan(
        self, starts: Sequence[ir.Value], reads: Sequence[ir.Value], axes: Sequence[int], rank: int, step: Turn
    ) -> list[ir.Value]:
        """As kernels round, adds a Scan: ``step`` is done for each index along ``axes`` (an axis for each of
        ``reads``), first on ``starts``. Returns what the last turn leaves of them, each of ``rank``."""
        writer = LowNodes(self.opset, self._to, self._name, self.fused)
        names = [*(self._name("@sum") for _ in starts), *(self._name("@slice") for _ in reads)]
        formals = [ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT)) for name in names]
        count = len(starts)
        results = step(writer, formals[:count], formals[count:])
        for value in (*formals[:count], *results):  # a runtime that infers none asks for it
            value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([None] * rank)
        body = ir.Graph(formals, results, nodes=writer.nodes, name=self._name("@step"))
        attributes: dict[str, Any] = {"body": body, "num_scan_inputs": len(reads), "scan_input_axes": list(axes)}
        node = ir.node("Scan", [*starts, *reads], attributes, num_outputs=count)
        for output in node.outputs[1:]:
            output.name = self._name("@a")
        self.add(node)
        return list(node.outputs)

    def sum_of_products(
        self, start: ir.Value, reads: Sequence[ir.Value], axes: Sequence[int], rank: int, dtype: str, kind: str = "Mul",
        attributes: Mapping[str, Any] | None = None,
    ) -> ir.Value:  # fmt: skip
        """As kernels round: ``start`` plus, a turn for each index along ``axes``, the products of the first half of
        ``reads`` with the second half, one a lane: those of a turn are added up, then added to the sum, each result
        rounded to ``dtype``. ``rank``: of the sum; ``kind``, ``attributes``: of the operator that multiplies."""
        lanes = len(reads) // 2

        def turn(writer: LowNodes, totals: Sequence[ir.Value], slices: Sequence[ir.Value]) -> list[ir.Value]:
            pairs = zip(slices[:lanes], slices[lanes:], strict=True)
            products = [writer.do(kind, pair, **(attributes or {})) for pair in pairs]
            if not self.fused:
                products = [writer.round_to(product, dtype) for product in products]
            added = products[0]
            for product in products[1:]:
                added = writer.round_to(writer.do("Add", [added, product]), dtype)
            return [writer.round_to(writer.do("Add", [totals[0], added]), dtype)]

        return self.scan([start], reads, axes, rank, turn)[0]

    def blocks(
        self, rows: ir.Value, count: int, shape: tuple[int, int], limits: tuple[ir.Value | int, ir.Value | int],
        filling: float,
    ) -> ir.Value:  # fmt: skip
        """As kernels round: the numbers of a matrix that each lane reads at each turn, [rows, turns, lanes, numbers];
        ``filling`` where there are no more. ``count``: the length of a row, 0 where that is open (from opset 11 on);
        ``shape``: (lanes, numbers) of the result; ``limits``: how many are used, values where it is open."""
        lane, place = np.arange(shape[0]).reshape(1, -1, 1), np.arange(shape[1]).reshape(1, 1, -1)
        always, number = self.constant(np.ones(1, bool)), self.constant(np.array([filling], np.float32))
        filled = self.do("Where", [always, number, self.columns(rows, np.array([0]))])
        padded = self.do("Concat", [rows, filled], axis=1)
        used, width = limits
        if isinstance(used, int) and isinstance(width, int):
            turns = np.arange(-(-count // (used * width))).reshape(-1, 1, 1)
            index = (turns * used + lane) * width + place
            return self.columns(padded, np.where((place < width) & (lane < used) & (index < count), index, count))
        used, width = (self.constant(np.array(n)) if isinstance(n, int) else n for n in limits)
        index_value = self._open_index(self.length(rows), (lane, place), (used, width))
        return self.do("Gather", [padded, index_value], axis=1)

    def _open_index(
        self, count: ir.Value, at: tuple[Array, Array], limits: tuple[ir.Value, ir.Value]
    ) -> ir.Value:  # fmt: skip
        """As kernels round, where rows have any length ``count``: the column that each lane reads at each turn, [turns,
        lanes, numbers], or ``count``. ``at``: indices of lanes, and of their numbers; ``limits``: how many are used."""
        lane, place, (used, width) = self.constant(at[0]), self.constant(at[1]), limits
        at_once = self.do("Mul", [used, width])
        last = self.do("Sub", [self.do("Add", [count, at_once]), self.constant(np.array(1))])
        numbers = [self.constant(np.array(0)), self.do("Div", [last, at_once]), self.constant(np.array(1))]
        first = self.do("Mul", [self.reshape(self.do("Range", numbers), [-1, 1, 1]), used])
        index = self.do("Mul", [self.do("Add", [first, lane]), width])
        index = self.do("Add", [index, place])
        inside = [self.do("Less", pair) for pair in ((place, width), (lane, used), (index, count))]
        there = self.do("And", [self.do("And", inside[:2]), inside[2]])
        return self.do("Where", [there, index, count])

    def length(self, rows: ir.Value) -> ir.Value:
        """As kernels round: the length of a matrix's rows, an int64 scalar."""
        return self.do("Gather", [self.do("Shape", [rows]), self.constant(np.array(1))])

    def columns(self, rows: ir.Value, places: Array) -> ir.Value:
        """As kernels round: the columns of a matrix at ``places``, whose shape stands in place of the second axis."""
        return self.do("Gather", [rows, self.constant(places)], axis=1)

    def copy_window(self, node: ir.Node, made: ir.Value) -> None:
        """As kernels round: gives the node that makes ``made`` the window of a convolution or pool (`WINDOW`)."""
        maker = made.producer()
        assert maker is not None
        maker.attributes.update({name: a for name, a in node.attributes.items() if name in WINDOW})

    def unsqueeze(self, value: ir.Value, axis: int) -> ir.Value:
        """As kernels round: a value with one more axis, of length 1, at ``axis``."""
        if self.opset >= AXES_AS_INPUT:
            return self.do("Unsqueeze", [value, self.constant(np.array([axis]))])
        return self.do("Unsqueeze", [value], axes=[axis])

    def round_to(self, value: ir.Value, dtype: str) -> ir.Value:
        """As kernels round: a float32 value rounded to ``dtype``, in float32 again, by two Casts."""
        for name in (dtype, FLOAT32):
            node = ir.node("Cast", [value])
            node.attributes["to"] = self._to[name]
            value = self.add(node)
        return value

    def reshape(self, value: ir.Value | None, sizes: Sequence[int]) -> ir.Value:
        """As kernels round: a value in another shape; 0 keeps a size, -1 follows from the others, as in Reshape."""
        return self.do("Reshape", [value, self.constant(np.array(sizes))])

    def constant(self, array: Array) -> ir.Value:
        """As kernels round: adds a Constant node with the numbers of an array, and returns its result."""
        return self.do("Constant", [], value=ir.Tensor(array))

    def do(self, kind: str, inputs: Sequence[ir.Value | None], **attributes: Any) -> ir.Value:
        """As kernels round: adds a node of a standard operator, and returns its one result."""
        return self.add(ir.node(kind, inputs, attributes))

    def add(self, node: ir.Node) -> ir.Value:
        """As kernels round: adds a node, gives its first result a free name, and returns that result."""
        node.name, node.outputs[0].name = "", self._name("@a")
        self.nodes.append(node)
        return node.outputs[0]
