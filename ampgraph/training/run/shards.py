"""ZeRO-1: which rank of a training updates which elements, and an update graph cut down to the part of one rank.

All parameters are put one behind another, each run (those that are moved together) as one vector, and are cut where
each rank has about as many numbers of slots as any other. Slots and averages are cut with them. The check for inf and
NaN and the norm stay whole on every rank, so that all decide alike without exchanging anything.
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


class _DividedRun:
    """A run of parameters that an update moves as one vector, as it is divided among ranks. ``tied``: state that is cut
    with the parameters -> the parameter at whose start it starts (slots are as long as the run, an average as its
    parameter); ``count``: elements of the run; ``whole``: one rank must update all of it."""

    def __init__(self, run: Run, sizes: Mapping[str, int]) -> None:
        self.parameters, self.sizes = run.parameters, [sizes[name] for name in run.parameters]
        self.count = sum(self.sizes)
        self.whole = run.whole or not all(self.sizes)
        averages = zip(run.averages, run.parameters, strict=bool(run.averages))
        self.tied = dict.fromkeys(run.slots, self.parameters[0]) | dict(averages)

    def cut(self, share: float) -> int:
        """Update shared out to ranks: the element of this run before which a rank's part ends that has this share of it
        (0 to 1): the nearest one at which a buffer may begin (`ALIGNED`), counted within its parameter."""
        if self.whole:
            return self.count * (share > 0.5)
        wanted, before = share * self.count, 0
        for size in self.sizes:
            if wanted <= before + size:
                return before + min(round((wanted - before) / ALIGNED) * ALIGNED, size)
            before += size
        return self.count


@dataclass(frozen=True)
class Shares:
    """Which elements of the state each rank updates."""

    order: tuple[str, ...]  # all parameters, one behind another
    spans: Mapping[str, tuple[Span, ...]]  # parameter, slot or average -> its elements of every rank
    divided: frozenset[str]  # what is not whole on one rank: of a run that is cut

    def states_elsewhere(self, rank: int) -> set[str]:
        """Update shared out to ranks: the names of the state of which ``rank`` has no element."""
        return {name for name, spans in self.spans.items() if spans[rank][0] == spans[rank][1]}


def shares(update: TrainingStep, sizes: Mapping[str, int], ranks: int) -> Shares:
    """Shares out the state of an update to ``ranks`` ranks; ``sizes``: how many numbers each tensor has."""
    runs = [_DividedRun(run, sizes) for run in update.layout.runs]
    order = tuple(name for run in runs for name in run.parameters)
    starts = dict(zip(order, accumulate((sizes[name] for name in order), initial=0), strict=False))
    borders = [0, *_rank_borders(runs, sizes, ranks), sum(run.count for run in runs)]
    spans: dict[str, tuple[Span, ...]] = {}
    divided: set[str] = set()
    for run in runs:
        names = {**{name: name for name in run.parameters}, **run.tied}
        start = starts[run.parameters[0]]
        if run.whole:
            owner = max(rank for rank in range(ranks) if borders[rank] <= start)
            ends = [0] * (owner + 1) + [1] * (ranks - owner)
            spans |= {name: tuple(pairwise(sizes[name] * end for end in ends)) for name in names}
            continue
        for name, first in names.items():
            ends = [min(max(border - starts[first], 0), sizes[name]) for border in borders]
            spans[name] = tuple(pairwise(ends))
        if any(start < border < start + run.count for border in borders):
            divided |= set(names)
    return Shares(order, spans, frozenset(divided))


def _rank_borders(runs: Sequence[_DividedRun], sizes: Mapping[str, int], ranks: int) -> Iterator[int]:
    """Update shared out to ranks: the element before which the part of each rank but the last ends, counted through all
    runs, so that ranks have about the same number of slots and averages (of parameters where there are none)."""
    weights = [sum(sizes[name] for name in run.tied) for run in runs]
    if not any(weights):
        weights = [run.count for run in runs]
    ends = list(accumulate(weights, initial=0))
    for rank in range(1, ranks):
        wanted = ends[-1] * rank / ranks
        start = 0
        for run, weight, before in zip(runs, weights, ends, strict=False):
            if wanted <= before + weight or run is runs[-1]:
                yield start + run.cut((wanted - before) / weight if weight else 0)
                break
            start += run.count


# -- the part of one rank ----------------------------------------------------------------------------------------------


def shard(update: TrainingStep, plan: Shares, rank: int) -> TrainingStep:
    """Cuts an update graph down, in place, to what one rank updates by a plan, and returns it with its layout. Of state
    that is divided among ranks (`Shares.divided`) it has this rank's part, a vector, as a `StateTensor` without shape;
    state of which the rank has no element is gone."""
    layout, graph = update.layout, update.model.graph
    away = plan.states_elsewhere(rank)
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
    """Update shared out to ranks: replaces, in place, the inputs and outputs of divided state by ones of this rank's
    part; `SlicedUpdate` writes what is between. Running states stay whole, but leave the vectors that they share."""
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
    away = plan.states_elsewhere(rank)
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
"""A range of elements: the first one, and the one behind the last."""


@dataclass(frozen=True)
class Segment:
    """What a value of an update holds: the elements ``start`` to before ``end`` of the run number ``run``, in order;
    None for elements of no run, which every rank has whole."""

    run: int | None
    start: int
    end: int

    def within(self, spans: Mapping[int, Span]) -> Segment:
        """Update shared out to ranks: the part of this segment that lies in a rank's ``spans`` (run -> range of its
        elements), maybe empty; all of it for elements of no run, or of a run that is not there."""
        low, high = (self.start, self.end) if self.run is None else spans.get(self.run, (self.start, self.end))
        low, high = max(low, self.start), min(high, self.end)
        return replace(self, start=low, end=max(low, high))


def segments_of(graph: ir.Graph, given: Mapping[str, Segment]) -> dict[ir.Value, list[Segment]]:
    """Update shared out to ranks: for each value which segments it holds, side by side, from those that its inputs hold
    (``given``, by name). Values that are not computed element by element, as norms and scalars, are not in it."""
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
    """Update shared out to ranks: cuts segments, side by side, into pieces of ``sizes`` elements, of which they have
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
    """Adds to an update graph the computation of one rank's part of its elements: nodes that work on parts, from new
    inputs (`take`) to replaced outputs (`output`). The old nodes stay, and are to be dropped where nothing reads them.
    ``segments``: as `segments_of` gives them; ``spans``: run -> the range of its elements that the rank has."""

    def __init__(self, graph: ir.Graph, segments: Mapping[ir.Value, list[Segment]], spans: Mapping[int, Span]) -> None:
        self.graph, self.segments, self.spans = graph, segments, spans
        self.b = Builder(graph, "step/part")
        self._made: dict[ir.Value, ir.Value] = {}  # value -> this rank's part of it

    def take(self, state: ir.Value) -> None:
        """Update shared out to ranks: gives the graph an input of this rank's part of a state, a vector, under the
        state's name. Must be called for all divided state before any `output`, which would cut a part out of a state
        that was not taken yet, as of an input that every rank holds whole."""
        part = ir.Value(name=state.name, type=state.type, shape=ir.Shape([self._length(state)]))
        state.name = self.b.fresh(f"whole/{state.name}")
        self.graph.inputs.append(part)
        self._made[state] = part

    def output(self, whole: ir.Value) -> None:
        """Update shared out to ranks: replaces an output by this rank's part of it, under its name."""
        part = self._part(whole)
        name, whole.name = whole.name, self.b.fresh(f"whole/{whole.name}")
        given = self.b.copy(part)
        given.name = name
        self.graph.outputs[list(self.graph.outputs).index(whole)] = given

    def _length(self, value: ir.Value) -> int:
        """Update shared out to ranks: how many elements of a value this rank has."""
        return _length([segment.within(self.spans) for segment in self.segments[value]])

    def _part(self, value: ir.Value) -> ir.Value:
        """Update shared out to ranks: this rank's part of a value, as a vector, made once; a value without segments, as
        a norm or the loss scale, whole."""
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
        """Update shared out to ranks: this rank's elements of an input that every rank holds whole, as a vector."""
        [whole], [part] = self.segments[value], [one.within(self.spans) for one in self.segments[value]]
        flat = value if len(_known_sizes(value)) == 1 else self.b.op("Reshape", value, self.b.ints(-1))
        if part == whole:
            return self._vector(flat, value) if flat is not value else value
        ends = self.b.ints(part.start - whole.start), self.b.ints(part.end - whole.start)
        return self._vector(self.b.op("Slice", flat, *ends), value)

    def _vector(self, made: ir.Value, whole: ir.Value) -> ir.Value:
        """Update shared out to ranks: sets the type of ``made``, this rank's part of ``whole``, and its length."""
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
