"""Which cells of a large grid a run takes: a fixed share of them, or all with ``./test full``.

Whatever the grid, the share is drawn by the name of a cell: the same in every run, and new cells move no others.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")
FULL = os.environ.get("AMPGRAPH_TESTS") == "full"


def number_of(cell: object, use: str = "") -> int:
    """A number that looks random and depends on the text of a cell alone; numbers for other uses are independent."""
    return int.from_bytes(hashlib.blake2b(f"{use} {cell}".encode(), digest_size=4).digest(), "little")


def share(cells: Iterable[T], one_in: int) -> list[T]:
    """About one in ``one_in`` cells, in their order; all in a full run."""
    return [cell for cell in cells if FULL or number_of(cell, "share") % one_in == 0]


def examples(count: int) -> int:
    """How many examples hypothesis draws: half of them; all in a full run."""
    return count if FULL else (count + 1) // 2


def turn(cell: object, choices: Sequence[T], count: int = 1) -> list[T]:
    """``count`` of the choices, neighbours in turn, in their order; all in a full run."""
    start = number_of(cell, "turn") % len(choices)
    chosen = {(start + step) % len(choices) for step in range(len(choices) if FULL else count)}
    return [choice for place, choice in enumerate(choices) if place in chosen]
