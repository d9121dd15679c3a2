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
    """The order of one .mindir graph's nodes while an editor adds, moves and removes some. Nodes placed behind the same
    node keep the order of their placing. A node is known by its `id`: `Body` keeps it alive."""

    def __init__(self, nodes: list[Message]) -> None:
        self._nodes = nodes
        self._behind: dict[int, list[Message]] = {}  # id of a node -> nodes placed right behind it
        self._first: list[Message] = []  # nodes placed at the top
        self._moved: set[int] = set()
        self._gone: set[int] = set()

    @property
    def changed(self) -> bool:
        """Whether a node of the .mindir graph was added, moved or removed since the editor was opened."""
        return bool(self._gone or self._moved or self._first or self._behind)

    def put(self, node: Message, maker: Message | None) -> None:
        """Places a new .mindir node right behind ``maker``, which writes what it reads; at the top if that is None."""
        (self._first if maker is None else self._behind.setdefault(id(maker), [])).append(node)

    def move(self, node: Message, maker: Message | None) -> None:
        """Moves a .mindir node right behind ``maker``, or to the top for None; only its first move counts."""
        if id(node) not in self._moved:
            self._moved.add(id(node))
            self.put(node, maker)

    def drop(self, node: Message) -> None:
        """Removes a node from the order of the .mindir graph; what was placed behind it stays at its place."""
        self._gone.add(id(node))

    def in_order(self) -> Iterator[Message]:
        """The nodes of the .mindir graph in their new order, without those that were dropped."""
        waiting = [node for node in reversed(self._nodes) if id(node) not in self._moved] + self._first[::-1]
        while waiting:
            node = waiting.pop()
            if id(node) not in self._gone:
                yield node
            waiting += reversed(self._behind.get(id(node), ()))


Reader = tuple[Message, int]  # a node, and the position among its inputs


