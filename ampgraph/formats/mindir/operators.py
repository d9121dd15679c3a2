"""Operators of a MindIR model as the dataflow shows them: operands in the order of the role, slots, units, results."""

from __future__ import annotations

from ...core.dataflow import FLOAT32, NONE, Op, Scope, Value
from ...core.graph import LOW
from ...oplists.mindspore_schemas import NO_SLOT, Operator, is_slot
from ..flow_builder import LOW_TYPES, NO_TYPES
from . import view
from .memory import Memory
from .schema import TYPE_IDS, Message
from .values import MindirValues
from .view import OTHER, Item, MindirOp, OperandPlace, Plain, Written

_FLOATS = (FLOAT32, *LOW)
_TYPES = {number: dtype for dtype, number in TYPE_IDS.items()}
WRITTEN = "it holds a parameter that is written, which keeps its type"
AS_IT_IS = "this operand stays as the file has it"
WHATEVER = "this result is float32 whatever goes in"


class MindirOperators:
    """Reads the nodes that compute, one at a time."""

    def __init__(self, values: MindirValues, memory: Memory) -> None:
        self._values, self._flow, self._memory = values, values.flow, memory

    def read(self, kind: str, entry: Operator | None, node: Message, index: int, scope: Scope) -> Item:
        """The operator of a node; what its result stands for."""
        if entry is not None and not self._fits(entry, node):
            entry = None  # another version of the operator than the one in the table
        role = entry.kind if entry else f"mindspore::{kind}"
        op = self._values.op(kind, scope.id, index, node.domain, [], MindirOp(node, entry), role)
        if entry is None:
            self._flow.unknown_kinds.add(kind)
        written = self._operands(op, entry, node)
        slots: dict[str, list[int]] = {}
        for position, source in enumerate(op.inputs):
            if source != NONE and self._flow.values[source].dtype != "number":
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
            item = self._values.lookup(name) if name else None
            for part, place in self._values.parts(item, OperandPlace(node, operand), name):
                self._values.escape(part)
                if isinstance(part, Written):
                    written.add(slot)
                op.inputs.append(part if isinstance(part, int) else NONE)
                native.places.append(place if isinstance(part, int) else None)
                native.slots.append(slot)
        while len(op.inputs) > 1 and op.inputs[-1] == NONE:  # states
            op.inputs.pop()
        return written

    def _slot(self, op: Op, slot: str, positions: list[int], entry: Operator | None, written: bool) -> None:
        """The unit of a slot and its reads; tells of a slot that holds two types."""
        values = [self._flow.values[op.inputs[position]] for position in positions]
        unit = self._unit(op, slot, values, entry, written)
        for position, value in zip(positions, values, strict=True):
            read = unit if value.dtype == FLOAT32 else NONE
            self._values.use(value, op.id, position, read, op.scope)
            if read != NONE and op.native.places[position] is None:
                self._values.tie(value, unit)

    def _unit(self, op: Op, slot: str, values: list[Value], entry: Operator | None, written: bool) -> int:
        dtypes = {value.dtype for value in values if value.dtype in (*_FLOATS, "float64")}
        if entry is not None and slot != NO_SLOT and len(dtypes) > 1:
            self._values.conflict(f"{op.kind} '{op.name}': {slot} holds {' and '.join(sorted(dtypes))}")
        if FLOAT32 not in dtypes:
            return NONE
        fixed = WRITTEN if written else AS_IT_IS if slot == NO_SLOT else ""
        if slot != NO_SLOT and not fixed and any(self._values.is_other(dtype) for dtype in dtypes):
            fixed = OTHER
        if entry is None:
            fixed = f"no schema is known for {op.kind}"
        admits = entry.admits if entry is not None and not fixed else NO_TYPES
        unit = op.slots[slot] = self._flow.new_unit(op.id, slot, admits, fixed=fixed)
        return unit

    # -- results ------------------------------------------------------------------------------------------------------

    def _outputs(self, op: Op, entry: Operator | None, node: Message, scope: Scope, written: set[str]) -> Item:
        """Values for the outputs, typed by slot where the table says so, else by the abstract."""
        abstract = view.attribute(node, "shape")
        tensors = list(view.elements(abstract))
        free = entry is None or not self._names_type(entry, op)
        made: list[int | None] = []
        for number, tensor in enumerate(tensors):
            if tensor is None:
                made.append(None)
                continue
            name = node.output[0] if len(tensors) == 1 else f"{node.output[0]}[{number}]"
            dtype = self._cast_type(op) or self._values.element_type(tensor, name)
            value = self._values.tensor(name, scope, tensor, dtype, op.id)
            made.append(value.id)
            op.outputs.append(value.id)
            scope.native.held[value.id] = node, number
            if len(tensors) == 1:
                scope.native.names[value.id] = node.output[0]
            self._values.compare(value.id, [tensor], name)  # a Cast's own word may be another
            slot = entry.slot_of_output(number) if entry and free else NO_SLOT
            self._type_output(op, value, slot, entry, slot in written)
            if entry is not None and entry.view and op.inputs and op.inputs[0] != NONE:
                self._memory.share(value.id, op.inputs[0])
        if op.role == "Cast":
            self._cast(op)
        return view.nested(abstract, iter(made))

    def _names_type(self, entry: Operator, op: Op) -> bool:
        """Whether an operand fixes the type of the outputs."""
        return "dtype" in entry.attributes and op.role != "Cast" and self.attribute(op, "dtype") is not None

    def _cast_type(self, op: Op) -> str:
        """The float type that a Cast names, or an empty string."""
        to = self.attribute(op, "to") if op.role == "Cast" else None
        return _TYPES.get(to, "") if isinstance(to, int) else ""

    def _type_output(self, op: Op, value: Value, slot: str, entry: Operator | None, written: bool) -> None:
        if op.role == "Cast":
            return
        if is_slot(slot):
            held = self._slot_dtype(op, slot)
            if held and value.dtype != held and value.dtype in _FLOATS:
                self._values.conflict(f"{op.kind} '{op.name}': makes {held} of {slot}, not {value.dtype}")
                if self._values.is_other(value.dtype) and slot in op.slots:
                    self._flow.merge((op.slots[slot], self._values.fixed_unit(f"other {slot}", OTHER)))
            if value.dtype == FLOAT32 and slot in op.slots:
                value.unit = op.slots[slot]
        elif slot != NO_SLOT and value.dtype in LOW:
            self._values.conflict(f"{op.kind} '{op.name}': an output is {slot}, not {value.dtype}")
        if value.dtype == FLOAT32 and value.unit == NONE:
            why = f"no schema is known for {op.kind}" if entry is None else WRITTEN if written else WHATEVER
            name = f"out{len(op.outputs) - 1}"
            value.unit = op.slots[name] = self._values.fixed_unit(name, why, op.id)

    def _slot_dtype(self, op: Op, slot: str) -> str:
        """The float type that the operands of a slot have, or an empty string."""
        for position, source in enumerate(op.inputs):
            if source != NONE and op.native.slots[position] == slot and self._flow.values[source].dtype in _FLOATS:
                return self._flow.values[source].dtype
        return ""

    def _cast(self, op: Op) -> None:
        """A Cast between float types has a unit on each side."""
        target = self._flow.values[op.outputs[0]]
        if target.dtype == FLOAT32:
            target.unit = op.slots["T2"] = self._flow.new_unit(op.id, "T2", LOW_TYPES)
        if op.inputs and op.inputs[0] != NONE:
            self._flow.given_cast(op, self._values.low)

    def _effects(self, op: Op, entry: Operator | None) -> None:
        """Notes what an operator writes in place."""
        first = op.inputs[0] if op.inputs else NONE
        if entry is None or first == NONE:
            return
        if entry.in_place:
            self._memory.rewrites(op)
        elif entry.effect and entry.slot_of_input(0) == NO_SLOT:
            self._memory.changes(first)

    def attribute(self, op: Op, name: str) -> Plain:
        """What the role calls an attribute, from an operand or the primitive; None when absent."""
        native: MindirOp = op.native
        place = native.operator.attributes.get(name) if native.operator is not None else None
        if place is None:
            return None
        if place.operand >= 0:
            given = native.node.input
            return self._values.constant(given[place.operand]) if place.operand < len(given) else None
        primitive = self._values.primitives.get(view.reference(native.node))
        return view.number(view.attribute(primitive, place.attribute)) if primitive is not None else None

    def _fits(self, entry: Operator, node: Message) -> bool:
        """Whether a node has the operands and results that the table speaks of."""
        given = len(node.input)
        if entry.role == "Cast" and (given < 2 or isinstance(self._values.lookup(node.input[0]), tuple)):
            return False
        first = entry.order[0] if entry.order else 0
        if entry.slots and (given <= first or next(view.flat(self._values.lookup(node.input[first])), None) is None):
            return False
        last = max((number for number, slot in enumerate(entry.inputs) if is_slot(slot)), default=-1)
        made = next(view.elements(view.attribute(node, "shape")), None) is not None
        return given > last - entry.variadic_input and (made or not any(is_slot(slot) for slot in entry.outputs))
