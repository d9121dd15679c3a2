"""Sums of looked-up rows, before a norm: what a runtime takes into one operator that does not take every type."""

from __future__ import annotations

from ...core.dataflow import NONE, Op
from ...core.plan import Why
from ...oplists.traits import Trait
from ..context import Context
from ..decisions import VALIDITY, Hold


def broken_sum(context: Context, op: Op) -> list[Hold]:
    """Holds the last sum of an embedding where the target's runtime fuses it with the norm behind it, wrongly."""
    broken = context.options.kernels.broken.get(op.kind)
    reason = broken.reasons.get(context.options.dtype) if broken is not None else None
    if broken is None or broken.sums is None or reason is None or not _sums_up(context, op, broken.sums):
        return []
    if any(_sums_up(context, reader, broken.sums) for value in op.outputs for reader in context.flow.readers(value)):
        return []
    if broken.beside is not None and not any(context.traits.has(o.role, broken.beside) for o in context.flow.ops):
        return []
    return [Hold(tuple(op.slots.values()), VALIDITY, Why("kernel", f"{op.kind}: {reason}"))]


def _sums_up(context: Context, op: Op, made_by: Trait) -> bool:
    """Whether an operator adds, and everything that it and the additions before it add is made by such operators."""
    if not context.traits.has(op.role, "additions"):
        return False
    writers = [context.flow.writer(value) for value in op.inputs if value != NONE]
    return all(
        w is not None and (context.traits.has(w.role, made_by) or _sums_up(context, w, made_by)) for w in writers
    )
