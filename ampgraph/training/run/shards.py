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

from ..step.cut import drop_unread
from ..step.sliced_update import Segment, SlicedUpdate, Span, segments_of
from ..step.state_tensors import AVERAGE, PARAMETER, RUNNING, SLOT, StateTensor
from ..step.training_step import Run, TrainingStep
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
    """The update of one rank's part; its model is changed. What is divided is vectors there."""
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
