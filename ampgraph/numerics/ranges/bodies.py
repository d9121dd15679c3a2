"""Lets a run show what the bodies of If, Loop and Scan hold: rows of four numbers for each float32 value in them.

A row is the lowest and the highest finite element, how many elements there are, and how many of them are not finite.
Rows leave a body as further outputs of its node, from the inside outwards: an If gives those of the branch that ran, a
loop one for each turn. So nothing large has to leave a loop, and turns may differ in shape.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from ...core.arrays import Array
from ...core.dataflow import FLOAT32, Dataflow, Op, Scope, Value
from ...core.graph import Attribute, NodeEditor
from ...core.ranges import Range, escaped
from ...core.runnable import RunnableGraph
from ...oplists.traits import has

OLDEST = 10  # the opset that has IsInf
LARGEST = float(np.finfo(np.float32).max)
DOUBLE = "float64"
ROWS = "ampgraph_rows"


def expose_bodies(graph: RunnableGraph) -> dict[str, str]:
    """Adds the rows to a model without functions, in place: name of the rows in the main graph -> `value_key`."""
    flow = graph.dataflow()
    if flow.opset < OLDEST or len(flow.scopes) == 1:
        return {}
    with graph.editor(flow) as edit:
        return {rows.name: key for rows, key in _RowWriter(flow, edit).lift(flow.scopes[0], "")}


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
    """Writes operators into bodies."""

    def __init__(self, flow: Dataflow, edit: NodeEditor) -> None:
        self._flow, self._edit = flow, edit
        self._ops: dict[int, list[Op]] = {}
        for op in flow.ops:
            self._ops.setdefault(op.scope, []).append(op)
        self._bodies: dict[int, list[Scope]] = {}
        for scope in flow.scopes:
            self._bodies.setdefault(scope.op, []).append(scope)

    def _add(self, body: Scope, kind: str, dtype: str, *inputs: Value, **attributes: Attribute) -> Value:
        return self._edit.add(kind, inputs, [dtype], attributes, scope=body.id, name=ROWS)[0]

    def _constant(self, body: Scope, array: Array) -> Value:
        return self._add(body, "Constant", str(array.dtype), value=array)

    # -- from the inside outwards -------------------------------------------------------------------------------------

    def lift(self, graph: Scope, path: str) -> list[tuple[Value, str]]:
        """(rows, key) of everything in the bodies below a graph."""
        found: list[tuple[Value, str]] = []
        for op in self._ops.get(graph.id, ()):
            bodies = self._bodies.get(op.id, []) if has(op.kind, "control_flow") else []
            made = next((name for i in op.outputs if (name := self._flow.values[i].name)), op.name)
            # of all bodies before any is given outputs
            rows = [self._rows(body, f"{path}{escaped(made)}.{body.path.rpartition('.')[2]} > ") for body in bodies]
            for body, own in zip(bodies, rows, strict=True):
                others = [other for other in bodies if other is not body]
                found += [(self._out(op, body, others, row), key) for row, key in own]
        return found

    def _rows(self, body: Scope, path: str) -> list[tuple[Value, str]]:
        """The rows of a body's own values, and of those in bodies below."""
        made = [i for op in self._ops.get(body.id, ()) for i in op.outputs]
        own = [value for value in (self._flow.values[i] for i in (*body.inputs, *made)) if _is_float32(value)]
        below = self.lift(body, path)
        return [*((self._row(body, value), f"{path}{escaped(value.name)}") for value in own), *below]

    def _out(self, op: Op, body: Scope, others: list[Scope], rows: Value) -> Value:
        """A further output of an operator, with the rows that its body has; the other branch of an If has none."""
        if has(op.kind, "loops"):
            rows = self._add(body, "Reshape", DOUBLE, self._one(body, rows), self._constant(body, np.array([4])))
        empty = [self._constant(other, np.zeros((0, 4))) for other in others]
        return self._edit.give_out(op, [rows, *empty], ROWS)

    # -- numbers ------------------------------------------------------------------------------------------------------

    def _row(self, body: Scope, value: Value) -> Value:
        """[1, 4] of one value; a number that changes nothing joins in, as an empty tensor has no extremes."""
        flat = self._add(body, "Reshape", FLOAT32, value, self._constant(body, np.array([-1])))
        odd = self._add(
            body, "Or", "bool", self._add(body, "IsInf", "bool", flat), self._add(body, "IsNaN", "bool", flat)
        )
        numbers = []
        for kind, neutral in (("ReduceMin", LARGEST), ("ReduceMax", -LARGEST)):
            filler = self._constant(body, np.array([neutral], np.float32))
            finite = self._add(body, "Where", FLOAT32, odd, filler, flat)
            both = self._add(body, "Concat", FLOAT32, finite, filler, axis=0)
            numbers.append(self._double(body, self._add(body, kind, FLOAT32, both, keepdims=0)))
        numbers.append(self._double(body, self._add(body, "Size", "int64", flat)))
        numbers.append(self._add(body, "ReduceSum", DOUBLE, self._double(body, odd), keepdims=0))
        return self._joined(body, numbers)

    def _double(self, body: Scope, value: Value) -> Value:
        return self._add(body, "Cast", DOUBLE, value, to=int(TensorProto.DOUBLE))

    def _one(self, body: Scope, rows: Value) -> Value:
        """[k, 4] as one row."""
        neutral = self._constant(body, np.array([[LARGEST, -LARGEST, 0, 0]]))
        both = self._add(body, "Concat", DOUBLE, rows, neutral, axis=0)

        def column(place: int, kind: str) -> Value:
            one = self._add(body, "Gather", DOUBLE, both, self._constant(body, np.array([place])), axis=1)
            return self._add(body, kind, DOUBLE, one, keepdims=0)

        low, high = column(0, "ReduceMin"), column(1, "ReduceMax")
        return self._joined(body, [low, high, *(column(place, "ReduceSum") for place in (2, 3))])

    def _joined(self, body: Scope, numbers: list[Value]) -> Value:
        """Four numbers as a row."""
        single, row = (self._constant(body, np.array(shape)) for shape in ([1], [1, 4]))
        parts = [self._add(body, "Reshape", DOUBLE, number, single) for number in numbers]
        return self._add(body, "Reshape", DOUBLE, self._add(body, "Concat", DOUBLE, *parts, axis=0), row)


def _is_float32(value: Value) -> bool:
    """Whether it is a float32 tensor; outputs that are left out have no name."""
    return value.dtype == FLOAT32 and not value.container and bool(value.name)