class Body:
    """One .mindir graph under edit. Edits change its nodes at once; `write`, to be called last, puts them into order. A
    value is known by its *first* name, which it had when the editor was opened: its present name is another where an
    edit made another value an output and gave that the output's name. ``fresh``: gives names that no graph has."""

    def __init__(self, graph: Message, fresh: FreshNames) -> None:
        self.graph, self.fresh = graph, fresh
        self.nodes: list[Message] = list(graph.node)
        self._rank = {id(node): number for number, node in enumerate(self.nodes)}  # place in the file, by id
        self._makers = {name: node for node in self.nodes for name in node.output}  # by present name
        self._readers: dict[str, dict[tuple[int, int], Reader]] = {}  # present name -> (node's id, position) -> reader
        for node in self.nodes:
            self._note_reads(node)
        self._returned: dict[str, list[int]] = {}  # present name -> positions of the graph outputs that it is
        for position, output in enumerate(graph.output):
            self._returned.setdefault(output.name, []).append(position)
        self._order = NodeOrder(self.nodes)
        self._integers: dict[int, Message] = {}  # number -> the Constant that this editor made of it
        self._present: dict[str, str] = {}  # first name -> present name, of renamed values
        self._first: dict[str, str] = {}  # present name -> first name, of the same

    def present_name(self, first: str) -> str:
        """The present name of the value that was called ``first`` when the MindIR editor was opened."""
        return self._present.get(first, first)

    def first_name_at(self, place: OperandPlace) -> str:
        """The first name (when the MindIR editor was opened) of the value that stands at a place now."""
        name = self._name_at(place)
        return self._first.get(name, name)

    def maker(self, name: str) -> Message | None:
        """The node of the .mindir graph that writes what is called ``name`` now; None for an input or parameter."""
        return self._makers.get(name)

    def _name_at(self, place: OperandPlace) -> str:
        """The present name of the value at a place of the .mindir graph: an operand, or an output of the graph. The
        node behind ``via`` (a tuple or Depend) is found by name, as a copy may stand in its place by now."""
        if place.node is None:
            return str(self.graph.output[place.position].name)
        node = place.node if place.via is None else self._makers[self._name_at(place.via)]
        return str(node.input[place.position])

    def stands_before(self, name: str, place: OperandPlace) -> bool:
        """Whether a value of the .mindir file, by its first name, is made in front of the node that holds a place. True
        for inputs and parameters, and for every value where the place is an output of the graph."""
        if place.node is None:
            return True
        maker = self._makers.get(self.present_name(name))
        return maker is None or self._rank[id(maker)] < self._rank[id(place.node)]

    def integer(self, number: int, word: str) -> str:
        """The name of an INT64 Constant at the top of the .mindir graph, made when first asked for, as ``amp_WORD``."""
        if number not in self._integers:
            name = self.fresh(f"amp_{word}")
            node = self._integers[number] = self.graph.node.add(name=name, op_type="Constant", output=[name])
            node.attribute.add(name="value", type=schema.INT64, i=number)
        return str(self._integers[number].output[0])

    # -- nodes --------------------------------------------------------------------------------------------------------

    def new_node(self, name: str, **fields: Message) -> Message:
        """Adds a node to the .mindir graph, called as its result is; `put` has to place it, else `write` removes it."""
        return self.graph.node.add(name=name, output=[name], **fields)

    def copy_node(self, node: Message, name: str) -> Message:
        """Copies a node of the .mindir graph, right behind it, under ``name`` or what is left of it."""
        made = self.graph.node.add()
        made.CopyFrom(node)
        made.name = made.output[0] = self.fresh(name)
        self.put(made, node.output[0])
        return made

    def put(self, node: Message, name: str) -> None:
        """Places a new .mindir node behind the one that writes ``name``, a present name; else at the top."""
        self._makers[node.output[0]] = node
        self._note_reads(node)
        self._order.put(node, self._makers.get(name))

    def move(self, node: Message, name: str) -> None:
        """Moves a node of the .mindir graph right behind the node that writes ``name``, a present name."""
        self._order.move(node, self._makers.get(name))

    def _note_reads(self, node: Message) -> None:
        """Notes a node of the .mindir graph as reader of each of its inputs."""
        for position, name in enumerate(node.input):
            self._readers.setdefault(name, {})[id(node), position] = node, position

    # -- edits --------------------------------------------------------------------------------------------------------

    def give(self, place: OperandPlace, name: str) -> None:
        """Has the operand or graph output at ``place`` read ``name``, the present name of a value of this graph. A
        tuple or Depend that it is read through, and that others read too, is copied for this reader."""
        if place.node is None:
            self._give_output(place.position, name)
        elif place.via is None:
            self.give_input(place.node, place.position, name)
        else:
            self.give_input(self._own_maker(place.via), place.position, name)

    def _own_maker(self, place: OperandPlace) -> Message:
        """The node whose result the .mindir graph reads at ``place`` alone: a copy for it where others read it too."""
        reader = place.node if place.via is None else self._own_maker(place.via)
        name = self.graph.output[place.position].name if reader is None else reader.input[place.position]
        node = self._makers[name]
        if len(self._readers.get(name, ())) + len(self._returned.get(name, ())) > 1:
            node = self.copy_node(node, f"{name}_amp")
            if reader is None:
                self._give_output(place.position, node.output[0])
            else:
                self.give_input(reader, place.position, node.output[0])
        return node

    def give_input(self, node: Message, position: int, name: str) -> None:
        """Makes the value called ``name`` now the input ``position`` of a node of the .mindir graph."""
        old = node.input[position]
        if old != name:
            self._readers[old].pop((id(node), position), None)
            self._readers.setdefault(name, {})[id(node), position] = node, position
            node.input[position] = name

    def _give_output(self, position: int, name: str) -> None:
        """Makes the value called ``name`` now the output ``position`` of the .mindir graph. It takes over the output's
        name where nodes write both and neither is another output too; else the output is renamed."""
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
        """Renames a value that a .mindir node writes, with the node; outputs of the graph keep their names."""
        node = self._makers[new] = self._makers.pop(old)
        node.output[0] = node.name = new
        readers = self._readers[new] = self._readers.pop(old, {})
        for reader, position in readers.values():
            reader.input[position] = new
        first = self._first.pop(old, old)
        self._present[first], self._first[new] = new, first

    def bypass(self, node: Message) -> bool:
        """Has readers of a .mindir node read its first input, and removes it; False, and no change, for an output."""
        result, source = node.output[0], node.input[0]
        if self._returned.get(result):
            return False
        for reader, position in list(self._readers.get(result, {}).values()):
            self.give_input(reader, position, source)
        return self.drop_unread(node)

    def drop_unread(self, node: Message) -> bool:
        """Removes a node of the .mindir graph; False, and no change, where its result is read or is an output."""
        result = node.output[0]
        if self._readers.get(result) or self._returned.get(result):
            return False
        for position, name in enumerate(node.input):
            self._readers[name].pop((id(node), position), None)
        self._order.drop(node)
        return True

    def write(self) -> None:
        """Puts the .mindir nodes into their new order, integers first, without dropped ones; to be called last."""
        if not self._order.changed and not self._integers:
            return
        ordered = [*self._integers.values(), *self._order.in_order()]
        rank = {node.output[0]: number for number, node in enumerate(ordered)}
        last = len(rank)  # behind all that stay: dropped nodes, which are deleted
        self.graph.node.sort(key=lambda node: rank.get(node.output[0], last))
        del self.graph.node[last:]


