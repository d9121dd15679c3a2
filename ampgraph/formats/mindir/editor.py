"""Edits a MindIR model in place, by handles of its dataflow. New names are unique in every graph, and repeatable."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op, Value
from ...core.graph import UseKey
from ...core.names import FreshNames
from . import schema, view
from .body import Body
from .schema import Message
from .view import OperandPlace
from .weights import MindirFile, round_tensor

Types: TypeAlias = "str | int | list[Types] | None"
"""Element type of a name: text, a list for a tuple, an index for an integer, or None for anything but a tensor."""


def retype_abstracts(flow: Dataflow, types: Mapping[int, str], known: dict[str, Message]) -> None:
    """Values in ``types`` (by id) have a new element type: every abstract that shows one of them is written anew."""
    new = _new_types(flow, types)
    constants: dict[str, Types] = {}
    parameters: dict[str, str] = {}
    for tensor in flow.scopes[0].native.graph.parameter:
        parameters[tensor.ref_key or tensor.name] = view.dtype_of(tensor)
    for scope in flow.scopes:
        for node in scope.native.graph.node:
            if node.op_type == "Constant":
                constants[node.output[0]] = _constant(view.attribute(node, "value"))
    for scope in flow.scopes:
        graph = scope.native.graph
        names: ChainMap[str, Types] = ChainMap({}, constants)
        for tensor in graph.parameter:
            names[tensor.name] = view.dtype_of(tensor)
        for info in graph.input:
            names[info.name] = _formal(info, new.get(info.name, {}), parameters)
        for node in graph.node:
            if node.op_type != "Constant":
                names[node.output[0]] = _node(node, new.get(node.output[0], {}), names, known)
        for info in graph.output:
            _write(info.attr_info if info.HasField("attr_info") else None, names.get(info.name))
            _write_tensors(info.tensor, names.get(info.name))


def _new_types(flow: Dataflow, types: Mapping[int, str]) -> dict[str, dict[int, str]]:
    """By name of what makes or holds them: position among its tensors -> new type."""
    found: dict[str, dict[int, str]] = {}
    for number, dtype in types.items():
        value = flow.values[number]
        held = flow.scopes[value.scope].native.held.get(number)
        if held is not None and not value.weight:
            native, position = held
            name = flow.ops[value.producer].native.node.output[0] if value.producer >= 0 else native.name
            found.setdefault(name, {})[position] = dtype
    return found


def _formal(info: Message, new: dict[int, str], parameters: dict[str, str]) -> Types:
    """The type of an input of a graph, written into it."""
    abstract = info.attr_info if info.HasField("attr_info") else None
    for position, tensor in enumerate(list(info.tensor) or list(view.elements(abstract))):
        if tensor is not None and tensor.ref_key in parameters:
            _set(tensor, parameters[tensor.ref_key])
        elif tensor is not None and position in new:
            _set(tensor, new[position])
    if not info.tensor:
        return _types(abstract)
    found: list[Types] = [parameters.get(tensor.ref_key) or view.dtype_of(tensor) for tensor in info.tensor]
    return found if len(found) > 1 else found[0]


def _node(node: Message, new: dict[int, str], names: Mapping[str, Types], known: dict[str, Message]) -> Types:
    """The type of what a node makes, written into its abstract."""
    abstract = view.attribute(node, "shape")
    kind = view.kind_of(node, known)
    found: Types
    if kind in view.TUPLES:
        found = [names.get(name) for name in node.input]
    elif kind in ("Load", "Depend"):
        found = names.get(node.input[0])
    elif kind in ("TupleGetItem", "list_getitem"):
        found = _element(names.get(node.input[0]), names.get(node.input[1]))
    else:
        for position, tensor in enumerate(view.elements(abstract)):
            if tensor is not None and position in new:
                _set(tensor, new[position])
        return _types(abstract)
    _write(abstract, found)
    return found


def _element(whole: Types, index: Types) -> Types:
    if isinstance(whole, list) and isinstance(index, int) and -len(whole) <= index < len(whole):
        return whole[index]
    return None


def _types(abstract: Message) -> Types:
    if abstract is None:
        return None
    if abstract.type in view.SEQUENCES:
        return [_types(item) for item in abstract.values]
    if abstract.type in (schema.TENSORS, schema.TENSOR):
        found: list[Types] = [view.dtype_of(tensor) for tensor in abstract.tensors]
        return found if len(found) > 1 else found[0] if found else None
    return None


def _constant(given: Message) -> Types:
    """The type of a constant; of a number that counts, the number itself."""
    if given is None or given.type in view.MONADS:
        return None
    found = _types(given)
    number = view.number(given) if found is None else None
    return number if isinstance(number, int) else found


def _write(abstract: Message, types: Types) -> None:
    if abstract is None or types is None:
        return
    if abstract.type in view.SEQUENCES:
        if isinstance(types, list):
            for item, inner in zip(abstract.values, types, strict=False):
                _write(item, inner)
    elif abstract.type in (schema.TENSORS, schema.TENSOR):
        _write_tensors(abstract.tensors, types)


def _write_tensors(tensors: Message, types: Types) -> None:
    for tensor, dtype in zip(tensors, types if isinstance(types, list) else [types], strict=False):
        if isinstance(dtype, str):
            _set(tensor, dtype)


def _set(tensor: Message, dtype: str) -> None:
    """Only between the types that ampgraph decides on."""
    if view.dtype_of(tensor) in schema.ELEMENT_NUMBERS and dtype in schema.ELEMENT_NUMBERS:
        tensor.data_type = schema.ELEMENT_NUMBERS[dtype]


class MindirCasts:
    """Finds or makes what reads a value as another type. ``names``: all that the file has."""

    def __init__(self, model: Message, flow: Dataflow, bodies: dict[int, Body], names: set[str]) -> None:
        self._model, self._flow, self._bodies, self._names = model, flow, bodies, names
        self._parameters = {s.id: {item.name for item in s.native.graph.parameter} for s in flow.scopes}
        self._casts: dict[tuple[int, str, str], str] = {}  # scope, first name, type -> the first name of its cast
        self._cast_reference = ""

    def name_type(self, op: Op, dtype: str) -> None:
        """A Cast names its type by a constant at the top of its graph."""
        body = self._bodies[op.scope]
        body.give_input(op.native.node, 1, body.number(schema.TYPE_IDS[dtype], dtype))

    def _base(self, scope: int, value: Value, place: OperandPlace) -> str:
        """The first name behind which a cast of a value can stand for a reader.

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
        """The first name of ``value`` as ``to`` for a reader: of a cast that is there, or a new one."""
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
        key = scope, name, to
        if key not in self._casts:
            body = self._bodies[scope]
            source = body.now(name)
            made = body.maker(source)
            result = body.fresh(f"{name}_{to}")
            number = body.number(schema.TYPE_IDS[to], to)
            layer = made.domain.rpartition("/")[0] if made is not None and made.domain else "Default"
            node = body.new(result, op_type=self._cast_type(), input=[source, number], domain=f"{layer}/Cast-amp")
            _add_abstract(node, value, to)
            body.put(node, source)
            self._casts[key] = result
        return self._casts[key]

    def _cast_type(self) -> str:
        """How a node refers to the Cast primitive, which is added where the file has none."""
        if not self._cast_reference:
            found = next((p.name for p in self._model.primitives if p.op_type == "Cast"), "")
            if not found:
                found = "Cast:amp"
                while found in self._names:
                    found += "_"
                self._model.primitives.add(name=found, op_type="Cast", prim_type=schema.PRIMITIVE_FUNCTION)
            self._cast_reference = f"REF::{found}"
        return self._cast_reference


