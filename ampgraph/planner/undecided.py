"""The units that are left to the cut, and what it asks of what is around them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from ..core.dataflow import NONE
from .costs import Costs, CutTask, extra_of, net_of
from .cut import Net, OpenProblem, solve
from .decisions import FREE, HIGH, LOW

NOBODY = -1
"""In place of the side of who writes what no unit does."""


def float32_units(task: CutTask) -> set[int]:
    """The free units that are float32 in the cheapest plan."""
    return solve(Undecided(task, task.costs))


class Undecided(OpenProblem):
    """The free units of a model with decisions; the number of a net is that of its value."""

    def __init__(self, task: CutTask, costs: Costs) -> None:
        self.task, self.costs = task, costs
        self._sides, self._roots = task.decisions.sides, task.decisions.roots
        self._values: dict[int, list[int]] = {}  # by free unit
        self._drawing = self._survey()

    def side(self, unit: int) -> int:
        """The side of a unit; FREE for one that the cut decides."""
        return self._sides[unit]

    def extra(self, unit: int) -> int:
        """What the unit's operators cost in float32 beside low ones, in bytes."""
        flow = self.task.flow
        ops = sorted({flow.units[one].op for one in self._tied[unit]} - {NONE})
        return extra_of(self.task, unit, map(flow.ops.__getitem__, ops), self.costs)

    def nets_of(self, unit: int) -> Sequence[int]:
        """Numbers of the values that the unit's operators read or write."""
        return self._values.get(unit, ())

    def net(self, number: int) -> Net | None:
        """What a Cast of a value costs, and the units on either side; None where no unit that is free has a part in
        it."""
        return net_of(self.task, number, self.costs)

    def drawing(self) -> tuple[Iterable[int], Iterable[int]]:
        """Where the search for float32 begins: at units that are float32 beside free ones, and at those that are dear
        in low."""
        dear = [unit for unit, worth in self.task.byte_worth.items() if worth < 0 and self._sides[unit] == FREE]
        return self._drawing, sorted(dear)

    @cached_property
    def _tied(self) -> Mapping[int, Sequence[int]]:
        """By unit that is free and decides for others (a root): those others, itself among them."""
        tied: dict[int, list[int]] = {}
        for unit, root in enumerate(self._roots):
            if self._sides[root] == FREE:
                tied.setdefault(root, []).append(unit)
        return tied

    def _survey(self) -> list[int]:
        """Notes the values around free units; gives the units that may draw some of them to float32."""
        flow, roots, fused = self.task.flow, self._roots, self.task.fused
        side = [*(self._sides[root] for root in roots), NOBODY]  # NONE, -1, is the last
        drawing = []
        for value, (item, uses) in enumerate(zip(flow.values, flow.uses, strict=True)):
            writer = NOBODY if item.weight else side[item.unit]
            readers = [side[use.unit] for use in uses if use.op not in fused]
            if writer == FREE:
                self._values.setdefault(roots[item.unit], []).append(value)
            if FREE in readers:
                for use in uses:
                    if side[use.unit] == FREE:
                        self._values.setdefault(roots[use.unit], []).append(value)
            if _draws(writer, readers, item.weight):
                drawing.append(value)
        return drawing


def _draws(writer: int, readers: Sequence[int], stored: bool) -> bool:
    """Whether a value may make float32 cheaper for a free unit whatever the others are. Storing a tensor in float32
    alone costs as much as in the low type alone, at least."""
    if writer == FREE:
        return HIGH in readers
    return FREE in readers and LOW not in readers and (writer == HIGH or (stored and HIGH in readers))
