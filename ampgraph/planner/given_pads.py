"""Pads of the file by nothing: exporters write them where a size might not have been a multiple of another one."""

from __future__ import annotations

from ..core.dataflow import NONE, Op
from ..core.plan import Rewrite
from .context import Context
from .given_casts import is_inside
from .selection import touched


def find_given_pads(context: Context) -> list[Rewrite]:
    """Operators that add no element to float data, on any side. Those that a border needs, or a pattern names, stay."""
    flow = context.flow
    idle = [op for op in flow.with_roles(context.traits.operators("pads")) if _is_idle(context, op)]
    named = touched(flow, context.options.named) if idle else set()
    return [
        Rewrite(flow.scopes[op.scope].path, op.kind, (op.index,), (flow.values[op.inputs[0]].name,), 0, 0.0, "pad")
        for op in idle
        if op.id not in named
    ]


def _is_idle(context: Context, op: Op) -> bool:
    flow = context.flow
    if not op.slots or not is_inside(flow, op):
        return False
    given = flow.attribute(op, "pads")
    if isinstance(given, (list, tuple)):
        return not any(given)
    places = context.traits.positions(op.role, "pads")
    value = next((op.inputs[place] for place in places if place < len(op.inputs)), NONE)
    array = flow.weights.array(flow.values[value]) if value != NONE else None
    return array is not None and not array.any()
