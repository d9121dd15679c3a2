"""The minimum cut: the cheapest types for the units that nothing else decided.

Costs are bytes moved, plus a constant for each kernel started. A value costs a Cast when a reader's type differs from its
writer's, once however many readers there are; a stored tensor costs what must stay float32 or be stored twice. Among
cheapest plans the one with the smallest float32 side is taken, so that plans are unique.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from .state import FREE, HIGH, LOW

LAUNCH = 1 << 20  # bytes: what a kernel start is worth, about a microsecond of a device's memory bandwidth
INFINITE = 1 << 80


@dataclass(slots=True)
class Net:
    """A value: ``up`` is paid when its writer is low and some reader float32, ``down`` in the opposite case.

    For a stored tensor ``writer`` is None: ``up`` is paid when some reader is float32, ``down`` when some reader is low.
    """

    writer: int | None
    readers: frozenset[int]
    up: int
    down: int


@dataclass
class Problem:
    """``fixed``: unit -> LOW or HIGH for decided units that occur in a net; ``extra``: what a unit costs in float32."""

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
    side = dict(problem.fixed)
    by_unit = _incidence(problem, side)
    _dominate(problem, by_unit, side)
    rest = [unit for unit in by_unit if unit not in side]
    for component in _components(problem, rest, by_unit, side):
        side.update(_minimum_cut(problem, component, by_unit, side))
    return {unit: side[unit] for unit in by_unit if unit not in problem.fixed}


def _incidence(problem: Problem, side: dict[int, int]) -> dict[int, list[Net]]:
    by_unit: dict[int, list[Net]] = defaultdict(list)
    for net in problem.nets:
        for unit in net.readers | ({net.writer} if net.writer is not None else set()):
            if unit not in side:
                by_unit[unit].append(net)
    for unit in problem.extra:
        if unit not in side:
            by_unit[unit]  # noqa: B018  a unit without nets is decided too
    return by_unit


def _dominate(problem: Problem, by_unit: dict[int, list[Net]], side: dict[int, int]) -> None:
    """Settles units for which one side is no dearer whatever the others do; this leaves few for the solver."""
    work = list(by_unit)
    queued = set(work)
    while work:
        unit = work.pop()
        queued.discard(unit)
        if unit in side:
            continue
        worst = best = -problem.extra.get(unit, 0)
        for net in by_unit[unit]:
            least, most = _delta(net, unit, side)
            best, worst = best + least, worst + most
        if worst <= 0:
            side[unit] = LOW
        elif best > 0:
            side[unit] = HIGH
        else:
            continue
        for net in by_unit[unit]:
            for other in (*net.readers, net.writer):
                if other is not None and other not in side and other not in queued:
                    queued.add(other)
                    work.append(other)


def _delta(net: Net, unit: int, side: dict[int, int]) -> tuple[int, int]:
    """The least and the most that choosing low instead of float32 for ``unit`` adds to the cost of ``net``."""
    high = low = free = 0
    for reader in net.readers:
        if reader != unit:
            state = side.get(reader, FREE)
            high |= state == HIGH
            low |= state == LOW
            free += state == FREE
    others = [(high, low)] if not free else [(1, low), (high, 1)] + ([(1, 1)] if free > 1 else [])
    if net.writer == unit:
        deltas = [net.up * h - net.down * w for h, w in others]
    elif net.writer is None:
        deltas = [net.up * (h - 1) + net.down * (1 - w) for h, w in others]
    else:
        writer = side.get(net.writer, FREE)
        deltas = [net.up * (h - 1) for h, _ in others] if writer != HIGH else []
        if writer != LOW:
            deltas += [net.down * (1 - w) for _, w in others]
    return min(deltas), max(deltas)


def _components(problem: Problem, rest: list[int], by_unit: dict[int, list[Net]], side: dict[int, int]) -> list[list[int]]:
    seen: set[int] = set()
    components = []
    for start in rest:
        if start in seen:
            continue
        seen.add(start)
        component = [start]
        for unit in component:
            for net in by_unit[unit]:
                for other in (*net.readers, net.writer):
                    if other is not None and other not in side and other not in seen:
                        seen.add(other)
                        component.append(other)
        components.append(component)
    return components


def _minimum_cut(problem: Problem, component: list[int], by_unit: dict[int, list[Net]], side: dict[int, int]) -> dict[int, int]:
    """One connected problem as a flow network: source side low, sink side float32."""
    import networkx as nx
    from networkx.algorithms.flow import preflow_push

    graph = nx.DiGraph()
    graph.add_nodes_from(("low", "float32"))

    def node(unit: int) -> int | str:
        return {LOW: "low", HIGH: "float32"}.get(side.get(unit, FREE), unit)  # type: ignore[return-value]

    def edge(tail, head, capacity: int | None) -> None:
        if capacity is None:
            graph.add_edge(tail, head)  # networkx: no capacity is infinite
        elif tail != head and capacity:
            held = graph.get_edge_data(tail, head)
            graph.add_edge(tail, head, capacity=capacity + (held["capacity"] if held else 0))

    for unit in component:
        edge("low", unit, problem.extra.get(unit, 0))
    nets = {id(net): net for unit in component for net in by_unit[unit]}
    for number, net in enumerate(nets.values()):
        writer_low = "low" if net.writer is None else node(net.writer)
        writer_high = "float32" if net.writer is None else node(net.writer)
        up, down = ("up", number), ("down", number)
        edge(writer_low, up, net.up)
        edge(down, writer_high, net.down)
        for reader in net.readers:
            edge(up, node(reader), None)
            edge(node(reader), down, None)
    graph.remove_edges_from([("low", "float32")] if graph.has_edge("low", "float32") else [])
    _, (low_side, _) = nx.minimum_cut(graph, "low", "float32", flow_func=preflow_push)
    return {unit: LOW if unit in low_side else HIGH for unit in component}
