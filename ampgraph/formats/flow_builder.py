"""Adds values, operators, units and scopes to a dataflow: what the readers of both formats share."""

from __future__ import annotations

from ..core.dataflow import NONE, Dataflow, Op, Scope, Shape, Use, Value
from ..core.graph import LOW

NO_TYPES: frozenset[str] = frozenset()
LOW_TYPES = frozenset(LOW)


class FlowBuilder:
    """Fills a dataflow while a file of either format is read. ``low``: the type that given casts are compared with;
    ``low_io``: names of inputs and outputs that are to be low."""

    def __init__(self, flow: Dataflow, low: str, low_io: frozenset[str]) -> None:
        self.flow, self.low, self.low_io = flow, low, low_io

    def add_scope(self, path: str, parent: int, op: int, kind: str, times: int, native: object) -> Scope:
        """While a file is read: adds a scope to the dataflow, and returns it; inputs, outputs and label are filled in
        by the reader of the format. The arguments are fields of `Scope`. ``parent``: the id of the scope around it;
        ``op``: of the operator that it belongs to; both are NONE for the main graph. ``native``: the format's own
        graph."""
        scope = Scope(len(self.flow.scopes), path, parent, op, kind, times, native=native)
        self.flow.scopes.append(scope)
        return scope

    def add_value(
        self,
        name: str,
        scope: int,
        dtype: str,
        *,
        container: str = "",
        shape: Shape | None = None,
        producer: int = NONE,
        unit: int = NONE,
        native: object = None,
    ) -> Value:
        """While a file is read: adds a value that nothing reads yet; the arguments are fields of `Value`."""
        values = self.flow.values
        value = Value(len(values), name, scope, dtype, container, shape, producer, unit, native=native)
        values.append(value)
        self.flow.uses.append([])
        return value

    def add_op(
        self, kind: str, scope: int, index: int, name: str, inputs: list[int], native: object, role: str = ""
    ) -> Op:
        """While a file is read: adds an operator without results and slots to the dataflow, and returns it. The
        arguments are fields of `Op`; ``role`` is ``kind`` where it is ""."""
        ops = self.flow.ops
        op = Op(len(ops), kind, scope, index, name, inputs, [], {}, native, role or kind)
        ops.append(op)
        return op

    def add_use(self, value: Value, op: int, index: int, unit: int, scope: int) -> None:
        """While a file is read: adds a read of a value, by input ``index`` of an operator, or of a scope's output
        (``op`` is NONE). ``unit``: decides its type there, NONE if not float32; a container's is tied to its own."""
        if value.container and unit != NONE and value.unit != NONE:
            self.flow.merge((unit, value.unit))  # no Cast exists for a container
        self.flow.uses[value.id].append(Use(value.id, op, index, unit, scope))

    def fixed_unit(self, slot: str, why: str, op: int = NONE, admits: frozenset[str] = NO_TYPES) -> int:
        """While a file is read: makes a unit that stays float32, for the reason ``why``, and returns its number;
        ``admits``: the types that it may have after all where a user's list says so."""
        return self.flow.new_unit(op, slot, admits, fixed=why)

    def fixed_slot(self, op: Op, slot: str, why: str, admits: frozenset[str] = NO_TYPES) -> int:
        """While a file is read: makes a unit that stays float32 as an operator's ``slot``; else as `fixed_unit`."""
        unit = op.slots[slot] = self.fixed_unit(slot, why, op.id, admits)
        return unit

    def boundary_unit(self, slot: str, low: bool, why: str) -> int:
        """While a file is read: makes the unit of a float32 input or output of the model, and returns its number. It is
        fixed to the low type where the user wants that (``low``), else to float32, for the reason ``why``."""
        if low:
            return self.flow.new_unit(NONE, slot, LOW_TYPES, fixed_low=True)
        return self.fixed_unit(slot, why)

    def note_conflict(self, text: str) -> None:
        """While a file is read: notes in a sentence that types in the model do not fit, as of a slot that holds two."""
        self.flow.conflicts.append(text)
