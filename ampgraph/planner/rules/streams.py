"""Residual streams: additions that follow one another, and that norms read."""

from __future__ import annotations

import math

from ...core.plan import Note, Why
from ..decisions import ACCURACY, FP32_STREAM, Decisions, Hold
from ..streams import StreamFinder
from .rule import Findings, Ruling, Sight, runs


@runs(
    "stream",
    trigger="additions of a residual stream that norms read in float32, where float32 takes no more Casts",
    action="float32 for the additions, with what moves their results to the norms",
    levels="careful",
)
def residual_streams(sight: Sight, decided: Decisions) -> Findings:
    """Each block would round the stream once more."""
    facts, regions, dtype = sight.facts, sight.regions, sight.facts.options.dtype
    streams, moves = StreamFinder(facts, regions.of_op, regions.classes).widened(decided, regions.fused)
    rulings = []
    for stream in streams:
        steps = f"adds up to {math.sqrt(len(stream) / 12):.1f} steps"
        text = f"rounding its {len(stream)} additions to {dtype} {steps}"
        why = Why("stream", f"in a residual stream that norms read in float32: {text}")
        ops = [*(facts.flow.ops[op] for op in stream), *(move for op in stream for move in moves[op])]
        rulings.append(Ruling([Hold(tuple(op.slots.values()), ACCURACY, why, unless_high=True) for op in ops]))
    return Findings(rulings)


@runs(
    FP32_STREAM,
    trigger="residual streams, where `--fp32-stream` asks for it",
    action="float32 for the additions, the norms that read them and what moves them there",
    levels="every",
)
def wide_streams(sight: Sight, decided: Decisions) -> Findings:
    facts = sight.facts
    if not facts.options.recipe.fp32_stream:
        return Findings()
    found = StreamFinder(facts, sight.regions.of_op, sight.regions.classes)
    if not found.streams:
        return Findings(notes=[Note("stream", "", "--fp32-stream: no residual stream is there that norms read")])
    rulings = []
    for stream in found.streams:
        why = Why(FP32_STREAM, f"--fp32-stream: in a residual stream of {len(stream)} additions")
        wide = {op for first in stream for op in (first, *found.carried[first].norms, *found.carried[first].moves)}
        ops = (facts.flow.ops[op] for op in sorted(wide))
        rulings.append(Ruling([Hold(tuple(op.slots.values()), ACCURACY, why) for op in ops if op.slots]))
    return Findings(rulings)
