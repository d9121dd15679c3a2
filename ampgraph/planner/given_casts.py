"""Casts of the file that do nothing: to the type that a value has already, and of whole numbers that are stored."""

from __future__ import annotations

import numpy as np

from ..core.dataflow import NONE, Dataflow, Op
from ..core.plan import Rewrite
from .options import Options
from .selection import touched


def find_given_casts(flow: Dataflow, options: Options) -> list[Rewrite]:
    """The Casts that can go: no number changes. Those that a border needs, or a pattern names, stay."""
    found = [op for op in flow.ops if options.lists.traits.has(op.role, "casts") and _does_nothing(flow, op)]
    named = touched(flow, (*options.fp32, *options.low)) if found else set()
    return [_rewrite(flow, op) for op in found if op.id not in named]


def _rewrite(flow: Dataflow, op: Op) -> Rewrite:
    name = flow.values[op.inputs[0]].name
    return Rewrite(flow.scopes[op.scope].path, op.kind, (op.index,), (name,), 0, 0.0, "cast")


def _does_nothing(flow: Dataflow, op: Op) -> bool:
    if not op.inputs or op.inputs[0] == NONE or not op.outputs or flow.scopes[op.scope].kind == "function":
        return False
    source, target = flow.values[op.inputs[0]], flow.values[op.outputs[0]]
    uses = flow.uses[target.id]
    if not uses or any(use.op == NONE for use in uses) or source.container or target.container:
        return False
    return source.dtype == target.dtype != "" or _stored_integers(flow, op)


def _stored_integers(flow: Dataflow, op: Op) -> bool:
    """Whether a Cast alone reads stored whole numbers that its type holds too."""
    source, target = flow.values[op.inputs[0]], flow.values[op.outputs[0]]
    if not source.weight or len(flow.uses[source.id]) != 1 or source.scope != op.scope:
        return False
    array = flow.weights.array(source)
    if array is None or array.dtype.kind not in "iu" or not target.dtype.startswith(("int", "uint")):
        return False
    kind = getattr(np, target.dtype, None)  # int4 and its like have none
    return kind is not None and np.array_equal(array.astype(kind), array)
