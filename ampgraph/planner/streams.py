"""Where a model has residual streams."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..core.dataflow import NONE, Op
from ..core.walk import downstream, value_above
from .decisions import Decisions
from .facts.facts import Facts

BRANCHES = 2  # additions: the sum of two branches at least
ROUNDED = 3  # additions: the errors of n roundings add up to sqrt(n / 12) steps, half a step from here on


@dataclass(frozen=True)
class Carried:
    """What becomes of an addition's result: ids of the next additions, of the norms that read it, and of what moves it
    to these; ``branches``: whether anything else reads it, as the branch of a block does."""

    additions: tuple[int, ...]
    norms: tuple[int, ...]
    moves: tuple[int, ...]
    branches: bool


@dataclass(frozen=True)
class StreamFinder:
    """Residual streams: additions that follow one another, directly or behind a norm, and that norms read. ``of_op``:
    ids of operators in regions; ``classes``: by an operator's id, the list class that governs it."""

    facts: Facts
    of_op: Container[int]
    classes: Sequence[str]

    def join(self, follows: Mapping[int, Collection[int]], starts: Collection[int], shortest: int) -> list[list[int]]:
        """The ids of the additions of each stream of at least ``shortest``. ``follows``: addition -> those that it
        follows; ``starts``: which of them a stream may begin with. Streams that meet are one."""
        first: dict[int, int] = {}
        streams: dict[int, list[int]] = {}
        for op in sorted(follows):
            heads = {first[before] for before in follows[op] if before in first}
            if heads or op in starts:
                first[op] = head = min(heads, default=op)
                for other in sorted(heads - {head}):
                    first.update(dict.fromkeys(streams[other], head))
                    streams[head] += streams.pop(other)
                streams.setdefault(head, []).append(op)
        return [sorted(stream) for stream in streams.values() if len(stream) >= shortest]

    # -- as the model has them ----------------------------------------------------------------------------------------

    @cached_property
    def streams(self) -> list[list[int]]:
        """The additions of each residual stream that norms read; a sum of branches that only a further addition reads
        is a branch itself."""
        follows: dict[int, list[int]] = {op: [] for op in self.carried}
        for op, carried in self.carried.items():
            for reader in carried.additions:
                follows[reader].append(op)
        starts = {op for op, carried in self.carried.items() if carried.norms or carried.branches}
        found = self.join(follows, starts, BRANCHES)
        return [stream for stream in found if any(self.carried[op].norms for op in stream)]

    @cached_property
    def carried(self) -> Mapping[int, Carried]:
        """Of residual streams: id of an addition -> what becomes of its result."""
        return {op.id: self._carried_by(op) for op in self.facts.flow.ops if self._is_in_stream(op)}

    def _is_in_stream(self, op: Op) -> bool:
        """Of residual streams: whether an operator is an addition that may be part of one, by itself or with a norm; an
        addition inside a region, as of a bias, is not."""
        traits = self.facts.traits
        if not op.slots or op.id in self.of_op:
            return False
        alone = traits.has(op.role, "additions") and self.classes[op.id] == "infer"
        return alone or traits.has(op.role, "adds_and_normalizes")

    def _carried_by(self, op: Op) -> Carried:
        """Of residual streams: follows a result through what moves it, and through norms, to additions."""
        additions: dict[int, None] = {}
        norms = {op.id: None} if self.facts.traits.has(op.role, "adds_and_normalizes") else dict[int, None]()
        moves: dict[int, None] = {}
        work: list[tuple[int, tuple[int, ...], bool]] = [(value, (), False) for value in op.outputs]
        seen: set[int] = set()
        branches = False
        while work:
            value, path, normed = work.pop()
            for reader in self._readers(value, seen):
                if self._is_in_stream(reader):
                    additions[reader.id] = None
                    moves |= dict.fromkeys(path)
                elif self.classes[reader.id] == "fp32":
                    if not normed:
                        norms[reader.id] = None
                    moves |= dict.fromkeys(path)
                    work += [(made, (), True) for made in reader.outputs]
                elif self._is_move(reader):
                    work += [(made, (*path, reader.id), normed) for made in reader.outputs]
                else:
                    branches = True
        return Carried(tuple(additions), tuple(norms), tuple(moves), branches)

    def _readers(self, value: int, seen: set[int]) -> Iterator[Op]:
        """Of residual streams: the operators that read a float32 value and are not in ``seen``, which gets them."""
        for use in self.facts.flow.uses[value] if value != NONE else ():
            if use.op != NONE and use.unit != NONE and use.op not in seen:
                seen.add(use.op)
                yield self.facts.flow.ops[use.op]

    # -- whose readers are float32 already ----------------------------------------------------------------------------

    def widened(self, decided: Decisions, fused: Container[int]) -> tuple[list[list[int]], Mapping[int, list[Op]]]:
        """(streams, moves) of residual streams whose results only float32 norms and their own additions read: the ids
        of each stream's additions, and addition -> the operators that move its result to these readers. ``fused``: ids
        of operators that a kernel takes with their Casts."""
        flow, wide = self.facts.flow, dict[int, list[Op]]()
        for op in reversed(flow.with_roles(self.facts.traits.operators("additions"))):  # readers first
            computed = self._is_in_stream(op) and self.facts.stored.isdisjoint(op.inputs)
            moves = self._moves_to_norms(op, wide, decided, fused) if computed else None
            if moves is not None:
                wide[op.id] = moves
        follows, starts = dict[int, list[int]](), set[int]()
        for op in map(flow.ops.__getitem__, wide):
            follows[op.id] = [flow.values[value_above(flow, v, self._moved_value)].producer for v in op.inputs]
            others = (use for v in op.inputs for use in flow.uses[v] if use.op not in (NONE, op.id))
            if any(decided.is_high(use.unit) for use in others):
                starts.add(op.id)
        return self.join(follows, starts, ROUNDED), wide

    def _moves_to_norms(
        self, op: Op, wide: Mapping[int, list[Op]], decided: Decisions, fused: Container[int]
    ) -> list[Op] | None:
        """Of residual streams: the operators that move an addition's result to its readers, where all of these are
        float32 already or additions of ``wide``, and one at least is of class fp32, as a norm is; None where a low
        operator, a low output or an operator of ``fused`` reads it. The additions that read it must be in ``wide``
        already where they belong there."""
        flow, moves, normed = self.facts.flow, dict[int, Op](), False
        for use in downstream(flow, op.outputs, lambda reader: reader.outputs if reader.id in moves else ()):
            if use.op == NONE:
                if decided.is_low(use.unit):
                    return None  # an output that was asked for in the low type
            elif use.op in fused:
                return None  # reads the low type as well, and computes in float32
            elif decided.is_high(use.unit):
                normed |= self.classes[use.op] == "fp32"
            elif use.unit != NONE and use.op not in wide:
                reader = flow.ops[use.op]
                if flow.units[use.unit].crosses or decided.is_low(use.unit) or not self._is_move(reader):
                    return None
                moves[reader.id] = reader
        return list(moves.values()) if normed else None

    def _moved_value(self, op: Op) -> int:
        """Of residual streams: what an operator moves, if it only moves it; else NONE."""
        return op.inputs[0] if op.inputs and self._is_move(op) else NONE

    def _is_move(self, op: Op) -> bool:
        """Of residual streams: whether an operator only hands a result on."""
        return self.facts.traits.has(op.role, "nothing_in_inference") or self.classes[op.id] == "neutral"
