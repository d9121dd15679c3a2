"""The processes that share a training, seen from one that trains alone; and what torchrun says of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from ....core.errors import AmpError

T = TypeVar("T")


class SaidByFirst(AmpError):
    """What went wrong on rank 0, which says it, on another rank."""


class Ranks:
    """All processes of a training. This one is its only one; `torch_group.TorchGroup` has others."""

    rank = 0
    world = 1

    @property
    def first(self) -> bool:
        """Whether this process is the one that prints, writes and saves."""
        return self.rank == 0

    def from_first(self, make: Callable[[], T]) -> T:
        """What rank 0 makes, or the AmpError that it raises, on every rank; the others do not call ``make``."""
        return make()

    def refuse_difference(self, text: str, what: str, hint: str) -> None:
        """Raises AmpError AMP509 where ranks give texts that differ."""


ALONE = Ranks()


def launched() -> tuple[int, int]:
    """The rank of this process and how many there are, as torchrun and other launchers say it in the environment."""
    try:
        return int(os.environ.get("RANK", "0")), max(int(os.environ.get("WORLD_SIZE", "1")), 1)
    except ValueError:
        return 0, 1


def threads_of_rank(threads: int) -> int:
    """How many threads a rank takes on the CPU where nothing is said (0): its part of the machine's."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "1")
    if threads or not local.isdigit() or int(local) < 2:
        return threads
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(here // int(local), 1)
