"""Lets a run show what the bodies of If, Loop and Scan hold: rows of four numbers for each float32 value in them.

A row is the lowest and the highest finite element, how many elements there are, and how many of them are not finite.
Rows leave a body as further outputs of its node, from the inside outwards: an If gives those of the branch that ran, a
loop one for each turn. So nothing large has to leave a loop, and turns may differ in shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ...core.ranges import Range, escaped
from ..strict import value_types as vt

OLDEST = 10  # the opset that has IsInf
LARGEST = float(np.finfo(np.float32).max)
FLOAT = vt.tensor(TensorProto.FLOAT)
LOOPS = ("Loop", "Scan")


def expose_bodies(model: ModelProto) -> dict[str, str]:
    """Adds the rows to a model without functions, in place: name of the rows in the main graph -> `value_key`."""
    if vt.opsets(model).get("", 0) < OLDEST:
        return {}
    writer = _Writer(_free_prefix(model.graph))
    return dict(writer.lift(model.graph, vt.infer(model), ""))


def range_of_rows(rows: np.ndarray) -> Range:
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


class _Writer:
    """Writes nodes under new names."""

    def __init__(self, prefix: str) -> None:
        self._prefix, self._count = prefix, 0

    def _name(self) -> str:
        self._count += 1
        return f"{self._prefix}{self._count}"

    def _add(self, graph: GraphProto, kind: str, *inputs: str, **attributes: Any) -> str:
        name = self._name()
        graph.node.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def _constant(self, graph: GraphProto, array: np.ndarray) -> str:
        return self._add(graph, "Constant", value=numpy_helper.from_array(array))

    # -- from the inside outwards -------------------------------------------------------------------------------------

    def lift(self, graph: GraphProto, types: vt.GraphTypes, path: str) -> list[tuple[str, str]]:
        """(rows, key) of everything in the bodies below a graph."""
        found: list[tuple[str, str]] = []
        for node, inner in zip(list(graph.node), types.bodies, strict=True):
            if not vt.is_standard(node) or node.op_type not in ("If", *LOOPS):
                continue
            made = next((name for name in node.output if name), node.name)
            bodies = [(a.name, a.g) for a in node.attribute if a.HasField("g")]
            rows = [
                self._rows(body, known, f"{path}{escaped(made)}.{part} > ")
                for (part, body), known in zip(bodies, inner, strict=True)
            ]  # of all bodies before any is given outputs
            for (_, body), own in zip(bodies, rows, strict=True):
                others = [other for _, other in bodies if other is not body]
                found += [(self._out(node, body, others, row), key) for row, key in own]
        return found

    def _rows(self, body: GraphProto, types: vt.GraphTypes, path: str) -> list[tuple[str, str]]:
        """The rows of a body's own values, and of those in bodies below; named before nodes are added."""
        own = [v.name for v in body.input] + [name for node in body.node for name in node.output if name]
        own = [name for name in own if types.values.get(name) == FLOAT]
        below = self.lift(body, types, path)
        return [*((self._row(body, name), f"{path}{escaped(name)}") for name in own), *below]

    def _out(self, node: NodeProto, body: GraphProto, others: list[GraphProto], rows: str) -> str:
        """A further output of a node, with the rows that its body has; the other branch of an If has none."""
        if node.op_type in LOOPS:
            rows = self._add(body, "Reshape", self._one(body, rows), self._constant(body, np.array([4])))
        body.output.append(helper.make_tensor_value_info(rows, TensorProto.DOUBLE, None))
        for other in others:
            empty = self._constant(other, np.zeros((0, 4)))
            other.output.append(helper.make_tensor_value_info(empty, TensorProto.DOUBLE, None))
        for attribute in node.attribute:
            if attribute.name in ("scan_output_axes", "scan_output_directions"):
                attribute.ints.append(0)
        node.output.append(self._name())
        return node.output[-1]

    # -- numbers ------------------------------------------------------------------------------------------------------

    def _row(self, graph: GraphProto, value: str) -> str:
        """[1, 4] of one value; a number that changes nothing joins in, as an empty tensor has no extremes."""
        flat = self._add(graph, "Reshape", value, self._constant(graph, np.array([-1])))
        odd = self._add(graph, "Or", self._add(graph, "IsInf", flat), self._add(graph, "IsNaN", flat))
        numbers = []
        for kind, neutral in (("ReduceMin", LARGEST), ("ReduceMax", -LARGEST)):
            filler = self._constant(graph, np.array([neutral], np.float32))
            finite = self._add(graph, "Where", odd, filler, flat)
            end = self._add(graph, kind, self._add(graph, "Concat", finite, filler, axis=0), keepdims=0)
            numbers.append(self._add(graph, "Cast", end, to=TensorProto.DOUBLE))
        numbers.append(self._add(graph, "Cast", self._add(graph, "Size", flat), to=TensorProto.DOUBLE))
        ones = self._add(graph, "Cast", odd, to=TensorProto.DOUBLE)
        numbers.append(self._add(graph, "ReduceSum", ones, keepdims=0))
        return self._joined(graph, numbers)

    def _one(self, graph: GraphProto, rows: str) -> str:
        """[k, 4] as one row."""
        neutral = self._constant(graph, np.array([[LARGEST, -LARGEST, 0, 0]]))
        both, numbers = self._add(graph, "Concat", rows, neutral, axis=0), []
        for column, kind in enumerate(("ReduceMin", "ReduceMax", "ReduceSum", "ReduceSum")):
            one = self._add(graph, "Gather", both, self._constant(graph, np.array([column])), axis=1)
            numbers.append(self._add(graph, kind, one, keepdims=0))
        return self._joined(graph, numbers)

    def _joined(self, graph: GraphProto, numbers: list[str]) -> str:
        """Four numbers as a row."""
        single, row = (self._constant(graph, np.array(shape)) for shape in ([1], [1, 4]))
        parts = [self._add(graph, "Reshape", number, single) for number in numbers]
        return self._add(graph, "Reshape", self._add(graph, "Concat", *parts, axis=0), row)


def _free_prefix(graph: GraphProto) -> str:
    """The start of a name that nothing in the model has."""
    taken = set(_names(graph))
    prefixes = (f"ampgraph_rows{k}_" for k in range(len(taken) + 1))
    return next(p for p in prefixes if not any(name.startswith(p) for name in taken))


def _names(graph: GraphProto) -> Iterator[str]:
    yield from (v.name for v in (*graph.input, *graph.initializer))
    for node in graph.node:
        yield from node.output
        for body in vt.bodies(node):
            yield from _names(body)
