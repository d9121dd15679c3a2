"""Nodes that compute in float32 and round to a low type at each step, as kernels do: numbers lie as rows, of which a
*lane* adds up some, one a *turn*."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ...core.arrays import Array
from ...core.dataflow import FLOAT32

AXES_AS_INPUT = 13  # the opset from which Unsqueeze is told its axes by an operand
OPEN_ROWS = 11  # the opset from which rows of any length are read: Range is there
LANES, LANES_OF_ONE = 64, 256
"""In which WebGPU's reductions add up, and those that have one result."""

WINDOW = ("auto_pad", "dilations", "output_padding", "output_shape", "pads", "strides")
"""Attributes that say which places a convolution or a pool meets."""

Turn = Callable[["LowNodes", Sequence[ir.Value], Sequence[ir.Value]], list[ir.Value]]
"""What a turn of a Scan makes of what the turn before has left, and of slices."""


class LowNodes:
    """Writes nodes in float32 and keeps them in ``nodes``, in their order, in no graph yet.

    ``to``: Cast's attribute by type; ``name``: makes a name that is free; ``fused``: products are not rounded."""

    def __init__(self, opset: int, to: Mapping[str, ir.Attr], name: Callable[[str], str], fused: bool) -> None:
        self.opset, self._to, self._name, self.fused = opset, to, name, fused
        self.nodes: list[ir.Node] = []

    def scan(
        self, starts: Sequence[ir.Value], reads: Sequence[ir.Value], axes: Sequence[int], rank: int, step: Turn
    ) -> list[ir.Value]:
        """As kernels round: a turn for each place of ``axes``; what the last leaves of ``starts``, each of ``rank``."""
        inner = LowNodes(self.opset, self._to, self._name, self.fused)
        names = [*(self._name("@sum") for _ in starts), *(self._name("@slice") for _ in reads)]
        given = [ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT)) for name in names]
        count = len(starts)
        found = step(inner, given[:count], given[count:])
        for value in (*given[:count], *found):  # a runtime that infers none asks for it
            value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([None] * rank)
        body = ir.Graph(given, found, nodes=inner.nodes, name=self._name("@step"))
        attributes: dict[str, Any] = {"body": body, "num_scan_inputs": len(reads), "scan_input_axes": list(axes)}
        node = ir.node("Scan", [*starts, *reads], attributes, num_outputs=count)
        for output in node.outputs[1:]:
            output.name = self._name("@a")
        self.add(node)
        return list(node.outputs)

    def summed(
        self, start: ir.Value, reads: Sequence[ir.Value], axes: Sequence[int], rank: int, dtype: str, kind: str = "Mul",
        attributes: Mapping[str, Any] | None = None,
    ) -> ir.Value:  # fmt: skip
        """As kernels round: a sum of products, a turn for each place of ``axes``: of the first half of ``reads`` with
        the second one, all added up before they are added to it. ``rank``: of the sum; ``kind``, ``attributes``: of
        what multiplies."""
        lanes = len(reads) // 2

        def turn(inner: LowNodes, totals: Sequence[ir.Value], slices: Sequence[ir.Value]) -> list[ir.Value]:
            pairs = zip(slices[:lanes], slices[lanes:], strict=True)
            products = [inner.do(kind, pair, **(attributes or {})) for pair in pairs]
            if not self.fused:
                products = [inner.rounded(product, dtype) for product in products]
            added = products[0]
            for product in products[1:]:
                added = inner.rounded(inner.do("Add", [added, product]), dtype)
            return [inner.rounded(inner.do("Add", [totals[0], added]), dtype)]

        return self.scan([start], reads, axes, rank, turn)[0]

    def blocks(
        self, rows: ir.Value, count: int, shape: tuple[int, int], limits: tuple[ir.Value | int, ir.Value | int],
        filling: float,
    ) -> ir.Value:  # fmt: skip
        """As kernels round: what each lane reads at each turn: [rows, turns, lanes, numbers], else ``filling``.

        ``count``: how long a row is, 0 where that is open (from opset 11 on); ``shape``: lanes and numbers; ``limits``:
        how many of them are used, values where ``count`` is open."""
        lane, place = np.arange(shape[0]).reshape(1, -1, 1), np.arange(shape[1]).reshape(1, 1, -1)
        column = [np.ones(1, bool), np.array([filling], np.float32)]
        nothing = self.do("Where", [*map(self.constant, column), self.taken(rows, np.array([0]))])
        padded = self.do("Concat", [rows, nothing], axis=1)
        if isinstance(used := limits[0], int) and isinstance(width := limits[1], int):
            turns = np.arange(-(-count // (used * width))).reshape(-1, 1, 1)
            index = (turns * used + lane) * width + place
            return self.taken(padded, np.where((place < width) & (lane < used) & (index < count), index, count))
        used, width = (self.constant(np.array(n)) if isinstance(n, int) else n for n in limits)
        return self.taken_by(padded, self._open_index(self.length(rows), (lane, place), (used, width)))

    def _open_index(
        self, count: ir.Value, at: tuple[Array, Array], limits: tuple[ir.Value, ir.Value]
    ) -> ir.Value:  # fmt: skip
        """Where each lane reads at each turn; ``count`` where there is nothing."""
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
        """As kernels round: the length of each row, a scalar: the second size of a matrix."""
        return self.do("Gather", [self.do("Shape", [rows]), self.constant(np.array(1))])

    def taken_by(self, rows: ir.Value, places: ir.Value) -> ir.Value:
        """As kernels round: what stands at places of the second axis that other nodes compute."""
        return self.do("Gather", [rows, places], axis=1)

    def taken(self, rows: ir.Value, places: Array) -> ir.Value:
        """As kernels round: what stands at given places of the second axis."""
        return self.taken_by(rows, self.constant(places))

    def slides_as(self, node: ir.Node, made: ir.Value) -> None:
        """Gives what makes a value the windows of a convolution or pool."""
        assert (maker := made.producer()) is not None
        maker.attributes.update({name: a for name, a in node.attributes.items() if name in WINDOW})

    def unsqueezed(self, value: ir.Value, axis: int) -> ir.Value:
        """As kernels round: a value with one more axis, of length 1, at ``axis``."""
        if self.opset >= AXES_AS_INPUT:
            return self.do("Unsqueeze", [value, self.constant(np.array([axis]))])
        return self.do("Unsqueeze", [value], axes=[axis])

    def rounded(self, value: ir.Value, dtype: str) -> ir.Value:
        """A float32 value rounded to a low type, in float32 again: by two Casts."""
        for name in (dtype, FLOAT32):
            value = self.do("Cast", [value])
            assert (maker := value.producer()) is not None
            maker.attributes["to"] = self._to[name]
        return value

    def reshape(self, value: ir.Value | None, sizes: Sequence[int]) -> ir.Value:
        """As kernels round: a value in another shape; 0 keeps a size, -1 follows from the others, as in Reshape."""
        return self.do("Reshape", [value, self.constant(np.array(sizes))])

    def constant(self, array: Array) -> ir.Value:
        """An array as a Constant node."""
        return self.do("Constant", [], value=ir.Tensor(array))

    def do(self, kind: str, inputs: Sequence[ir.Value | None], **attributes: Any) -> ir.Value:
        """Adds a node of a standard operator; its one result."""
        return self.add(ir.node(kind, inputs, attributes))

    def add(self, node: ir.Node) -> ir.Value:
        """Adds a node whose first result gets a free name; that result."""
        node.name, node.outputs[0].name = "", self._name("@a")
        self.nodes.append(node)
        return node.outputs[0]
