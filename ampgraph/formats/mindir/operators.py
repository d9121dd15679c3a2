"""Operators and calls of a MindIR model as the dataflow shows them: operands in the role's order, results, slots
(operands and results of one type), each a *unit* to decide if it is float32.

The role is the ONNX operator that a primitive of MindSpore's computes. An *item* is what a name stands for
(`view.Item`), a *formal* a parameter of a function."""

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
ResultKey = tuple[str, int]  # a function and the number of one of its results


class MindirOperators(MindirMemory):
    """Reads the nodes of a MindIR model that compute, one at a time."""

    def read_operator(self, kind: str, entry: Operator | None, node: Message, index: int, scope: Scope) -> Item:
        """Reads a MindIR node that computes into an operator of the dataflow, and returns what its result stands for.
        ``kind``: the primitive's name; ``entry``: its row in the table; ``index``: the node's."""
        if entry is not None and not self._fits(entry, node):
            entry = None  # another version of the operator than the one in the table
        role = entry.kind if entry else f"mindspore::{kind}"
        op = self.add_op(kind, scope.id, index, node.domain, [], MindirOp(node, entry), role)
        if entry is None:
            self.flow.unknown_kinds.add(kind)
        written = self._add_operands(op, entry, node)
        slots: dict[str, list[int]] = {}
        for position, source in enumerate(op.inputs):
            if source != NONE and self.flow.values[source].dtype != "number":
                slots.setdefault(op.native.slots[position], []).append(position)
        for slot, positions in slots.items():
            self._read_slot(op, slot, positions, entry, slot in written)
        self._note_effects(op, entry)
        return self._add_outputs(op, entry, node, scope, written)

    # -- operands -----------------------------------------------------------------------------------------------------

    def _add_operands(self, op: Op, entry: Operator | None, node: Message) -> set[str]:
        """Adds the operands of a MindIR node to ``op``, in the order of the role, tuples opened, with their places and
        slots. Returns the slots that hold a parameter that the model writes. What is no value is NONE."""
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

    def _read_slot(self, op: Op, slot: str, positions: list[int], entry: Operator | None, written: bool) -> None:
        """Makes the unit of a MindIR operator's slot, and adds the reads of its operands, at ``positions``.
        ``written``: whether it also holds a written parameter."""
        values = [self.flow.values[op.inputs[position]] for position in positions]
        unit = self._slot_unit(op, slot, values, entry, written)
        for position, value in zip(positions, values, strict=True):
            read = unit if value.dtype == FLOAT32 else NONE
            self.add_use(value, op.id, position, read, op.scope)
            if read != NONE and op.native.places[position] is None:
                self.tie(value, unit)

    def _slot_unit(self, op: Op, slot: str, values: list[Value], entry: Operator | None, written: bool) -> int:
        """Makes the unit of a MindIR operator's slot that holds these operands, with what its table entry admits, and
        returns its number; NONE for a slot without float32. Two float types are a conflict."""
        dtypes = {value.dtype for value in values if value.dtype in (*_FLOATS, "float64")}
        if entry is not None and slot != NO_SLOT and len(dtypes) > 1:
            self.note_conflict(f"{op.kind} '{op.name}': {slot} holds {' and '.join(sorted(dtypes))}")
        if FLOAT32 not in dtypes:
            return NONE
        fixed = ""
        if entry is None:
            fixed = f"no schema is known for {op.kind}"
        elif written:
            fixed = WRITTEN
        elif slot == NO_SLOT:
            fixed = AS_IT_IS
        elif any(self.is_other(dtype) for dtype in dtypes):
            fixed = OTHER
        admits = entry.admits if entry is not None and not fixed else NO_TYPES
        unit = op.slots[slot] = self.flow.new_unit(op.id, slot, admits, fixed=fixed)
        return unit

    # -- results ------------------------------------------------------------------------------------------------------

    def _add_outputs(self, op: Op, entry: Operator | None, node: Message, scope: Scope, written: set[str]) -> Item:
        """Makes the values of a MindIR node's outputs, with their units, and returns the item of its result. An output
        has its slot's unit where the table says a slot and no operand or attribute ``dtype`` names the type, else one
        that stays float32. ``written``: slots that hold a parameter that the model writes."""
        follows_slot = entry is not None and not self._names_type(entry, op)
        made = self.make_results(op, node, scope, self._cast_type(op))
        for number, (tensor, name, value) in enumerate(made):
            if value is not None:
                self.compare(value.id, [tensor], name)  # a Cast may name another type
                slot = entry.slot_of_output(number) if entry is not None and follows_slot else NO_SLOT
                self._type_output(op, value, slot, entry, slot in written)
                if entry is not None and entry.view and op.inputs and op.inputs[0] != NONE:
                    self.note_shared(value.id, op.inputs[0])
        if op.role == "Cast":
            self._read_cast(op)
        return view.nested_item(view.attribute(node, "shape"), (value.id if value else None for *_, value in made))

    def make_results(
        self, op: Op, node: Message, scope: Scope, dtype: str = ""
    ) -> list[tuple[Message, str, Value | None]]:
        """For each element of a MindIR node's result, tuples opened: (Tensor message that shows it, its name, a new
        value), (None, its name, None) for what is no tensor. ``dtype``: of the values, "" for what the messages say."""
        tensors = list(view.elements(view.attribute(node, "shape")))
        made: list[tuple[Message, str, Value | None]] = []
        for number, tensor in enumerate(tensors):
            name, value = node.output[0] if len(tensors) == 1 else f"{node.output[0]}[{number}]", None
            if tensor is not None:
                value = self.add_tensor(name, scope, tensor, dtype, op.id)
                op.outputs.append(value.id)
                scope.native.held[value.id] = node, number
                if len(tensors) == 1:
                    scope.native.names[value.id] = name
            made.append((tensor, name, value))
        return made

    def _names_type(self, entry: Operator, op: Op) -> bool:
        """Whether a MindIR node's operand or attribute ``dtype`` names its outputs' type: they follow no slot."""
        return "dtype" in entry.attributes and self.attribute(op, "dtype") is not None

    def _cast_type(self, op: Op) -> str:
        """The float type that a MindIR Cast names; "" for another type, and for other operators."""
        to = self.attribute(op, "to") if op.role == "Cast" else None
        return _TYPES.get(to, "") if isinstance(to, int) else ""

    def _type_output(self, op: Op, value: Value, slot: str, entry: Operator | None, written: bool) -> None:
        """Gives a float32 output of a MindIR operator its unit: that of its slot, or, where there is none, a new one
        that stays float32. Notes a conflict where its type is not the slot's; a Cast's output is left to `_read_cast`.
        ``slot``: a slot, `NO_SLOT` or a fixed type; ``written``: whether it holds a written parameter."""
        if op.role == "Cast":
            return
        if is_slot(slot):
            held = self._slot_dtype(op, slot)
            if held and value.dtype != held and value.dtype in _FLOATS:
                self.note_conflict(f"{op.kind} '{op.name}': makes {held} of {slot}, not {value.dtype}")
                if self.is_other(value.dtype) and slot in op.slots:
                    self.flow.merge((op.slots[slot], self.fixed_unit(f"other {slot}", OTHER)))
            if value.dtype == FLOAT32 and slot in op.slots:
                value.unit = op.slots[slot]
        elif slot != NO_SLOT and value.dtype in LOW:
            self.note_conflict(f"{op.kind} '{op.name}': an output is {slot}, not {value.dtype}")
        if value.dtype == FLOAT32 and value.unit == NONE:
            why = WRITTEN if written else WHATEVER
            if entry is None:
                why = f"no schema is known for {op.kind}"
            name = f"out{op.outputs.index(value.id)}"
            value.unit = op.slots[name] = self.fixed_unit(name, why, op.id)

    def _slot_dtype(self, op: Op, slot: str) -> str:
        """The float type of the first float operand in a MindIR operator's slot; "" where none is float."""
        for position, source in enumerate(op.inputs):
            if source != NONE and op.native.slots[position] == slot and self.flow.values[source].dtype in _FLOATS:
                return self.flow.values[source].dtype
        return ""

    def _read_cast(self, op: Op) -> None:
        """Makes the unit of a MindIR Cast's float32 result (``T2``), and notes a Cast to or from low as given."""
        target = self.flow.values[op.outputs[0]]
        if target.dtype == FLOAT32:
            target.unit = op.slots["T2"] = self.flow.new_unit(op.id, "T2", LOW_TYPES)
        if op.inputs and op.inputs[0] != NONE:
            self.flow.mark_given_cast(op, self.low)

    def _note_effects(self, op: Op, entry: Operator | None) -> None:
        """Notes that a MindIR operator writes its first operand, a value, in place, if the table says so."""
        first = op.inputs[0] if op.inputs else NONE
        if entry is None or first == NONE:
            return
        if entry.in_place:
            self.note_rewrite(op)
        elif entry.effect and entry.slot_of_input(0) == NO_SLOT:
            self.note_change(first)

    def attribute(self, op: Op, name: str) -> Plain:
        """The value of an attribute by the name that the role (ONNX) has for it, from an operand of the MindIR node or
        its primitive; None when absent, and for an operand that is no constant."""
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
        """Whether a MindIR node has the operands and results that its table entry speaks of: an operand for each slot,
        of which the first is a value, and a result where an output has a slot. False for another version of it."""
        given = len(node.input)
        if entry.role == "Cast" and (given < 2 or isinstance(self.lookup(node.input[0]), tuple)):
            return False
        first = entry.order[0] if entry.order else 0
        if entry.slots and (given <= first or next(view.flat_items(self.lookup(node.input[first])), None) is None):
            return False
        last = max((number for number, slot in enumerate(entry.inputs) if is_slot(slot)), default=-1)
        needed = last if entry.variadic_input else last + 1  # one that repeats may be left out
        if given < needed:
            return False
        makes_tensor = next(view.elements(view.attribute(node, "shape")), None) is not None
        return makes_tensor or not any(is_slot(slot) for slot in entry.outputs)


