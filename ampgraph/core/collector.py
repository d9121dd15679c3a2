"""Python's cyclic collector while a model is worked on."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator

MOST_OBJECTS = 1_000_000  # made since the last full collection
MOST_BYTES = 1 << 30  # of memory, grown since then


class _CollectorDebt:
    """Python's garbage collector: how many ``objects`` were made since the last full collection, which may be garbage
    in circles, and the process's memory in bytes (``resident``) at that time."""

    def __init__(self) -> None:
        self.objects, self.resident = 0, 0

    def settle(self) -> None:
        """Runs Python's garbage collector where models of earlier work may have left many objects or much memory."""
        if self.objects and (self.objects > MOST_OBJECTS or _resident() - self.resident > MOST_BYTES):
            gc.collect()
            self.objects, self.resident = 0, _resident()


_debt = _CollectorDebt()


@contextlib.contextmanager
def quiet_collector() -> Iterator[None]:
    """Switches Python's garbage collector off inside: it would visit millions of small objects that all live.

    What lived before in the same process may be garbage by now, and is collected first where it may be much.
    """
    if not gc.isenabled():
        yield
        return
    _debt.settle()
    gc.disable()
    try:
        yield
    finally:
        _debt.objects += gc.get_count()[0]
        gc.freeze()  # all that lives now goes to the oldest generation at once, unvisited
        gc.unfreeze()
        gc.enable()


def _resident() -> int:
    """Python's garbage collector: bytes of memory that the process has now; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0
