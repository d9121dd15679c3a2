"""Edits a MindIR model in place, by handles of its dataflow. New names are unique in every graph, and repeatable."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op, Value
from ...core.errors import AmpError
from ...core.graph import UseKey
from . import schema, view
from .abstracts import retype_abstracts
from .body import Body
from .view import Place
from .weights import MindirFile, round_tensor


class MindirEditor:
    """The verbs that passes use; `finish` puts the nodes into order and writes the types."""

    def __init__(self, file: MindirFile, flow: Dataflow) -> None:
        self.file, self.model, self.flow = file, file.model, flow
        self._names = _all_names(self.model)
        self._bodies = {scope.id: Body(scope.native.graph, self._names) for scope in flow.scopes}
        self._parameters = {s.id: {item.name for item in s.native.graph.parameter} for s in flow.scopes}
        self._scopes = {scope.path: scope.id for scope in flow.scopes}
        self._ops = {(op.scope, op.index): op for op in flow.ops}
        self._types: dict[int, str] = {}  # values that were retyped
        self._casts: dict[tuple[int, str, str], str] = {}  # scope, first name, type -> the first name of its cast
        self._made: dict[tuple[int, str], str] = {}  # scope, first name of a new cast -> its type
        self._cast_reference = ""

    # -- handles ------------------------------------------------------------------------------------------------------

    def edits(self, scope: int) -> bool:
        return True  # a function is one scope, however often it is called

    def op(self, scope: str, index: int) -> Op | None:
        return self._ops.get((self._scopes[scope], index)) if scope in self._scopes else None

    def reads(self, op: Op) -> str:
        """The element type that an operator's first input has now."""
        name, source = self._bodies[op.scope].first_name_at(Place(op.native.node, 0)), op.inputs[0]
        return self._made.get((op.scope, name)) or self._types.get(source) or self.flow.values[source].dtype

    def _place(self, scope: int, index: int, position: int) -> Place:
        if index == NONE:
            place = self.flow.scopes[scope].native.outputs[position]
        else:
            place = self._ops[scope, index].native.places[position]
        assert place is not None  # ties in the dataflow keep casts away from where there is no place
        return place

    # -- casts --------------------------------------------------------------------------------------------------------

    def retype(self, value: Value, dtype: str) -> None:
        """The value now has this element type; the operand of a Cast that names it follows."""
        self._types[value.id] = dtype
        op = self.flow.ops[value.producer] if value.producer != NONE else None
        if op is not None and op.role == "Cast":
            self._name_type(op, dtype)

    def _name_type(self, op: Op, dtype: str) -> None:
        """A Cast names its type by a constant at the top of its graph."""
        body = self._bodies[op.scope]
        body.give_input(op.native.node, 1, body.number(schema.TYPE_IDS[dtype], dtype))

    def keep_type(self, op: Op, dtype: str) -> None:
        """No operator's result follows an input of another slot."""

    def cast(self, value: Value, to: str, uses: Iterable[UseKey]) -> None:
        """Reads ``value`` as ``to`` at the given uses, through one Cast for each graph, or a given one."""
        for path, index, position in uses:
            scope = self._scopes[path]
            place = self._place(scope, index, position)
            self._give(scope, place, self._cast_name(scope, value, place, to))

    def round(self, value: Value, dtype: str, uses: Iterable[UseKey]) -> None:
        """Puts a float32 -> low -> float32 pair between a value and the given uses."""
        for path, index, position in uses:
            scope = self._scopes[path]
            place = self._place(scope, index, position)
            low = self._cast_name(scope, value, place, dtype)
            self._give(scope, place, self._new_cast(scope, value, low, FLOAT32))

    def _give(self, scope: int, place: Place, first: str) -> None:
        body = self._bodies[scope]
        body.give(place, body.now(first))

    def _base(self, scope: int, value: Value, place: Place) -> str:
        """The first name behind which a cast of a value can stand for a reader.

        The name that the value has first in the graph serves all readers, but for those behind a Depend, which keeps
        an order, and those of a parameter itself that stand in front of its first Load.
        """
        native, body = self.flow.scopes[scope].native, self._bodies[scope]
        name = body.first_name_at(place)
        if name in native.ordered:
            return name
        first = native.names.get(value.id, name)
        return name if name in self._parameters[scope] and not body.stands_before(first, place) else first

    def _cast_name(self, scope: int, value: Value, place: Place, to: str) -> str:
        """The first name of ``value`` as ``to`` for a reader: of a cast that is there, or a new one."""
        body, native = self._bodies[scope], self.flow.scopes[scope].native
        base = self._base(scope, value, place)
        if value.low_source != NONE and base not in native.ordered and value.low_source in native.names:
            return native.names[value.low_source]
        if (scope, base, to) in self._casts:
            return self._casts[scope, base, to]
        for use in self.flow.uses[value.id]:
            if use.given_cast and use.scope == scope and (scope, base, to) not in self._casts:
                given = self.flow.ops[use.op]
                result = self.flow.values[given.outputs[0]]
                at = Place(given.native.node, 0)
                if result.dtype == to and self._base(scope, value, at) == base:
                    body.give(at, body.now(base))
                    self._name_type(given, to)
                    body.move(given.native.node, body.now(base))
                    self._casts[scope, base, to] = native.names[result.id]
        return self._new_cast(scope, value, base, to)

    def _new_cast(self, scope: int, value: Value, name: str, to: str) -> str:
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
            self._casts[key], self._made[scope, result] = result, to
        return self._casts[key]

    def _cast_type(self) -> str:
        """How a node refers to the Cast primitive, which is added where the file has none."""
        if not self._cast_reference:
            found = next((p.name for p in self.model.primitives if p.op_type == "Cast"), "")
            if not found:
                found = "Cast:amp"
                while found in self._names:
                    found += "_"
                self.model.primitives.add(name=found, op_type="Cast", prim_type=schema.PRIMITIVE_FUNCTION)
            self._cast_reference = f"REF::{found}"
        return self._cast_reference

    # -- weights ------------------------------------------------------------------------------------------------------

    def weight(self, value: Value, store: str, dtype: str, uses: Iterable[UseKey], floor: float | None) -> None:
        """Changes a stored tensor: ``low`` replaces it, ``both`` adds a low constant, ``float32`` only floors."""
        if store == "both":
            self._add_constant(value, dtype, uses, floor)
        if store == "low":
            round_tensor(self.file, value.native, dtype, floor)
            self._types[value.id] = dtype
        elif floor is not None:
            round_tensor(self.file, value.native, FLOAT32, floor)

    def round_together(self, op: Op, dtype: str) -> None:
        """Parameters of a norm stay float32 beside low data in this format."""

    def _add_constant(self, value: Value, dtype: str, uses: Iterable[UseKey], floor: float | None) -> None:
        """A constant has one name in all graphs, so its copy stands where it stands."""
        given, _ = self.flow.scopes[value.scope].native.held[value.id]
        home = next(body for body in self._bodies.values() if body.maker(given.output[0]) is given)
        node = home.copy(given, f"{given.output[0]}_{dtype}")
        round_tensor(self.file, view.attribute(node, "value").tensors[0], dtype, floor)
        for path, index, position in uses:
            scope = self._scopes[path]
            self._give(scope, self._place(scope, index, position), node.output[0])

    # -- nodes --------------------------------------------------------------------------------------------------------

    def bypass(self, op: Op) -> bool:
        """Removes a one-input operator that does nothing any more; its readers read its input."""
        return self._bodies[op.scope].bypass(op.native.node)

    def drop_unread(self, op: Op) -> bool:
        """Removes an operator whose only result is read by nobody."""
        return self._bodies[op.scope].drop_unread(op.native.node)

    def replace(
        self, scope: str, nodes: Iterable[int], kind: str, inputs: Iterable[str], attributes: dict[str, int | float]
    ) -> None:
        """MindIR has its norms as operators, so only a plan that somebody edited asks for it: AmpError AMP403."""
        hint = "make a plan for this model, or take its rewrites out"
        raise AmpError("AMP403", f"the plan writes a {kind}, which no MindIR model needs", hint=hint)

    def write_bounds(self, scope: str, index: int) -> None:
        """MindIR has kernels for its clips, so only a plan that somebody edited asks for it: AmpError AMP403."""
        raise AmpError("AMP403", "the plan writes a Clip as Max and Min", hint="make a plan for this model")

    def finish(self) -> None:
        """Writes the nodes in order, and every abstract with the type that it has now."""
        for body in self._bodies.values():
            body.write()
        retype_abstracts(self.flow, self._types, view.primitives(self.model))


def _all_names(model: Any) -> set[str]:
    names = {primitive.name for primitive in model.primitives}
    for graph in (model.graph, *model.functions):
        names.add(graph.name)
        names.update(item.name for item in (*graph.parameter, *graph.input, *graph.output))
        for node in graph.node:
            names.add(node.name)
            names.update(node.output)
    return names


def _add_abstract(node: Any, value: Value, dtype: str) -> None:
    """The type of a node that makes one tensor like ``value``."""
    dims = [-2] if value.shape is None else [dim if isinstance(dim, int) else -1 for dim in value.shape]
    tensor = node.attribute.add(name="shape", type=schema.TENSORS).tensors.add()
    tensor.data_type = schema.ELEMENT_NUMBERS[dtype]
    tensor.dims.extend(dims)
