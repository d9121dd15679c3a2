"""Operators and calls of a MindIR model as the dataflow shows them: operands in the role's order, results, slots
(operands and results of one type), each a *unit* to decide if it is float32."""

from __future__ import annotations

from typing import NoReturn

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op, Scope, Value
from ...core.errors import AmpError
from ...core.graph import LOW
from ...oplists.mindspore_schemas import NO_SLOT, Operator, is_slot
from ..flow_builder import LOW_TYPES, NO_TYPES
from . import view
from .schema import TYPE_IDS, Message
from .values import MindirMemory
from .view import CALL, OTHER, Closure, Item, MindirOp, OperandPlace, Plain, Written
from .weights import MindirFile

_FLOATS = (FLOAT32, *LOW)
_TYPES = {number: dtype for dtype, number in TYPE_IDS.items()}
WRITTEN = "it holds a parameter that is written, which keeps its type"
AS_IT_IS = "this operand stays as the file has it"
WHATEVER = "this result is float32 whatever goes in"


CALLS = (CALL, "Partial", "Switch", "SwitchLayer")
UNKNOWN = "nothing is known of what is called"
ESCAPES = "the function is handed on as a value"
Key = tuple[str, int]  # a function and the number of one of its results


class MindirOperators(MindirMemory):
    """Reads the nodes that compute, one at a time."""

    def operator(self, kind: str, entry: Operator | None, node: Message, index: int, scope: Scope) -> Item:
        """The operator of a node; what its result stands for."""
        if entry is not None and not self._fits(entry, node):
            entry = None  # another version of the operator than the one in the table
        role = entry.kind if entry else f"mindspore::{kind}"
        op = self.op(kind, scope.id, index, node.domain, [], MindirOp(node, entry), role)
        if entry is None:
            self.flow.unknown_kinds.add(kind)
        written = self._operands(op, entry, node)
        slots: dict[str, list[int]] = {}
        for position, source in enumerate(op.inputs):
            if source != NONE and self.flow.values[source].dtype != "number":
                slots.setdefault(op.native.slots[position], []).append(position)
        for slot, positions in slots.items():
            self._slot(op, slot, positions, entry, slot in written)
        self._effects(op, entry)
        return self._outputs(op, entry, node, scope, written)

    # -- operands -----------------------------------------------------------------------------------------------------

    def _operands(self, op: Op, entry: Operator | None, node: Message) -> set[str]:
        """Fills in the operands, in the order of the role, tuples opened; the slots that hold written parameters."""
        written: set[str] = set()
        native, count = op.native, len(node.input)
        order = entry.order if entry else ()
        for operand in (*order, *(i for i in range(count) if i not in order)):
            slot = entry.slot_of_input(operand) if entry else f"in{operand}"
            name = node.input[operand] if operand < count else ""
            item = self.lookup(name) if name else None
            for part, place in self.parts(item, OperandPlace(node, operand), name):
                self.escape(part)
                if isinstance(part, Written):
                    written.add(slot)
                op.inputs.append(part if isinstance(part, int) else NONE)
                native.places.append(place if isinstance(part, int) else None)
                native.slots.append(slot)
        while len(op.inputs) > 1 and op.inputs[-1] == NONE:  # states
            op.inputs.pop()
        return written

    def _slot(self, op: Op, slot: str, positions: list[int], entry: Operator | None, written: bool) -> None:
        """Makes the unit of a slot and adds its reads; notes a slot that holds two types. ``written``: whether
        one of its values is a parameter that is written."""
        values = [self.flow.values[op.inputs[position]] for position in positions]
        unit = self._unit(op, slot, values, entry, written)
        for position, value in zip(positions, values, strict=True):
            read = unit if value.dtype == FLOAT32 else NONE
            self.use(value, op.id, position, read, op.scope)
            if read != NONE and op.native.places[position] is None:
                self.tie(value, unit)

    def _unit(self, op: Op, slot: str, values: list[Value], entry: Operator | None, written: bool) -> int:
        """The unit of a slot that holds float32 values, with what its table entry admits; NONE for other slots. Two
        types in one slot are noted as a conflict."""
        dtypes = {value.dtype for value in values if value.dtype in (*_FLOATS, "float64")}
        if entry is not None and slot != NO_SLOT and len(dtypes) > 1:
            self.conflict(f"{op.kind} '{op.name}': {slot} holds {' and '.join(sorted(dtypes))}")
        if FLOAT32 not in dtypes:
            return NONE
        fixed = WRITTEN if written else AS_IT_IS if slot == NO_SLOT else ""
        if slot != NO_SLOT and not fixed and any(self.is_other(dtype) for dtype in dtypes):
            fixed = OTHER
        if entry is None:
            fixed = f"no schema is known for {op.kind}"
        admits = entry.admits if entry is not None and not fixed else NO_TYPES
        unit = op.slots[slot] = self.flow.new_unit(op.id, slot, admits, fixed=fixed)
        return unit

    # -- results ------------------------------------------------------------------------------------------------------

    def _outputs(self, op: Op, entry: Operator | None, node: Message, scope: Scope, written: set[str]) -> Item:
        """Makes values for a node's outputs, typed by their slot where the table says it, else by the file's
        abstract."""
        free = entry is None or not self._names_type(entry, op)
        made = self.results(op, node, scope, self._cast_type(op))
        for number, (tensor, name, value) in enumerate(made):
            if value is not None:
                self.compare(value.id, [tensor], name)  # a Cast's own word may be another
                slot = entry.slot_of_output(number) if entry and free else NO_SLOT
                self._type_output(op, value, slot, entry, slot in written)
                if entry is not None and entry.view and op.inputs and op.inputs[0] != NONE:
                    self.share(value.id, op.inputs[0])
        if op.role == "Cast":
            self._cast(op)
        return view.nested(view.attribute(node, "shape"), (value.id if value else None for *_, value in made))

    def results(self, op: Op, node: Message, scope: Scope, dtype: str = "") -> list[tuple[Message, str, Value | None]]:
        """A tensor that a node shows, its name, and a new value for it; None where it shows none."""
        tensors = list(view.elements(view.attribute(node, "shape")))
        made: list[tuple[Message, str, Value | None]] = []
        for number, tensor in enumerate(tensors):
            name, value = node.output[0] if len(tensors) == 1 else f"{node.output[0]}[{number}]", None
            if tensor is not None:
                value = self.tensor(name, scope, tensor, dtype, op.id)
                op.outputs.append(value.id)
                scope.native.held[value.id] = node, number
                if len(tensors) == 1:
                    scope.native.names[value.id] = name
            made.append((tensor, name, value))
        return made

    def _names_type(self, entry: Operator, op: Op) -> bool:
        """Whether a node's own word ``dtype``, an attribute or an operand, fixes the type of its outputs: where it is
        given and not None."""
        return "dtype" in entry.attributes and self.attribute(op, "dtype") is not None

    def _cast_type(self, op: Op) -> str:
        """The float type that a Cast names, or an empty string."""
        to = self.attribute(op, "to") if op.role == "Cast" else None
        return _TYPES.get(to, "") if isinstance(to, int) else ""

    def _type_output(self, op: Op, value: Value, slot: str, entry: Operator | None, written: bool) -> None:
        """Gives an output its unit: that of its slot, or one that stays float32 where the table says no slot. A type
        that the table does not expect is noted."""
        if op.role == "Cast":
            return
        if is_slot(slot):
            held = self._slot_dtype(op, slot)
            if held and value.dtype != held and value.dtype in _FLOATS:
                self.conflict(f"{op.kind} '{op.name}': makes {held} of {slot}, not {value.dtype}")
                if self.is_other(value.dtype) and slot in op.slots:
                    self.flow.merge((op.slots[slot], self.fixed_unit(f"other {slot}", OTHER)))
            if value.dtype == FLOAT32 and slot in op.slots:
                value.unit = op.slots[slot]
        elif slot != NO_SLOT and value.dtype in LOW:
            self.conflict(f"{op.kind} '{op.name}': an output is {slot}, not {value.dtype}")
        if value.dtype == FLOAT32 and value.unit == NONE:
            why = f"no schema is known for {op.kind}" if entry is None else WRITTEN if written else WHATEVER
            name = f"out{op.outputs.index(value.id)}"
            value.unit = op.slots[name] = self.fixed_unit(name, why, op.id)

    def _slot_dtype(self, op: Op, slot: str) -> str:
        """The float type that the operands of a slot have, or an empty string."""
        for position, source in enumerate(op.inputs):
            if source != NONE and op.native.slots[position] == slot and self.flow.values[source].dtype in _FLOATS:
                return self.flow.values[source].dtype
        return ""

    def _cast(self, op: Op) -> None:
        """Makes the units of a Cast between float types, one on each side."""
        target = self.flow.values[op.outputs[0]]
        if target.dtype == FLOAT32:
            target.unit = op.slots["T2"] = self.flow.new_unit(op.id, "T2", LOW_TYPES)
        if op.inputs and op.inputs[0] != NONE:
            self.flow.mark_given_cast(op, self.low)

    def _effects(self, op: Op, entry: Operator | None) -> None:
        """Notes which operands a node writes in place, by the table."""
        first = op.inputs[0] if op.inputs else NONE
        if entry is None or first == NONE:
            return
        if entry.in_place:
            self.rewrites(op)
        elif entry.effect and entry.slot_of_input(0) == NO_SLOT:
            self.changes(first)

    def attribute(self, op: Op, name: str) -> Plain:
        """What the role calls an attribute, from an operand or the primitive; None when absent."""
        native: MindirOp = op.native
        place = native.operator.attributes.get(name) if native.operator is not None else None
        if place is None:
            return None
        if place.operand >= 0:
            given = native.node.input
            return self.constant(given[place.operand]) if place.operand < len(given) else None
        primitive = self.primitives.get(view.reference(native.node))
        return view.number(view.attribute(primitive, place.attribute)) if primitive is not None else None

    def _fits(self, entry: Operator, node: Message) -> bool:
        """Whether a node has the operands and results that the table speaks of."""
        given = len(node.input)
        if entry.role == "Cast" and (given < 2 or isinstance(self.lookup(node.input[0]), tuple)):
            return False
        first = entry.order[0] if entry.order else 0
        if entry.slots and (given <= first or next(view.flat(self.lookup(node.input[first])), None) is None):
            return False
        last = max((number for number, slot in enumerate(entry.inputs) if is_slot(slot)), default=-1)
        made = next(view.elements(view.attribute(node, "shape")), None) is not None
        return given > last - entry.variadic_input and (made or not any(is_slot(slot) for slot in entry.outputs))


