"""Masks like -10,000, less their largest number in each row: no Softmax sees the difference, and rows that are hidden
whole keep their scores, of which a low type would know nothing beside such a number. And masks by a number which the
target's runtime fails to read: the number stands first then."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..core.dataflow import FLOAT32, NONE, Op
from ..core.plan import MASK_BY_ROWS, NUMBER_FIRST, Rewrite
from ..oplists.patterns import find_regions
from .decisions import Decisions
from .facts.facts import Facts
from .selection import touched

SOFTMAX_BY_ROWS = 13  # the opset from which a Softmax without an axis is one over the last


def possible_shifts(facts: Facts) -> list[Op]:
    """What makes a mask of such numbers, from inputs and alone, that is only added to scores before Softmaxes, or only
    taken away from them."""
    flow = facts.flow
    traits = facts.traits
    adding = flow.with_roles(traits.operators("additions") | traits.operators("subtracts"))
    added = {flow.values[value].producer for op in adding for value in op.inputs if value != NONE}
    making = (traits.operators("affine") | traits.operators("mask_path")) - traits.operators("additions")
    made = [op for op in map(flow.ops.__getitem__, sorted(added - {NONE})) if op.role in making]
    found = [op for op in made if len(op.outputs) == 1 and op.slots and _is_mask(facts, op)]
    return found if found and not _is_fused(facts) else []


def shifts(facts: Facts, trial: Decisions, ops: list[Op]) -> Iterator[Rewrite]:
    """The rewrites of those that are added low."""
    flow = facts.flow
    for op in ops:
        low = any(trial.is_low(unit) for reader in flow.readers(op.outputs[0]) for unit in reader.slots.values())
        read = next((v for v in op.inputs if v != NONE), NONE)
        if low and read != NONE:
            names = (flow.values[read].name,)
            yield Rewrite(flow.scopes[op.scope].path, MASK_BY_ROWS, (op.index,), names, 0, 0.0, "mask")


def possible_orders(facts: Facts) -> list[Op]:
    """What makes a mask by a number behind it, which the target's runtime fails to read in the low type."""
    flow, broken = facts.flow, facts.options.kernels.broken
    kinds = {kind for kind, entry in broken.items() if entry.mask_below and facts.traits.has(kind, "multiplies")}
    found = [op for op in flow.with_roles(kinds) if op.slots and len(op.inputs) == 2 and facts.masks.broken_number(op)]
    found = [op for op in found if flow.scopes[op.scope].kind != "function" and flow.scalar(op.inputs[0]) is None]
    named = touched(flow, facts.options.named) if found else set()
    return [op for op in found if op.id not in named]


def orders(facts: Facts, trial: Decisions, ops: list[Op]) -> Iterator[Rewrite]:
    """The rewrites of those that are added low."""
    flow = facts.flow
    for op in ops:
        if any(trial.is_low(unit) for reader in flow.readers(op.outputs[0]) for unit in reader.slots.values()):
            names = tuple(flow.values[value].name for value in reversed(op.inputs))
            yield Rewrite(flow.scopes[op.scope].path, NUMBER_FIRST, (op.index,), names, 0, 0.0, "order")


def _is_mask(facts: Facts, op: Op) -> bool:
    flow, traits, value = facts.flow, facts.traits, op.outputs[0]
    uses = flow.uses[value]
    places = [(flow.ops[use.op].role, use.index) for use in uses if use.op != NONE]
    known = any(all(traits.at(role, trait, index) for role, index in places) for trait in ("additions", "subtracts"))
    if not known or not 0 < len(places) == len(uses):
        return False
    if flow.scopes[op.scope].kind == "function":
        return False
    ends = _ends_by_rows(facts, value)  # first, as it soon tells
    fits = ends and flow.shape(value) and not facts.masks.is_shifted(value)
    return bool(fits and facts.masks.hidden_by(value) and _is_computed(facts, value))


def _is_computed(facts: Facts, value: int) -> bool:
    """Whether a value is made of constants in range and of inputs, some at least, by arithmetic and moves alone:
    scores are products, and what is made of constants hides no row by chance."""
    flow, traits = facts.flow, facts.traits
    work, seen, given = [value], set[int](), False
    while work:
        current = work.pop()
        if current == NONE or current in seen:
            continue
        seen.add(current)
        item, writer = flow.values[current], flow.writer(current)
        if item.weight:
            if item.dtype == FLOAT32 and not _is_in_range(facts, current):
                return False
        elif item.dtype != FLOAT32 or writer is None:
            given = True
        elif any(traits.has(writer.role, trait) for trait in ("affine", "mask_path")):
            work += writer.inputs
        else:
            return False
    return given


def _is_in_range(facts: Facts, value: int) -> bool:
    """Whether numbers stay low by themselves: larger ones become half the low minimum, or stay float32."""
    array = facts.flow.weights.array(facts.flow.values[value])
    limit = facts.low.largest / facts.options.range_margin
    return array is not None and bool((np.abs(array) <= limit).all())


def _ends_by_rows(facts: Facts, value: int) -> bool:
    """Whether every path from a value ends in a Softmax over the last axis, through additions alone, of which the first
    may take it away."""
    flow, traits, work = facts.flow, facts.traits, [value]
    while work:
        current = work.pop()
        for use in flow.uses[current]:
            op = flow.ops[use.op] if use.op != NONE else None
            if op is None:
                return False
            if traits.has(op.role, "softmaxes"):
                if not _is_by_rows(facts, op):
                    return False
            elif any(traits.has(op.role, trait) for trait in ("additions", "nothing_in_inference")) or (
                current == value and traits.at(op.role, "subtracts", use.index)
            ):
                work += op.outputs[:1]
            else:
                return False
    return True


def _is_by_rows(facts: Facts, op: Op) -> bool:
    axis, shape = facts.flow.number(op, "axis"), facts.flow.shape(op.inputs[0])
    if axis is None:
        return op.kind == op.role and "::" not in op.kind and facts.flow.opset >= SOFTMAX_BY_ROWS
    return axis == -1 or (shape is not None and axis == len(shape) - 1)


def _is_fused(facts: Facts) -> bool:
    """Whether the target's runtime may make one kernel of the attention, which adds masks in float32: it knows a mask
    by the operators that make it, and starts at a norm."""
    flow, traits = facts.flow, facts.traits
    if not any(broken.mask_below for broken in facts.options.kernels.broken.values()):
        return False
    kinds = (*(op.role for op in flow.ops), *(region.kind for region in find_regions(flow)))
    return any(traits.has(kind, "centres_features") for kind in kinds)
