"""Edits a MindIR model in place, by handles of its dataflow. New names are unique in every graph, and repeatable."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..dataflow import FLOAT32, NONE, Dataflow, Op, Value
from . import mindir_schema as schema
from . import mindir_view as view
from .base import UseKey
from .mindir_abstracts import retype_abstracts
from .mindir_body import Body
from .mindir_view import Place
from .mindir_weights import MindirFile, round_tensor


class MindirEditor:
    """The verbs that passes use; `finish` writes new nodes and types into the file."""

    def __init__(self, file: MindirFile, flow: Dataflow, constant_names: Iterable[str]) -> None:
        self.file, self.model, self.flow = file, file.model, flow
        names = set(constant_names) | {primitive.name for primitive in self.model.primitives}
        self._names = names
        known = view.primitives(self.model)
        self._bodies = {scope.id: Body(scope.native.graph, names, known) for scope in flow.scopes}
        self._scopes = {scope.path: scope.id for scope in flow.scopes}
        self._ops = {(op.scope, op.index): op for op in flow.ops}
        self._types: dict[int, str] = {}  # values that were retyped
        self._casts: dict[tuple[int, str, str], str] = {}  # scope, name, type -> the name of its cast
        self._cast_reference = ""

    # -- handles ------------------------------------------------------------------------------------------------------

    def edits(self, scope: int) -> bool:
        return True  # a function is one scope, however often it is called

    def op(self, scope: str, index: int) -> Op | None:
        return self._ops.get((self._scopes[scope], index)) if scope in self._scopes else None

    def reads(self, op: Op) -> str:
        """The element type that an operator's first input has now."""
        name = op.native.node.input[0]
        made = next((to for (scope, _, to), cast in self._casts.items() if cast == name and scope == op.scope), "")
        source = op.inputs[0]
        return made or self._types.get(source) or self.flow.values[source].dtype

    def _place(self, scope: int, index: int, position: int) -> Place:
        if index == NONE:
            return self.flow.scopes[scope].native.outputs[position]
        place = self._ops[scope, index].native.places[position]
        assert place is not None  # ties in the dataflow keep casts away from where there is no place
        return place

    # -- verbs --------------------------------------------------------------------------------------------------------

    def retype(self, value: Value, dtype: str) -> None:
        """The value now has this element type; the operand of a Cast that names it follows."""
        self._types[value.id] = dtype
        op = self.flow.ops[value.producer] if value.producer != NONE else None
        if op is not None and op.role == "Cast":
            op.native.node.input[1] = self._bodies[op.scope].number(schema.TYPE_IDS[dtype], dtype)

    def keep_type(self, op: Op, dtype: str) -> None:
        """No operator's result follows an input of another slot."""

    def cast(self, value: Value, to: str, uses: Iterable[UseKey]) -> None:
        """Reads ``value`` as ``to`` at the given uses, through one Cast for each graph, or a given one."""
        for path, index, position in uses:
            scope = self._scopes[path]
            place = self._place(scope, index, position)
            self._rewire(scope, place, self._cast_name(scope, value, place, to))

    def round(self, value: Value, dtype: str, uses: Iterable[UseKey]) -> None:
        """Puts a float32 -> low -> float32 pair between a value and the given uses."""
        for path, index, position in uses:
            scope = self._scopes[path]
            place = self._place(scope, index, position)
            low = self._cast_name(scope, value, place, dtype)
            self._rewire(scope, place, self._new_cast(scope, value, low, FLOAT32))

    def _cast_name(self, scope: int, value: Value, place: Place, to: str) -> str:
        """The name of ``value`` as ``to`` for a reader: of a cast that is there, or a new one."""
        body = self._bodies[scope]
        if value.low_source != NONE:
            return self._name(scope, value.low_source)
        for use in self.flow.uses[value.id]:
            if use.given_cast and use.scope == scope:
                given = self.flow.ops[use.op]
                if self.flow.values[given.outputs[0]].dtype == to:
                    body.move_behind(given.native.node, self._name(scope, value.id))
                    return given.native.node.output[0]
        name = body.name_at(place)
        if not body.is_ordered(name):  # a Depend keeps an order: its result is another name
            name = self._name(scope, value.id)
        return self._new_cast(scope, value, name, to)

    def _name(self, scope: int, value: int) -> str:
        """The first name of a value in a scope."""
        native = self.flow.scopes[scope].native
        if value in native.names:
            return native.names[value]
        item = self.flow.values[value]
        return item.native.name if item.parameter else item.name

    def _new_cast(self, scope: int, value: Value, name: str, to: str) -> str:
        key = scope, name, to
        if key not in self._casts:
            body = self._bodies[scope]
            result = body.fresh(f"{name}_{to}")
            node = schema.Node(
                name=result, op_type=self._cast_type(), input=[name, body.number(schema.TYPE_IDS[to], to)]
            )
            node.output.append(result)
            made = body.maker(name)
            node.domain = (
                f"{made.domain.rpartition('/')[0] if made is not None and made.domain else 'Default'}/Cast-amp"
            )
            node.attribute.append(tensor_abstract(value, to))
            body.insert_behind(node, name)
            self._casts[key] = result
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

    def _rewire(self, scope: int, place: Place, name: str) -> None:
        body = self._bodies[scope]
        if place.node is None:
            body.give_output(place.position, name)
        elif place.reader is not None:
            body.give_element(place, name)
        else:
            body.give_input(place.node, place.position, name)

    def weight(self, value: Value, store: str, dtype: str, uses: Iterable[UseKey], floor: float | None) -> None:
        """Changes a stored tensor: ``low`` replaces it, ``both`` adds a low constant, ``float32`` only floors."""
        tensor = value.native if value.parameter else view.attribute(value.native, "value").tensors[0]
        if store == "both":
            self._add_constant(value, dtype, uses, floor)
        if store == "low":
            round_tensor(self.file, tensor, dtype, floor)
            self._types[value.id] = dtype
        elif floor is not None:
            round_tensor(self.file, tensor, FLOAT32, floor)

    def _add_constant(self, value: Value, dtype: str, uses: Iterable[UseKey], floor: float | None) -> None:
        """A constant has one name in all graphs, so its copy stands where it stands."""
        node = schema.Node()
        node.CopyFrom(value.native)
        home = next(body for body in self._bodies.values() if body.maker(value.name) is value.native)
        node.name = node.output[0] = home.fresh(f"{value.name}_{dtype}")
        round_tensor(self.file, view.attribute(node, "value").tensors[0], dtype, floor)
        home.insert_behind(node, value.name)
        for path, index, position in uses:
            scope = self._scopes[path]
            self._rewire(scope, self._place(scope, index, position), node.output[0])

    def bypass(self, op: Op) -> bool:
        """Removes a one-input operator that does nothing any more; its readers read its input."""
        return self._bodies[op.scope].bypass(op.native.node)

    def drop_unread(self, op: Op) -> bool:
        """Removes an operator whose only result is read by nobody."""
        return self._bodies[op.scope].drop_unread(op.native.node)

    def replace(
        self, scope: str, nodes: Iterable[int], kind: str, inputs: Iterable[str], attributes: dict[str, int | float]
    ) -> None:
        """MindIR has its norms as operators: no plan of ours asks for it."""
        raise NotImplementedError(f"{kind} in {scope}")

    def finish(self) -> None:
        """Writes the nodes in order, and every abstract with the type that it has now."""
        for body in self._bodies.values():
            body.write()
        retype_abstracts(self.flow, self._types, view.primitives(self.model))


def tensor_abstract(value: Value, dtype: str) -> Any:
    """The ``shape`` attribute of a node that makes one tensor like ``value``."""
    abstract = schema.Attribute(name="shape", type=schema.TENSORS)
    dims = [-2] if value.shape is None else [dim if isinstance(dim, int) else -1 for dim in value.shape]
    abstract.tensors.add(data_type=schema.ELEMENT_NUMBERS[dtype], dims=dims)
    return abstract
