"""An update graph cut down to a part of its elements: what is moved is vectors, a slice of each parameter and slot.

The gradients stay inputs whole, for the check for inf and NaN and their norm, which every rank makes of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ...oplists.traits import has
from ..gradients.builder import Builder
from .element_layouts import ElementLayouts, Layout

Span = tuple[int, int]
"""From one element to before another."""


class SlicedUpdate:
    """Adds to a graph what its values are for a part of the elements. ``spans``: that part of each layout that has no
    parts itself; those of one layout with parts lie one behind another."""

    def __init__(self, graph: ir.Graph, layouts: ElementLayouts, spans: Mapping[Layout, Span]) -> None:
        self.graph, self.layouts, self.spans = graph, layouts, spans
        self.b = Builder(graph, "step/part")
        self._made: dict[ir.Value, ir.Value] = {}

    def take(self, state: ir.Value) -> None:
        """State becomes a vector of its part alone. All of it is taken before any `output`."""
        start, end = self._span(self._layout(state))
        part = ir.Value(name=state.name, type=state.type, shape=ir.Shape([end - start]))
        state.name = self.b.fresh(f"whole/{state.name}")
        self.graph.inputs.append(part)
        self._made[state] = part

    def output(self, whole: ir.Value) -> None:
        """An output gives its part alone, under its name."""
        part = self._part(whole)
        name, whole.name = whole.name, self.b.fresh(f"whole/{whole.name}")
        given = self.b.typed(self.b.op("Identity", part), part)
        given.name = name
        self.graph.outputs[list(self.graph.outputs).index(whole)] = given

    def _layout(self, value: ir.Value) -> Layout:
        found = self.layouts.of(value)
        assert found is not None
        return found

    def _span(self, layout: Layout) -> Span:
        """The part of a layout's elements."""
        before, start, length = 0, None, 0
        for atom in layout.atoms():
            low, high = self.spans[atom.root()]
            if high > low:
                start = before + low if start is None else start
                length += high - low
            before += atom.size
        return start or 0, (start or 0) + length

    def _length(self, value: ir.Value) -> int:
        start, end = self._span(self._layout(value))
        return end - start

    def _part(self, value: ir.Value) -> ir.Value:
        """A vector; what is no element of anything is whole."""
        if self.layouts.of(value) is None:
            return value
        if value not in self._made:
            node = value.producer()
            if node is None:
                self._made[value] = self._slice(value)
            else:
                self._copy(node)
        return self._made[value]

    def _slice(self, value: ir.Value) -> ir.Value:
        start, end = self._span(self._layout(value))
        flat = self.b.op("Reshape", value, self.b.ints(-1))
        return self._vector(self.b.op("Slice", flat, self.b.ints(start), self.b.ints(end)), value)

    def _vector(self, made: ir.Value, whole: ir.Value) -> ir.Value:
        made.type, made.shape = whole.type, ir.Shape([self._length(whole)])
        return made

    def _copy(self, node: ir.Node) -> None:
        """What a node makes of parts. Those without an element are left out where several are joined or parted."""
        outputs = [value for value in node.outputs if self._length(value)]
        read = [value for value in node.inputs if value is not None]
        if has(node.op_type, "by_element"):
            made = [self._again(node)]
        elif len(outputs) < len(node.outputs) or len(outputs) > 1:
            made = self._parted(self._part(read[0]), [self._length(value) for value in outputs])
        else:
            made = [self._joined([self._part(value) for value in read if self._has_part(value)])]
        for whole, part in zip(outputs, made, strict=True):
            self._made[whole] = part if part.type is not None else self._vector(part, whole)

    def _has_part(self, value: ir.Value) -> bool:
        """Whether some of its elements are wanted."""
        return self.layouts.of(value) is not None and self._length(value) > 0

    def _again(self, node: ir.Node) -> ir.Value:
        inputs = [None if value is None else self._part(value) for value in node.inputs]
        copy = ir.Node(node.domain, node.op_type, inputs, list(node.attributes.values()))
        copy.name = self.b.fresh(f"step/part/{node.name}")
        [made] = copy.outputs
        made.name = self.b.fresh(f"step/part/{node.outputs[0].name}")
        self.graph.append(copy)
        return made

    def _joined(self, parts: list[ir.Value]) -> ir.Value:
        """One vector as it is, as behind a Reshape; several one behind another."""
        return parts[0] if len(parts) == 1 else self.b.op("Concat", *parts, axis=0)

    def _parted(self, vector: ir.Value, sizes: list[int]) -> list[ir.Value]:
        if len(sizes) == 1:
            return [vector]
        return self.b.ops("Split", len(sizes), vector, self.b.ints(*sizes), axis=0)
