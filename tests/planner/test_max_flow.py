"""The flow network against networkx, and that its work grows with the arcs."""

from __future__ import annotations

import random
from collections.abc import Callable

import networkx as nx

from ampgraph.planner.max_flow import ENDLESS, FlowNetwork
from effort import assert_linear


def drawn(seed: int) -> tuple[FlowNetwork, nx.DiGraph]:
    """The same small network for both: arcs with and without limits, both ways, and parallel ones."""
    numbers = random.Random(seed)
    count = numbers.randint(1, 14)
    ours, theirs = FlowNetwork(count), nx.DiGraph()
    theirs.add_nodes_from(("source", "sink", *range(count)))

    def widen(tail: object, head: object, capacity: float) -> None:
        held = theirs.get_edge_data(tail, head, {"capacity": 0})["capacity"]
        if held + capacity:
            theirs.add_edge(tail, head, capacity=held + capacity)

    for _ in range(numbers.randint(0, 40)):
        tail, head = numbers.randrange(count), numbers.randrange(count)
        there, back = numbers.choice([numbers.randint(0, 9), ENDLESS]), numbers.choice([0, numbers.randint(0, 9)])
        if tail != head:
            ours.connect(tail, head, there, back)
            widen(tail, head, there)
            widen(head, tail, back)
    for node in range(count):
        capacity = numbers.choice([0, numbers.randint(-9, 9)])
        ours.supply(node, capacity)
        widen("source", node, max(capacity, 0))
        widen(node, "sink", max(-capacity, 0))
    return ours, theirs


def test_the_sink_side_is_the_smallest_of_all_minimum_cuts() -> None:
    for seed in range(300):
        ours, theirs = drawn(seed)
        _, (_, sink) = nx.minimum_cut(theirs, "source", "sink")
        assert ours.sink_side() == sink - {"sink"}, seed


def test_around_a_hub_the_work_grows_with_its_arcs() -> None:
    def call_of(count: int) -> Callable[[], object]:
        network = FlowNetwork(count)
        for hub, step in ((network.node(), 1), (network.node(), 2)):
            network.supply(hub, 20 * count)
            for node in range(0, count, step):
                network.connect(hub, node, ENDLESS, 40)
        for node in range(count):
            network.supply(node, node * 7919 % 181 - 90)
        return network.sink_side

    assert_linear(call_of, 150)
