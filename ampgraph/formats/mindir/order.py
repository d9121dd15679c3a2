"""The order of the nodes of one MindIR graph while it is edited: each stands behind what it reads."""

from __future__ import annotations

from collections.abc import Iterator

from .schema import Message


class NodeOrder:
    """Nodes that come, move and go. Those that stand behind one node keep the order in which they came."""

    def __init__(self, nodes: list[Message]) -> None:
        self._nodes = nodes
        self._behind: dict[int, list[Message]] = {}  # id of a node -> nodes that stand behind it
        self._first: list[Message] = []
        self._moved: set[int] = set()
        self._gone: set[int] = set()

    @property
    def changed(self) -> bool:
        """Whether the nodes are others than at first, or stand elsewhere."""
        return bool(self._gone or self._moved or self._first or self._behind)

    def put(self, node: Message, maker: Message | None) -> None:
        """A new node goes behind the one that makes what it reads; at the top without one."""
        (self._first if maker is None else self._behind.setdefault(id(maker), [])).append(node)

    def move(self, node: Message, maker: Message | None) -> None:
        """A node that is there goes up, once."""
        if id(node) not in self._moved:
            self._moved.add(id(node))
            self.put(node, maker)

    def drop(self, node: Message) -> None:
        """A node is there no more."""
        self._gone.add(id(node))

    def all(self) -> Iterator[Message]:
        """The nodes in their new order."""
        waiting = [node for node in reversed(self._nodes) if id(node) not in self._moved] + self._first[::-1]
        while waiting:
            node = waiting.pop()
            if id(node) not in self._gone:
                yield node
            waiting += reversed(self._behind.get(id(node), ()))
