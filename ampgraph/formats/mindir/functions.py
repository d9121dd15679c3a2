"""Functions of a MindIR model: Partial, Switch and calls, and the types that cross their borders."""

from __future__ import annotations

from typing import NoReturn

from ...core.dataflow import FLOAT32, NONE, Op, Scope, Value
from ...core.errors import AmpError
from ..flow_builder import LOW_TYPES
from . import view
from .borders import arriving
from .schema import Message
from .values import MindirValues
from .view import CALL, Closure, Item, MindirOp, OperandPlace

CALLS = (CALL, "Partial", "Switch", "SwitchLayer")
UNKNOWN = "nothing is known of what is called"
ESCAPES = "the function is handed on as a value"
Key = tuple[str, int]  # a function and the number of one of its results


class Functions:
    """One scope for each function. A formal and all that it is given share a unit, and so do results of one call."""

    def __init__(self, values: MindirValues) -> None:
        self._values, self._flow = values, values.flow
        self.scopes: dict[str, Scope] = {}
        self.formals: dict[str, dict[str, Item]] = {}
        self._order: dict[str, list[Item]] = {}
        self._results: dict[Key, int] = {}
        self._inside: dict[Key, list[int]] = {}  # what a function returns, under its own number
        self._outside: dict[Key, list[int]] = {}  # and under the numbers that its calls give it

    def declare(self) -> None:
        """Makes the formals of every function before any body is read: functions call each other."""
        for graph in self._values.model.functions:
            scope = self.scopes[graph.name] = self._values.graph_scope(graph.name, 0, graph)
            self.formals[graph.name] = {i.name: arriving(self._values, i, scope, i.name) for i in graph.input}
            self._order[graph.name] = list(self.formals[graph.name].values())

    # -- calls --------------------------------------------------------------------------------------------------------

    def call(self, kind: str, node: Message, index: int, scope: Scope) -> Item:
        """Reads a Partial, a Switch or a call: what it stands for."""
        if kind in ("Switch", "SwitchLayer"):
            return self._choice(kind, node)
        op = self._values.op(kind, scope.id, index, node.domain, [], MindirOp(node), f"mindspore::{kind}")
        first = 1 if kind == "Partial" else 0
        called = self._values.lookup(node.input[0] if kind == "Partial" else view.reference(node))
        given = [(self._values.lookup(n), OperandPlace(node, p), n) for p, n in enumerate(node.input) if p >= first]
        targets = sorted(called.targets) if isinstance(called, Closure) else []
        for item, place, name in given:
            self._give(op, item, place, name, [self._formal(f, n + place.position - first) for f, n in targets])
        if kind == "Partial":
            return Closure(frozenset((function, before + len(given)) for function, before in targets))
        return self._made(op, node, scope, [function for function, _ in targets])

    def _choice(self, kind: str, node: Message) -> Closure:
        """One of several functions."""
        targets: set[tuple[str, int]] = set()
        for name in node.input[1:]:
            for item in view.flat(self._values.lookup(name)):
                if not isinstance(item, Closure):
                    self._refuse(f"{kind} '{view.shown(node.output[0])}' chooses between values that are not functions")
                targets |= item.targets
        return Closure(frozenset(targets))

    def _formal(self, function: str, number: int) -> Item:
        formals = self._order[function]
        if number >= len(formals):
            self._refuse(f"function '{view.shown(function)}' takes {len(formals)} operands and is given more")
        return formals[number]

    def _give(self, op: Op, item: Item, place: OperandPlace, name: str, formals: list[Item]) -> None:
        """One operand of a call, and the formals that it becomes."""
        wanted = [list(view.flat(formal)) for formal in formals]
        parts = list(self._values.parts(item, place, name))
        if any(len(targets) != len(parts) for targets in wanted):
            self._refuse(
                f"'{view.shown(name)}' has {len(parts)} elements; the function that is given it wants another number"
            )
        for number, (part, where) in enumerate(parts):
            self._values.escape(part)
            if isinstance(part, int):
                self._pass(op, part, where, [targets[number] for targets in wanted])

    def _pass(self, op: Op, actual: int, place: OperandPlace | None, targets: list[Item]) -> None:
        """A value becomes a formal of each function that may be called."""
        value = self._flow.values[actual]
        formals = [self._flow.values[target] for target in targets if isinstance(target, int) and target != actual]
        units = [formal.unit for formal in formals if formal.unit != NONE]
        for formal in formals:
            self._flow.passed.append((actual, formal.id))
            if value.dtype not in (formal.dtype, "number"):
                self._values.conflict(f"'{formal.name}' is {formal.dtype}, and given {value.dtype}")
                if self._values.is_other(value.dtype):
                    self._values.hold(formal, view.OTHER)
        if not formals and targets:
            return  # a parameter, which the function knows as such
        unit = NONE
        if value.dtype == FLOAT32:
            unit = self._flow.merge(units) if units else self._fixed(op, UNKNOWN)
        op.inputs.append(actual)
        op.native.places.append(place)
        self._values.use(value, op.id, len(op.inputs) - 1, unit, op.scope)
        if place is None and unit != NONE:
            self._values.tie(value, unit)

    def _fixed(self, op: Op, why: str) -> int:
        return self._values.fixed_unit(f"in{len(op.inputs)}", why, op.id)

    # -- results ------------------------------------------------------------------------------------------------------

    def result(self, function: str, index: int, value: Value) -> int:
        """The unit of result ``index`` of a function, which ``value`` is."""
        self._inside.setdefault((function, index), []).append(value.id)
        return self._result_unit((function, index), value.dtype)

    def opaque(self, function: str, index: int) -> None:
        """Result ``index`` of a function is no value of its own: a state, a parameter that is written, a function."""
        self._inside.setdefault((function, index), [])
        unit = self._result_unit((function, index), FLOAT32)
        self._flow.merge((unit, self._values.fixed_unit(f"opaque {len(self._flow.units)}", UNKNOWN)))

    def _result_unit(self, key: Key, dtype: str) -> int:
        if dtype != FLOAT32:
            return NONE
        if key not in self._results:
            self._results[key] = self._flow.new_unit(NONE, f"{key[0]} output {key[1]}", LOW_TYPES, border=True)
        return self._results[key]

    def _made(self, op: Op, node: Message, scope: Scope, functions: list[str]) -> Item:
        """What a call returns: each result has one type, whichever function it comes from."""
        values = self._values
        abstract = view.attribute(node, "shape")
        tensors = list(view.elements(abstract))
        made: list[int | None] = []
        for number, tensor in enumerate(tensors):
            if tensor is None:
                made.append(None)
                continue
            name = node.output[0] if len(tensors) == 1 else f"{node.output[0]}[{number}]"
            value = values.tensor(name, scope, tensor, producer=op.id)
            made.append(value.id)
            op.outputs.append(value.id)
            scope.native.held[value.id] = node, number
            if len(tensors) == 1:
                scope.native.names[value.id] = node.output[0]
            units = [self._result_unit((function, number), value.dtype) for function in functions]
            if value.dtype == FLOAT32:
                value.unit = self._flow.merge(units) if units else values.fixed_unit(f"out{number}", UNKNOWN, op.id)
            for function in functions:
                self._outside.setdefault((function, number), []).append(value.id)
        return view.nested(abstract, iter(made))

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ties what functions return to what their calls make of it, when all of them are read."""
        for key, outside in self._outside.items():
            if key not in self._inside:
                self._refuse(f"function '{view.shown(key[0])}' has no result {key[1]}, which a call of it reads")
            for inner in self._inside[key]:
                for outer in outside:
                    self._flow.passed.append((inner, outer))
                    self._compare(key, self._flow.values[inner].dtype, self._flow.values[outer].dtype)
        for function in self._values.escaped:
            units = [unit for (name, _), unit in self._results.items() if name == function]
            inputs = [self._flow.values[value].unit for value in self.scopes[function].inputs]
            for unit in (*units, *(unit for unit in inputs if unit != NONE)):
                self._flow.merge((unit, self._values.fixed_unit(f"escaped {len(self._flow.units)}", ESCAPES)))

    def _compare(self, key: Key, inner: str, outer: str) -> None:
        conflict = f"'{key[0]}' returns {inner}, and is read as {outer}"
        if inner != outer and "number" not in (inner, outer):
            if conflict not in self._flow.conflicts:
                self._values.conflict(conflict)
            if key in self._results and (self._values.is_other(inner) or self._values.is_other(outer)):
                fixed = self._values.fixed_unit(f"other {len(self._flow.units)}", view.OTHER)
                self._flow.merge((self._results[key], fixed))

    def _refuse(self, problem: str) -> NoReturn:
        hint = "MindSpore cannot run it either: export it again"
        raise AmpError("AMP203", problem, where=self._values.file.where, hint=hint)
