"""Functions of a MindIR model: Partial, Switch and calls, and the types that cross their borders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core.dataflow import FLOAT32, NONE, Op, Scope, Value
from ...core.errors import AmpError
from ...core.graph import LOW
from . import view
from .view import CALL, Closure, Item, MindirOp, Place

if TYPE_CHECKING:
    from .dataflow import DataflowBuilder

CALLS = (CALL, "Partial", "Switch", "SwitchLayer")
UNKNOWN = "nothing is known of what is called"
ESCAPES = "the function is handed on as a value"
_ADMITS = frozenset(LOW)
Key = tuple[str, int]  # a function and the number of one of its results


class Functions:
    """One scope for each function. A formal and all that it is given share a unit, and so do results of one call."""

    def __init__(self, builder: DataflowBuilder) -> None:
        self.builder, self.flow = builder, builder.flow
        self.scopes: dict[str, Scope] = {}
        self.formals: dict[str, dict[str, Item]] = {}
        self._order: dict[str, list[Item]] = {}
        self._results: dict[Key, int] = {}
        self._inside: dict[Key, list[int]] = {}  # what a function returns, under its own number
        self._outside: dict[Key, list[int]] = {}  # and under the numbers that its calls give it
        self._escaped: dict[str, None] = {}

    def declare(self) -> None:
        """Makes the formals of every function before any body is read: functions call each other."""
        for graph in self.builder.model.functions:
            scope = self.scopes[graph.name] = self.builder.new_scope(graph.name, 0, graph)
            self.formals[graph.name] = {i.name: self.builder.arriving(i, scope, i.name) for i in graph.input}
            self._order[graph.name] = list(self.formals[graph.name].values())

    def value(self, name: str) -> Closure | None:
        """A function as an operand."""
        return Closure(frozenset([(name, 0)])) if name in self.scopes else None

    # -- calls --------------------------------------------------------------------------------------------------------

    def call(self, kind: str, node: Any, index: int, scope: Scope) -> Item:
        """Reads a Partial, a Switch or a call: what it stands for."""
        if kind in ("Switch", "SwitchLayer"):
            chosen = [item for name in node.input[1:] for item in view.flat(self.builder.lookup(name))]
            if not all(isinstance(item, Closure) for item in chosen):
                self._refuse(f"{kind} '{view.shown(node.output[0])}' chooses between what is no function")
            return Closure(frozenset().union(*(item.targets for item in chosen)))
        op = Op(len(self.flow.ops), kind, scope.id, index, node.domain, [], [], role=f"mindspore::{kind}")
        op.native = MindirOp(node)
        self.flow.ops.append(op)
        first = 1 if kind == "Partial" else 0
        called = self.builder.lookup(node.input[0] if kind == "Partial" else view.reference(node))
        given = [(self.builder.lookup(n), Place(node, p), n) for p, n in enumerate(node.input) if p >= first]
        targets = sorted(called.targets) if isinstance(called, Closure) else []
        for item, place, name in given:
            self._give(op, item, place, name, [self._formal(f, n + place.position - first) for f, n in targets])
        if kind == "Partial":
            return Closure(frozenset((function, before + len(given)) for function, before in targets))
        return self._made(op, node, scope, [function for function, _ in targets])

    def _formal(self, function: str, number: int) -> Item:
        formals = self._order[function]
        if number >= len(formals):
            self._refuse(f"function '{view.shown(function)}' takes {len(formals)} operands and is given more")
        return formals[number]

    def _give(self, op: Op, item: Item, place: Place, name: str, formals: list[Item]) -> None:
        """One operand of a call, and the formals that it becomes."""
        wanted = [list(view.flat(formal)) for formal in formals]
        parts = list(self.builder.parts(item, place, name))
        if any(len(targets) != len(parts) for targets in wanted):
            self._refuse(
                f"'{view.shown(name)}' has {len(parts)} elements; the function that is given it wants another number"
            )
        for number, (part, where) in enumerate(parts):
            self.escape(part)
            if isinstance(part, int):
                self._pass(op, part, where, [targets[number] for targets in wanted])

    def _pass(self, op: Op, actual: int, place: Place | None, targets: list[Item]) -> None:
        """A value becomes a formal of each function that may be called."""
        value = self.flow.values[actual]
        formals = [self.flow.values[target] for target in targets if isinstance(target, int) and target != actual]
        units = [formal.unit for formal in formals if formal.unit != NONE]
        for formal in formals:
            self.flow.passed.append((actual, formal.id))
            if value.dtype not in (formal.dtype, "number"):
                self.flow.conflicts.append(f"'{formal.name}' is {formal.dtype}, and given {value.dtype}")
                if self.builder.is_other(value.dtype):
                    self.builder.hold(formal, view.OTHER)
        if not formals and targets:
            return  # a parameter, which the function knows as such
        unit = NONE
        if value.dtype == FLOAT32:
            unit = self.flow.merge(units) if units else self._fixed(op, UNKNOWN)
        op.inputs.append(actual)
        op.native.places.append(place)
        self.builder.use(value, op.id, len(op.inputs) - 1, unit, op.scope)
        if place is None and unit != NONE:
            self.builder.tie(value, unit)

    def _fixed(self, op: Op, why: str) -> int:
        return self.builder.fixed_unit(f"in{len(op.inputs)}", why, op.id)

    # -- results ------------------------------------------------------------------------------------------------------

    def result(self, function: str, index: int, value: Value) -> int:
        """The unit of result ``index`` of a function, which ``value`` is."""
        self._inside.setdefault((function, index), []).append(value.id)
        return self._result_unit((function, index), value.dtype)

    def opaque(self, function: str, index: int) -> None:
        """Result ``index`` of a function is no value of its own: a state, a parameter that is written, a function."""
        self._inside.setdefault((function, index), [])
        unit = self._result_unit((function, index), FLOAT32)
        self.flow.merge((unit, self.builder.fixed_unit(f"opaque {len(self.flow.units)}", UNKNOWN)))

    def _result_unit(self, key: Key, dtype: str) -> int:
        if dtype != FLOAT32:
            return NONE
        if key not in self._results:
            self._results[key] = self.flow.new_unit(NONE, f"{key[0]} output {key[1]}", _ADMITS, border=True)
        return self._results[key]

    def _made(self, op: Op, node: Any, scope: Scope, functions: list[str]) -> Item:
        """What a call returns: each result has one type, whichever function it comes from."""
        builder = self.builder
        abstract = view.attribute(node, "shape")
        tensors = list(view.elements(abstract))
        made: list[int | None] = []
        for number, tensor in enumerate(tensors):
            if tensor is None:
                made.append(None)
                continue
            name = node.output[0] if len(tensors) == 1 else f"{node.output[0]}[{number}]"
            value = builder.value(name, scope, builder.element_type(tensor, name), tensor, producer=op.id)
            made.append(value.id)
            op.outputs.append(value.id)
            scope.native.held[value.id] = node, number
            if len(tensors) == 1:
                scope.native.names[value.id] = node.output[0]
            units = [self._result_unit((function, number), value.dtype) for function in functions]
            if value.dtype == FLOAT32:
                value.unit = self.flow.merge(units) if units else builder.fixed_unit(f"out{number}", UNKNOWN, op.id)
            for function in functions:
                self._outside.setdefault((function, number), []).append(value.id)
        return view.nested(abstract, iter(made))

    # -- the end ------------------------------------------------------------------------------------------------------

    def escape(self, item: Item) -> None:
        """A function that goes where it cannot be followed: it may be called with anything."""
        for part in view.flat(item):
            if isinstance(part, Closure):
                self._escaped.update(dict.fromkeys(function for function, _ in sorted(part.targets)))

    def close(self) -> None:
        """Ties what functions return to what their calls make of it, when all of them are read."""
        for key, outside in self._outside.items():
            if key not in self._inside:
                self._refuse(f"function '{view.shown(key[0])}' has no result {key[1]}, which a call of it reads")
            for inner in self._inside[key]:
                for outer in outside:
                    self.flow.passed.append((inner, outer))
                    self._compare(key, self.flow.values[inner].dtype, self.flow.values[outer].dtype)
        for function in self._escaped:
            units = [unit for (name, _), unit in self._results.items() if name == function]
            inputs = [self.flow.values[value].unit for value in self.scopes[function].inputs]
            for unit in (*units, *(unit for unit in inputs if unit != NONE)):
                self.flow.merge((unit, self.builder.fixed_unit(f"escaped {len(self.flow.units)}", ESCAPES)))

    def _compare(self, key: Key, inner: str, outer: str) -> None:
        conflict = f"'{key[0]}' returns {inner}, and is read as {outer}"
        if inner != outer and "number" not in (inner, outer):
            if conflict not in self.flow.conflicts:
                self.flow.conflicts.append(conflict)
            if key in self._results and (self.builder.is_other(inner) or self.builder.is_other(outer)):
                fixed = self.builder.fixed_unit(f"other {len(self.flow.units)}", view.OTHER)
                self.flow.merge((self._results[key], fixed))

    def _refuse(self, problem: str) -> None:
        hint = "MindSpore cannot run it either: export it again"
        raise AmpError("AMP203", problem, where=self.builder.file.where, hint=hint)
