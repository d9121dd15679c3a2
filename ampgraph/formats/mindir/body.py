"""The nodes of one MindIR graph while they are edited: who reads a name, and where new nodes go.

Callers know a value by the name that it had first; `now` gives the name that it has at the moment.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...core.names import FreshNames
from . import schema
from .schema import Message
from .view import OperandPlace


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


Reader = tuple[Message, int]


class Body:
    """Edits are made on the nodes at once, all but their order, which `write` makes."""

    def __init__(self, graph: Message, fresh: FreshNames) -> None:
        self.graph, self.fresh = graph, fresh
        self.nodes: list[Message] = list(graph.node)
        self._rank = {id(node): number for number, node in enumerate(self.nodes)}
        self._makers = {name: node for node in self.nodes for name in node.output}
        self._readers: dict[str, dict[tuple[int, int], Reader]] = {}
        for node in self.nodes:
            self._enter(node)
        self._returned: dict[str, list[int]] = {}  # name -> the outputs of the graph that it is
        for position, output in enumerate(graph.output):
            self._returned.setdefault(output.name, []).append(position)
        self._order = NodeOrder(self.nodes)
        self._numbers: dict[int, Message] = {}
        self._now: dict[str, str] = {}  # first name -> name
        self._was: dict[str, str] = {}

    def now(self, name: str) -> str:
        """What is called now what was called ``name`` first."""
        return self._now.get(name, name)

    def first_name_at(self, place: OperandPlace) -> str:
        """The first name of what stands at a place now."""
        name = self._name_at(place)
        return self._was.get(name, name)

    def maker(self, name: str) -> Message:
        """The node that writes what is called ``name`` now, or None."""
        return self._makers.get(name)

    def _name_at(self, place: OperandPlace) -> str:
        if place.node is None:
            return str(self.graph.output[place.position].name)
        node = place.node if place.via is None else self._makers[self._name_at(place.via)]
        return str(node.input[place.position])

    def stands_before(self, name: str, place: OperandPlace) -> bool:
        """Whether what was called ``name`` first is made in front of the node that holds a place, in the file."""
        if place.node is None:
            return True
        maker = self._makers.get(self.now(name))
        return maker is None or self._rank[id(maker)] < self._rank[id(place.node)]

    def number(self, number: int, word: str) -> str:
        """The name of an integer constant, which is made at the top of the graph."""
        if number not in self._numbers:
            name = self.fresh(f"amp_{word}")
            node = self._numbers[number] = self.graph.node.add(name=name, op_type="Constant", output=[name])
            node.attribute.add(name="value", type=schema.INT64, i=number)
        return str(self._numbers[number].output[0])

    # -- nodes --------------------------------------------------------------------------------------------------------

    def new(self, name: str, **fields: Message) -> Message:
        """A node that `put` gives its place."""
        return self.graph.node.add(name=name, output=[name], **fields)

    def copy(self, node: Message, name: str) -> Message:
        """Another node like one that is there, right behind it."""
        made = self.graph.node.add()
        made.CopyFrom(node)
        made.name = made.output[0] = self.fresh(name)
        self.put(made, node.output[0])
        return made

    def put(self, node: Message, name: str) -> None:
        """A new node goes where ``name`` is there."""
        self._makers[node.output[0]] = node
        self._enter(node)
        self._order.put(node, self._makers.get(name))

    def move(self, node: Message, name: str) -> None:
        """A node that is there goes up to where ``name`` is made."""
        self._order.move(node, self._makers.get(name))

    def _enter(self, node: Message) -> None:
        for position, name in enumerate(node.input):
            self._readers.setdefault(name, {})[id(node), position] = node, position

    # -- edits --------------------------------------------------------------------------------------------------------

    def give(self, place: OperandPlace, name: str) -> None:
        """``name`` stands at a place from now on. A tuple or Depend that others read too is copied for this reader."""
        if place.node is None:
            self._give_output(place.position, name)
        else:
            self.give_input(place.node if place.via is None else self._own(place.via), place.position, name)

    def _own(self, place: OperandPlace) -> Message:
        """The node whose result stands at a place and nowhere else: a copy of the one that is there, if need be."""
        reader = place.node if place.via is None else self._own(place.via)
        name = self.graph.output[place.position].name if reader is None else reader.input[place.position]
        node = self._makers[name]
        if len(self._readers.get(name, ())) + len(self._returned.get(name, ())) > 1:
            node = self.copy(node, f"{name}_amp")
            if reader is None:
                self._give_output(place.position, node.output[0])
            else:
                self.give_input(reader, place.position, node.output[0])
        return node

    def give_input(self, node: Message, position: int, name: str) -> None:
        """Input ``position`` of a node becomes ``name``."""
        old = node.input[position]
        if old != name:
            self._readers[old].pop((id(node), position), None)
            self._readers.setdefault(name, {})[id(node), position] = node, position
            node.input[position] = name

    def _give_output(self, position: int, name: str) -> None:
        """An output of the graph becomes the value ``name``, under the name that the output has."""
        old = self.graph.output[position].name
        if old == name:
            return
        alone = self._returned[old] == [position] and name not in self._returned
        if alone and name in self._makers and old in self._makers:
            self._rename(old, self.fresh(f"{old}_amp"))
            self._rename(name, old)
            return
        self._returned[old].remove(position)
        self._returned.setdefault(name, []).append(position)
        self.graph.output[position].name = name

    def _rename(self, old: str, new: str) -> None:
        """A value gets another name, wherever it is read; the outputs of the graph keep theirs."""
        node = self._makers[new] = self._makers.pop(old)
        node.output[0] = node.name = new
        readers = self._readers[new] = self._readers.pop(old, {})
        for reader, position in readers.values():
            reader.input[position] = new
        first = self._was.pop(old, old)
        self._now[first], self._was[new] = new, first

    def bypass(self, node: Message) -> bool:
        """Readers of a node's only result read its first input; False where a graph output needs the name."""
        result, source = node.output[0], node.input[0]
        if self._returned.get(result):
            return False
        for reader, position in list(self._readers.get(result, {}).values()):
            self.give_input(reader, position, source)
        return self.drop_unread(node)

    def drop_unread(self, node: Message) -> bool:
        """Removes a node whose result nobody reads."""
        result = node.output[0]
        if self._readers.get(result) or self._returned.get(result):
            return False
        for position, name in enumerate(node.input):
            self._readers[name].pop((id(node), position), None)
        self._order.drop(node)
        return True

    def write(self) -> None:
        """Puts the nodes of the file into their new order."""
        if not self._order.changed and not self._numbers:
            return
        ordered = [*self._numbers.values(), *self._order.all()]
        rank = {node.output[0]: number for number, node in enumerate(ordered)}
        last = len(rank)
        self.graph.node.sort(key=lambda node: rank.get(node.output[0], last))
        del self.graph.node[last:]