class Functions(MindirOperators):
    """Reads the functions of a MindIR model and their calls. A function is one scope: a formal has one type with all
    its arguments, a result one type in all calls. The order: `declare`, graphs, `close`."""

    def __init__(self, file: MindirFile, flow: Dataflow, low: str, low_io: frozenset[str]) -> None:
        super().__init__(file, flow, low, low_io)
        self.scopes: dict[str, Scope] = {}  # by function
        self.formals: dict[str, dict[str, Item]] = {}  # by function: name of a formal -> what it stands for
        self._order: dict[str, list[Item]] = {}  # by function: what its formals stand for, in order
        self._result_units: dict[ResultKey, int] = {}
        self._inside: dict[ResultKey, list[int]] = {}  # ids of the values that a function returns as this result
        self._outside: dict[ResultKey, list[int]] = {}  # ids of the values that calls make of it

    def declare(self) -> None:
        """Makes the scope and formals of every MindIR function, before any graph is read: they call each other."""
        for graph in self.model.functions:
            scope = self.scopes[graph.name] = self.graph_scope(graph.name, 0, graph)
            self.formals[graph.name] = {i.name: self.add_input(i, scope, i.name) for i in graph.input}
            self._order[graph.name] = list(self.formals[graph.name].values())

    # -- calls --------------------------------------------------------------------------------------------------------

    def read_call(self, kind: str, node: Message, index: int, scope: Scope) -> Item:
        """Reads a MindIR node of kind ``Partial``, ``Switch``, ``SwitchLayer`` or ``call``, and returns what its result
        stands for: functions with how many arguments they have, or a call's results."""
        if kind in ("Switch", "SwitchLayer"):
            return self._chosen_functions(kind, node)
        op = self.add_op(kind, scope.id, index, node.domain, [], MindirOp(node), f"mindspore::{kind}")
        first = 1 if kind == "Partial" else 0  # position of the first argument
        called = self.lookup(node.input[0] if kind == "Partial" else view.reference(node))
        targets = sorted(called.targets) if isinstance(called, Closure) else []
        for position in range(first, len(node.input)):
            name = node.input[position]
            formals = [self._formal(function, given + position - first) for function, given in targets]
            self._give_operand(op, self.lookup(name), OperandPlace(node, position), name, formals)
        if kind == "Partial":
            added = len(node.input) - first
            return Closure(frozenset((function, given + added) for function, given in targets))
        return self._call_results(op, node, scope, [function for function, _ in targets])

    def _chosen_functions(self, kind: str, node: Message) -> Closure:
        """The functions between which a MindIR Switch(Layer) chooses. Raises AmpError AMP203 for other values."""
        targets: set[tuple[str, int]] = set()
        for name in node.input[1:]:
            for item in view.flat_items(self.lookup(name)):
                if not isinstance(item, Closure):
                    self._refuse(
                        f"{kind} '{view.short_name(node.output[0])}' chooses between values that are not functions"
                    )
                targets |= item.targets
        return Closure(frozenset(targets))

    def _formal(self, function: str, number: int) -> Item:
        """What formal ``number`` of a MindIR function stands for. Raises AmpError AMP203 beyond the last."""
        formals = self._order[function]
        if number >= len(formals):
            self._refuse(f"function '{view.short_name(function)}' takes {len(formals)} operands and is given more")
        return formals[number]

    def _give_operand(self, op: Op, item: Item, place: OperandPlace, name: str, formals: list[Item]) -> None:
        """Passes one operand of a MindIR call, tuples opened, to the formals that it becomes, one of each function that
        may be called. Raises AmpError AMP203 where a formal has another number of elements."""
        elements = [list(view.flat_items(formal)) for formal in formals]
        parts = list(self.parts(item, place, name))
        if any(len(of_formal) != len(parts) for of_formal in elements):
            count = f"{len(parts)} elements; the function that is given it wants another number"
            self._refuse(f"'{view.short_name(name)}' has {count}")
        for number, (part, where) in enumerate(parts):
            self.escape(part)
            if isinstance(part, int):
                self._pass_value(op, part, where, [of_formal[number] for of_formal in elements])

    def _pass_value(self, op: Op, actual: int, place: OperandPlace | None, targets: list[Item]) -> None:
        """Adds the value ``actual`` to the operands of a MindIR call, read by the unit of the formals that it becomes,
        so that all have one type; nothing is added where each of them is a parameter, which the function knows itself.
        ``place``: of the operand, None where no Cast can stand; ``targets``: a formal of each function that may be
        called; with none, nothing is known of what is called. Notes a conflict where a formal has another type."""
        value = self.flow.values[actual]
        formals = [self.flow.values[target] for target in targets if isinstance(target, int) and target != actual]
        units = [formal.unit for formal in formals if formal.unit != NONE]
        for formal in formals:
            self.flow.passed.append((actual, formal.id))
            if value.dtype not in (formal.dtype, "number"):
                self.note_conflict(f"'{formal.name}' is {formal.dtype}, and given {value.dtype}")
                if self.is_other(value.dtype):
                    self.hold(formal, view.OTHER)
        if not formals and targets:
            return
        unit = NONE
        if value.dtype == FLOAT32:
            unit = self.flow.merge(units) if units else self.fixed_unit(f"in{len(op.inputs)}", UNKNOWN, op.id)
        op.inputs.append(actual)
        op.native.places.append(place)
        self.add_use(value, op.id, len(op.inputs) - 1, unit, op.scope)
        if place is None and unit != NONE:
            self.tie(value, unit)

    # -- results ------------------------------------------------------------------------------------------------------

    def note_result(self, function: str, index: int, value: Value) -> int:
        """Notes that a MindIR function returns ``value`` as its result ``index``, and returns that one's unit."""
        self._inside.setdefault((function, index), []).append(value.id)
        return self._result_unit((function, index), value.dtype)

    def note_opaque(self, function: str, index: int) -> None:
        """Notes that a MindIR function's result is no value (but a state, a function): calls make float32 of it."""
        self._inside.setdefault((function, index), [])
        unit = self._result_unit((function, index), FLOAT32)
        self.flow.merge((unit, self.fixed_unit(f"opaque {len(self.flow.units)}", UNKNOWN)))

    def _result_unit(self, key: ResultKey, dtype: str) -> int:
        """The unit that a MindIR function's result has in all calls, made when first asked for; NONE if not float32."""
        if dtype != FLOAT32:
            return NONE
        if key not in self._result_units:
            self._result_units[key] = self.flow.new_unit(NONE, f"{key[0]} output {key[1]}", LOW_TYPES, crosses=True)
        return self._result_units[key]

    def _call_results(self, op: Op, node: Message, scope: Scope, functions: list[str]) -> Item:
        """Makes the values that a MindIR call returns, and returns the item of its result. Each has one unit with that
        result of all ``functions`` that may be called; one that stays float32 where none is known."""
        made = self.make_results(op, node, scope)
        for number, (_, _, value) in enumerate(made):
            if value is None:
                continue
            units = [self._result_unit((function, number), value.dtype) for function in functions]
            if value.dtype == FLOAT32:
                value.unit = self.flow.merge(units) if units else self.fixed_unit(f"out{number}", UNKNOWN, op.id)
            for function in functions:
                self._outside.setdefault((function, number), []).append(value.id)
        return view.nested_item(view.attribute(node, "shape"), (value.id if value else None for *_, value in made))

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """When all MindIR graphs are read: pairs what functions return with what calls make of it, and holds what goes
        in and out of an escaped function float32. Raises AmpError AMP203 for a call of a missing result."""
        for key, outside in self._outside.items():
            if key not in self._inside:
                self._refuse(f"function '{view.short_name(key[0])}' has no result {key[1]}, which a call of it reads")
            for returned in self._inside[key]:
                for received in outside:
                    self.flow.passed.append((returned, received))
                    self._compare_types(key, self.flow.values[returned].dtype, self.flow.values[received].dtype)
        for function in self.escaped:
            units = [unit for (name, _), unit in self._result_units.items() if name == function]
            inputs = [self.flow.values[value].unit for value in self.scopes[function].inputs]
            for unit in (*units, *(unit for unit in inputs if unit != NONE)):
                self.flow.merge((unit, self.fixed_unit(f"escaped {len(self.flow.units)}", ESCAPES)))

    def _compare_types(self, key: ResultKey, returned: str, received: str) -> None:
        """Notes a conflict where a MindIR call receives a result as another type; it stays float32 if none is low."""
        conflict = f"'{key[0]}' returns {returned}, and is read as {received}"
        if returned != received and "number" not in (returned, received):
            if conflict not in self.flow.conflicts:
                self.note_conflict(conflict)
            if key in self._result_units and (self.is_other(returned) or self.is_other(received)):
                fixed = self.fixed_unit(f"other {len(self.flow.units)}", view.OTHER)
                self.flow.merge((self._result_units[key], fixed))

    def _refuse(self, problem: str) -> NoReturn:
        """Raises AmpError AMP203 for a MindIR file whose calls do not fit the functions."""
        hint = "MindSpore cannot run it either: export it again"
        raise AmpError("AMP203", problem, where=self.file.where, hint=hint)