class MindirCasts:
    """Finds or makes the Casts of a MindIR model under edit. ``bodies``: scope's id -> its graph under edit."""

    def __init__(self, model: Message, flow: Dataflow, bodies: dict[int, Body]) -> None:
        self._model, self._flow, self._bodies = model, flow, bodies
        self._parameters = {
            s.id: {item.name for item in s.native.graph.parameter} for s in flow.scopes
        }  # by scope's id
        self._casts: dict[tuple[int, str, str], str] = {}  # scope, first name, type -> the first name of its cast

    def name_type(self, op: Op, dtype: str) -> None:
        """Makes ``dtype`` the type that a MindIR Cast casts to, by the constant that is its second operand."""
        body = self._bodies[op.scope]
        body.give_input(op.native.node, 1, body.integer(schema.TYPE_IDS[dtype], dtype))

    def _name_to_cast(self, scope: int, value: Value, place: OperandPlace) -> str:
        """The first name of ``value`` that its Cast reads, so that the Cast stands in front of the reader at ``place``.
        A value has several names in a .mindir graph (a parameter, its Loads, results of Depends). The first of them
        serves all readers, but for those behind a Depend, which keeps an order, and those of a parameter itself that
        stand in front of its first Load: they keep the name that they read."""
        native, body = self._flow.scopes[scope].native, self._bodies[scope]
        name = body.first_name_at(place)
        if name in native.ordered:
            return name
        first: str = native.names.get(value.id, name)
        reads_parameter = name in self._parameters[scope]
        return name if reads_parameter and not body.stands_before(first, place) else first

    def name_as_type(self, scope: int, value: Value, place: OperandPlace, to: str) -> str:
        """The first name of what holds ``value`` as type ``to`` for the reader at ``place`` of a .mindir graph: what a
        given Cast made it from, the result of a given Cast, which is moved up, or that of a new one."""
        body, native = self._bodies[scope], self._flow.scopes[scope].native
        name = self._name_to_cast(scope, value, place)
        if value.low_source != NONE and name not in native.ordered and value.low_source in native.names:
            return str(native.names[value.low_source])
        if (scope, name, to) in self._casts:
            return self._casts[scope, name, to]
        for use in self._flow.uses[value.id]:
            if use.given_cast and use.scope == scope and (scope, name, to) not in self._casts:
                given = self._flow.ops[use.op]
                result = self._flow.values[given.outputs[0]]
                operand = OperandPlace(given.native.node, 0)
                if result.dtype == to and self._name_to_cast(scope, value, operand) == name:
                    body.give(operand, body.present_name(name))
                    self.name_type(given, to)
                    body.move(given.native.node, body.present_name(name))
                    self._casts[scope, name, to] = native.names[result.id]
        return self.new_cast(scope, value, name, to)

    def new_cast(self, scope: int, value: Value, name: str, to: str) -> str:
        """The name of a new Cast of what was called ``name`` first, made once a .mindir graph, of ``value``'s shape."""
        key = scope, name, to
        if key not in self._casts:
            body = self._bodies[scope]
            source = body.present_name(name)
            made = body.maker(source)
            result = body.fresh(f"{name}_{to}")
            number = body.integer(schema.TYPE_IDS[to], to)
            layer = made.domain.rpartition("/")[0] if made is not None and made.domain else "Default"
            cast = view.primitive(self._model, "Cast", body.fresh)
            node = body.new_node(result, op_type=cast, input=[source, number], domain=f"{layer}/Cast-amp")
            dims = [-2] if value.shape is None else [dim if isinstance(dim, int) else -1 for dim in value.shape]
            view.add_type(node, schema.ELEMENT_NUMBERS[to], dims)
            body.put(node, source)
            self._casts[key] = result
        return self._casts[key]


