"""Accuracy guard: residual streams that float32 norms read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ...core.dataflow import NONE, Op
from ...core.plan import Why
from ..decisions import ACCURACY, Hold
from ..facts.facts import Facts
from ..findings import Findings, Ruling
from ..regions import Regions
from ..stages import Held

SHORTEST_STREAM = 3  # additions: the errors of n roundings add up to sqrt(n / 12) steps, half a step from here on


@dataclass(frozen=True)
class Streams(Findings):
    """Additions of residual streams, held with what moves their results to the norms."""


def guard_streams(facts: Facts, regions: Regions, held: Held) -> Streams:
    """Holds the additions to a residual stream that float32 norms read: each block would round the stream once more.

    Only where float32 takes no more Casts: the stream is widened for a norm anyway, and nobody reads it low.
    """
    if not facts.guards_hold:
        return Streams()
    finder = _Finder(facts, regions, held)
    wide = finder.additions()
    found = []
    for stream in finder.streams(wide):
        if len(stream) >= SHORTEST_STREAM:
            found.append(_ruling(facts, stream, [move for op in stream for move in wide[op.id]]))
    return Streams(found)


def _ruling(facts: Facts, stream: list[Op], moves: list[Op]) -> Ruling:
    dtype, steps = facts.options.dtype, math.sqrt(len(stream) / 12)
    why = Why(
        "stream",
        f"in a residual stream that norms read in float32: rounding its {len(stream)} additions to {dtype} "
        f"adds up to {steps:.1f} steps",
    )
    return Ruling([Hold(tuple(op.slots.values()), ACCURACY, why, unless_high=True) for op in (*stream, *moves)])


@dataclass(frozen=True)
class _Finder:
    """Looks for streams in a model whose accuracy guards have held what they hold."""

    facts: Facts
    regions: Regions
    held: Held

    def additions(self) -> dict[int, list[Op]]:
        """Additions that only float32 norms and each other read -> what moves their results to the readers."""
        wide: dict[int, list[Op]] = {}
        roles = self.facts.traits.operators("additions")
        for op in reversed(self.facts.flow.with_roles(roles)):  # readers first
            moves = self._moves_to_norms(op, wide) if self._is_stream(op) else None
            if moves is not None:
                wide[op.id] = moves
        return wide

    def streams(self, wide: Mapping[int, list[Op]]) -> list[list[Op]]:
        """Additions that follow one another, from one that somebody else reads widened as well."""
        head: dict[int, int] = {}  # addition -> the first one of its stream
        streams: dict[int, list[Op]] = {}
        for op in (self.facts.flow.ops[number] for number in sorted(wide)):
            before = [w.id for v in op.inputs if (w := self._source(v)) is not None and w.id in head]
            if before or any(self._widened(v, op) for v in op.inputs):
                head[op.id] = min((head[w] for w in before), default=op.id)
                streams.setdefault(head[op.id], []).append(op)
        return list(streams.values())

    def _is_stream(self, op: Op) -> bool:
        """Whether an addition is one of two computed values."""
        gray = op.id not in self.regions.of_op and self.regions.classes[op.id] == "gray" and bool(op.slots)
        return gray and self.facts.stored.isdisjoint(op.inputs)

    def _moves_to_norms(self, op: Op, wide: Mapping[int, list[Op]]) -> list[Op] | None:
        """What moves a result to its readers, where these are float32 norms and additions of the stream; else None."""
        flow, held = self.facts.flow, self.held
        moves: dict[int, Op] = {}
        normed = False
        work = list(op.outputs)
        while work:
            for use in flow.uses[work.pop()]:
                if use.op == NONE:
                    if held.is_low(use.unit):
                        return None  # an output that was asked for in the low type
                elif use.op in self.regions.fused:
                    return None  # reads the low type as well, and computes in float32
                elif held.is_high(use.unit):
                    normed |= self.regions.classes[use.op] == "kept"
                elif use.unit != NONE and use.op not in wide and use.op not in moves:
                    reader = flow.ops[use.op]
                    if flow.units[use.unit].border or held.is_low(use.unit) or not self._is_move(reader):
                        return None
                    moves[reader.id] = reader
                    work += reader.outputs
        return list(moves.values()) if normed else None

    def _is_move(self, op: Op) -> bool:
        return self.facts.traits.has(op.role, "nothing_in_inference") or self.regions.classes[op.id] == "neutral"

    def _source(self, value: int) -> Op | None:
        """The operator that made a value, seen through what passes it on."""
        while value != NONE and (op := self.facts.flow.writer(value)) is not None:
            if not self._is_move(op) or not op.inputs:
                return op
            value = op.inputs[0]
        return None

    def _widened(self, value: int, reader: Op) -> bool:
        """Whether somebody else reads a value in float32."""
        uses = self.facts.flow.uses[value]
        return any(use.op not in (NONE, reader.id) and self.held.is_high(use.unit) for use in uses)
