"""Functions of a MindIR model: Partial, Switch and calls, and the types that cross their borders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..dataflow import FLOAT32, NONE, Op, Scope, Value
from . import mindir_view as view
from .base import LOW
from .mindir_view import Closure, Item, MindirOp, Place

if TYPE_CHECKING:
    from .mindir_dataflow import DataflowBuilder

_ADMITS = frozenset(LOW)


class Functions:
    """One scope for each function. A formal and all that it is given share a unit, and so do results of one call."""

    def __init__(self, builder: DataflowBuilder) -> None:
        self.builder = builder
        self.scopes: dict[str, Scope] = {}
        self.formals: dict[str, dict[str, Item]] = {}
        self._order: dict[str, list[Item]] = {}
        self._results: dict[tuple[str, int], int] = {}
        self._inside: dict[tuple[str, int], list[int]] = {}  # what a function returns, under its own number
        self._outside: dict[tuple[str, int], list[int]] = {}  # and under the numbers that its calls give it

    def declare(self) -> None:
        """Makes the formals of every function before any body is read: functions call each other."""
        for graph in self.builder.model.functions:
            scope = self.builder._scope(graph.name, 0, graph)
            self.scopes[graph.name] = scope
            items: list[tuple[str, Item]] = [(info.name, self._formal(info, scope)) for info in graph.input]
            self.formals[graph.name] = dict(items)
            self._order[graph.name] = [item for _, item in items]

    def _formal(self, info: Any, scope: Scope) -> Item:
        builder = self.builder
        found: list[Item] = []
        tensors = list(info.tensor) or list(view.elements(info.attr_info if info.HasField("attr_info") else None))
        for number, tensor in enumerate(tensors):
            if tensor is None:
                found.append(None)
                continue
            if tensor.ref_key:
                found.append(builder.parameters.get(tensor.ref_key))
                continue
            name = info.name if len(tensors) == 1 else f"{info.name}[{number}]"
            value = builder.value(name, scope, view.dtype_of(tensor), tensor)
            scope.inputs.append(value.id)
            if len(tensors) == 1:
                scope.native.names[value.id] = info.name
            if value.dtype == FLOAT32:
                value.unit = builder.flow.new_unit(NONE, f"{scope.path} input {name}", _ADMITS, border=True)
            found.append(value.id)
        nested = info.HasField("attr_info") and info.attr_info.type in view.SEQUENCES
        return tuple(found) if nested else (found[0] if found else None)

    def result(self, function: str, index: int, value: Value) -> int:
        """The unit of result ``index`` of a function, which ``value`` is."""
        self._inside.setdefault((function, index), []).append(value.id)
        self.builder.flow.passed += [(value.id, made) for made in self._outside.get((function, index), ())]
        return self._result_unit(function, index, value.dtype)

    def _result_unit(self, function: str, index: int, dtype: str) -> int:
        if dtype != FLOAT32:
            return NONE
        key = function, index
        if key not in self._results:
            self._results[key] = self.builder.flow.new_unit(NONE, f"{function} output {index}", _ADMITS, border=True)
        return self._results[key]

    def call(self, kind: str, node: Any, index: int, scope: Scope) -> Item:
        """Reads a Partial, a Switch or a call: what it stands for."""
        builder = self.builder
        if kind == "Switch":
            chosen = [builder.lookup(name) for name in node.input[1:]]
            return Closure(tuple(t for item in chosen if isinstance(item, Closure) for t in item.targets))
        op = Op(len(builder.flow.ops), kind, scope.id, index, node.domain, [], [], role=f"mindspore::{kind}")
        op.native = MindirOp(node)
        builder.flow.ops.append(op)
        first = 1 if kind == "Partial" else 0
        name = node.input[0] if kind == "Partial" else view.reference(node)
        given = tuple((builder.lookup(n), Place(node, p)) for p, n in enumerate(node.input) if p >= first)
        known = builder.lookup(name)
        targets = known.targets if isinstance(known, Closure) else ((name, ()),) if name in self.scopes else ()
        if kind == "Partial":
            for function, before in targets:
                self._give(op, function, len(before), given, scope)
            return Closure(tuple((function, (*before, *given)) for function, before in targets))
        for function, before in targets:
            self._give(op, function, len(before), given, scope)
        return self._made(op, node, scope, [function for function, _ in targets])

    def _give(self, op: Op, function: str, skipped: int, given: tuple[tuple[Item, Place], ...], scope: Scope) -> None:
        """Ties what a function is given to its formals."""
        flow, formals = self.builder.flow, self._order[function][skipped:]
        for (item, place), formal in zip(given, formals, strict=False):
            actuals, wanted = list(view.flat(item)), list(view.flat(formal))
            for actual, target in zip(actuals, wanted, strict=False):
                if not isinstance(actual, int) or not isinstance(target, int) or actual == target:
                    continue
                value, formal_value = flow.values[actual], flow.values[target]
                flow.passed.append((actual, target))
                if value.dtype != formal_value.dtype and value.dtype != "number":
                    flow.conflicts.append(f"'{formal_value.name}' is {formal_value.dtype}, and given {value.dtype}")
                unit = formal_value.unit if value.dtype == FLOAT32 else NONE
                nested = len(actuals) > 1
                if nested and unit != NONE and value.unit != NONE:
                    flow.merge((unit, value.unit))  # no place for a cast inside a tuple
                op.inputs.append(actual)
                op.native.places.append(None if nested else place)
                self.builder.use(value, op.id, len(op.inputs) - 1, unit, scope.id)

    def _made(self, op: Op, node: Any, scope: Scope, functions: list[str]) -> Item:
        """What a call returns: each result has one type, whichever function it comes from."""
        flow = self.builder.flow
        abstract = view.attribute(node, "shape")
        multiple = abstract is not None and abstract.type in view.SEQUENCES
        made: list[int | None] = []
        for number, tensor in enumerate(view.elements(abstract)):
            if tensor is None:
                made.append(None)
                continue
            name = f"{node.output[0]}[{number}]" if multiple else node.output[0]
            value = self.builder.value(name, scope, view.dtype_of(tensor), tensor, producer=op.id)
            made.append(value.id)
            op.outputs.append(value.id)
            if not multiple:
                scope.native.names[value.id] = node.output[0]
            units = [self._result_unit(function, number, value.dtype) for function in functions]
            if value.dtype == FLOAT32:
                fixed = "nothing is known of what is called"
                value.unit = flow.merge(units) if units else self.builder.fixed_unit(name, fixed)
            for function in functions:
                self._outside.setdefault((function, number), []).append(value.id)
                flow.passed += [(inner, value.id) for inner in self._inside.get((function, number), ())]
        return _nested(abstract, iter(made)) if multiple else (made[0] if made else None)


def _nested(abstract: Any, made: Any) -> Item:
    """Items in the shape of an abstract."""
    if abstract.type in view.SEQUENCES:
        return tuple(_nested(item, made) for item in abstract.values)
    return next(made, None)
