"""A pass is a frozen dataclass: its fields are its options, valid graph in and out, a second run changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Change:
    """How much a pass changed, and what the user should hear of it."""

    count: int
    notes: tuple[str, ...] = field(default=())
