"""Masks: constants far below the low minimum, put upon scores before a Softmax, where minus infinity means the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...core.dataflow import FLOAT32, NONE, Op
from ...core.graph import LOW
from ...core.plan import Why
from ...oplists.traits import Trait
from ..context import Context
from ..decisions import ACCURACY, VALIDITY, Hold
from ..stages import Settled
from .whole import TRUTHS, is_whole, whole_span

ALL = (FLOAT32, *LOW)
ON_THE_WAY: tuple[Trait, ...] = ("mask_path", "scalings")
"""Traits of operators between a mask's constant and its Softmax."""
SHRINKS = 1 / 64
"""How much a stored number may shrink a masked score: what was half the low minimum still hides it."""


def is_mask(context: Context, value: int, types: tuple[str, ...] = (FLOAT32,), multiplied: bool = False) -> bool:
    """Whether every path from a tensor ends in Softmax through additions, selections and moves alone, through
    conversions to some types, and scaled with the scores. ``multiplied``: or through products with whole numbers."""
    flow, traits = context.flow, context.traits
    if value not in context.scores:
        return False
    work, seen, ended = [value], set[int](), False
    while work:
        current = work.pop()
        if current in seen:
            continue
        seen.add(current)
        for use in flow.uses[current]:
            if use.op == NONE:
                return False
            op = flow.ops[use.op]
            moved = traits.at(op.role, "mask_path", use.index) and _stays(context, op, types)
            if traits.has(op.role, "softmaxes") or traits.at(op.role, "attention_bias", use.index):
                ended = True
            elif moved or _shrinks(context, op, use.index) or (multiplied and _hides_by_whole(context, op, use.index)):
                work += op.outputs
            else:
                return False
    return ended


def _shrinks(context: Context, op: Op, place: int) -> bool:
    """Whether an operator makes an operand smaller by a stored number, and by no more than that."""
    if not context.traits.has(op.role, "scalings") or len(op.inputs) != 2:
        return False
    divides, number = context.traits.positions(op.role, "divides"), context.flow.scalar(op.inputs[1 - place])
    if not number or place in divides:
        return False
    return SHRINKS <= (1 / number if divides else number) <= 1


def _hides_by_whole(context: Context, op: Op, place: int) -> bool:
    """Whether an operator multiplies an operand by zeros and ones, as 1 - mask is: any other number would turn what
    hides into what is preferred, or pass the low type's range."""
    if not context.traits.has(op.role, "multiplies") or len(op.inputs) != 2:
        return False
    span = whole_span(context, op.inputs[1 - place])
    return span is not None and TRUTHS[0] <= span[0] and span[1] <= TRUTHS[1]


def _stays(context: Context, op: Op, types: tuple[str, ...]) -> bool:
    """Whether an operator is no conversion to another type."""
    return not context.traits.has(op.role, "conversions") or context.flow.values[op.outputs[0]].dtype in types


def broken_mask(context: Context, op: Op) -> list[Hold]:
    """Holds what makes a mask by a large negative number, where the target's runtime fails to read that number: its
    fusion of attention starts at a norm."""
    reason = broken_number(context, op)
    if not reason:
        return []
    held = [Hold(tuple(op.slots.values()), VALIDITY, Why("kernel", f"{op.kind}: {reason}"))]
    return held + ([] if context.options.level.kept == "low" else list(_made_for(context, op)))


def broken_number(context: Context, op: Op) -> str:
    """Why the target's runtime fails at the number by which an operator makes a mask, which it reads where that stands
    behind what is masked; an empty string where it does not."""
    broken = context.options.kernels.broken.get(op.kind)
    reason = broken.reasons.get(context.options.dtype) if broken is not None and broken.mask_below else None
    if broken is None or reason is None or not is_mask(context, op.outputs[0], ALL):
        return ""
    numbers = [number for v in op.inputs[1:] if v != NONE and (number := context.flow.scalar(v)) is not None]
    if not any(number < broken.mask_below for number in numbers):
        return ""
    return reason if any(context.traits.has(other.role, "norms") for other in context.flow.ops) else ""


def _made_for(context: Context, op: Op) -> Iterator[Hold]:
    """Holds the arithmetic on whole numbers in front of a float32 mask, which else would be cast once more."""
    flow, why = context.flow, Why("mask", "whole numbers of which alone a float32 mask is made")
    work = [v for v in op.inputs if v != NONE]
    while work:
        value = work.pop()
        writer = flow.writer(value)
        alone = writer is not None and len(flow.uses[value]) == 1 and writer.scope == op.scope
        if writer is None or not alone or flow.values[value].dtype != FLOAT32 or not is_whole(context, value):
            continue
        if writer.slots:
            yield Hold(tuple(writer.slots.values()), ACCURACY, why)
        work += [v for v in writer.inputs if v != NONE]


def most_added(context: Context, masks: Iterable[int]) -> int:
    """How many masks add up before one Softmax: their sum, and a score, must not overflow either."""
    count, most = dict.fromkeys(masks, 1), 1
    traits = context.traits
    for op in context.flow.ops if count else ():
        found = [count[v] for v in op.inputs if v in count]
        if found and any(traits.has(op.role, trait) for trait in ON_THE_WAY):
            total = sum(found) if traits.has(op.role, "additions") else max(found)
            count.update(dict.fromkeys(op.outputs, total))
            most = max(most, total)
    return most


def reads_low(context: Context, settled: Settled, value: int) -> bool:
    """Whether anything on the way from a mask constant to its Softmax is low, so that it would become -inf there."""
    flow, work, seen = context.flow, [value], set[int]()
    while work:
        current = work.pop()
        if current in seen:
            continue
        seen.add(current)
        for use in flow.uses[current]:
            if settled.is_low(use.unit):
                return True
            op = flow.ops[use.op] if use.op != NONE else None
            if op is not None and any(context.traits.has(op.role, trait) for trait in ON_THE_WAY):
                work += op.outputs
    return False
