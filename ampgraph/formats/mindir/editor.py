"""Edits a MindIR model in place, by handles of its dataflow. New names are unique in every graph, and repeatable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op, Value
from ...core.graph import UseKey
from ...core.names import FreshNames
from . import schema, view
from .dataflow import settle_types
from .schema import Message
from .view import OperandPlace
from .weights import MindirFile, round_tensor


class NodeOrder:
    """The order of one graph's nodes while some come, move and go. Those placed behind one node keep the order in which
    they came."""

    def __init__(self, nodes: list[Message]) -> None:
        self._nodes = nodes
        self._behind: dict[int, list[Message]] = {}  # id of a node -> nodes that stand behind it
        self._first: list[Message] = []
        self._moved: set[int] = set()
        self._gone: set[int] = set()

    @property
    def changed(self) -> bool:
        """Whether the nodes of the .mindir graph are others than at first, or stand elsewhere."""
        return bool(self._gone or self._moved or self._first or self._behind)

    def put(self, node: Message, maker: Message | None) -> None:
        """Places a new node behind the node ``maker`` that makes what it reads; at the top for None."""
        (self._first if maker is None else self._behind.setdefault(id(maker), [])).append(node)

    def move(self, node: Message, maker: Message | None) -> None:
        """Moves a node behind ``maker``; only its first move counts."""
        if id(node) not in self._moved:
            self._moved.add(id(node))
            self.put(node, maker)

    def drop(self, node: Message) -> None:
        """Takes a node out of the order."""
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
    """One graph under edit. Its nodes are edited at once; their order is written by `write`. ``fresh``: makes names."""

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
        """The present name of the value that was called ``name`` when the editor was opened."""
        return self._now.get(name, name)

    def first_name_at(self, place: OperandPlace) -> str:
        """The first name of what stands at a place now."""
        name = self._name_at(place)
        return self._was.get(name, name)

    def maker(self, name: str) -> Message:
        """The node that writes what is called ``name`` now, or None."""
        return self._makers.get(name)

    def _name_at(self, place: OperandPlace) -> str:
        """The present name of the value at a place: an operand, one behind a tuple or Depend, or an output of the
        graph."""
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
        """The name of an integer constant, which is made at the top of the .mindir graph; ``word``: what a new name
        tells of it."""
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
        """Places a new node behind the node that makes ``name``."""
        self._makers[node.output[0]] = node
        self._enter(node)
        self._order.put(node, self._makers.get(name))

    def move(self, node: Message, name: str) -> None:
        """Moves a node up to behind the node that makes ``name``."""
        self._order.move(node, self._makers.get(name))

    def _enter(self, node: Message) -> None:
        """Lists a node as reader of its operands."""
        for position, name in enumerate(node.input):
            self._readers.setdefault(name, {})[id(node), position] = node, position

    # -- edits --------------------------------------------------------------------------------------------------------

    def give(self, place: OperandPlace, name: str) -> None:
        """Has the operand at ``place`` read ``name``. A tuple or Depend that others read too is copied for this
        reader."""
        if place.node is None:
            self._give_output(place.position, name)
        else:
            self.give_input(place.node if place.via is None else self._own(place.via), place.position, name)

    def _own(self, place: OperandPlace) -> Message:
        """The node whose result stands at ``place`` and nowhere else: a copy where others read it too."""
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
        """Makes ``name`` the input ``position`` of a node."""
        old = node.input[position]
        if old != name:
            self._readers[old].pop((id(node), position), None)
            self._readers.setdefault(name, {})[id(node), position] = node, position
            node.input[position] = name

    def _give_output(self, position: int, name: str) -> None:
        """Makes the value ``name`` an output of the graph, under the name that the output has."""
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
        """Renames a value wherever it is read; outputs of the graph keep their names."""
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


class MindirCasts:
    """Casts of a model under edit: finds or makes what reads a value as another type. ``bodies``: by scope, its graph
    under edit."""

    def __init__(self, model: Message, flow: Dataflow, bodies: dict[int, Body]) -> None:
        self._model, self._flow, self._bodies = model, flow, bodies
        self._parameters = {s.id: {item.name for item in s.native.graph.parameter} for s in flow.scopes}
        self._casts: dict[tuple[int, str, str], str] = {}  # scope, first name, type -> the first name of its cast

    def name_type(self, op: Op, dtype: str) -> None:
        """Has a Cast name its type by a constant at the top of its graph, as MindIR does."""
        body = self._bodies[op.scope]
        body.give_input(op.native.node, 1, body.number(schema.TYPE_IDS[dtype], dtype))

    def _base(self, scope: int, value: Value, place: OperandPlace) -> str:
        """The first name of a value behind which its Cast can stand so that a reader at ``place`` comes after it.

        The name that the value has first in the graph serves all readers, but for those behind a Depend, which keeps
        an order, and those of a parameter itself that stand in front of its first Load.
        """
        native, body = self._flow.scopes[scope].native, self._bodies[scope]
        name = body.first_name_at(place)
        if name in native.ordered:
            return name
        first = native.names.get(value.id, name)
        return name if name in self._parameters[scope] and not body.stands_before(first, place) else first

    def first_name(self, scope: int, value: Value, place: OperandPlace, to: str) -> str:
        """The name of ``value`` cast to ``to`` for a reader, as it was first called: of a Cast that is there, or of a
        new one."""
        body, native = self._bodies[scope], self._flow.scopes[scope].native
        base = self._base(scope, value, place)
        if value.low_source != NONE and base not in native.ordered and value.low_source in native.names:
            return str(native.names[value.low_source])
        if (scope, base, to) in self._casts:
            return self._casts[scope, base, to]
        for use in self._flow.uses[value.id]:
            if use.given_cast and use.scope == scope and (scope, base, to) not in self._casts:
                given = self._flow.ops[use.op]
                result = self._flow.values[given.outputs[0]]
                at = OperandPlace(given.native.node, 0)
                if result.dtype == to and self._base(scope, value, at) == base:
                    body.give(at, body.now(base))
                    self.name_type(given, to)
                    body.move(given.native.node, body.now(base))
                    self._casts[scope, base, to] = native.names[result.id]
        return self.new(scope, value, base, to)

    def new(self, scope: int, value: Value, name: str, to: str) -> str:
        """The name of a Cast of ``value`` (called ``name`` at first) to ``to``, made once in each graph."""
        key = scope, name, to
        if key not in self._casts:
            body = self._bodies[scope]
            source = body.now(name)
            made = body.maker(source)
            result = body.fresh(f"{name}_{to}")
            number = body.number(schema.TYPE_IDS[to], to)
            layer = made.domain.rpartition("/")[0] if made is not None and made.domain else "Default"
            cast = view.primitive(self._model, "Cast", body.fresh)
            node = body.new(result, op_type=cast, input=[source, number], domain=f"{layer}/Cast-amp")
            dims = [-2] if value.shape is None else [dim if isinstance(dim, int) else -1 for dim in value.shape]
            view.add_type(node, schema.ELEMENT_NUMBERS[to], dims)
            body.put(node, source)
            self._casts[key] = result
        return self._casts[key]


class MindirEditor:
    """The verbs of `core.graph.Editor`; the end of the `with` puts the nodes into order and writes the types.

    ``done``: called behind the last edit, if there was one."""

    def __init__(self, file: MindirFile, flow: Dataflow, done: Callable[[], None]) -> None:
        self.file, self.model, self.flow = file, file.model, flow
        fresh = FreshNames(view.all_names(self.model))
        self._bodies = {scope.id: Body(scope.native.graph, fresh) for scope in flow.scopes}
        self._scopes = {scope.path: scope.id for scope in flow.scopes}
        self._ops = {(op.scope, op.index): op for op in flow.ops}
        self._types: dict[int, str] = {}  # values that were retyped
        self._casts = MindirCasts(file.model, flow, self._bodies)
        self._done, self._edited = done, False

    def __enter__(self) -> MindirEditor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._edited and error is None:
            self._finish()
        if self._edited:
            self._done()

    # -- handles ------------------------------------------------------------------------------------------------------

    def edits(self, scope: int) -> bool:
        """Every scope: a function is one, however often it is called."""
        return True

    def op(self, scope: str, index: int) -> Op | None:
        """The operator at a place, or None."""
        return self._ops.get((self._scopes[scope], index)) if scope in self._scopes else None

    def _place(self, scope: int, index: int, position: int) -> OperandPlace:
        """The place of an operand in the file, for a plan's (index of the operator or NONE for an output, position)."""
        place: OperandPlace | None
        if index == NONE:
            place = self.flow.scopes[scope].native.outputs[position]
        else:
            place = self._ops[scope, index].native.places[position]
        assert place is not None  # ties in the dataflow keep casts away from where there is no place
        return place

    # -- casts --------------------------------------------------------------------------------------------------------

    def retype(self, value: Value, dtype: str) -> None:
        """Gives a value another element type; the operand of a Cast that names it follows."""
        self._edited = True
        self._types[value.id] = dtype
        op = self.flow.ops[value.producer] if value.producer != NONE else None
        if op is not None and op.role == "Cast":
            self._casts.name_type(op, dtype)

    def keep_type(self, op: Op, dtype: str) -> None:
        """Nothing to do: in MindIR no result's type follows an input of another slot."""

    def cast(self, value: Value, to: str, uses: Iterable[UseKey]) -> None:
        """Reads ``value`` as ``to`` at the given uses, through one Cast for each graph, or a given one."""
        self._edited = True
        for path, index, position in uses:
            scope = self._scopes[path]
            place = self._place(scope, index, position)
            self._give(scope, place, self._casts.first_name(scope, value, place, to))

    def round(self, value: Value, dtype: str, uses: Iterable[UseKey]) -> None:
        """Puts a float32 -> low -> float32 pair between a value and the given uses."""
        self._edited = True
        for path, index, position in uses:
            scope = self._scopes[path]
            place = self._place(scope, index, position)
            low = self._casts.first_name(scope, value, place, dtype)
            self._give(scope, place, self._casts.new(scope, value, low, FLOAT32))

    def _give(self, scope: int, place: OperandPlace, first: str) -> None:
        """Has a place read the value that was called ``first`` at first."""
        body = self._bodies[scope]
        body.give(place, body.now(first))

    # -- weights ------------------------------------------------------------------------------------------------------

    def weight(
        self,
        value: Value,
        store: str,
        dtype: str,
        uses: Iterable[UseKey],
        floor: float | None = None,
        factor: float = 1.0,
    ) -> None:
        """Changes a stored tensor: ``low`` replaces it, ``both`` adds a low constant for ``uses``, ``float32`` only
        floors: numbers below ``floor`` become it when they are rounded, as `RoundedTensor` says."""
        if factor != 1.0:
            raise NotImplementedError("no plan for MindIR multiplies a stored tensor")
        self._edited = True
        if store == "both":
            self._add_constant(value, dtype, uses, floor)
        if store == "low":
            round_tensor(self.file, value.native, dtype, floor)
            self._types[value.id] = dtype
        elif floor is not None:
            round_tensor(self.file, value.native, FLOAT32, floor)

    def round_together(self, op: Op, dtype: str) -> bool:
        """Parameters of a norm stay float32 beside low data in this format."""
        return False

    def _add_constant(self, value: Value, dtype: str, uses: Iterable[UseKey], floor: float | None) -> None:
        """Adds a low copy of a constant beside it, for some uses: constants are one in all graphs."""
        given, _ = self.flow.scopes[value.scope].native.held[value.id]
        home = next(body for body in self._bodies.values() if body.maker(given.output[0]) is given)
        node = home.copy(given, f"{given.output[0]}_{dtype}")
        copy = view.attribute(node, "value")
        assert copy is not None
        round_tensor(self.file, copy.tensors[0], dtype, floor)
        for path, index, position in uses:
            scope = self._scopes[path]
            self._give(scope, self._place(scope, index, position), node.output[0])

    # -- nodes --------------------------------------------------------------------------------------------------------

    def bypass(self, op: Op) -> bool:
        """Removes a one-input operator; its readers read its input. False where an output needs its result."""
        gone = self._bodies[op.scope].bypass(op.native.node)
        self._edited |= gone
        return gone

    def remove(self, op: Op) -> bool:
        """Removes an operator; False where somebody reads its result."""
        gone = self._bodies[op.scope].drop_unread(op.native.node)
        self._edited |= gone
        return gone

    def _finish(self) -> None:
        """Writes the nodes in order, and every abstract with the type that it has now."""
        for body in self._bodies.values():
            body.write()
        settle_types(self.file, self.flow, self._types)
