"""`--fp32-stream`: residual streams in float32, so that only what their branches make is rounded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..core.dataflow import NONE, Op
from ..core.plan import Note, Why
from .decisions import ACCURACY, FP32_STREAM, Hold
from .facts.facts import Facts
from .findings import Findings, Ruling
from .regions import Regions

SHORTEST = 2  # additions: the sum of two branches at least


@dataclass(frozen=True)
class WideStreams(Findings):
    """The additions of residual streams, and the norms that read them, held."""


@dataclass(frozen=True)
class Carried:
    """What becomes of an addition's result: the next additions, the norms that read it, what moves it to them;
    ``branches``: whether anything else reads it."""

    additions: tuple[int, ...]
    norms: tuple[int, ...]
    moves: tuple[int, ...]
    branches: bool


def hold_wide_streams(facts: Facts, regions: Regions) -> WideStreams:
    """Holds the residual streams of a model at every level, where the recipe asks for that."""
    if not facts.options.recipe.fp32_stream:
        return WideStreams()
    found = StreamFinder(facts, regions)
    rulings = [_ruling(facts, found, stream) for stream in found.streams]
    if rulings:
        return WideStreams(rulings)
    return WideStreams(notes=[Note("stream", "", "--fp32-stream: no residual stream is there that norms read")])


def stream_additions(facts: Facts, regions: Regions) -> frozenset[int]:
    """The additions that the recipe keeps in float32. What ``regions`` says of norms that read them does not matter."""
    if not facts.options.recipe.fp32_stream:
        return frozenset()
    return frozenset(op for stream in StreamFinder(facts, regions).streams for op in stream)


def _ruling(facts: Facts, found: StreamFinder, stream: Sequence[int]) -> Ruling:
    text = f"--fp32-stream: in a residual stream of {len(stream)} additions"
    wide = {op for first in stream for op in (first, *found.carried[first].norms, *found.carried[first].moves)}
    ops = (facts.flow.ops[op] for op in sorted(wide))
    return Ruling([Hold(tuple(op.slots.values()), ACCURACY, Why(FP32_STREAM, text)) for op in ops if op.slots])


@dataclass(frozen=True)
class StreamFinder:
    """Residual streams: additions that follow one another, directly or behind a norm, and that norms read."""

    facts: Facts
    regions: Regions

    @cached_property
    def streams(self) -> list[list[int]]:
        """The additions of each stream, in the order of the model."""
        follows = self._before()
        first: dict[int, int] = {}
        streams: dict[int, list[int]] = {}
        for op in sorted(self.carried):
            heads = {first[before] for before in follows.get(op, ()) if before in first}
            if not heads and not self.carried[op].norms and not self.carried[op].branches:
                continue  # a sum of branches, which is a branch itself
            first[op] = head = min(heads, default=op)
            for other in sorted(heads - {head}):
                first.update(dict.fromkeys(streams[other], head))
                streams[head] += streams.pop(other)
            streams.setdefault(head, []).append(op)
        return [sorted(one) for one in streams.values() if self._is_stream(one)]

    @cached_property
    def carried(self) -> Mapping[int, Carried]:
        """By addition, what becomes of its result."""
        return {op.id: self._carried(op) for op in self.facts.flow.ops if self._adds(op)}

    def _before(self) -> Mapping[int, list[int]]:
        """By addition, those that it follows."""
        before: dict[int, list[int]] = {}
        for op, carried in self.carried.items():
            for reader in carried.additions:
                before.setdefault(reader, []).append(op)
        return before

    def _is_stream(self, stream: Sequence[int]) -> bool:
        return len(stream) >= SHORTEST and any(self.carried[op].norms for op in stream)

    def _adds(self, op: Op) -> bool:
        """Whether an operator is an addition, with a norm or by itself, and none of a region's, of a bias or a norm."""
        traits = self.facts.traits
        if not op.slots or op.id in self.regions.of_op:
            return False
        alone = traits.has(op.role, "additions") and self.regions.classes[op.id] == "gray"
        return alone or traits.has(op.role, "adds_and_normalizes")

    def _carried(self, op: Op) -> Carried:
        """Follows a result through what moves it, and through norms, to additions."""
        additions: dict[int, None] = {}
        norms = {op.id: None} if self.facts.traits.has(op.role, "adds_and_normalizes") else dict[int, None]()
        moves: dict[int, None] = {}
        work: list[tuple[int, tuple[int, ...], bool]] = [(value, (), False) for value in op.outputs]
        seen: set[int] = set()
        branches = False
        while work:
            value, path, normed = work.pop()
            for reader in self._readers(value, seen):
                if self._adds(reader):
                    additions[reader.id] = None
                    moves |= dict.fromkeys(path)
                elif self.regions.classes[reader.id] == "kept":
                    norms |= {} if normed else {reader.id: None}
                    moves |= dict.fromkeys(path)
                    work += [(made, (), True) for made in reader.outputs]
                elif self._is_move(reader):
                    work += [(made, (*path, reader.id), normed) for made in reader.outputs]
                else:
                    branches = True
        return Carried(tuple(additions), tuple(norms), tuple(moves), branches)

    def _readers(self, value: int, seen: set[int]) -> Iterator[Op]:
        """Who reads a float32 value, each of them once."""
        for use in self.facts.flow.uses[value] if value != NONE else ():
            if use.op != NONE and use.unit != NONE and use.op not in seen:
                seen.add(use.op)
                yield self.facts.flow.ops[use.op]

    def _is_move(self, op: Op) -> bool:
        role, traits = op.role, self.facts.traits
        return traits.has(role, "nothing_in_inference") or self.regions.classes[op.id] == "neutral"