class MindirEditor:
    """The verbs of `core.graph.Editor` for MindIR; the end of the `with` puts the nodes into order and writes the
    types, unless an error ends it. ``done``: called at that end, also after an error, if there was an edit."""

    def __init__(self, file: MindirFile, flow: Dataflow, done: Callable[[], None]) -> None:
        self.file, self.model, self.flow = file, file.model, flow
        fresh = FreshNames(view.all_names(self.model))
        self._bodies = {scope.id: Body(scope.native.graph, fresh) for scope in flow.scopes}
        self._scopes = {scope.path: scope.id for scope in flow.scopes}
        self._ops = {(op.scope, op.index): op for op in flow.ops}
        self._types: dict[int, str] = {}  # id of a value that was retyped -> its new element type
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
        """True: MindIR editors edit every scope, as a function is one scope, however often it is called."""
        return True

    def op(self, scope: str, index: int) -> Op | None:
        """The operator of the MindIR dataflow with an index in the scope of a path; None where there is none."""
        return self._ops.get((self._scopes[scope], index)) if scope in self._scopes else None

    def _place(self, scope: int, index: int, position: int) -> OperandPlace:
        """Where an operand stands in the .mindir file: of the scope's operator ``index``, or NONE for an output."""
        place: OperandPlace | None
        if index == NONE:
            place = self.flow.scopes[scope].native.outputs[position]
        else:
            place = self._ops[scope, index].native.places[position]
        assert place is not None  # ties in the dataflow keep casts away from where there is no place
        return place

    # -- casts --------------------------------------------------------------------------------------------------------

    def retype(self, value: Value, dtype: str) -> None:
        """Gives a MindIR value another element type, written at the end of the `with`; a Cast's operand at once."""
        self._edited = True
        self._types[value.id] = dtype
        op = self.flow.ops[value.producer] if value.producer != NONE else None
        if op is not None and op.role == "Cast":
            self._casts.name_type(op, dtype)

    def keep_type(self, op: Op, dtype: str) -> None:
        """Does nothing: in MindIR no result's type follows an input of another slot."""

    def cast(self, value: Value, to: str, uses: Iterable[UseKey]) -> None:
        """Has the given uses of a MindIR value read it as type ``to``, through one Cast a graph, or a given one."""
        self._edited = True
        for path, index, position in uses:
            scope = self._scopes[path]
            place = self._place(scope, index, position)
            self._give(scope, place, self._casts.name_as_type(scope, value, place, to))

    def round(self, value: Value, dtype: str, uses: Iterable[UseKey]) -> None:
        """Puts a pair of Casts, float32 to ``dtype`` and back, between a MindIR value and the given uses."""
        self._edited = True
        for path, index, position in uses:
            scope = self._scopes[path]
            place = self._place(scope, index, position)
            low = self._casts.name_as_type(scope, value, place, dtype)
            self._give(scope, place, self._casts.new_cast(scope, value, low, FLOAT32))

    def _give(self, scope: int, place: OperandPlace, first: str) -> None:
        """Has a place of a .mindir graph read the value whose first name is ``first``."""
        body = self._bodies[scope]
        body.give(place, body.present_name(first))

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
        """Changes a stored tensor of a MindIR model. ``store``: ``low`` makes it ``dtype``, ``both`` adds a constant of
        that type beside it for ``uses``, ``float32`` keeps its type and only floors. ``floor``: finite elements below
        it become it first; None for no floor. ``factor``: only 1.0; raises NotImplementedError for any other."""
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
        """False, and nothing changes: parameters of a norm stay float32 beside low data in MindIR."""
        return False

    def _add_constant(self, value: Value, dtype: str, uses: Iterable[UseKey], floor: float | None) -> None:
        """Adds a copy of a MindIR constant, of type ``dtype``, right behind it, and has the given uses read it. The
        uses may be in any graph: all graphs see a constant of one of them."""
        given, _ = self.flow.scopes[value.scope].native.held[value.id]
        home = next(body for body in self._bodies.values() if body.maker(given.output[0]) is given)
        node = home.copy_node(given, f"{given.output[0]}_{dtype}")
        copy = view.attribute(node, "value")
        assert copy is not None
        round_tensor(self.file, copy.tensors[0], dtype, floor)
        for path, index, position in uses:
            scope = self._scopes[path]
            self._give(scope, self._place(scope, index, position), node.output[0])

    # -- nodes --------------------------------------------------------------------------------------------------------

    def bypass(self, op: Op) -> bool:
        """Removes a MindIR operator of one input, which its readers read; False, and no change, for an output."""
        gone = self._bodies[op.scope].bypass(op.native.node)
        self._edited |= gone
        return gone

    def remove(self, op: Op) -> bool:
        """Removes an operator of a MindIR model; False, and no change, where its result is read or is an output."""
        gone = self._bodies[op.scope].drop_unread(op.native.node)
        self._edited |= gone
        return gone

    def _finish(self) -> None:
        """Ends the edits of a MindIR model: puts nodes into order, and writes new types wherever one is said."""
        for body in self._bodies.values():
            body.write()
        settle_types(self.file, self.flow, self._types)
