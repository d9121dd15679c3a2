"""Casts of a MindIR model: those that are there already, and new ones."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from typing import TypeAlias

from ...core.dataflow import NONE, Dataflow, Op, Value
from . import schema, view
from .body import Body
from .schema import Message
from .view import OperandPlace

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
