"""Pads of the file by nothing: exporters write them where a size might not have been a multiple of another one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...core.dataflow import NONE, Dataflow, Op
from ...core.graph import NodeEditor
from ..known import Known, named
from ..rewrite import Idle, is_inside


@dataclass(frozen=True)
class IdlePad(Idle):
    """``source`` is read instead."""

    names = ("pad",)
    writes = "Pad"

    @classmethod
    def find(cls, known: Known) -> Iterator[IdlePad]:
        flow = known.flow
        for op in flow.with_roles(known.traits.operators("pads")):
            if _is_idle(known, op) and op.id not in named(known):
                yield cls("pad", *cls.place(flow, op), flow.values[op.inputs[0]].name)

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        (op,) = self.edited(editor)
        self.operands(editor, flow)
        self.refuse(editor.bypass(op))


def _is_idle(known: Known, op: Op) -> bool:
    """Whether an operator adds no element to float data, on any side."""
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
