"""Nodes that compute in float32 and round to a low type at each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ...core.arrays import Array
from ...core.dataflow import FLOAT32

AXES_AS_INPUT = 13  # the opset from which Unsqueeze is told its axes by an operand
LANES, LANES_OF_ONE = 64, 256
"""In which WebGPU's reductions add up, and those that have one result."""


class LowNodes:
    """Writes nodes.

    ``to``: Cast's attribute by type; ``name``: makes a name that is free; ``fused``: products are not rounded."""

    def __init__(self, opset: int, to: Mapping[str, ir.Attr], name: Callable[[str], str], fused: bool) -> None:
        self.opset, self._to, self._name, self.fused = opset, to, name, fused
        self.nodes: list[ir.Node] = []

    def scan(
        self, start: ir.Value, reads: Sequence[ir.Value], axes: Sequence[int], rank: int, dtype: str, kind: str,
        attributes: Mapping[str, Any],
    ) -> ir.Value:  # fmt: skip
        """A step for each place of ``axes``. ``rank``: of the sum; ``kind``, ``attributes``: of what multiplies."""
        body = self._body(len(axes) // 2, rank, dtype, kind, attributes)
        scan = ir.node("Scan", [start, *reads], {"body": body, "num_scan_inputs": len(axes), "scan_input_axes": axes})
        return self.add(scan)

    def _body(self, lanes: int, rank: int, dtype: str, kind: str, attributes: Mapping[str, Any]) -> ir.Graph:
        """One step: what was summed up, and slices of both operands that multiply to the shape of the result."""
        inner = LowNodes(self.opset, self._to, self._name, self.fused)
        names = [self._name("@sum"), *(self._name("@slice") for _ in range(2 * lanes))]
        total, *slices = [ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT)) for name in names]
        total.shape = ir.Shape([None] * rank)  # a runtime that infers none asks for it
        pairs = zip(slices[:lanes], slices[lanes:], strict=True)
        products = [inner.do(kind, pair, **attributes) for pair in pairs]
        if not self.fused:
            products = [inner.rounded(product, dtype) for product in products]
        added = products[0]
        for product in products[1:]:
            added = inner.rounded(inner.do("Add", [added, product]), dtype)
        found = inner.rounded(inner.do("Add", [total, added]), dtype)
        found.type, found.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([None] * rank)
        return ir.Graph([total, *slices], [found], nodes=inner.nodes, name=self._name("@step"))

    def taken(self, rows: ir.Value, places: Array) -> ir.Value:
        """What is at some places of the second axis."""
        return self.do("Gather", [rows, self.constant(places)], axis=1)

    def unsqueezed(self, value: ir.Value, axis: int) -> ir.Value:
        if self.opset >= AXES_AS_INPUT:
            return self.do("Unsqueeze", [value, self.constant(np.array([axis]))])
        return self.do("Unsqueeze", [value], axes=[axis])

    def rounded(self, value: ir.Value, dtype: str) -> ir.Value:
        for name in (dtype, FLOAT32):
            value = self.do("Cast", [value])
            assert (maker := value.producer()) is not None
            maker.attributes["to"] = self._to[name]
        return value

    def reshape(self, value: ir.Value | None, sizes: Sequence[int]) -> ir.Value:
        return self.do("Reshape", [value, self.constant(np.array(sizes))])

    def constant(self, array: Array) -> ir.Value:
        return self.do("Constant", [], value=ir.Tensor(array))

    def do(self, kind: str, inputs: Sequence[ir.Value | None], **attributes: Any) -> ir.Value:
        return self.add(ir.node(kind, inputs, attributes))

    def add(self, node: ir.Node) -> ir.Value:
        node.name, node.outputs[0].name = "", self._name("@a")
        self.nodes.append(node)
        return node.outputs[0]
