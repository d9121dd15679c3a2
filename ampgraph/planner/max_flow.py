"""The minimum cut of a flow network by augmenting paths between two search trees.

The method of Boykov and Kolmogorov, "An experimental comparison of min-cut/max-flow algorithms for energy minimization
in vision" (2004): a tree grows from each end; where they meet flow is pushed, and what a full arc leaves without a
parent looks for another one. Nodes and arcs are numbers, and what is known of them stands in lists.
"""

from __future__ import annotations

from collections import deque
from itertools import chain

Capacity = int | float
"""Whole numbers, or infinity."""

ENDLESS = float("inf")
OUTSIDE, SOURCE, SINK = 0, 1, 2
ROOT, ORPHAN = -1, -2
"""In place of the arc to a node's parent: the end itself is its parent; it has none any more."""


class FlowNetwork:
    """Nodes between a source and a sink. Arcs come in pairs: that with an even number, and behind it its reverse."""

    def __init__(self, nodes: int = 0) -> None:
        self._arcs: list[list[int]] = [[] for _ in range(nodes)]  # by node: the arcs that leave it
        self._heads: list[int] = []
        self._left: list[Capacity] = []  # what an arc can still take
        self._excess: list[Capacity] = [0] * nodes  # what the source can still give, or the sink take where negative

    def node(self) -> int:
        """Another node."""
        self._arcs.append([])
        self._excess.append(0)
        return len(self._arcs) - 1

    def connect(self, tail: int, head: int, there: Capacity, back: Capacity = 0) -> None:
        """What may flow from one node to another, and back."""
        arc = len(self._heads)
        self._arcs[tail].append(arc)
        self._arcs[head].append(arc + 1)
        self._heads += (head, tail)
        self._left += (there, back)

    def supply(self, node: int, capacity: Capacity) -> None:
        """What may flow from the source to a node; to the sink where it is negative."""
        self._excess[node] += capacity

    def sink_side(self) -> set[int]:
        """The nodes from which the sink can be reached in a maximum flow: the smallest sink side of all minimum cuts.

        Uses up the capacities."""
        _Search(self._arcs, self._heads, self._left, self._excess).run()
        work = [node for node, excess in enumerate(self._excess) if excess < 0]
        found = set(work)
        for node in work:
            for arc in self._arcs[node]:
                before = self._heads[arc]
                if self._left[arc ^ 1] and before not in found:
                    found.add(before)
                    work.append(before)
        return found


class _Search:
    """The two trees."""

    def __init__(
        self, arcs: list[list[int]], heads: list[int], left: list[Capacity], excess: list[Capacity]
    ) -> None:  # fmt: skip
        self.arcs, self.heads, self.left, self.excess = arcs, heads, left, excess
        count = len(arcs)
        self.tree = [SOURCE if e > 0 else SINK if e < 0 else OUTSIDE for e in excess]
        self.parent = [ROOT] * count
        self.depth = [1] * count  # from the end, as far as was known at ``seen``
        self.seen = [0] * count
        self.tried = [0] * count  # the place of the arc from which an orphan looks for a parent: a hub has thousands
        self.time = 0
        self.active = deque(node for node in range(count) if self.tree[node])
        self.waits = [bool(side) for side in self.tree]  # whether a node is among the active ones
        self.orphans: deque[int] = deque()

    def run(self) -> None:
        """Pushes flow until the trees do not meet any more."""
        active = self.active
        while active:
            node = active.popleft()
            self.waits[node] = False
            arcs, place = self.arcs[node], 0
            while self.tree[node] and place < len(arcs):
                place = self._grow(node, place)
                if place < len(arcs):
                    self.time += 1
                    self._push(arcs[place] ^ (self.tree[node] == SINK))
                    while self.orphans:
                        self._adopt(self.orphans.popleft())

    def _grow(self, node: int, start: int) -> int:
        """Takes in what a node can reach over its arcs from ``start`` on; the place of that on which it meets the other
        tree, or the number of its arcs."""
        tree, heads, left, mine, arcs = self.tree, self.heads, self.left, self.tree[node], self.arcs[node]
        turn = mine == SINK
        for place in range(start, len(arcs)):
            arc = arcs[place]
            if left[arc ^ turn]:
                other = heads[arc]
                if tree[other] == OUTSIDE:
                    tree[other], self.parent[other] = mine, arc ^ 1
                    self.depth[other], self.seen[other] = self.depth[node] + 1, self.seen[node]
                    self._wake(other)
                elif tree[other] != mine:
                    return place
        return len(arcs)

    def _push(self, meeting: int) -> None:
        """Sends what it takes over the arc where the trees meet."""
        heads, left, parent, excess = self.heads, self.left, self.parent, self.excess
        least, roots = left[meeting], []
        for node, turn in ((heads[meeting ^ 1], 1), (heads[meeting], 0)):
            while (arc := parent[node]) != ROOT:
                least = min(least, left[arc ^ turn])
                node = heads[arc]
            roots.append(node)
            least = min(least, abs(excess[node]))
        left[meeting] -= least
        left[meeting ^ 1] += least
        for node, turn, root in ((heads[meeting ^ 1], 1, roots[0]), (heads[meeting], 0, roots[1])):
            while (arc := parent[node]) != ROOT:
                left[arc ^ turn] -= least
                left[arc ^ turn ^ 1] += least
                if not left[arc ^ turn]:
                    self._orphan(node)
                node = heads[arc]
            excess[root] -= least if turn else -least
            if not excess[root]:
                self._orphan(root)

    def _wake(self, node: int) -> None:
        """A node may have something to take in."""
        if not self.waits[node]:
            self.waits[node] = True
            self.active.append(node)

    def _orphan(self, node: int) -> None:
        self.parent[node] = ORPHAN
        self.orphans.append(node)

    def _adopt(self, node: int) -> None:
        """Finds another parent for an orphan; else it leaves the tree, and those that it was parent of are orphans."""
        tree, heads, left, mine, arcs = self.tree, self.heads, self.left, self.tree[node], self.arcs[node]
        turn = mine == SOURCE  # the arc that must have something left comes from the parent, or goes to it
        best, nearest, tried = ROOT, 0, self.tried[node]
        for place in chain(range(tried, len(arcs)), range(tried)):
            arc = arcs[place]
            if left[arc ^ turn] and tree[heads[arc]] == mine:
                depth = self._depth(heads[arc])
                if depth and (best == ROOT or depth < nearest):
                    best, nearest, self.tried[node] = arc, depth, place
                    if depth < self.depth[node]:  # no further from its end than it was
                        break
        if best != ROOT:
            self.parent[node], self.depth[node], self.seen[node] = best, nearest + 1, self.time
            return
        for arc in arcs:
            other = heads[arc]
            if tree[other] == mine:
                if left[arc ^ turn]:
                    self._wake(other)
                if self.parent[other] == arc ^ 1:
                    self._orphan(other)
        tree[node] = OUTSIDE

    def _depth(self, node: int) -> int:
        """How far a node is from its end, 0 where an orphan is in between. What is found out is noted on the way."""
        parent, heads, seen, time, path = self.parent, self.heads, self.seen, self.time, []
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
            depth = self.depth[node]
        for node in reversed(path):
            depth += 1
            self.depth[node], seen[node] = depth, time
        return depth
