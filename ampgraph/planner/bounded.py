"""The cut by what is known of sizes before shapes are inferred, which takes longer than the cut itself.

What speaks for the low type is taken for as small as it can be, what draws to float32 for as large. If nothing is
float32 then, nothing is by the sizes as they are: the flow that fills every sink here is one there too, where no sink
is larger, and all else no smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ..core.dataflow import NONE
from .costs import Costs, CutTask
from .cut import INFINITE, Net, OpenProblem, solve
from .decisions import FREE, HIGH
from .undecided import Undecided

FAR = 16  # values: how far a bound is looked for


def float32_units(task: CutTask) -> set[int]:
    """The free units that are float32 in the cheapest plan."""
    undecided = Undecided(task, task.costs)
    bounded = Bounded(undecided)
    if bounded.is_bounded() and not solve(bounded):
        return set()
    return solve(undecided)


class Bounded(OpenProblem):
    """The same problem, with bounds of its sizes."""

    def __init__(self, undecided: Undecided) -> None:
        self._undecided = undecided
        self._least, self._most = LeastCosts(undecided.costs), MostCosts(undecided.costs)

    def is_bounded(self) -> bool:
        """Whether all that draws to float32 has a bound."""
        values, units = self.drawing()
        return all(self._most.elements(v) < INFINITE for v in values) and all(-self.extra(u) < INFINITE for u in units)

    def side(self, unit: int) -> int:
        return self._undecided.side(unit)

    def nets_of(self, unit: int) -> Iterable[int]:
        return self._undecided.nets_of(unit)

    def drawing(self) -> tuple[Iterable[int], Iterable[int]]:
        return self._undecided.drawing()

    def extra(self, unit: int) -> int:
        if self._undecided.task.worth.get(unit, 1) >= 0:
            return 0
        return self._undecided.extra(unit, self._most)

    def net(self, number: int) -> Net | None:
        net = self._undecided.net(number, self._least)
        if net is None or net.writer is None:
            return net
        writer = self.side(net.writer)
        if writer == HIGH or (writer == FREE and any(self.side(reader) == HIGH for reader in net.readers)):
            large = self._undecided.net(number, self._most)
            assert large is not None
            net.up, net.down = (large.up, net.down) if writer == FREE else (net.up, large.down)
        return net


class BoundedCosts(Costs):
    """Sizes of stored tensors, and of what goes in and out of the model; bounds of others."""

    def __init__(self, exact: Costs) -> None:
        super().__init__(exact.flow, exact.options)
        self._exact = exact
        traits, main = exact.options.lists.traits, exact.flow.scopes[0]
        self._by_element, self._same_size = traits.operators("by_element"), traits.operators("same_size")
        self._declared = {*main.inputs, *main.outputs}

    def _known(self, value: int, nearer: Callable[[int], Iterable[int]]) -> Iterator[int]:
        """Known sizes of a value and of those that it leads to."""
        work = [value]
        for one in work:
            if self.flow.values[one].weight or one in self._declared:
                yield self._exact.elements(one)
            elif len(work) < FAR:
                work += [other for other in nearer(one) if other != NONE]


class LeastCosts(BoundedCosts):
    """No value is smaller than what it is made of element by element: an element at least."""

    def elements(self, value: int) -> int:
        return max(self._known(value, self._no_larger), default=1)

    def _no_larger(self, value: int) -> Iterator[int]:
        op = self.flow.writer(value)
        if op is not None and op.outputs[0] == value and op.role in self._by_element:
            yield from op.inputs
        elif op is not None and op.outputs[0] == value and op.role in self._same_size:
            yield op.inputs[0]
        for reader in self.flow.readers(value):
            if reader.inputs[0] == value and reader.role in self._same_size:
                yield reader.outputs[0]


class MostCosts(BoundedCosts):
    """No value is larger than what is made of it element by element; INFINITE where that leads to no known size."""

    def elements(self, value: int) -> int:
        return min(self._known(value, self._no_smaller), default=INFINITE)

    def _no_smaller(self, value: int) -> Iterator[int]:
        for op in self.flow.readers(value):
            if op.role in self._by_element or (op.inputs[0] == value and op.role in self._same_size):
                yield op.outputs[0]