def _add_abstract(node: Message, value: Value, dtype: str) -> None:
    """The type of a node that makes one tensor like ``value``."""
    dims = [-2] if value.shape is None else [dim if isinstance(dim, int) else -1 for dim in value.shape]
    tensor = node.attribute.add(name="shape", type=schema.TENSORS).tensors.add()
    tensor.data_type = schema.ELEMENT_NUMBERS[dtype]
    tensor.dims.extend(dims)


class MindirEditor:
    """The verbs of `core.graph.Editor`; the end of the `with` puts the nodes into order and writes the types.

    ``done``: called behind the last edit, if there was one."""

    def __init__(self, file: MindirFile, flow: Dataflow, done: Callable[[], None]) -> None:
        self.file, self.model, self.flow = file, file.model, flow
        names = view.all_names(self.model)
        fresh = FreshNames(names)
        self._bodies = {scope.id: Body(scope.native.graph, fresh) for scope in flow.scopes}
        self._scopes = {scope.path: scope.id for scope in flow.scopes}
        self._ops = {(op.scope, op.index): op for op in flow.ops}
        self._types: dict[int, str] = {}  # values that were retyped
        self._casts = MindirCasts(file.model, flow, self._bodies, names)
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
        place: OperandPlace | None
        if index == NONE:
            place = self.flow.scopes[scope].native.outputs[position]
        else:
            place = self._ops[scope, index].native.places[position]
        assert place is not None  # ties in the dataflow keep casts away from where there is no place
        return place

    # -- casts --------------------------------------------------------------------------------------------------------

    def retype(self, value: Value, dtype: str) -> None:
        """The value now has this element type; the operand of a Cast that names it follows."""
        self._edited = True
        self._types[value.id] = dtype
        op = self.flow.ops[value.producer] if value.producer != NONE else None
        if op is not None and op.role == "Cast":
            self._casts.name_type(op, dtype)

    def keep_type(self, op: Op, dtype: str) -> None:
        """No operator's result follows an input of another slot."""

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
        """Changes a stored tensor: ``low`` replaces it, ``both`` adds a low constant, ``float32`` only floors."""
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
        """A constant has one name in all graphs, so its copy stands where it stands."""
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
        retype_abstracts(self.flow, self._types, view.primitives(self.model))
