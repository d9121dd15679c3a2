"""Which rank updates which elements: an update graph cut down to the part of one of them (ZeRO-1).

All parameters stand one behind another, those that are moved together side by side, and are cut where each rank has as
many numbers of slots as any other. Slots and averages are cut with them. The check for inf and NaN and the norm stay
whole on every rank, so all decide alike without a word between them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import onnx_ir as ir

from ...step.cut import drop_unread
from ...step.element_layouts import ElementLayouts, Layout
from ...step.sliced_update import SlicedUpdate, Span
from ...step.state_tensors import AVERAGE, PARAMETER, SLOT, StateTensor
from ...step.training_step import TrainingStep
from ..flat_buffer import ALIGNED

SHARED_OUT = (PARAMETER, SLOT, AVERAGE)


@dataclass(frozen=True)
class MovedTogether:
    """Parameters that are moved together, in the order of their elements in common slots, and the other state that is
    cut with them: the name of each, and its first parameter. ``whole``: it must not be cut."""

    parameters: tuple[str, ...]
    others: Mapping[str, str]
    whole: bool


@dataclass(frozen=True)
class Shares:
    """``order``: the parameters; ``spans``: for each state that is shared out, the elements of every rank."""

    order: tuple[str, ...]
    spans: Mapping[str, tuple[Span, ...]]
    divided: frozenset[str]  # state of which some rank has a part

    def away(self, rank: int) -> set[str]:
        """What a rank does not hold."""
        return {name for name, spans in self.spans.items() if spans[rank][0] == spans[rank][1]}


def shares(update: TrainingStep, gradients: Collection[str], sizes: Mapping[str, int], ranks: int) -> Shares:
    """Shares out what is updated; ``sizes``: the numbers of every state."""
    found = list(_units(update, gradients, sizes))
    order = tuple(name for unit in found for name in unit.parameters)
    starts = dict(zip(order, _sums([sizes[name] for name in order]), strict=False))
    borders = [0, *_borders(found, sizes, ranks), sum(sizes[name] for name in order)]
    spans: dict[str, tuple[Span, ...]] = {}
    divided: set[str] = set()
    for unit in found:
        names = {**{name: name for name in unit.parameters}, **unit.others}
        if unit.whole:
            start = starts[unit.parameters[0]]
            owner = max(rank for rank in range(ranks) if borders[rank] <= start)
            ends = [0] * (owner + 1) + [1] * (ranks - owner)
            spans |= {name: tuple(pairwise(sizes[name] * end for end in ends)) for name in names}
            continue
        for name, first in names.items():
            ends = [min(max(border - starts[first], 0), sizes[name]) for border in borders]
            spans[name] = tuple(pairwise(ends))
        cut = starts[unit.parameters[0]], starts[unit.parameters[-1]] + sizes[unit.parameters[-1]]
        if any(cut[0] < border < cut[1] for border in borders):
            divided |= set(names)
    return Shares(order, spans, frozenset(divided))


def _sums(sizes: Sequence[int]) -> list[int]:
    found = [0]
    for size in sizes:
        found.append(found[-1] + size)
    return found


def _borders(units: Sequence[MovedTogether], sizes: Mapping[str, int], ranks: int) -> Iterator[int]:
    """Where one rank's elements end and the next one's begin."""
    slots = [sum(sizes[name] for name in unit.others) for unit in units]
    if not any(slots):
        slots = [sum(sizes[name] for name in unit.parameters) for unit in units]
    ends = _sums(slots)
    for rank in range(1, ranks):
        wanted = ends[-1] * rank / ranks
        start = 0
        for unit, weight, before in zip(units, slots, ends, strict=False):
            if wanted <= before + weight or unit is units[-1]:
                share = (wanted - before) / weight if weight else 0
                yield start + _cut(unit, sizes, share)
                break
            start += sum(sizes[name] for name in unit.parameters)


def _cut(unit: MovedTogether, sizes: Mapping[str, int], share: float) -> int:
    """The element of a unit nearest to a share of it at which it may be cut: parts begin where a buffer is aligned."""
    whole = sum(sizes[name] for name in unit.parameters)
    if unit.whole:
        return whole * (share > 0.5)
    wanted, before = share * whole, 0
    for name in unit.parameters:
        if wanted <= before + sizes[name]:
            return before + min(round((wanted - before) / ALIGNED) * ALIGNED, sizes[name])
        before += sizes[name]
    return whole


# -- what is moved together --------------------------------------------------------------------------------------------


def _units(update: TrainingStep, gradients: Collection[str], sizes: Mapping[str, int]) -> Iterator[MovedTogether]:
    entries = [entry for entry in update.layout.of(*SHARED_OUT) if entry.output]
    layouts = layouts_of(update, entries, gradients)
    inputs = {value.name: value for value in update.model.graph.inputs}
    held = {entry.name: _layout(layouts, inputs[entry.name]) for entry in entries}
    parameters = [entry.name for entry in entries if entry.kind == PARAMETER]
    owners = {held[name].root(): name for name in parameters}
    for names in _together(update, entries):
        mine = [name for name in parameters if name in names]
        if not mine:
            continue
        orders = {name: [owners.get(atom, "") for atom in held[name].atoms()] for name in names}
        longest = max(orders.values(), key=len)
        fits = sorted(longest) == sorted(mine) and all(order == longest or len(order) == 1 for order in orders.values())
        whole = not fits or any(held[name].whole for name in names) or not all(sizes[name] for name in mine)
        others = {name: mine[0] if whole else orders[name][0] for name in sorted(set(names) - set(mine))}
        yield MovedTogether(tuple(mine if whole else longest), others, whole)


def layouts_of(update: TrainingStep, entries: Sequence[StateTensor], gradients: Collection[str]) -> ElementLayouts:
    return ElementLayouts(update.model.graph, {entry.name for entry in entries}, gradients)


def _layout(layouts: ElementLayouts, value: ir.Value) -> Layout:
    found = layouts.of(value)
    assert found is not None
    return found


def _together(update: TrainingStep, entries: Sequence[StateTensor]) -> list[list[str]]:
    """State whose updates read one another."""
    made = {value.name: value for value in update.model.graph.outputs}
    together = {entry.name: {entry.name} for entry in entries}
    for entry in entries:
        for name in _read(made[entry.output]) & set(together):
            joined = together[entry.name] | together[name]
            together |= dict.fromkeys(joined, joined)
    return list({id(names): sorted(names) for names in together.values()}.values())


def _read(value: ir.Value) -> set[str]:
    """The inputs that a value depends on."""
    found, seen, open_values = set(), set(), [value]
    while open_values:
        value = open_values.pop()
        if value in seen:
            continue
        seen.add(value)
        if (node := value.producer()) is None:
            found.add(value.name or "")
        else:
            open_values += [read for read in node.inputs if read is not None]
    return found


# -- the part of one rank ----------------------------------------------------------------------------------------------


def shard(update: TrainingStep, gradients: Collection[str], plan: Shares, rank: int) -> TrainingStep:
    """The update of one rank's part; its model is changed. What is divided is vectors there."""
    layout, graph = update.layout, update.model.graph
    away = plan.away(rank)
    _slice(update, gradients, plan, rank)
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


def _slice(update: TrainingStep, gradients: Collection[str], plan: Shares, rank: int) -> None:
    """What is divided becomes this rank's part of it."""
    entries = [entry for entry in update.layout.of(*SHARED_OUT) if entry.output]
    layouts = layouts_of(update, entries, gradients)
    inputs = {value.name: value for value in update.model.graph.inputs}
    outputs = {value.name: value for value in update.model.graph.outputs}
    spans = {_layout(layouts, inputs[name]).root(): plan.spans[name][rank] for name in plan.order}
    sliced = SlicedUpdate(update.model.graph, layouts, spans)
    away = plan.away(rank)
    mine = [entry for entry in entries if entry.name in plan.divided and entry.name not in away]
    for entry in mine:
        sliced.take(inputs[entry.name])
    for entry in mine:
        sliced.output(outputs[entry.output])
