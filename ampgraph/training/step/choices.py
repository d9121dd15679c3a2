"""What a step that does not hold leaves as it was: parameters, slots and statistics chosen by one node.

Where(holds, new, old) for each of some vectors is one Where of all of them side by side. Old ones are put together by
one Concat, of which the arithmetic takes its part, and one Split makes all next values. What is paid is bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ..gradients.builder import Builder
from .update_graph import UpdateGraph
from .vectors import LAUNCH, apart, size

Value = ir.Value
FLOAT = ir.DataType.FLOAT
SCOPE = "kept"


@dataclass(frozen=True)
class NextState:
    """``olds``: state whose next numbers are ``new``, side by side as the old ones are in ``old``. ``alone``: it is no
    part of another choice."""

    olds: tuple[Value, ...]
    old: Value
    new: Value
    alone: bool = False

    @property
    def numbers(self) -> int:
        return sum(map(size, self.olds))

    @property
    def gathered(self) -> bool:
        return len(self.olds) > 1

    @property
    def of_vectors(self) -> bool:
        """Whether it may be a part of another one."""
        return not self.alone and all(one.dtype == FLOAT and len(one.shape or ()) == 1 for one in self.olds)


def commit_choices(update: UpdateGraph, choices: Sequence[NextState], holds: Value | None) -> None:
    """Commits new numbers, or the old ones where ``holds`` is false: together, where the launches that this saves are
    worth more than the bytes that it moves. The numbers are the same to the bit."""
    b = update.states.builder
    found = sorted((choice for choice in choices if choice.of_vectors), key=lambda one: not one.gathered)
    if holds is None or len(found) < 2 or not _pays(found):
        found = []
    for one in choices:
        if one.gathered and one not in found:
            chosen = one.new if holds is None else b.op("Where", holds, one.new, one.old)
            update.states.commit(dict(zip(one.olds, apart(b, chosen, one.olds), strict=True)))
        elif one not in found:
            update.states.commit({one.old: one.new}, when=holds)
    if holds is not None and found:
        _commit_together(update, found, holds)


def _commit_together(update: UpdateGraph, found: Sequence[NextState], holds: Value) -> None:
    b = update.states.builder
    b.scope = SCOPE
    states = [state for one in found for state in one.olds]
    old = b.op("Concat", *states, axis=0)
    gathered = [one for one in found if one.gathered]
    sizes = [one.numbers for one in gathered]
    rest = sum(one.numbers for one in found) - sum(sizes)
    for one, piece in zip(gathered, _split(b, old, [*sizes, rest] if rest else sizes), strict=False):
        update.replaced(one.old, b.typed(piece, FLOAT, one.numbers))
    new = b.op("Concat", *(one.new for one in found), axis=0)
    chosen = b.op("Where", holds, new, old)
    update.states.commit(dict(zip(states, _split(b, chosen, list(map(size, states))), strict=True)))


def _pays(found: Sequence[NextState]) -> bool:
    """Side by side and apart again: those of a Concat once, others twice, and all of them before they are chosen."""
    gathered = [one for one in found if one.gathered]
    saved = len(found) + 2 * len(gathered) - (5 if gathered else 4)
    every = sum(one.numbers for one in found)
    alone = every - sum(one.numbers for one in gathered)
    return saved * LAUNCH >= 8 * every * (2 if gathered else 1) + 16 * alone


def _split(b: Builder, vector: Value, sizes: Sequence[int]) -> list[Value]:
    """One piece too: the names of all nodes are alike."""
    return b.ops("Split", len(sizes), vector, b.ints(*sizes), axis=0)
