"""What the file has and does nothing: Casts to the type that a value has already, of whole numbers that are stored, and
from one whole type to another and back; Pads by nothing, where a size might not have been a multiple of another one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...core.dataflow import NONE, Dataflow, Op
from ...core.graph import LOW, NodeEditor
from ..known import Known, named_ops
from ..rewrite import Idle, is_inside


@dataclass(frozen=True)
class IdleCast(Idle):
    """Takes a Cast away, and those behind moves that cast back: its operand ``source`` is read instead."""

    names = ("cast",)
    counted = ("redundant Cast", "of the file removed")
    writes = "Cast"

    @classmethod
    def find(cls, known: Known) -> Iterator[IdleCast]:
        """Yields the Casts that change nothing, alone or with those that cast back behind moves."""
        flow = known.flow
        for op in flow.with_roles(known.traits.operators("casts")):
            if not is_inside(flow, op):
                continue
            back = _casts_back(known, op)
            if (back or _does_nothing(flow, op)) and named_ops(known).isdisjoint(cast.id for cast in (op, *back)):
                yield cls("cast", *cls.place(flow, op, *back), flow.values[op.inputs[0]].name)

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """Bypasses the Casts; moves between them get the type of the source, a stored tensor that of the result."""
        first, *back = self.edited(editor)
        (source,), target = self.operands(editor, flow), flow.values[first.outputs[0]]
        gone = {op.id for op in (first, *back)}
        if not back and source.dtype != target.dtype:
            stored = flow.weights.array(source) if source.weight else None
            self.refuse(stored is not None)
            assert stored is not None
            editor.set_numbers(source, stored.astype(target.dtype))
        moved = [target.id] if back else []
        for value in moved:  # grows on the way
            editor.retype(flow.values[value], source.dtype)
            moved += (v for op in flow.readers(value) if op.id not in gone for v in op.outputs)
        for op in (first, *back):
            self.refuse(editor.bypass(op))


def _does_nothing(flow: Dataflow, op: Op) -> bool:
    """Rewrite of idle nodes: whether a Cast gives the type of its operand, or of integers that can be stored so."""
    source, target = flow.values[op.inputs[0]], flow.values[op.outputs[0]]
    if source.dtype == target.dtype != "" and source.dtype not in LOW:  # a low one is the boundary's, converted again
        return True
    return _stored_integers(flow, op)


def _stored_integers(flow: Dataflow, op: Op) -> bool:
    """Rewrite of idle nodes: whether a Cast alone reads stored whole numbers that its type holds too."""
    source, target = flow.values[op.inputs[0]], flow.values[op.outputs[0]]
    if not source.weight or len(flow.uses[source.id]) != 1 or source.scope != op.scope:
        return False
    array, integer = flow.weights.array(source), _integer_type(target.dtype)
    if array is None or array.dtype.kind not in "iu" or integer is None:
        return False
    return np.array_equal(array.astype(integer), array)


def _integer_type(dtype: str) -> np.dtype[np.generic] | None:
    """Rewrite of idle nodes: numpy's integer type of this name; None for other types, and integers of a few bits."""
    kind = getattr(np, dtype, None) if dtype.startswith(("int", "uint")) else None
    return None if kind is None else np.dtype(kind)


def _casts_back(known: Known, op: Op) -> tuple[Op, ...]:
    """Rewrite of idle nodes: the Casts back to the operand's type, if only they, straight or behind moves, read what a
    Cast makes of integers that both types hold (sizes, or any in a wider type); else empty."""
    flow, traits = known.flow, known.traits
    source, target, writer = flow.values[op.inputs[0]], flow.values[op.outputs[0]], flow.writer(op.inputs[0])
    before, between = _integer_type(source.dtype), _integer_type(target.dtype)
    if before is None or between is None or before == between:
        return ()
    if not np.can_cast(before, between, "safe") and (writer is None or not traits.has(writer.role, "shapes")):
        return ()
    back: list[Op] = []
    values = [target.id]
    for value in values:  # grows on the way
        for use in flow.uses[value]:
            reader = flow.ops[use.op] if use.op != NONE and use.scope == op.scope else None
            if reader is None or use.index != 0 or len(reader.outputs) != 1:
                return ()
            if traits.has(reader.role, "casts") and flow.values[reader.outputs[0]].dtype == source.dtype:
                back.append(reader)
            elif traits.has(reader.role, "moves"):
                values.append(reader.outputs[0])
            else:
                return ()
    return tuple(back) if all(is_inside(flow, cast) for cast in back) else ()


@dataclass(frozen=True)
class IdlePad(Idle):
    """Takes a Pad away that adds nothing: what it reads, ``source``, is read instead."""

    names = ("pad",)
    counted = ("Pad", "of the file that added nothing removed")
    writes = "Pad"

    @classmethod
    def find(cls, known: Known) -> Iterator[IdlePad]:
        """Yields the Pads by zero elements at every size that the input can have."""
        flow = known.flow
        for op in flow.with_roles(known.traits.operators("pads")):
            if _adds_nothing(known, op) and op.id not in named_ops(known):
                yield cls("pad", *cls.place(flow, op), flow.values[op.inputs[0]].name)

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """Has readers of the padded value read its source."""
        (op,) = self.edited(editor)
        self.operands(editor, flow)
        self.refuse(editor.bypass(op))


def _adds_nothing(known: Known, op: Op) -> bool:
    """Rewrite of idle nodes: whether a Pad is known to add no element to float data, on any side."""
    flow = known.flow
    if not op.slots or not is_inside(flow, op):
        return False
    given = flow.attribute(op, "pads")
    if isinstance(given, (list, tuple)):
        return not any(given)
    places = known.traits.positions(op.role, "pads")
    value = next((op.inputs[place] for place in places if place < len(op.inputs)), NONE)
    array = flow.weights.array(flow.values[value]) if value != NONE else None
    return array is not None and not array.any()
