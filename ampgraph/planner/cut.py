"""The minimum cut: the cheapest types for the units that nothing else decided.

Costs are bytes moved, plus a constant for each kernel started. A value costs a Cast when a reader's type differs from
its writer's, once however many readers there are; a stored tensor costs what must stay float32 or be stored twice.
Among cheapest plans the one with the smallest float32 side is taken, so that plans are unique.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

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
        """What a complete assignment costs."""
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


def solve(problem: Problem) -> dict[int, int]:
    """LOW or HIGH for every free unit: the cheapest assignment, with the fewest units in float32 among equals."""
    tally = Tally(problem.nets, problem.fixed, problem.extra)
    _dominate(problem, tally)
    rest = [unit for unit in tally.by_unit if unit not in tally.side]
    for component in _components(rest, tally):
        for unit, value in _minimum_cut(problem, component, tally).items():
            tally.settle(unit, value)
    return {unit: tally.side[unit] for unit in tally.by_unit}


OWN, STORED = -1, -2
"""Beside the sides of a writer: it is the unit that is asked for, or there is none."""


@lru_cache(maxsize=1 << 14)  # of a large model most nets are alike
def _delta(up: int, down: int, writer: int, free: int, high: bool, low: bool) -> tuple[int, int]:
    """`Tally.delta` by what it depends on. ``free``: other free readers, 2 for more; ``high``, ``low``: whether some
    reader is."""
    others = [(high, low)] if not free else [(True, low), (high, True)] + ([(True, True)] if free > 1 else [])
    if writer == OWN:
        deltas = [up * h - down * w for h, w in others]
    elif writer == STORED:
        deltas = [up * (h - 1) + down * (1 - w) for h, w in others]
    else:
        deltas = [up * (h - 1) for h, _ in others] if writer != HIGH else []
        if writer != LOW:
            deltas += [down * (1 - w) for _, w in others]
    return min(deltas), max(deltas)


class Tally:
    """Who is low, float32 or free around every net, kept up to date: nets can have thousands of readers."""

    def __init__(self, nets: list[Net], fixed: dict[int, int], more: Iterable[int] = ()) -> None:
        self.nets = nets
        self.side = dict(fixed)
        self.by_unit: dict[int, list[int]] = {unit: [] for unit in more if unit not in fixed}
        self.counts: list[list[int]] = []  # by net: readers that are FREE, LOW, HIGH
        self._members: list[tuple[int, ...]] = []  # by net
        for number, net in enumerate(nets):
            counts = [0, 0, 0]
            for reader in net.readers:
                counts[self.side.get(reader, FREE)] += 1
            self.counts.append(counts)
            writers = () if net.writer is None or net.writer in net.readers else (net.writer,)
            self._members.append((*net.readers, *writers))
            for unit in self._members[number]:
                if unit not in self.side:
                    self.by_unit.setdefault(unit, []).append(number)

    def members(self, number: int) -> Sequence[int]:
        """Who reads or writes the value of a net."""
        return self._members[number]

    def settle(self, unit: int, value: int) -> None:
        self.side[unit] = value
        for number in self.by_unit[unit]:
            if unit in self.nets[number].readers:
                self.counts[number][FREE] -= 1
                self.counts[number][value] += 1

    def delta(self, number: int, unit: int) -> tuple[int, int]:
        """The least and the most that choosing low instead of float32 for a free unit adds to the cost of a net."""
        net, (free, lows, highs) = self.nets[number], self.counts[number]
        free -= unit in net.readers
        writer = STORED if net.writer is None else OWN if net.writer == unit else self.side.get(net.writer, FREE)
        return _delta(net.up, net.down, writer, min(free, 2), highs > 0, lows > 0)

    def neighbours(self, unit: int, most: int = 64) -> Iterator[int]:
        """Free units that share a net with ``unit``; nets with more readers than ``most`` are passed over."""
        for number in self.by_unit[unit]:
            if len(self.nets[number].readers) <= most:
                for other in self.members(number):
                    if other not in self.side:
                        yield other


def _dominate(problem: Problem, tally: Tally) -> None:
    """Settles units for which one side is no dearer whatever the others do; this leaves few for the solver."""
    work = list(tally.by_unit)
    while work:
        queued: dict[int, None] = {}
        for unit in work:
            if unit in tally.side:
                continue
            worst = best = -problem.extra.get(unit, 0)
            for number in tally.by_unit[unit]:
                least, most = tally.delta(number, unit)
                best, worst = best + least, worst + most
            if worst <= 0:
                tally.settle(unit, LOW)
            elif best > 0:
                tally.settle(unit, HIGH)
            else:
                continue
            queued.update(dict.fromkeys(tally.neighbours(unit)))
        work = [unit for unit in queued if unit not in tally.side]


def _components(rest: list[int], tally: Tally) -> list[list[int]]:
    """What is left, split where no net connects it."""
    seen: set[int] = set()
    nets_seen: set[int] = set()
    components = []
    for start in rest:
        if start in seen:
            continue
        seen.add(start)
        component = [start]
        for unit in component:
            for number in tally.by_unit[unit]:
                if number in nets_seen:
                    continue
                nets_seen.add(number)
                for other in tally.members(number):
                    if other not in tally.side and other not in seen:
                        seen.add(other)
                        component.append(other)
        components.append(component)
    return components


def _minimum_cut(problem: Problem, component: list[int], tally: Tally) -> dict[int, int]:
    """One connected problem as a flow network: source side low, sink side float32."""
    places = {unit: place for place, unit in enumerate(component)}
    network = FlowNetwork(len(component))
    for unit, place in places.items():
        network.supply(place, problem.extra.get(unit, 0))
    for number in dict.fromkeys(n for unit in component for n in tally.by_unit[unit]):
        net, (_, lows, highs) = tally.nets[number], tally.counts[number]
        writer, side = net.writer, FREE if net.writer is None else tally.side.get(net.writer, FREE)
        free = [places[reader] for reader in net.readers if reader in places and reader != writer]
        at = None if writer is None or side != FREE else places[writer]
        if side != HIGH and (highs or free):
            _charge(network, at, [] if highs else free, net.up)
        if side != LOW and (lows or free):
            _charge(network, at, [] if lows else free, -net.down)
    float32 = network.sink_side()
    return {unit: HIGH if place in float32 else LOW for unit, place in places.items()}


def _charge(network: FlowNetwork, writer: int | None, readers: list[int], price: int) -> None:
    """What is paid when a writer is low and some reader float32, or in the opposite case where ``price`` is negative.

    ``writer``: None where it pays whatever is decided; no ``readers``: one that is decided makes it pay."""
    if not readers:
        if writer is not None:
            network.supply(writer, -price)
        return
    nearest = readers[0] if len(readers) == 1 else network.node()
    for reader in readers if len(readers) > 1 else ():
        network.connect(nearest, reader, *((ENDLESS, 0) if price > 0 else (0, ENDLESS)))
    if writer is None:
        network.supply(nearest, price)
    else:
        network.connect(writer, nearest, max(price, 0), max(-price, 0))
