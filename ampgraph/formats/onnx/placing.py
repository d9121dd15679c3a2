"""Where new nodes go: right behind what they read, so that what is sorted stays sorted."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from .handles import Handles

Parent = ir.Graph | ir.Function


class Placing:
    """Puts nodes into graphs. It knows the order of what it placed, so a node can go behind the last of several."""

    def __init__(self, handles: Handles) -> None:
        self._handles = handles
        self._first: dict[int, ir.Node | None] = {}  # by scope: the first node that was there
        self._placed: dict[ir.Node, tuple[ir.Node | None, int]] = {}  # node -> what it stands behind, when it came
        self._time = 0
        self._index: dict[ir.Node, int] = {}  # nodes of the file -> their place in it

    def behind(self, scope: int, anchor: ir.Node | None, node: ir.Node) -> None:
        """A node goes right behind another; without one before the first that was there, after what came before so.

        One that is there already moves."""
        graph = self._handles.graph(scope)
        if anchor is not None and anchor.graph is not getattr(graph, "graph", graph):
            anchor = None  # it stands around this graph
        first = self._first.setdefault(scope, next(iter(graph), None)) if anchor is None else None
        if node is first:
            return
        if node.graph is not None:
            graph.remove(node)
        if anchor is not None:
            graph.insert_after(anchor, node)
        elif first is not None:
            graph.insert_before(first, node)
        else:
            graph.append(node)
        self._time += 1
        self._placed[node] = anchor, self._time

    def last(self, scope: int, nodes: Iterable[ir.Node]) -> ir.Node | None:
        """Which of some nodes stands last in a scope; None where none of them stands there."""
        graph = self._handles.graph(scope)
        inside = getattr(graph, "graph", graph)
        return max((node for node in nodes if node.graph is inside), key=self._rank, default=None)

    def _rank(self, node: ir.Node) -> tuple[int, ...]:
        """Numbers that compare as places do. What came later behind a node stands closer to it."""
        steps: list[int] = []
        at: ir.Node | None = node
        while at is not None and at in self._placed:
            at, time = self._placed[at]
            steps.append(-time if at is not None else time)
        return (self._place_in_file(at) if at is not None else -1, *reversed(steps))

    def _place_in_file(self, node: ir.Node) -> int:
        if not self._index:
            self._index = {self._handles.node(op): op.index for op in self._handles.flow.ops}
        return self._index[node]
