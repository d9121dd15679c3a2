"""Which rank updates which elements: an update graph cut down to the part of one of them (ZeRO-1).

All parameters stand one behind another, those that are moved together side by side, and are cut where each rank has as
many numbers of slots as any other. Slots and averages are cut with them. The check for inf and NaN and the norm stay
whole on every rank, so all decide alike without a word between them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import onnx_ir as ir

from ...oplists.traits import has
from ..gradients.builder import Builder
from ..step.cut import drop_unread
from ..step.state_tensors import AVERAGE, PARAMETER, RUNNING, SLOT, StateTensor
from ..step.training_step import Run, TrainingStep
from ..step.vectors import split
from .accumulation import ALIGNED

SHARED_OUT = (PARAMETER, SLOT, AVERAGE)


class _ShardUnit:
    """A run of parameters as it is cut among ranks. ``others``: the state that is cut with them, and the first
    parameter of each; ``whole``: it must not be cut."""

    def __init__(self, run: Run, sizes: Mapping[str, int]) -> None:
        self.parameters, self.sizes = run.parameters, [sizes[name] for name in run.parameters]
        self.numbers = sum(self.sizes)
        self.whole = run.whole or not all(self.sizes)
        averages = zip(run.averages, run.parameters, strict=bool(run.averages))
        self.others = dict.fromkeys(run.slots, self.parameters[0]) | dict(averages)

    def cut(self, share: float) -> int:
        """The element at which to cut a run for a share of it: the nearest one at which a buffer may begin
        (alignment)."""
        if self.whole:
            return self.numbers * (share > 0.5)
        wanted, before = share * self.numbers, 0
        for size in self.sizes:
            if wanted <= before + size:
                return before + min(round((wanted - before) / ALIGNED) * ALIGNED, size)
            before += size
        return self.numbers


@dataclass(frozen=True)
class Shares:
    """``order``: the parameters; ``spans``: for each state that is shared out, the elements of every rank."""

    order: tuple[str, ...]
    spans: Mapping[str, tuple[Span, ...]]
    divided: frozenset[str]  # state of which some rank has a part

    def away(self, rank: int) -> set[str]:
        """Names of the state of which a rank has no element."""
        return {name for name, spans in self.spans.items() if spans[rank][0] == spans[rank][1]}


def shares(update: TrainingStep, sizes: Mapping[str, int], ranks: int) -> Shares:
    """Shares out what is updated; ``sizes``: the numbers of every state."""
    units = [_ShardUnit(run, sizes) for run in update.layout.runs]
    order = tuple(name for unit in units for name in unit.parameters)
    starts = dict(zip(order, accumulate((sizes[name] for name in order), initial=0), strict=False))
    borders = [0, *_borders(units, sizes, ranks), sum(unit.numbers for unit in units)]
    spans: dict[str, tuple[Span, ...]] = {}
    divided: set[str] = set()
    for unit in units:
        names = {**{name: name for name in unit.parameters}, **unit.others}
        start = starts[unit.parameters[0]]
        if unit.whole:
            owner = max(rank for rank in range(ranks) if borders[rank] <= start)
            ends = [0] * (owner + 1) + [1] * (ranks - owner)
            spans |= {name: tuple(pairwise(sizes[name] * end for end in ends)) for name in names}
            continue
        for name, first in names.items():
            ends = [min(max(border - starts[first], 0), sizes[name]) for border in borders]
            spans[name] = tuple(pairwise(ends))
        if any(start < border < start + unit.numbers for border in borders):
            divided |= set(names)
    return Shares(order, spans, frozenset(divided))


def _borders(units: Sequence[_ShardUnit], sizes: Mapping[str, int], ranks: int) -> Iterator[int]:
    """The element at which each rank's part ends, by position in all runs."""
    slots = [sum(sizes[name] for name in unit.others) for unit in units]
    if not any(slots):
        slots = [unit.numbers for unit in units]
    ends = list(accumulate(slots, initial=0))
    for rank in range(1, ranks):
        wanted = ends[-1] * rank / ranks
        start = 0
        for unit, weight, before in zip(units, slots, ends, strict=False):
            if wanted <= before + weight or unit is units[-1]:
                yield start + unit.cut((wanted - before) / weight if weight else 0)
                break
            start += unit.numbers


# -- the part of one rank ----------------------------------------------------------------------------------------------


