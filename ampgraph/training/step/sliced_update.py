"""An update graph cut down to a part of its elements: what is moved is vectors, a slice of each parameter and slot.

An optimizer moves each element by its own gradient and its own slots, so an update can be cut anywhere between two
elements. The gradients stay inputs whole, for the check for inf and NaN and their norm, which every rank makes of all
of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from ...oplists.traits import has
from ..gradients.builder import Builder
from .vectors import split

Span = tuple[int, int]
"""From one element to before another."""


@dataclass(frozen=True)
class Segment:
    """Elements of a value that are those of a run, in order, from ``start`` to before ``end``. ``run``: its number;
    None for what every rank has whole."""

    run: int | None
    start: int
    end: int

    def within(self, spans: Mapping[int, Span]) -> Segment:
        """The part of the segment that the spans ask for."""
        low, high = (self.start, self.end) if self.run is None else spans.get(self.run, (self.start, self.end))
        low, high = max(low, self.start), min(high, self.end)
        return replace(self, start=low, end=max(low, high))


def segments_of(graph: ir.Graph, given: Mapping[str, Segment]) -> dict[ir.Value, list[Segment]]:
    """What the values of an update hold, from what its inputs do; not for what it computes of elements together."""
    found = {value: [given[value.name or ""]] for value in graph.inputs if value.name in given}
    for node in graph:
        rows = [found[value] for value in node.inputs if value is not None and value in found]
        if not rows:
            continue
        if has(node.op_type, "keeps_order") or has(node.op_type, "by_element"):
            if math.prod(_known_sizes(node.outputs[0])) == _length(rows[0]):
                found[node.outputs[0]] = rows[0]
        elif node.op_type == "Concat" and len(rows) == len(node.inputs) and len(_known_sizes(node.outputs[0])) == 1:
            found[node.outputs[0]] = [segment for row in rows for segment in row]
        elif node.op_type == "Split" and len(_known_sizes(node.outputs[0])) == 1:
            found |= dict(
                zip(
                    node.outputs,
                    _split_segments(rows[0], [_known_sizes(value)[0] for value in node.outputs]),
                    strict=True,
                )
            )
    return found


def _split_segments(segments: Sequence[Segment], sizes: Sequence[int]) -> list[list[Segment]]:
    """Cuts a row of segments into pieces of the given numbers of elements."""
    left, pieces = list(segments), []
    for size in sizes:
        piece: list[Segment] = []
        while (gap := size - _length(piece)) > 0:
            first = left.pop(0)
            middle = min(first.start + gap, first.end)
            piece.append(replace(first, end=middle))
            if middle < first.end:
                left.insert(0, replace(first, start=middle))
        pieces.append(piece)
    return pieces


def _length(segments: Sequence[Segment]) -> int:
    """Elements in all the segments."""
    return sum(segment.end - segment.start for segment in segments)


def _known_sizes(value: ir.Value) -> tuple[int, ...]:
    """The sizes of a value, or (0, 0), which no vector has, where they are open."""
    return tuple(value.shape.numpy()) if value.shape is not None and value.shape.is_static() else (0, 0)


class SlicedUpdate:
    """Adds to a graph what its values are for a part of the elements. ``segments``: as `segments_of` gives; ``spans``:
    the part that is wanted of each run."""

    def __init__(self, graph: ir.Graph, segments: Mapping[ir.Value, list[Segment]], spans: Mapping[int, Span]) -> None:
        self.graph, self.segments, self.spans = graph, segments, spans
        self.b = Builder(graph, "step/part")
        self._made: dict[ir.Value, ir.Value] = {}

    def take(self, state: ir.Value) -> None:
        """Makes state a vector of this rank's part alone. All of it is taken before any `output`."""
        part = ir.Value(name=state.name, type=state.type, shape=ir.Shape([self._length(state)]))
        state.name = self.b.fresh(f"whole/{state.name}")
        self.graph.inputs.append(part)
        self._made[state] = part

    def output(self, whole: ir.Value) -> None:
        """Makes an output give this rank's part alone, under its name."""
        part = self._part(whole)
        name, whole.name = whole.name, self.b.fresh(f"whole/{whole.name}")
        given = self.b.typed(self.b.op("Identity", part), part)
        given.name = name
        self.graph.outputs[list(self.graph.outputs).index(whole)] = given

    def _length(self, value: ir.Value) -> int:
        """How many elements of a value belong to this part."""
        return _length([segment.within(self.spans) for segment in self.segments[value]])

    def _part(self, value: ir.Value) -> ir.Value:
        """A vector; what is no element of anything is whole."""
        if value not in self.segments:
            return value
        if value not in self._made:
            node = value.producer()
            if node is None:
                self._made[value] = self._slice(value)
            else:
                self._copy(node)
        return self._made[value]

    def _slice(self, value: ir.Value) -> ir.Value:
        """This part's elements of a value that every rank holds whole, as a vector."""
        [whole], [part] = self.segments[value], [one.within(self.spans) for one in self.segments[value]]
        flat = value if len(_known_sizes(value)) == 1 else self.b.op("Reshape", value, self.b.ints(-1))
        if part == whole:
            return self._vector(flat, value) if flat is not value else value
        ends = self.b.ints(part.start - whole.start), self.b.ints(part.end - whole.start)
        return self._vector(self.b.op("Slice", flat, *ends), value)

    def _vector(self, made: ir.Value, whole: ir.Value) -> ir.Value:
        """Types ``made`` as the part of ``whole`` that it is."""
        made.type, made.shape = whole.type, ir.Shape([self._length(whole)])
        return made

    def _copy(self, node: ir.Node) -> None:
        """Repeats a node on the parts of its operands; empty parts are left out of a Concat or Split."""
        outputs = [value for value in node.outputs if self._length(value)]
        read = [value for value in node.inputs if value is not None]
        if has(node.op_type, "by_element"):
            made = [self.b.again(node, [None if value is None else self._part(value) for value in node.inputs])]
        elif len(outputs) < len(node.outputs) or len(outputs) > 1:
            made = split(self.b, self._part(read[0]), [self._length(value) for value in outputs])
        else:
            wanted = [value for value in read if self.segments.get(value) and self._length(value)]
            made = [self.b.joined([self._part(value) for value in wanted])]
        for whole, part in zip(outputs, made, strict=True):
            self._made[whole] = part if part.type is not None else self._vector(part, whole)
