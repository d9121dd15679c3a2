"""The units that are left to the cut, and what it asks of what is around them.

Shapes are inferred only where bounds of sizes leave a doubt, as inferring takes longer than the cut itself: what speaks
for the low type is taken for as small as it can be, what draws to float32 for as large. If nothing is float32 then,
nothing is by the sizes as they are: the flow that fills every sink here is one there too, where no sink is larger, and
all else no smaller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from ..core.dataflow import NONE
from .costs import Costs, CutTask, extra_of, net_of
from .cut import INFINITE, Net, OpenProblem, solve
from .decisions import FREE, HIGH, LOW

NOBODY = -1
"""In place of the side of who writes what no unit does."""
FAR = 16  # values: how far a bound is looked for


def float32_units(task: CutTask) -> set[int]:
    """The free units that are float32 in the cheapest plan."""
    problem = Undecided(task, task.costs)
    problem.bounds = Bounds(problem.costs, least=True), Bounds(problem.costs, least=False)
    if problem.is_bounded() and not solve(problem):
        return set()
    problem.bounds = None
    return solve(problem)


class Undecided(OpenProblem):
    """The free units of a model with decisions; the number of a net is that of its value.

    ``bounds``: the least and the most that values may be, in place of their sizes."""

    def __init__(self, task: CutTask, costs: Costs) -> None:
        self.task, self.costs = task, costs
        self.bounds: tuple[Costs, Costs] | None = None
        self._sides, self._roots = task.decisions.sides, task.decisions.roots
        self._values: dict[int, list[int]] = {}  # by free unit
        self._drawing = self._survey()

    def side(self, unit: int) -> int:
        return self._sides[unit]

    def extra(self, unit: int) -> int:
        if self.bounds is not None and self.task.worth.get(unit, 1) >= 0:
            return 0
        flow, costs = self.task.flow, self.costs if self.bounds is None else self.bounds[1]
        ops = sorted({flow.units[one].op for one in self._tied[unit]} - {NONE})
        return extra_of(self.task, unit, map(flow.ops.__getitem__, ops), costs)

    def nets_of(self, unit: int) -> Sequence[int]:
        return self._values.get(unit, ())

    def net(self, number: int) -> Net | None:
        if self.bounds is None:
            return net_of(self.task, number, self.costs)
        least, most = self.bounds
        net = net_of(self.task, number, least)
        if net is None or net.writer is None:
            return net
        writer = self.side(net.writer)
        if writer == HIGH or (writer == FREE and any(self.side(reader) == HIGH for reader in net.readers)):
            large = net_of(self.task, number, most)
            assert large is not None
            net.up, net.down = (large.up, net.down) if writer == FREE else (net.up, large.down)
        return net

    def drawing(self) -> tuple[Iterable[int], Iterable[int]]:
        dear = [unit for unit, worth in self.task.worth.items() if worth < 0 and self._sides[unit] == FREE]
        return self._drawing, sorted(dear)

    def is_bounded(self) -> bool:
        """Whether all that draws to float32 has a bound."""
        assert self.bounds is not None
        most, (values, units) = self.bounds[1], self.drawing()
        return all(most.elements(v) < INFINITE for v in values) and all(-self.extra(u) < INFINITE for u in units)

    @cached_property
    def _tied(self) -> Mapping[int, Sequence[int]]:
        """By free unit, those for which it decides."""
        tied: dict[int, list[int]] = {}
        for unit, root in enumerate(self._roots):
            if self._sides[root] == FREE:
                tied.setdefault(root, []).append(unit)
        return tied

    def _survey(self) -> list[int]:
        """Goes over all values once: notes those around free units, and gives those that may draw some to float32."""
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


class Bounds(Costs):
    """Sizes of stored tensors, and of what goes in and out of the model; of others the ``least`` or the most.

    No value is smaller than what it is made of element by element, an element at least, and none is larger than what is
    made of it so; INFINITE where that leads to no known size."""

    def __init__(self, exact: Costs, least: bool) -> None:
        super().__init__(exact.flow, exact.options)
        self._exact, self._least, main = exact, least, exact.flow.scopes[0]
        traits = exact.options.lists.traits
        self._by_element, self._same_size = traits.operators("by_element"), traits.operators("same_size")
        self._declared = {*main.inputs, *main.outputs}

    def elements(self, value: int) -> int:
        return max(self._known(value), default=1) if self._least else min(self._known(value), default=INFINITE)

    def _known(self, value: int) -> Iterator[int]:
        """Known sizes of a value and of those that it leads to."""
        work, further = [value], self._no_larger if self._least else self._no_smaller
        for one in work:
            if self.flow.values[one].weight or one in self._declared:
                yield self._exact.elements(one)
            elif len(work) < FAR:
                work += [other for other in further(one) if other != NONE]

    def _no_larger(self, value: int) -> Iterator[int]:
        op = self.flow.writer(value)
        if op is not None and op.outputs[0] == value and op.role in self._by_element:
            yield from op.inputs
        elif op is not None and op.outputs[0] == value and op.role in self._same_size:
            yield op.inputs[0]
        for reader in self.flow.readers(value):
            if reader.inputs[0] == value and reader.role in self._same_size:
                yield reader.outputs[0]

    def _no_smaller(self, value: int) -> Iterator[int]:
        for op in self.flow.readers(value):
            if op.role in self._by_element or (op.inputs[0] == value and op.role in self._same_size):
                yield op.outputs[0]