def shard(update: TrainingStep, plan: Shares, rank: int) -> TrainingStep:
    """Cuts an update graph, in place, to what one rank updates. State that is divided among ranks (`Shares.divided`) is
    a flat vector in it, a `StateTensor` without shape."""
    layout, graph = update.layout, update.model.graph
    away = plan.away(rank)
    _slice_update(update, plan, rank)
    states = tuple(
        StateTensor(entry.name, entry.kind, entry.output) if entry.name in plan.divided else entry
        for entry in layout.states
        if entry.name not in away
    )
    wanted = {layout.loss, layout.finite, layout.norm, *(entry.output for entry in states)}
    kept = [value for value in graph.outputs if value.name in wanted]
    graph.outputs.clear()
    graph.outputs.extend(kept)
    drop_unread(update.model, {entry.name for entry in states})
    graph.sort()
    have = {value.name for value in graph.inputs}
    return replace(
        update, layout=replace(layout, states=states, inputs=tuple(name for name in layout.inputs if name in have))
    )


def _slice_update(update: TrainingStep, plan: Shares, rank: int) -> None:
    """Reduces what is shared out to this rank's part, in place."""
    inputs = {value.name: value for value in update.model.graph.inputs}
    outputs = {value.name: value for value in update.model.graph.outputs}
    known = {name or "": value.shape for name, value in inputs.items() if value.shape is not None}
    sizes = {name: math.prod(shape.numpy()) for name, shape in known.items() if shape.is_static()}
    given = {name: Segment(None, 0, sizes[name]) for name in update.layout.inputs}
    given |= {entry.name: Segment(None, 0, sizes[entry.name]) for entry in update.layout.of(RUNNING)}
    spans: dict[int, Span] = {}
    for number, run in enumerate(run for run in update.layout.runs if not run.whole):
        numbers = 0
        for names in (run.parameters, run.averages, run.gradients):
            ends = list(accumulate((sizes[name] for name in names), initial=0))
            given |= {name: Segment(number, *span) for name, span in zip(names, pairwise(ends), strict=True)}
            numbers = max(numbers, ends[-1])
        given |= {name: Segment(number, 0, numbers) for name in run.slots}
        mine = [plan.spans[name][rank] for name in run.parameters]
        before = sum(start for start, _ in mine)
        spans[number] = before, before + sum(end - start for start, end in mine)
    sliced = SlicedUpdate(update.model.graph, segments_of(update.model.graph, given), spans)
    away = plan.away(rank)
    entries = [entry for entry in update.layout.of(*SHARED_OUT) if entry.output]
    kept = [entry for entry in entries if entry.name in plan.divided and entry.name not in away]
    for entry in kept:
        sliced.take(inputs[entry.name])
    vectors = [entry for entry in update.layout.of(RUNNING) if entry.output and len(known[entry.name]) == 1]
    for entry in (*kept, *vectors):
        sliced.output(outputs[entry.output])


# -- an update graph cut down to a part of its elements ----------------------------------------------------------------
#
# An optimizer moves each element by its own gradient and its own slots, so an update can be cut anywhere between two
# elements: what is moved is vectors, a slice of each parameter and slot. The gradients stay inputs whole, for the check
# for inf and NaN and their norm.

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
        """The part of the segment of an update that the spans ask for."""
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
    """Update shared out to ranks: cuts a row of segments into pieces of the given numbers of elements, of which it has
    enough."""
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
    """Update shared out to ranks: the number of elements in segments of its vectors."""
    return sum(segment.end - segment.start for segment in segments)


def _known_sizes(value: ir.Value) -> tuple[int, ...]:
    """Update shared out to ranks: the sizes of a value, or (0, 0), which no vector has, where they are open."""
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
        given = self.b.copy(part)
        given.name = name
        self.graph.outputs[list(self.graph.outputs).index(whole)] = given

    def _length(self, value: ir.Value) -> int:
        """How many elements of a value belong to this rank's part of the update."""
        return _length([segment.within(self.spans) for segment in self.segments[value]])

    def _part(self, value: ir.Value) -> ir.Value:
        """This rank's part of a value of the update, as a vector; what is no element of anything is whole."""
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
        """Update shared out to ranks: repeats a node on the parts of its operands and notes its results; empty parts
        are left out of a Concat or Split."""
        outputs = [value for value in node.outputs if self._length(value)]
        read = [value for value in node.inputs if value is not None]
        if has(node.op_type, "by_element"):
            made = [self.b.repeat_with(node, [None if value is None else self._part(value) for value in node.inputs])]
        elif len(outputs) < len(node.outputs) or len(outputs) > 1:
            made = split(self.b, self._part(read[0]), [self._length(value) for value in outputs])
        else:
            wanted = [value for value in read if self.segments.get(value) and self._length(value)]
            made = [self.b.joined([self._part(value) for value in wanted])]
        for whole, part in zip(outputs, made, strict=True):
            self._made[whole] = part if part.type is not None else self._vector(part, whole)
