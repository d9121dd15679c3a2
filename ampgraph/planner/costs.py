"""Turns the undecided part of a dataflow into a minimum-cut problem, in bytes."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ..core.dataflow import NONE, Dataflow, Op
from .cut import INFINITE, LAUNCH, Net, Problem, Tally
from .decisions import FREE, LOW, Decisions
from .options import Options

STORED_BYTE = 32
"""Bytes moved that a stored byte counts for: it is paid in the file, in transfers and in memory for good."""

STORED_TWICE_LIMIT = 1 << 20  # bytes of float32: a larger tensor is never stored in both types


@dataclass(frozen=True)
class CutTask:
    """What the cut is asked: a model with decisions. ``worth``: by free unit, what a byte saved there is worth, 1 where
    none is given; ``counted``: float values that hold integers, which are never rounded and widened again; ``fused``:
    float32 operators that the target's runtime takes into one kernel with the Casts around them; ``joined``: values
    whose writer and reader it makes one kernel of, while both have one type."""

    flow: Dataflow
    options: Options
    decisions: Decisions
    worth: Mapping[int, int] = field(default_factory=dict)
    counted: Collection[int] = frozenset()
    fused: Collection[int] = frozenset()
    joined: Collection[int] = frozenset()

    @property
    def costs(self) -> Costs:
        """Sizes of the model's values."""
        return Costs(self.flow, self.options)


SMALLEST_CAST = 6 + LAUNCH  # of one element


class Costs:
    """Sizes of values, computed when they are asked for: most units are settled without."""

    def __init__(self, flow: Dataflow, options: Options) -> None:
        self.flow, self.named, self.together = flow, options.dims, options.cast_together
        self._elements: dict[int, int] = {}
        self.classes = size_classes(flow, options)

    def elements(self, value: int) -> int:
        found = self._elements.get(value)
        if found is None:
            item = self.flow.values[value]
            root = self.classes[value]
            if item.weight:
                found = self.flow.weights.size(item)
            elif root != value and not self._is_static(value):
                found = self.elements(root)  # a guess must be the same on both sides of a Transpose
            else:
                found = math.prod(self.flow.dims(self._known(value), self.named))
            self._elements[value] = found = max(found, 1)
        return found

    def _known(self, value: int) -> int:
        """A value of the same size whose shape is known, where there is one."""
        if self._is_static(value):
            return value
        return next((member for member in self._members.get(value, ()) if self._is_static(member)), value)

    @cached_property
    def _members(self) -> Mapping[int, Sequence[int]]:
        """By value, those further down that have its size."""
        members: dict[int, list[int]] = {}
        for value, root in enumerate(self.classes):
            if value != root:
                members.setdefault(root, []).append(value)
        return members

    def _is_static(self, value: int) -> bool:
        shape = self.flow.shape(value)
        return shape is not None and all(isinstance(dim, int) for dim in shape)

    def cast(self, value: int) -> int:
        """A Cast reads 4 and writes 2 bytes an element, or the reverse."""
        launch = 0 if self.is_cast_with_others(value) else LAUNCH
        return (6 * self.elements(value) + launch) * self.flow.scopes[self.flow.values[value].scope].times

    def is_cast_with_others(self, value: int) -> bool:
        """Whether one node casts it and many more: no kernel is started for it alone."""
        return self.together > 0 and self.flow.values[value].default and self.elements(value) <= self.together


def build_problem(task: CutTask, costs: Costs, settle: bool = True) -> Problem:
    """Nets and costs around the free units. Shapes are asked for only where a choice depends on them.

    Without ``settle`` every choice is left to the solver: slower, and the same.
    """
    flow, decisions = task.flow, task.decisions
    undecided = {root for root in decisions.roots if decisions.sides[root] == FREE}
    around = _around(task, undecided)
    settled = _settle_unsized(task, costs, undecided, around) if settle else {}
    problem = Problem(fixed=dict(settled))
    remaining = undecided - set(settled)
    for value in around if remaining else ():
        net = net_of(task, value, costs, remaining)
        if net is not None:
            problem.nets.append(net)
    for net in problem.nets:
        for unit in (*net.readers, net.writer):
            if unit is not None and unit not in undecided:
                problem.fixed[unit] = decisions.sides[unit]
    problem.extra = dict.fromkeys(sorted(remaining), 0)
    owners = {unit.op for unit in flow.units if decisions.roots[unit.id] in remaining} if remaining else set[int]()
    for op in sorted(owners - {NONE}):
        add_extra(task, flow.ops[op], costs, problem)
    return problem


def _around(task: CutTask, undecided: set[int]) -> list[int]:
    """Values that an undecided unit writes or reads, in their order."""
    roots = task.decisions.roots
    free = {unit.id for unit in task.flow.units if roots[unit.id] in undecided}
    return [
        item.id
        for item, uses in zip(task.flow.values, task.flow.uses, strict=True)
        if item.unit in free or any(use.unit in free for use in uses)
    ]


