"""Lets a run show what the bodies of If, Loop and Scan hold: rows of four numbers for each float32 value in them.

A row is the lowest and the highest finite element, how many elements there are, and how many of them are not finite.
Rows leave a body as further outputs of its node, from the inside outwards: an If gives those of the branch that ran, a
loop one for each turn. So nothing large has to leave a loop, and turns may differ in shape.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ...core.arrays import Array
from ...core.ranges import Range, escaped
from ...formats.onnx.graph import OnnxGraph
from ...oplists.traits import has
from ..graphs import Names, Types, new_node, outputs_of

OLDEST = 10  # the opset that has IsInf
LARGEST = float(np.finfo(np.float32).max)
DOUBLE = ir.DataType.DOUBLE


def expose_bodies(graph: OnnxGraph) -> dict[str, str]:
    """Adds the rows to a model without functions, in place: name of the rows in the main graph -> `value_key`."""
    flow = graph.dataflow()
    if flow.opset < OLDEST:
        return {}
    writer = _RowWriter(Names(graph.model.graph), Types.read(flow))
    found = {rows.name or "": key for rows, key in writer.lift(graph.model.graph, "")}
    graph.edited()
    return found


def range_of_rows(rows: Array) -> Range:
    """The range that rows tell; how magnitudes are spread they do not."""
    found = Range()
    for low, high, elements, nonfinite in np.asarray(rows, np.float64).reshape(-1, 4):
        any_finite = elements > nonfinite
        found.add(
            Range(
                float(low) if any_finite else 0.0,
                float(high) if any_finite else 0.0,
                elements=int(elements),
                nonfinite=int(nonfinite),
            )
        )
    return found


class _RowWriter:
    """Writes nodes under new names."""

    def __init__(self, names: Names, types: Types) -> None:
        self._names, self._types, self._count = names, types, 0

    def _name(self) -> str:
        self._count += 1
        return self._names.fresh(f"ampgraph_rows{self._count}")

    def _add(self, graph: ir.Graph, kind: str, *inputs: ir.Value, **attributes: int | ir.TensorProtocol) -> ir.Value:
        node = new_node(kind, inputs, self._name(), attributes)
        graph.append(node)
        return node.outputs[0]

    def _constant(self, graph: ir.Graph, array: Array) -> ir.Value:
        return self._add(graph, "Constant", value=ir.tensor(array))

    # -- from the inside outwards -------------------------------------------------------------------------------------

    def lift(self, graph: ir.Graph, path: str) -> list[tuple[ir.Value, str]]:
        """(rows, key) of everything in the bodies below a graph."""
        found: list[tuple[ir.Value, str]] = []
        for node in list(graph):
            if node.domain or not has(node.op_type, "control_flow"):
                continue
            made = next((value.name for value in node.outputs if value.name), node.name) or ""
            bodies = [(a.name, a.as_graph()) for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]
            rows = [self._rows(body, f"{path}{escaped(made)}.{part} > ") for part, body in bodies]
            # of all bodies before any is given outputs
            for (_, body), own in zip(bodies, rows, strict=True):
                others = [other for _, other in bodies if other is not body]
                found += [(self._out(node, body, others, row), key) for row, key in own]
        return found

    def _rows(self, body: ir.Graph, path: str) -> list[tuple[ir.Value, str]]:
        """The rows of a body's own values, and of those in bodies below; named before nodes are added."""
        own = [value for value in (*body.inputs, *outputs_of(body)) if self._types.is_float32(value)]
        below = self.lift(body, path)
        return [*((self._row(body, value), f"{path}{escaped(value.name or '')}") for value in own), *below]

    def _out(self, node: ir.Node, body: ir.Graph, others: list[ir.Graph], rows: ir.Value) -> ir.Value:
        """A further output of a node, with the rows that its body has; the other branch of an If has none."""
        if has(node.op_type, "loops"):
            rows = self._add(body, "Reshape", self._one(body, rows), self._constant(body, np.array([4])))
        rows.type = ir.TensorType(DOUBLE)
        body.outputs.append(rows)
        for other in others:
            empty = self._constant(other, np.zeros((0, 4)))
            empty.type = ir.TensorType(DOUBLE)
            other.outputs.append(empty)
        for name in ("scan_output_axes", "scan_output_directions"):
            if name in node.attributes:
                node.attributes[name] = ir.AttrInt64s(name, [*node.attributes[name].as_ints(), 0])
        node.resize_outputs(len(node.outputs) + 1)
        node.outputs[-1].name = self._name()
        return node.outputs[-1]

    # -- numbers ------------------------------------------------------------------------------------------------------

    def _row(self, graph: ir.Graph, value: ir.Value) -> ir.Value:
        """[1, 4] of one value; a number that changes nothing joins in, as an empty tensor has no extremes."""
        flat = self._add(graph, "Reshape", value, self._constant(graph, np.array([-1])))
        odd = self._add(graph, "Or", self._add(graph, "IsInf", flat), self._add(graph, "IsNaN", flat))
        numbers = []
        for kind, neutral in (("ReduceMin", LARGEST), ("ReduceMax", -LARGEST)):
            filler = self._constant(graph, np.array([neutral], np.float32))
            finite = self._add(graph, "Where", odd, filler, flat)
            end = self._add(graph, kind, self._add(graph, "Concat", finite, filler, axis=0), keepdims=0)
            numbers.append(self._add(graph, "Cast", end, to=DOUBLE.value))
        numbers.append(self._add(graph, "Cast", self._add(graph, "Size", flat), to=DOUBLE.value))
        ones = self._add(graph, "Cast", odd, to=DOUBLE.value)
        numbers.append(self._add(graph, "ReduceSum", ones, keepdims=0))
        return self._joined(graph, numbers)

    def _one(self, graph: ir.Graph, rows: ir.Value) -> ir.Value:
        """[k, 4] as one row."""
        neutral = self._constant(graph, np.array([[LARGEST, -LARGEST, 0, 0]]))
        both, numbers = self._add(graph, "Concat", rows, neutral, axis=0), []
        for column, kind in enumerate(("ReduceMin", "ReduceMax", "ReduceSum", "ReduceSum")):
            one = self._add(graph, "Gather", both, self._constant(graph, np.array([column])), axis=1)
            numbers.append(self._add(graph, kind, one, keepdims=0))
        return self._joined(graph, numbers)

    def _joined(self, graph: ir.Graph, numbers: list[ir.Value]) -> ir.Value:
        """Four numbers as a row."""
        single, row = (self._constant(graph, np.array(shape)) for shape in ([1], [1, 4]))
        parts = [self._add(graph, "Reshape", number, single) for number in numbers]
        return self._add(graph, "Reshape", self._add(graph, "Concat", *parts, axis=0), row)
