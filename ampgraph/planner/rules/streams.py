"""Roundings that add up: in residual streams, which norms read, and in states that a loop adds to."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator

from ...core.dataflow import FLOAT32, NONE, Op
from ...core.plan import Note, Why
from ...core.walk import first_operand_of, value_above
from ...oplists.traits import Trait
from ..decisions import ACCURACY, FP32_STREAM, Decisions, Hold, describe
from ..facts.facts import Facts
from ..regions import Regions
from ..streams import StreamFinder
from .rule import Findings, Ruling, Sight, runs


@runs(
    "stream",
    trigger="additions of a residual stream that norms read in float32, where float32 takes no more Casts",
    action="float32 for the additions, with what moves their results to the norms",
    levels="careful",
)
def residual_streams(sight: Sight, decided: Decisions) -> Findings:
    """Holds residual streams in float32, since each block would round the stream once more. Where a Cast to float32
    costs nothing, a sum of two low values with which one begins is left out: no Cast tells that they were handed on in
    float32, and it is rounded no more than they were."""
    facts, regions, dtype = sight.facts, sight.regions, sight.facts.options.dtype
    streams, moves = StreamFinder(facts, regions.of_op, regions.classes).widened(decided, regions.fused)
    rulings = []
    for found in streams:
        stream = [op for op in found if not _begins_low(facts, decided, facts.flow.ops[op], moves)]
        steps = f"adds up to {math.sqrt(len(stream) / 12):.1f} steps"
        text = f"rounding its {len(stream)} additions to {dtype} {steps}"
        why = Why("stream", f"in a residual stream that norms read in float32: {text}")
        ops = [*(facts.flow.ops[op] for op in stream), *(move for op in stream for move in moves[op])]
        rulings.append(Ruling([Hold(tuple(op.slots.values()), ACCURACY, why, unless_high=True) for op in ops]))
    return Findings(rulings)


def _begins_low(facts: Facts, decided: Decisions, op: Op, wide: Container[int]) -> bool:
    """Rule `stream`: whether a target takes a Cast to float32 into the kernel behind it, and an addition reads nothing
    float32 and no sum of computed values, such as one of ``wide`` (ids of all additions of streams)."""
    if not facts.options.kernels.raises_inside:
        return False
    flow, traits = facts.flow, facts.traits
    if any(decided.is_high(flow.values[v].unit) or flow.values[v].producer in wide for v in op.inputs):
        return False
    through = first_operand_of(traits.operators("conversions", "moves"))
    writers = [flow.writer(value_above(flow, value, through)) for value in op.inputs]
    sums = [writer for writer in writers if writer is not None and traits.has(writer.role, "additions")]
    return not any(facts.stored.isdisjoint(added.inputs) for added in sums)


@runs(
    FP32_STREAM,
    trigger="residual streams, where `--fp32-stream` asks for it",
    action="float32 for the additions, the norms that read them and what moves them there",
    levels="every",
)
def float32_streams(sight: Sight, decided: Decisions) -> Findings:
    """Holds whole residual streams, with norms and moves, so that no Cast is inside; a note where there are none."""
    facts = sight.facts
    if not facts.options.recipe.fp32_stream:
        return Findings()
    found = StreamFinder(facts, sight.regions.of_op, sight.regions.classes)
    if not found.streams:
        return Findings(notes=[Note("stream", "", "--fp32-stream: no residual stream is there that norms read")])
    rulings = []
    for stream in found.streams:
        why = Why(FP32_STREAM, f"--fp32-stream: in a residual stream of {len(stream)} additions")
        carried = [found.carried[addition] for addition in stream]
        held = {*stream, *(op for results in carried for op in (*results.norms, *results.moves))}
        ops = (facts.flow.ops[op] for op in sorted(held))
        rulings.append(Ruling([Hold(tuple(op.slots.values()), ACCURACY, why) for op in ops if op.slots]))
    return Findings(rulings)


KEEPS: tuple[Trait, ...] = (
    "cancels",
    "scalings",
    "moves",
    "joins",
    "conversions",
    "nothing_in_inference",
    "bounds",
    "extremes",
)
"""Traits of operators that hand a state on, changed a little or not: no product, no function that bounds it anew."""


@runs(
    "recurrence",
    trigger="a loop's state that is its old value plus something in every round: n + z (h - n), a sum, a sample",
    action="float32 for the state, and what lies between its old value and its new one",
)
def recurrences(sight: Sight, decided: Decisions) -> Findings:
    """Holds the additions of states that a loop adds to; a state made anew in each step, as tanh(W h), is none."""
    facts, found = sight.facts, list[Ruling]()
    flow, dtype = facts.flow, facts.options.dtype
    for state, path in _states(facts, sight.regions):
        value = flow.values[state]
        why = Why("recurrence", f"every round adds to '{value.name}': its roundings to {dtype} add up")
        units = (*dict.fromkeys(unit for op in path for unit in op.slots.values()), value.unit)
        note = Note(why.rule, describe(flow, flow.ops[flow.scopes[value.scope].op]), why.text)
        found.append(Ruling([Hold(units, ACCURACY, why)], note))
    return Findings(found)


def _states(facts: Facts, regions: Regions) -> Iterator[tuple[int, list[Op]]]:
    """Rule `recurrence`: yields the states of loops that are added to, as the values that a body is given, each with
    the operators between its old and its new value."""
    flow = facts.flow
    for after, before in flow.passed:
        if NONE in (after, before) or flow.values[before].dtype != FLOAT32 or flow.values[before].unit == NONE:
            continue
        scope = flow.values[before].scope
        if flow.values[after].scope != scope or flow.scopes[scope].kind != "body" or after == before:
            continue
        path = _ops_keeping_state(facts, regions, before, after)
        if _is_added_to(facts, before, path):
            yield before, path


def _ops_keeping_state(facts: Facts, regions: Regions, before: int, after: int) -> list[Op]:
    """Rule `recurrence`: the operators that only keep (`KEEPS`) a state on the ways from its old value ``before`` to
    its new one ``after``, in order; empty where they are not joined by such."""
    flow, scope = facts.flow, facts.flow.values[before].scope
    reached, on_way = {before}, list[Op]()
    for op in flow.with_roles(facts.traits.operators(*KEEPS)):  # writers before readers
        free = op.scope == scope and op.slots and op.id not in regions.inside
        if free and not reached.isdisjoint(op.inputs):
            reached.update(op.outputs)
            on_way.append(op)
    needed, path = {after}, list[Op]()
    for op in reversed(on_way):
        if any(v in needed for v in op.outputs):
            needed.update(op.inputs)
            path.append(op)
    return path[::-1] if after in reached else []


def _is_added_to(facts: Facts, state: int, path: list[Op]) -> bool:
    """Rule `recurrence`: whether something that is computed is added to a state before a gate scales it. A state that a
    gate scales down first, f c + i g, forgets its roundings with the rest."""
    unscaled = {state}
    for op in path:
        if not any(v in unscaled for v in op.inputs):
            continue
        alone = len([v for v in op.inputs if v != NONE and not facts.flow.values[v].weight]) == 1
        if facts.traits.has(op.role, "cancels") and not alone:
            return True
        if alone or not facts.traits.has(op.role, "scalings"):
            unscaled.update(op.outputs)
    return False
