"""Pads of the file by nothing: exporters write them where a size might not have been a multiple of another one."""

from __future__ import annotations

from ..core.dataflow import NONE, Op
from ..core.plan import Rewrite
from .facts.facts import Facts
from .given_casts import is_inside
from .selection import touched


def find_given_pads(facts: Facts) -> list[Rewrite]:
    """Operators that add no element to float data, on any side. Those that a border needs, or a pattern names, stay."""
    flow = facts.flow
    idle = [op for op in flow.with_roles(facts.traits.operators("pads")) if _is_idle(facts, op)]
    named = touched(flow, facts.options.named) if idle else set()
    return [
        Rewrite(flow.scopes[op.scope].path, op.kind, (op.index,), (flow.values[op.inputs[0]].name,), 0, 0.0, "pad")
        for op in idle
        if op.id not in named
    ]


def _is_idle(facts: Facts, op: Op) -> bool:
    flow = facts.flow
    if not op.slots or not is_inside(flow, op):
        return False
    given = flow.attribute(op, "pads")
    if isinstance(given, (list, tuple)):
        return not any(given)
    places = facts.traits.positions(op.role, "pads")
    value = next((op.inputs[place] for place in places if place < len(op.inputs)), NONE)
    array = flow.weights.array(flow.values[value]) if value != NONE else None
    return array is not None and not array.any()
