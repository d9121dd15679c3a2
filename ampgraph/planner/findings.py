"""What guards find: units to hold with a reason, notes on it, and what is a hazard to others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..core.plan import Note, Why
from .decisions import Hold, Ledger


class Source(NamedTuple):
    """An operator whose results are a hazard to what follows; ``of_range``: because they leave the range."""

    op: int
    why: Why
    of_range: bool


class Ruling(NamedTuple):
    """Holds for one reason, each of one node, and a note for the case that some of them had an effect.

    ``counted``: the note's text starts with how many nodes that were; ``silent`` holds do not count.
    """

    holds: Sequence[Hold]
    note: Note | None = None
    counted: bool = False
    silent: Sequence[Hold] = ()

    def enter(self, ledger: Ledger) -> None:
        effects = sum([ledger.hold(hold) for hold in self.holds])
        for hold in self.silent:
            ledger.hold(hold)
        if self.note is not None and effects:
            topic, where, text = self.note.topic, self.note.where, self.note.text
            words = f"{effects} node{'s' * (effects > 1)} {text}" if self.counted else text
            ledger.notes.append(Note(topic, where, words))


@dataclass(frozen=True)
class Findings:
    """All that a guard found, in the order of the model; ``notes``: shown whatever has an effect."""

    found: Sequence[Ruling] = ()
    sources: Sequence[Source] = ()
    notes: Sequence[Note] = field(default=())

    def enter(self, ledger: Ledger) -> None:
        for ruling in self.found:
            ruling.enter(ledger)
        ledger.notes += self.notes
