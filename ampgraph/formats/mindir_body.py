"""The nodes of one MindIR graph while they are edited: who reads a name, and where new nodes go."""

from __future__ import annotations

from typing import Any

from . import mindir_schema as schema
from .mindir_view import Place, kind_of


class Body:
    """Edits are made on the nodes at once, all but their order, which `write` puts into the file."""

    def __init__(self, graph: Any, names: set[str], known: dict[str, Any]) -> None:
        self.graph = graph
        self.nodes: list[Any] = list(graph.node)
        self._makers = {name: node for node in self.nodes for name in node.output}
        self._readers: dict[str, list[tuple[Any, int]]] = {}
        for node in self.nodes:
            for position, name in enumerate(node.input):
                self._readers.setdefault(name, []).append((node, position))
        self._behind: dict[int, list[Any]] = {}  # id of a node -> new nodes behind it
        self._first: list[Any] = []
        self._gone: set[int] = set()
        self._numbers: dict[int, str] = {}
        self._constants: list[Any] = []
        self._changed = False
        self._names, self._primitives = names, known
        self._names |= set(self._makers) | set(self._readers) | {node.name for node in self.nodes}
        self._names |= {item.name for item in (*graph.parameter, *graph.input, *graph.output)}

    def fresh(self, name: str) -> str:
        """``name``, or the first of name_1, name_2 ... that nothing is called."""
        candidate, number = name, 0
        while candidate in self._names:
            number += 1
            candidate = f"{name}_{number}"
        self._names.add(candidate)
        return candidate

    def maker(self, name: str) -> Any:
        """The node that writes a name, or None."""
        return self._makers.get(name)

    def name_at(self, place: Place) -> str:
        """What stands at a place now."""
        return self.graph.output[place.position].name if place.node is None else place.node.input[place.position]

    def is_ordered(self, name: str) -> bool:
        """Whether a name is the result of a Depend."""
        node = self._makers.get(name)
        return node is not None and kind_of(node, self._primitives) == "Depend"

    def number(self, number: int, word: str) -> str:
        """The name of an integer constant, which is made at the top of the graph."""
        if number not in self._numbers:
            name = self.fresh(f"amp_{word}")
            node = schema.Node(name=name, op_type="Constant", output=[name])
            node.attribute.add(name="value", type=schema.INT64, i=number)
            self._constants.append(node)
            self._numbers[number] = name
        return self._numbers[number]

    # -- edits --------------------------------------------------------------------------------------------------------

    def insert_behind(self, node: Any, name: str) -> None:
        """A new node, as soon as ``name`` is there."""
        self._register(node)
        maker = self._makers.get(name)
        if maker is None:
            self._first.append(node)
        else:
            self._behind.setdefault(id(maker), []).append(node)

    def _register(self, node: Any) -> None:
        self._changed = True
        for name in node.output:
            self._makers[name] = node
        for position, name in enumerate(node.input):
            self._readers.setdefault(name, []).append((node, position))

    def move_behind(self, node: Any, name: str) -> None:
        """A node that is there goes up to where ``name`` is made."""
        if any(node is other for others in (self._first, *self._behind.values()) for other in others):
            return
        self._gone.add(id(node))
        self._changed = True
        maker = self._makers.get(name)
        if maker is None:
            self._first.append(node)
        else:
            self._behind.setdefault(id(maker), []).insert(0, node)

    def give_input(self, node: Any, position: int, name: str) -> None:
        """Input ``position`` of a node becomes ``name``."""
        old = node.input[position]
        if old != name:
            self._readers[old] = [r for r in self._readers[old] if not (r[0] is node and r[1] == position)]
            self._readers.setdefault(name, []).append((node, position))
            node.input[position] = name

    def give_element(self, place: Place, name: str) -> None:
        """An element of the tuple that an operator reads; a tuple that others read as well is copied first."""
        assert place.reader is not None
        reader, operand = place.reader
        held = self._makers[reader.input[operand]]
        if len(self._readers[held.output[0]]) > 1:
            copy = schema.Node()
            copy.CopyFrom(held)
            copy.name = copy.output[0] = self.fresh(f"{held.output[0]}_amp")
            self._register(copy)
            self._behind.setdefault(id(held), []).append(copy)
            self.give_input(reader, operand, copy.output[0])
            held = copy
        self.give_input(held, place.position, name)

    def give_output(self, position: int, name: str) -> None:
        """An output of the graph becomes the value ``name``, under the name that the output has."""
        output = self.graph.output[position]
        old, made = output.name, self._makers.get(name)
        source = self._makers.get(old)
        if made is None or source is None or any(o.name == name for o in self.graph.output):
            output.name = name
            return
        self.rename(old, self.fresh(f"{old}_amp"))
        self.rename(name, old)

    def rename(self, old: str, new: str) -> None:
        """A value gets another name, wherever it is read; the outputs of the graph keep theirs."""
        node = self._makers.pop(old)
        self._makers[new] = node
        node.output[list(node.output).index(old)] = new
        readers = self._readers.pop(old, [])
        for reader, position in readers:
            reader.input[position] = new
        self._readers[new] = readers

    def bypass(self, node: Any) -> bool:
        """Readers of a node's only result read its first input; False where a graph output needs the name."""
        result, source = node.output[0], node.input[0]
        if any(output.name == result for output in self.graph.output):
            return False
        for reader, position in list(self._readers.get(result, ())):
            self.give_input(reader, position, source)
        return self.drop_unread(node)

    def drop_unread(self, node: Any) -> bool:
        """Removes a node whose result nobody reads."""
        result = node.output[0]
        if self._readers.get(result) or any(output.name == result for output in self.graph.output):
            return False
        for position, name in enumerate(node.input):
            self._readers[name] = [r for r in self._readers[name] if not (r[0] is node and r[1] == position)]
        for others in (self._first, *self._behind.values()):
            others[:] = [other for other in others if other is not node]
        self._gone.add(id(node))
        self._changed = True
        return True

    def write(self) -> None:
        """Puts the nodes into the file in their new order."""
        if not self._changed and not self._constants:
            return
        ordered: list[Any] = list(self._constants)

        def add(node: Any) -> None:
            ordered.append(node)
            for other in self._behind.get(id(node), ()):
                add(other)

        for node in self._first:
            add(node)
        for node in self.nodes:
            if id(node) not in self._gone:
                add(node)
            else:
                for other in self._behind.get(id(node), ()):
                    add(other)
        kept = [schema.Node.FromString(node.SerializeToString(deterministic=True)) for node in ordered]
        del self.graph.node[:]
        self.graph.node.extend(kept)
