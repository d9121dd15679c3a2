"""Sums of looked-up rows, before a norm: what a runtime takes into one operator that does not take every type."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.dataflow import FLOAT32, NONE, Op
from ...core.plan import Why
from ...oplists.traits import Trait
from ..decisions import ACCURACY, VALIDITY, Hold
from ..facts.facts import Facts


def broken_sum(facts: Facts, op: Op) -> list[Hold]:
    """Holds the last sum of an embedding where the target's runtime fuses it with the norm behind it, wrongly."""
    broken = facts.options.kernels.broken.get(op.kind)
    reason = broken.reasons.get(facts.options.dtype) if broken is not None else None
    if broken is None or broken.sums is None or reason is None or not _sums_up(facts, op, broken.sums):
        return []
    if any(_sums_up(facts, reader, broken.sums) for value in op.outputs for reader in facts.flow.readers(value)):
        return []
    if broken.beside is not None and not any(facts.traits.has(o.role, broken.beside) for o in facts.flow.ops):
        return []
    return [Hold(tuple(op.slots.values()), VALIDITY, Why("kernel", f"{op.kind}: {reason}"))]


def _sums_up(facts: Facts, op: Op, made_by: Trait) -> bool:
    """Whether an operator adds, and everything that it and the additions before it add is made by such operators."""
    if not facts.traits.has(op.role, "additions"):
        return False
    writers = [facts.flow.writer(value) for value in op.inputs if value != NONE]
    return all(w is not None and (facts.traits.has(w.role, made_by) or _sums_up(facts, w, made_by)) for w in writers)


def broken_mask(facts: Facts, op: Op) -> list[Hold]:
    """Holds what makes a mask by a large negative number, where the target's runtime fails to read that number: its
    fusion of attention starts at a norm."""
    reason = facts.masks.broken_number(op)
    if not reason:
        return []
    held = [Hold(tuple(op.slots.values()), VALIDITY, Why("kernel", f"{op.kind}: {reason}"))]
    return held + ([] if facts.options.level.kept == "low" else list(_made_for(facts, op)))


def _made_for(facts: Facts, op: Op) -> Iterator[Hold]:
    """Holds the arithmetic on whole numbers in front of a float32 mask, which else would be cast once more."""
    flow, why = facts.flow, Why("mask", "whole numbers of which alone a float32 mask is made")
    work = [v for v in op.inputs if v != NONE]
    while work:
        value = work.pop()
        writer = flow.writer(value)
        alone = writer is not None and len(flow.uses[value]) == 1 and writer.scope == op.scope
        if writer is None or not alone or flow.values[value].dtype != FLOAT32 or not facts.whole.has(value):
            continue
        if writer.slots:
            yield Hold(tuple(writer.slots.values()), ACCURACY, why)
        work += [v for v in writer.inputs if v != NONE]
