"""Casts of the file that do nothing: to the type that a value has already, of whole numbers that are stored, and from
one whole type to another and back."""

from __future__ import annotations

import numpy as np

from ..core.dataflow import NONE, Dataflow, Op
from ..core.graph import LOW
from ..core.plan import Rewrite
from .facts.facts import Facts
from .selection import touched


def find_given_casts(facts: Facts) -> list[Rewrite]:
    """The Casts that can go: no number changes. Those that a border needs, or a pattern names, stay."""
    flow, options = facts.flow, facts.options
    casts = [op for op in flow.with_roles(facts.traits.operators("casts")) if is_inside(flow, op)]
    groups = [(op, *_idle(facts, op)) for op in casts if _does_nothing(flow, op) or _idle(facts, op)]
    named = touched(flow, options.named) if groups else set()
    return [_rewrite(flow, group) for group in groups if not any(op.id in named for op in group)]


def _rewrite(flow: Dataflow, group: tuple[Op, ...]) -> Rewrite:
    first = group[0]
    nodes, name = tuple(op.index for op in group), flow.values[first.inputs[0]].name
    return Rewrite(flow.scopes[first.scope].path, first.kind, nodes, (name,), 0, 0.0, "cast")


def is_inside(flow: Dataflow, op: Op) -> bool:
    """Whether an operator's result is read, and crosses no border."""
    if not op.inputs or op.inputs[0] == NONE or not op.outputs or flow.scopes[op.scope].kind == "function":
        return False
    values, uses = (flow.values[op.inputs[0]], flow.values[op.outputs[0]]), flow.uses[op.outputs[0]]
    return bool(uses) and not any(use.op == NONE for use in uses) and not any(value.container for value in values)


def _does_nothing(flow: Dataflow, op: Op) -> bool:
    source, target = flow.values[op.inputs[0]], flow.values[op.outputs[0]]
    if source.dtype == target.dtype != "" and source.dtype not in LOW:  # a low one is the border's, converted again
        return True
    return _stored_integers(flow, op)


def _stored_integers(flow: Dataflow, op: Op) -> bool:
    """Whether a Cast alone reads stored whole numbers that its type holds too."""
    source, target = flow.values[op.inputs[0]], flow.values[op.outputs[0]]
    if not source.weight or len(flow.uses[source.id]) != 1 or source.scope != op.scope:
        return False
    array, kind = flow.weights.array(source), _whole(target.dtype)
    if array is None or array.dtype.kind not in "iu" or kind is None:
        return False
    return np.array_equal(array.astype(kind), array)


def _whole(dtype: str) -> np.dtype[np.generic] | None:
    """A type of whole numbers; None for others, and for those of a few bits."""
    kind = getattr(np, dtype, None) if dtype.startswith(("int", "uint")) else None
    return None if kind is None else np.dtype(kind)


def _idle(facts: Facts, op: Op) -> tuple[Op, ...]:
    """The Casts back to the type that came in, where nothing but these, and moves before them, reads what one Cast
    makes of whole numbers that both types hold: sizes, or any in a wider type."""
    flow, traits = facts.flow, facts.traits
    source, target, writer = flow.values[op.inputs[0]], flow.values[op.outputs[0]], flow.writer(op.inputs[0])
    before, between = _whole(source.dtype), _whole(target.dtype)
    if before is None or between is None or before == between:
        return ()
    if not np.can_cast(before, between, "safe") and (writer is None or not traits.has(writer.role, "shapes")):
        return ()
    back: list[Op] = []
    values = [target.id]
    for value in values:
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
    return tuple(back) if all(is_inside(flow, one) for one in back) else ()