class Functions(MindirOperators):
    """One scope for each function. A formal and all that it is given share a unit, and so do results of one call."""

    def __init__(self, file: MindirFile, flow: Dataflow, low: str, low_io: frozenset[str]) -> None:
        super().__init__(file, flow, low, low_io)
        self.scopes: dict[str, Scope] = {}
        self.formals: dict[str, dict[str, Item]] = {}
        self._order: dict[str, list[Item]] = {}
        self._result_units: dict[Key, int] = {}
        self._inside: dict[Key, list[int]] = {}  # what a function returns, under its own number
        self._outside: dict[Key, list[int]] = {}  # and under the numbers that its calls give it

    def declare(self) -> None:
        """Makes the formals of every function before any body is read: functions call each other."""
        for graph in self.model.functions:
            scope = self.scopes[graph.name] = self.graph_scope(graph.name, 0, graph)
            self.formals[graph.name] = {i.name: self.arriving(i, scope, i.name) for i in graph.input}
            self._order[graph.name] = list(self.formals[graph.name].values())

    # -- calls --------------------------------------------------------------------------------------------------------

    def call(self, kind: str, node: Message, index: int, scope: Scope) -> Item:
        """Reads a Partial, a Switch or a call: what it stands for."""
        if kind in ("Switch", "SwitchLayer"):
            return self._choice(kind, node)
        op = self.op(kind, scope.id, index, node.domain, [], MindirOp(node), f"mindspore::{kind}")
        first = 1 if kind == "Partial" else 0
        called = self.lookup(node.input[0] if kind == "Partial" else view.reference(node))
        given = [(self.lookup(n), OperandPlace(node, p), n) for p, n in enumerate(node.input) if p >= first]
        targets = sorted(called.targets) if isinstance(called, Closure) else []
        for item, place, name in given:
            self._give(op, item, place, name, [self._formal(f, n + place.position - first) for f, n in targets])
        if kind == "Partial":
            return Closure(frozenset((function, before + len(given)) for function, before in targets))
        return self._made(op, node, scope, [function for function, _ in targets])

    def _choice(self, kind: str, node: Message) -> Closure:
        """The functions that one of several may be, of a Switch."""
        targets: set[tuple[str, int]] = set()
        for name in node.input[1:]:
            for item in view.flat(self.lookup(name)):
                if not isinstance(item, Closure):
                    self._refuse(f"{kind} '{view.shown(node.output[0])}' chooses between values that are not functions")
                targets |= item.targets
        return Closure(frozenset(targets))

    def _formal(self, function: str, number: int) -> Item:
        """What stands for a parameter of a function. Raises AmpError AMP203 for more operands than it takes."""
        formals = self._order[function]
        if number >= len(formals):
            self._refuse(f"function '{view.shown(function)}' takes {len(formals)} operands and is given more")
        return formals[number]

    def _give(self, op: Op, item: Item, place: OperandPlace, name: str, formals: list[Item]) -> None:
        """Passes one operand of a call to the formals that it becomes."""
        wanted = [list(view.flat(formal)) for formal in formals]
        parts = list(self.parts(item, place, name))
        if any(len(targets) != len(parts) for targets in wanted):
            self._refuse(
                f"'{view.shown(name)}' has {len(parts)} elements; the function that is given it wants another number"
            )
        for number, (part, where) in enumerate(parts):
            self.escape(part)
            if isinstance(part, int):
                self._pass(op, part, where, [targets[number] for targets in wanted])

    def _pass(self, op: Op, actual: int, place: OperandPlace | None, targets: list[Item]) -> None:
        """Ties an argument, the value ``actual``, to the formal of every function that may be called (``targets``), so
        that both have one type."""
        value = self.flow.values[actual]
        formals = [self.flow.values[target] for target in targets if isinstance(target, int) and target != actual]
        units = [formal.unit for formal in formals if formal.unit != NONE]
        for formal in formals:
            self.flow.passed.append((actual, formal.id))
            if value.dtype not in (formal.dtype, "number"):
                self.conflict(f"'{formal.name}' is {formal.dtype}, and given {value.dtype}")
                if self.is_other(value.dtype):
                    self.hold(formal, view.OTHER)
        if not formals and targets:
            return  # a parameter, which the function knows as such
        unit = NONE
        if value.dtype == FLOAT32:
            unit = self.flow.merge(units) if units else self.fixed_unit(f"in{len(op.inputs)}", UNKNOWN, op.id)
        op.inputs.append(actual)
        op.native.places.append(place)
        self.use(value, op.id, len(op.inputs) - 1, unit, op.scope)
        if place is None and unit != NONE:
            self.tie(value, unit)

    # -- results ------------------------------------------------------------------------------------------------------

    def result(self, function: str, index: int, value: Value) -> int:
        """The unit of result ``index`` of a function, which ``value`` is."""
        self._inside.setdefault((function, index), []).append(value.id)
        return self._result_unit((function, index), value.dtype)

    def opaque(self, function: str, index: int) -> None:
        """Marks result ``index`` of a function as no value of its own: a state, a parameter that is written, a
        function."""
        self._inside.setdefault((function, index), [])
        unit = self._result_unit((function, index), FLOAT32)
        self.flow.merge((unit, self.fixed_unit(f"opaque {len(self.flow.units)}", UNKNOWN)))

    def _result_unit(self, key: Key, dtype: str) -> int:
        """The unit that result ``key`` (function, index) shares in all calls; NONE for other types than float32."""
        if dtype != FLOAT32:
            return NONE
        if key not in self._result_units:
            self._result_units[key] = self.flow.new_unit(NONE, f"{key[0]} output {key[1]}", LOW_TYPES, crosses=True)
        return self._result_units[key]

    def _made(self, op: Op, node: Message, scope: Scope, functions: list[str]) -> Item:
        """What a call returns: each result has one type, whichever function it comes from."""
        made = self.results(op, node, scope)
        for number, (_, _, value) in enumerate(made):
            if value is None:
                continue
            units = [self._result_unit((function, number), value.dtype) for function in functions]
            if value.dtype == FLOAT32:
                value.unit = self.flow.merge(units) if units else self.fixed_unit(f"out{number}", UNKNOWN, op.id)
            for function in functions:
                self._outside.setdefault((function, number), []).append(value.id)
        return view.nested(view.attribute(node, "shape"), (value.id if value else None for *_, value in made))

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ties what functions return to what their calls make of it, when all of them are read."""
        for key, outside in self._outside.items():
            if key not in self._inside:
                self._refuse(f"function '{view.shown(key[0])}' has no result {key[1]}, which a call of it reads")
            for inner in self._inside[key]:
                for outer in outside:
                    self.flow.passed.append((inner, outer))
                    self._compare(key, self.flow.values[inner].dtype, self.flow.values[outer].dtype)
        for function in self.escaped:
            units = [unit for (name, _), unit in self._result_units.items() if name == function]
            inputs = [self.flow.values[value].unit for value in self.scopes[function].inputs]
            for unit in (*units, *(unit for unit in inputs if unit != NONE)):
                self.flow.merge((unit, self.fixed_unit(f"escaped {len(self.flow.units)}", ESCAPES)))

    def _compare(self, key: Key, inner: str, outer: str) -> None:
        """Notes a result that a function returns as one type (``inner``) and a call reads as another (``outer``)."""
        conflict = f"'{key[0]}' returns {inner}, and is read as {outer}"
        if inner != outer and "number" not in (inner, outer):
            if conflict not in self.flow.conflicts:
                self.conflict(conflict)
            if key in self._result_units and (self.is_other(inner) or self.is_other(outer)):
                fixed = self.fixed_unit(f"other {len(self.flow.units)}", view.OTHER)
                self.flow.merge((self._result_units[key], fixed))

    def _refuse(self, problem: str) -> NoReturn:
        """Raises AmpError AMP203 for a file that makes no sense."""
        hint = "MindSpore cannot run it either: export it again"
        raise AmpError("AMP203", problem, where=self.file.where, hint=hint)
