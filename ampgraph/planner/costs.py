"""What the cut is asked of a dataflow: sizes of values and prices of choices, in bytes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ..core.dataflow import NONE, Dataflow, Op
from ..oplists.options import Options
from .cut import INFINITE, LAUNCH, Net
from .decisions import Decisions

STORED_BYTE = 32
"""Bytes moved that a stored byte counts for: it is paid in the file, in transfers and in memory for good."""

STORED_TWICE_LIMIT = 1 << 20  # bytes of float32: a larger tensor is never stored in both types


@dataclass(frozen=True)
class CutTask:
    """What the cut is asked: a model with decisions. ``byte_worth``: by free unit, what a byte saved there is worth, 1
    where none is given; ``integer_valued``: float values that hold integers, which are never rounded and widened again;
    ``fused``: float32 operators that the target's runtime takes into one kernel with the Casts around them."""

    flow: Dataflow
    options: Options
    decisions: Decisions
    byte_worth: Mapping[int, int] = field(default_factory=dict)
    integer_valued: Collection[int] = frozenset()
    fused: Collection[int] = frozenset()
    _reads: dict[int, set[tuple[int, int]]] = field(default_factory=dict, init=False, repr=False)

    def reads(self, value: int) -> Collection[tuple[int, int]]:
        """Operators that read a float32 value, each with the unit that decides how: asked for as often as there are
        readers."""
        found = self._reads.get(value)
        if found is None:
            roots, uses = self.decisions.roots, self.flow.uses[value]
            found = self._reads[value] = {(use.op, roots[use.unit]) for use in uses if use.unit != NONE}
        return found

    @property
    def costs(self) -> Costs:
        """Sizes of the model's values."""
        return Costs(self.flow, self.options)


class Costs:
    """Sizes of values in elements and prices of their Casts in bytes, each computed when the cut asks for it."""

    def __init__(self, flow: Dataflow, options: Options) -> None:
        self.flow, self.options = flow, options
        self.dims, self.cast_together = options.dims, options.cast_together
        self._elements: dict[int, int] = {}

    def elements(self, value: int) -> int:
        """The number of elements of a value, at least 1; guessed where its shape is open."""
        found = self._elements.get(value)
        if found is None:
            item = self.flow.values[value]
            if item.weight:
                found = self.flow.weights.size(item)
            elif self._is_static(value):
                found = math.prod(self.flow.dims(value, self.dims))
            else:
                found = self._guessed(value)
            self._elements[value] = found = max(found, 1)
        return found

    def _guessed(self, value: int) -> int:
        """The number of elements of a value without a shape: that of a value known to have as many, if there is one."""
        root = self._roots[value]
        if root != value:
            return self.elements(root)  # a guess must be the same on both sides of a Transpose
        known = next((member for member in self._members.get(value, ()) if self._is_static(member)), value)
        return math.prod(self.flow.dims(known, self.dims))

    @cached_property
    def _roots(self) -> Sequence[int]:
        """For each value, by id, the value whose guessed size holds for all of its size."""
        return same_size_roots(self.flow, self.options)

    @cached_property
    def _members(self) -> Mapping[int, Sequence[int]]:
        """Root -> the values further down that have its size."""
        members: dict[int, list[int]] = {}
        for value, root in enumerate(self._roots):
            if value != root:
                members.setdefault(root, []).append(value)
        return members

    def _is_static(self, value: int) -> bool:
        """Whether every dimension is known as a number."""
        shape = self.flow.shape(value)
        return shape is not None and all(isinstance(dim, int) for dim in shape)

    def cast(self, value: int) -> int:
        """A Cast reads 4 and writes 2 bytes an element, or the reverse."""
        return 6 * self.elements(value) * self._times(value) + LAUNCH * self.starts(value)

    def starts(self, value: int) -> int:
        """How many kernels are started to cast a value."""
        return 0 if self.is_cast_with_others(value) else self._times(value)

    def _times(self, value: int) -> int:
        """How often the scope runs that makes a value: once, or more in a loop's body."""
        return self.flow.scopes[self.flow.values[value].scope].times

    def is_cast_with_others(self, value: int) -> bool:
        """Whether the value's Cast is part of a node that casts many, so that it starts no kernel of its own."""
        return self.cast_together > 0 and self.flow.values[value].default and self.elements(value) <= self.cast_together


def net_of(task: CutTask, value: int, costs: Costs) -> Net | None:
    """What is paid where a value's writer and its readers have different types: its Casts, or how a stored tensor is
    kept; None where one unit decides for all of them."""
    flow, roots = task.flow, task.decisions.roots
    item = flow.values[value]
    readers = frozenset([roots[use.unit] for use in flow.uses[value] if use.unit != NONE and use.op not in task.fused])
    writer = roots[item.unit] if item.unit != NONE and item.producer not in task.fused else None
    if not readers or (writer is None and not item.weight) or (writer is not None and readers == {writer}):
        return None
    if item.weight:
        byte = (
            1 if readers <= task.byte_worth.keys() else STORED_BYTE
        )  # grids and anchors: too small to trade digits for
        up, down = _weight_costs(flow, value, costs, byte)
        return Net(None, readers, up, down)
    price = costs.cast(value)
    up = 0 if task.options.kernels.raises_inside else price
    if value in task.integer_valued:  # integers made float are never rounded and widened again
        up = INFINITE
    return Net(writer, readers, up, price)


def _weight_costs(flow: Dataflow, value: int, costs: Costs, byte: int) -> tuple[int, int]:
    """2 bytes an element for a tensor that must stay float32, 4 for one stored twice; a large one is cast instead."""
    elements = costs.elements(value)
    if 4 * elements <= STORED_TWICE_LIMIT and (flow.parameters_copied or not flow.values[value].parameter):
        return 4 * elements * byte, 2 * elements * byte
    return 2 * elements * STORED_BYTE + costs.cast(value), costs.cast(value)


def same_size_roots(flow: Dataflow, options: Options) -> list[int]:
    """For each value, by id, the id of a value of the same size, as far up as operators keep the number of elements.

    It is the value itself where there is none: two values with one root have the same size.
    """
    roots = list(range(len(flow.values)))
    same_size = options.lists.traits.operators("same_size")
    for value in flow.values:  # writers come before what they write, their inputs before them
        op = flow.writer(value.id)
        if op is not None and op.role in same_size and op.inputs[0] != NONE and op.outputs[0] == value.id:
            roots[value.id] = roots[op.inputs[0]]
    return roots


def extra_of(task: CutTask, unit: int, ops: Iterable[Op], costs: Costs) -> int:
    """What a unit costs in float32 where it decides for these operators: 2 bytes an element more are moved, or saved
    where no product follows."""
    roots, units = task.decisions.roots, task.flow.units
    moved = 0
    for op in ops:
        slots = [slot for slot in op.slots.values() if roots[slot] == unit and not units[slot].crosses]
        moved += len(slots) * _float32_surplus(task, op, unit, costs) if slots else 0
    return moved * task.byte_worth.get(unit, 1)


def _float32_surplus(task: CutTask, op: Op, unit: int, costs: Costs) -> int:
    """Bytes that an operator reads and writes more where a unit is float32: 2 for each element of the values of that
    unit, as often as its scope runs. Stored tensors are left out."""
    values, roots = task.flow.values, task.decisions.roots
    found = {v for v in op.outputs if values[v].unit != NONE and roots[values[v].unit] == unit}
    reads = op.id, unit
    found |= {v for v in op.inputs if v != NONE and not values[v].weight and reads in task.reads(v)}
    return sum(2 * costs.elements(v) for v in found) * task.flow.scopes[op.scope].times
