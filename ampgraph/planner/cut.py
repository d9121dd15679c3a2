"""The minimum cut: the cheapest types for the units that nothing else decided.

Costs are bytes moved, plus a constant for each kernel started. A value costs a Cast when a reader's type differs from
its writer's, once however many readers there are; a stored tensor costs what must stay float32 or be stored twice.
Among cheapest plans the one with the smallest float32 side is taken, so that plans are unique.

So a unit is low unless something draws it to float32, and the search begins at what does: mostly it ends a few values
further on, and no more than these are asked for what they cost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from .decisions import FREE, HIGH, LOW
from .max_flow import ENDLESS, FlowNetwork

LAUNCH = 1 << 20  # bytes: what a kernel start is worth, about a microsecond of a device's memory bandwidth
INFINITE = 1 << 80


@dataclass(slots=True)
class Net:
    """A value: ``up`` is paid when its writer is low and some reader float32, ``down`` in the opposite case.

    For a stored tensor ``writer`` is None: ``up`` is paid when some reader is float32, ``down`` when one is low.
    """

    writer: int | None
    readers: frozenset[int]
    up: int
    down: int


@dataclass
class Problem:
    """``fixed``: unit -> LOW or HIGH for decided units that occur in a net; ``extra``: what a unit costs in float32,
    or in the low type where it is negative."""

    nets: list[Net] = field(default_factory=list)
    fixed: dict[int, int] = field(default_factory=dict)
    extra: dict[int, int] = field(default_factory=dict)

    def cost(self, solution: dict[int, int]) -> int:
        """What an assignment of every unit (float32 or low) costs."""
        side = {**solution, **self.fixed}
        total = sum(extra for unit, extra in self.extra.items() if side[unit] == HIGH)
        for net in self.nets:
            low = any(side[r] == LOW for r in net.readers)
            high = any(side[r] == HIGH for r in net.readers)
            if net.writer is None:
                total += net.up * high + net.down * low
            elif side[net.writer] == LOW:
                total += net.up * high
            else:
                total += net.down * low
        return total


class OpenProblem(Protocol):
    """A problem that is told as far as it is asked for. Nets have numbers."""

    def side(self, unit: int) -> int:
        """LOW or HIGH; FREE where the cut decides."""

    def extra(self, unit: int) -> int:
        """What a free unit costs in float32, or in the low type where it is negative."""

    def nets_of(self, unit: int) -> Iterable[int]:
        """The nets that a free unit is in, some more than once."""

    def net(self, number: int) -> Net | None:
        """A net; None where it costs nothing whatever is decided."""

    def drawing(self) -> tuple[Iterable[int], Iterable[int]]:
        """What may draw free units to float32 by itself: nets with a unit that is float32 already, or of a stored
        tensor that costs less to keep than to round; and units whose ``extra`` is negative."""


def solve(problem: OpenProblem) -> set[int]:
    """The free units that are float32 in the cheapest assignment: the fewest among equals."""
    return _UnitNetwork(problem).float32()


class _UnitNetwork:
    """Free units as nodes of a flow network, source side low, sink side float32. Nets come in as it reaches units."""

    def __init__(self, problem: OpenProblem) -> None:
        self._problem = problem
        self._flow = FlowNetwork(reach=self._add_unit)
        self._places: dict[int, int] = {}
        self._units: dict[int, int] = {}  # by place: others stand between the readers of a value
        self._nets: set[int] = set()

    def float32(self) -> set[int]:
        """The units on the sink's side of the minimum cut: those that are float32."""
        nets, units = self._problem.drawing()
        for number in nets:
            self._add_net(number)
        for unit in units:
            self._flow.suspect(self._place(unit))
        return {self._units[place] for place in self._flow.sink_side() if place in self._units}

    def _place(self, unit: int) -> int:
        """The node of the flow network for a unit, made when it is first reached."""
        place = self._places.get(unit)
        if place is None:
            place = self._places[unit] = self._flow.node()
            self._units[place] = unit
        return place

    def _add_unit(self, place: int) -> None:
        """Adds what a unit costs by itself, and the nets that it is part of."""
        unit = self._units.get(place)
        if unit is not None:
            self._flow.supply(place, self._problem.extra(unit))
            for number in self._problem.nets_of(unit):
                self._add_net(number)

    def _add_net(self, number: int) -> None:
        """Adds the arcs of a net, once."""
        net = None if number in self._nets else self._problem.net(number)
        self._nets.add(number)
        if net is None:
            return
        side, writer = self._problem.side, net.writer
        free, lows, highs = [], False, False
        for reader in net.readers:
            one = side(reader)
            if one == LOW:
                lows = True
            elif one == HIGH:
                highs = True
            elif reader != writer:
                free.append(self._place(reader))
        made = FREE if writer is None else side(writer)
        at = None if writer is None or made != FREE else self._place(writer)
        paid = 0 if writer is not None or lows or highs else min(net.up, net.down)  # whatever the readers are
        if made != HIGH and (highs or free):
            self._add_price(at, [] if highs else free, net.up, paid)
        if made != LOW and (lows or free):
            self._add_price(at, [] if lows else free, -net.down, paid)

    def _add_price(self, writer: int | None, readers: list[int], price: int, paid: int) -> None:
        """Adds arcs: ``price`` is paid if the writer is low and a reader float32; a negative one if it is the other way
        round.

        ``writer``: None where it pays whatever is decided; no ``readers``: one that is decided makes it pay; ``paid``:
        what flows already from the one price to the other, through the first reader.
        """
        flow = self._flow
        if not readers:
            if writer is not None:
                flow.supply(writer, -price)
            return
        nearest = readers[0] if len(readers) == 1 else flow.node()
        for reader in readers if len(readers) > 1 else ():
            back = paid if reader == readers[0] else 0
            flow.connect(nearest, reader, *((ENDLESS, back) if price > 0 else (back, ENDLESS)))
        if writer is None:
            flow.supply(nearest, price - paid if price > 0 else price + paid)
        else:
            flow.connect(writer, nearest, max(price, 0), max(-price, 0))