def net_of(task: CutTask, value: int, costs: Costs | None, undecided: set[int]) -> Net | None:
    """The net of a value with at least one undecided unit; unit costs when ``costs`` is None."""
    flow, roots = task.flow, task.decisions.roots
    item = flow.values[value]
    readers = {roots[use.unit] for use in flow.uses[value] if use.unit != NONE and use.op not in task.fused}
    writer = roots[item.unit] if item.unit != NONE and item.producer not in task.fused else None
    members = readers if writer is None else readers | {writer}
    if not readers or members.isdisjoint(undecided) or (writer is None and not item.weight):
        return None
    if len(members) == 1 and writer is not None:
        return None
    if item.weight:
        byte = 1 if readers <= task.worth.keys() else STORED_BYTE  # grids and anchors: too small to trade digits for
        up, down = _weight_costs(flow, value, costs, byte)
        return Net(None, frozenset(readers), up, down)
    price = costs.cast(value) if costs else 1
    if value in task.joined:  # two kernels for one: another start, and the value is written and read in 2 or 4 bytes
        price *= 2
    up = INFINITE if value in task.counted else price  # integers made float are never rounded and widened again
    return Net(writer, frozenset(readers), up, price)


def _weight_costs(flow: Dataflow, value: int, costs: Costs | None, byte: int) -> tuple[int, int]:
    """2 bytes an element for a tensor that must stay float32, 4 for one stored twice; a large one is cast instead."""
    if costs is None:
        return 4, 2
    elements = costs.elements(value)
    if 4 * elements <= STORED_TWICE_LIMIT and (flow.parameters_copied or not flow.values[value].parameter):
        return 4 * elements * byte, 2 * elements * byte
    return 2 * elements * STORED_BYTE + costs.cast(value), costs.cast(value)


def _settle_unsized(task: CutTask, costs: Costs, undecided: set[int], around: Sequence[int]) -> dict[int, int]:
    """Units that are low whatever the sizes are: no net of a value ``around`` them is dearer for it, and what stored
    tensors cost more, whose sizes are known, is less than the least that these save."""
    flow = task.flow
    nets: list[Net] = []
    sizes: list[tuple[int, int]] = []  # nets of one entry have costs in one proportion: at least the second number
    for value in map(flow.values.__getitem__, around):
        sized = value.weight or costs.is_cast_with_others(value.id)
        net = net_of(task, value.id, costs if sized else None, undecided)
        if net is not None:
            nets.append(net)
            least = SMALLEST_CAST * flow.scopes[value.scope].times
            sizes.append((NONE, 1) if sized else (costs.classes[value.id], least))
    fixed = {
        u: task.decisions.sides[u]
        for net in nets
        for u in (*net.readers, net.writer)
        if u is not None and u not in undecided
    }
    tally = Tally(nets, fixed, sorted(undecided))
    settled: dict[int, int] = {}
    work = [unit for unit in sorted(undecided) if task.worth.get(unit, 1) >= 0]
    while work:
        queued: dict[int, None] = {}
        for unit in work:
            if unit in tally.side:
                continue
            worst = {(NONE, 1): 0}
            for number in tally.by_unit[unit]:
                worst[sizes[number]] = worst.get(sizes[number], 0) + tally.delta(number, unit)[1]
            stored = worst.pop((NONE, 1))
            if all(cost <= 0 for cost in worst.values()) and stored <= -sum(worst[size] * size[1] for size in worst):
                settled[unit] = LOW
                tally.settle(unit, LOW)
                queued.update(dict.fromkeys(tally.neighbours(unit)))
        work = [unit for unit in queued if unit not in tally.side and task.worth.get(unit, 1) >= 0]
    return settled


def size_classes(flow: Dataflow, options: Options) -> list[int]:
    """For every value one of the same size further up, through operators that keep the number of elements."""
    classes = list(range(len(flow.values)))
    same_size = options.lists.traits.operators("same_size")
    for value in flow.values:  # writers come before what they write, their inputs before them
        op = flow.writer(value.id)
        if op is not None and op.role in same_size and op.inputs[0] != NONE and op.outputs[0] == value.id:
            classes[value.id] = classes[op.inputs[0]]
    return classes


def add_extra(task: CutTask, op: Op, costs: Costs, problem: Problem) -> None:
    """A free operation moves 2 bytes an element more in float32, or saves them where no product follows."""
    flow, roots = task.flow, task.decisions.roots
    for slot in op.slots.values():
        unit = roots[slot]
        if unit not in problem.extra or flow.units[slot].border:
            continue
        values = {v for v in op.outputs if flow.values[v].unit != NONE and roots[flow.values[v].unit] == unit}
        values |= {
            v
            for v in op.inputs
            if v != NONE
            and not flow.values[v].weight
            and any(u.op == op.id and u.unit != NONE and roots[u.unit] == unit for u in flow.uses[v])
        }
        moved = sum(2 * costs.elements(v) for v in values) * flow.scopes[op.scope].times
        problem.extra[unit] += moved * task.worth.get(unit, 1)
