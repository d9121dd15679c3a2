"""Edits a MindIR model in place, by handles of its dataflow. New names are unique in every graph, and repeatable."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op, Value
from ...core.graph import UseKey
from ...core.names import FreshNames
from . import view
from .body import Body
from .casts import MindirCasts, retype_abstracts
from .view import OperandPlace
from .weights import MindirFile, round_tensor


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
