"""The cut by bounds of sizes, before shapes are inferred: that takes longer than the cut itself.

What speaks for the low type is taken for as small as it can be, what draws to float32 for as large. If nothing is
float32 then, nothing is by the sizes as they are: the flow that fills every sink here is one there too, where no sink
is larger, and all else no smaller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..core.dataflow import NONE
from .costs import Costs, CutTask
from .cut import INFINITE, Net, Undecided
from .decisions import FREE, HIGH

FAR = 16  # values: how far a bound is looked for


def float32_units(task: CutTask) -> set[int]:
    """The free units that are float32 in the cheapest assignment: the fewest among equals. Sizes are asked for only
    where bounds of them leave that open."""
    bounded, exact = Bounded(task), Undecided(task)
    exact.survey = bounded.survey
    if bounded.is_bounded() and not bounded.float32_units():
        return set()
    return exact.float32_units()


class Bounded(Undecided):
    """The free units of a model with decisions, priced by bounds of its sizes."""

    def __init__(self, task: CutTask) -> None:
        super().__init__(task)
        self._least, self._most = BoundedCosts(self.costs, most=False), BoundedCosts(self.costs, most=True)
        self.costs = self._least

    def is_bounded(self) -> bool:
        """Whether the sizes of all that draws to float32 have a bound."""
        values, units = self.starting_points()
        bounded = all(self._most.elements(value) < INFINITE for value in values)
        return bounded and all(-self.extra(unit) < INFINITE for unit in units)

    def extra(self, unit: int) -> int:
        """By bounds: what a unit saves in float32 at most, as a negative number; 0 where it saves nothing."""
        if self.task.byte_worth.get(unit, 1) >= 0:
            return 0
        self.costs = self._most
        found = super().extra(unit)
        self.costs = self._least
        return found

    def net(self, number: int) -> Net | None:
        """The net of a value by bounds: the price that a unit which is float32 already makes draw others to float32 is
        taken for as large as it can be, any other for as small."""
        net = super().net(number)
        writer = self.side(net.writer) if net is not None and net.writer is not None else None
        if net is None or not (writer == HIGH or (writer == FREE and HIGH in map(self.side, net.readers))):
            return net
        self.costs = self._most
        large = super().net(number) or net
        self.costs = self._least
        if writer == FREE:
            return Net(net.writer, net.readers, large.up, net.down)
        return Net(net.writer, net.readers, net.up, large.down)


class BoundedCosts(Costs):
    """Sizes of stored tensors and of the model's inputs and outputs, and bounds of others: an operator that computes
    element by element gives no less than it reads. 1 at least, and INFINITE at ``most``, where nothing is known."""

    def __init__(self, exact: Costs, most: bool) -> None:
        super().__init__(exact.flow, exact.options)
        self._exact, self._is_most, traits = exact, most, exact.options.lists.traits
        self._by_element, self._same_size = traits.operators("by_element"), traits.operators("same_size")
        self._declared = {*exact.flow.scopes[0].inputs, *exact.flow.scopes[0].outputs}

    def elements(self, value: int) -> int:
        """The upper or lower bound of a value's number of elements, from what is known of values that it leads to."""
        if value not in self._elements:
            known = self._known(value)
            self._elements[value] = min(known, default=INFINITE) if self._is_most else max(known, default=1)
        return self._elements[value]

    def _known(self, value: int) -> Iterator[int]:
        """Yields the known sizes, each of which is a bound, of a value and of up to `FAR` that it leads to."""
        work = [value]
        for current in work:  # grows on the way
            if self.flow.values[current].weight or current in self._declared:
                yield self._exact.elements(current)
            elif len(work) < FAR:
                work += [other for other in self._bounding_values(current) if other != NONE and other not in work]

    def _bounding_values(self, value: int) -> Iterable[int]:
        """Yields values beside one that are as large or smaller, or for an upper bound as large or larger."""
        op = self.flow.writer(value)
        made = op if op is not None and op.outputs[0] == value else None
        if made is not None and made.role in self._same_size:
            yield made.inputs[0]
        elif made is not None and made.role in self._by_element and not self._is_most:
            yield from made.inputs
        for reader in self.flow.readers(value):
            same = reader.role in self._same_size and reader.inputs[0] == value
            if same or (self._is_most and reader.role in self._by_element):
                yield reader.outputs[0]
