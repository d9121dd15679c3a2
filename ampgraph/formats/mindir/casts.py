"""Casts of a MindIR model: those that are there already, and new ones."""

from __future__ import annotations

from ...core.dataflow import NONE, Dataflow, Op, Value
from . import schema
from .body import Body
from .schema import Message
from .view import OperandPlace


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
