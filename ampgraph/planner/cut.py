"""The minimum cut: the cheapest types for the units that nothing else decided.

Costs are bytes moved, plus a constant for each kernel started. A value costs a Cast when a reader's type differs from
its writer's, once however many readers there are; a stored tensor costs what must stay float32 or be stored twice.
Among cheapest plans the one with the smallest float32 side is taken, so that plans are unique.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from .decisions import FREE, HIGH, LOW

Node = int | str | tuple[str, int]
"""Of the flow network: a free unit, an end, or a net from one side."""

LAUNCH = 1 << 20  # bytes: what a kernel start is worth, about a microsecond of a device's memory bandwidth
INFINITE = 1 << 80
ENDS: Mapping[int, Node] = {LOW: "low", HIGH: "float32"}


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


class Tally:
    """Who is low, float32 or free around every net, kept up to date: nets can have thousands of readers."""

    def __init__(self, nets: list[Net], fixed: dict[int, int], more: Iterable[int] = ()) -> None:
        self.nets = nets
        self.side = dict(fixed)
        self.by_unit: dict[int, list[int]] = {unit: [] for unit in more if unit not in fixed}
        self.counts: list[list[int]] = []  # by net: readers that are FREE, LOW, HIGH
        for number, net in enumerate(nets):
            counts = [0, 0, 0]
            for reader in net.readers:
                counts[self.side.get(reader, FREE)] += 1
            self.counts.append(counts)
            for unit in self.members(number):
                if unit not in self.side:
                    self.by_unit.setdefault(unit, []).append(number)

    def members(self, number: int) -> Iterator[int]:
        net = self.nets[number]
        yield from net.readers
        if net.writer is not None and net.writer not in net.readers:
            yield net.writer

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
        high, low = int(highs > 0), int(lows > 0)
        others = [(high, low)] if not free else [(1, low), (high, 1)] + ([(1, 1)] if free > 1 else [])
        if net.writer == unit:
            deltas = [net.up * h - net.down * w for h, w in others]
        elif net.writer is None:
            deltas = [net.up * (h - 1) + net.down * (1 - w) for h, w in others]
        else:
            writer = self.side.get(net.writer, FREE)
            deltas = [net.up * (h - 1) for h, _ in others] if writer != HIGH else []
            if writer != LOW:
                deltas += [net.down * (1 - w) for _, w in others]
        return min(deltas), max(deltas)

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
    import networkx as nx
    from networkx.algorithms.flow import boykov_kolmogorov, preflow_push

    graph = nx.DiGraph()
    graph.add_nodes_from(("low", "float32"))

    def node(unit: int) -> Node:
        return ENDS.get(tally.side.get(unit, FREE), unit)

    def edge(tail: Node, head: Node, capacity: int | None) -> None:
        if capacity is None:
            graph.add_edge(tail, head)  # networkx: no capacity is infinite
        elif tail != head and capacity:
            held = graph.get_edge_data(tail, head)
            graph.add_edge(tail, head, capacity=capacity + (held["capacity"] if held else 0))

    for unit in component:
        extra = problem.extra.get(unit, 0)
        edge("low", unit, max(extra, 0))
        edge(unit, "float32", max(-extra, 0))
    for number in dict.fromkeys(n for unit in component for n in tally.by_unit[unit]):
        net = tally.nets[number]
        writer_low: Node = "low" if net.writer is None else node(net.writer)
        writer_high: Node = "float32" if net.writer is None else node(net.writer)
        up, down = ("up", number), ("down", number)
        edge(writer_low, up, net.up)
        edge(down, writer_high, net.down)
        for reader in net.readers:
            edge(up, node(reader), None)
            edge(node(reader), down, None)
    graph.remove_edges_from([("low", "float32")] if graph.has_edge("low", "float32") else [])
    hub = max(len(tally.nets[number].readers) for unit in component for number in tally.by_unit[unit])
    # deep graphs: augmenting paths take seconds where pushing takes minutes; around one hub it is the other way round
    solver = preflow_push if 2 * hub > len(component) else boykov_kolmogorov
    _, (low_side, _) = nx.minimum_cut(graph, "low", "float32", flow_func=solver)
    return {unit: LOW if unit in low_side else HIGH for unit in component}
