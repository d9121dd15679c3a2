"""The minimum cut of a flow network by augmenting paths to a search tree, and no more of it than that takes.

After Boykov and Kolmogorov, "An experimental comparison of min-cut/max-flow algorithms for energy minimization in
vision" (2004), with a tree from the sink alone: where it meets what the source supplies, flow is pushed, and what a
full arc leaves without a parent looks for another one. A node that the tree never meets need not be known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import chain

Capacity = int | float
"""Whole numbers, or infinity."""

ENDLESS = float("inf")
UNKNOWN, KNOWN, TREE = 0, 1, 2
"""States of a node: not looked at, looked at, in the tree."""
ROOT, ORPHAN = -1, -2
"""In the place of the arc to a node's parent: the sink itself is its parent; it has none any more."""


class FlowNetwork:
    """Nodes between a source and a sink. Arcs come in pairs: one with an even number, and its reverse with the next, so
    that ``arc ^ 1`` is the other one of a pair. ``reach``: called with a node before it is looked at, once; it may add
    nodes, and what connects and supplies that node and others that were not looked at."""

    def __init__(self, nodes: int = 0, reach: Callable[[int], None] | None = None) -> None:
        self._reach = reach
        self._heads: list[int] = []
        self._left: list[Capacity] = []  # what an arc can still take
        self._arcs: list[list[int]] = []  # by node: the arcs that leave it
        self._excess: list[Capacity] = []  # what the source can still give, or the sink take where negative
        self._state: list[int] = []
        self._parent: list[int] = []
        self._depth: list[int] = []  # from the sink, as far as was known at ``_seen``
        self._seen: list[int] = []  # the ``_time`` at which a node's depth was found
        self._tried: list[int] = []  # the place of the arc from which an orphan looks for a parent: a hub has thousands
        self._waits: list[bool] = []  # whether a node is among the active ones
        self._time = 0  # how often flow was pushed
        self._sinks: deque[int] = deque()  # nodes that may be supplied less than nothing
        self._active: deque[int] = deque()  # nodes of the tree from which it may grow
        self._orphans: deque[int] = deque()  # nodes without a parent
        for _ in range(nodes):
            self.node()

    def node(self) -> int:
        """Adds a node to the network of the minimum cut, and returns its number."""
        self._arcs.append([])
        self._parent.append(ROOT)
        self._waits.append(False)
        for numbers in (self._excess, self._state, self._depth, self._seen, self._tried):
            numbers.append(0)
        return len(self._arcs) - 1

    def connect(self, tail: int, head: int, there: Capacity, back: Capacity = 0) -> None:
        """Adds a pair of arcs: ``there`` may flow from ``tail`` to ``head``, ``back`` the other way."""
        arc = len(self._heads)
        self._arcs[tail].append(arc)
        self._arcs[head].append(arc + 1)
        self._heads += (head, tail)
        self._left += (there, back)

    def supply(self, node: int, capacity: Capacity) -> None:
        """Adds what may flow from the source to a node; to the sink where ``capacity`` is negative."""
        self._excess[node] += capacity
        if capacity < 0:
            self.suspect(node)

    def suspect(self, node: int) -> None:
        """Minimum cut: queues a node to be looked at first, as it may turn out to supply the sink."""
        self._sinks.append(node)

    def sink_side(self) -> set[int]:
        """The nodes from which the sink can be reached in a maximum flow: the smallest sink side of all minimum cuts.
        Uses up the capacities."""
        while self._sinks or self._active:
            if self._sinks:
                self._look_at(self._sinks.popleft())
            else:
                self._grow(self._active.popleft())
        return {node for node, state in enumerate(self._state) if state == TREE}

    def _look_at(self, node: int) -> None:
        """Minimum cut: has `reach` tell all about a node, once; one that supplies the sink joins the tree."""
        if self._state[node] == UNKNOWN:
            self._state[node] = KNOWN
            if self._reach is not None:
                self._reach(node)
            if self._excess[node] < 0:
                self._join(node, ROOT, 1)

    def _join(self, node: int, parent: int, depth: int) -> None:
        """Minimum cut: takes a node into the tree. ``parent``: its arc to its parent, or `ROOT`."""
        self._state[node] = TREE
        self._parent[node], self._depth[node], self._seen[node] = parent, depth, self._time
        self._wake(node)

    def _wake(self, node: int) -> None:
        """Minimum cut: queues a node of the tree, which may grow again."""
        if not self._waits[node]:
            self._waits[node] = True
            self._active.append(node)

    def _grow(self, node: int) -> None:
        """Minimum cut: takes each node that an arc leads from to a node of the tree into the tree, once the source has
        nothing left to give there. Ends early where the node leaves the tree."""
        heads, left, state, excess = self._heads, self._left, self._state, self._excess
        self._waits[node] = False
        for arc in self._arcs[node]:
            if state[node] != TREE:
                return
            if not left[arc ^ 1]:
                continue
            other = heads[arc]
            self._look_at(other)
            while excess[other] > 0 and left[arc ^ 1] and state[node] == TREE:
                self._push(arc ^ 1)
            if state[other] == KNOWN and left[arc ^ 1] and state[node] == TREE:
                self._join(other, arc ^ 1, self._depth[node] + 1)

    def _push(self, entry: int) -> None:
        """Minimum cut: sends as much as possible from an arc's tail over it and through the tree to the sink, and finds
        other parents for nodes whose arc to theirs is full. ``entry``: an arc that leads into the tree."""
        heads, left, parent, excess = self._heads, self._left, self._parent, self._excess
        path, node = [], heads[entry]
        while parent[node] != ROOT:
            path.append(parent[node])
            node = heads[parent[node]]
        start = heads[entry ^ 1]
        least = min(left[entry], excess[start], -excess[node], *map(left.__getitem__, path))
        excess[start] -= least
        excess[node] += least
        for arc in (entry, *path):
            left[arc] -= least
            left[arc ^ 1] += least
        for arc in path:
            if not left[arc]:
                self._orphan(heads[arc ^ 1])
        if not excess[node]:
            self._orphan(node)
        self._time += 1
        while self._orphans:
            self._adopt(self._orphans.popleft())

    def _orphan(self, node: int) -> None:
        """Minimum cut: takes a node out of the tree; `_adopt` looks for another parent."""
        self._parent[node] = ORPHAN
        self._orphans.append(node)

    def _adopt(self, node: int) -> None:
        """Minimum cut: finds another parent for an orphan; else it leaves the tree, and its children are orphans."""
        state, heads, left, parent, arcs = self._state, self._heads, self._left, self._parent, self._arcs[node]
        best, nearest, tried = ROOT, 0, self._tried[node]
        for place in chain(range(tried, len(arcs)), range(tried)):
            arc = arcs[place]
            if left[arc] and state[heads[arc]] == TREE:
                depth = self._depth_of(heads[arc])
                if depth and (best == ROOT or depth < nearest):
                    best, nearest, self._tried[node] = arc, depth, place
                    if depth < self._depth[node]:  # no further from the sink than it was
                        break
        if best != ROOT:
            parent[node], self._depth[node], self._seen[node] = best, nearest + 1, self._time
            return
        state[node] = KNOWN
        for arc in arcs:
            other = heads[arc]
            if state[other] == TREE:
                if left[arc]:
                    self._wake(other)
                if parent[other] == arc ^ 1:
                    self._orphan(other)

    def _depth_of(self, node: int) -> int:
        """Minimum cut: how far a node of the tree is from the sink, 0 behind an orphan; kept until the next push."""
        parent, heads, seen, time, path = self._parent, self._heads, self._seen, self._time, []
        while seen[node] != time:
            arc = parent[node]
            if arc == ORPHAN:
                return 0
            path.append(node)
            if arc == ROOT:
                depth = 0
                break
            node = heads[arc]
        else:
            depth = self._depth[node]
        for node in reversed(path):
            depth += 1
            self._depth[node], seen[node] = depth, time
        return depth
