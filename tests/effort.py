"""How much work a call is, as a count that no clock and no other job disturbs: the lines of Python that it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class TooMuchWork(AssertionError):
    """A call ran more lines than it may."""


def lines_run(call: Callable[[], object], most: int | None = None) -> int:
    """Lines of Python that a call runs in this thread, each turn of a loop anew; it is ended beyond ``most``."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        if most is not None and count > most:
            raise TooMuchWork(f"more than {most} lines")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def assert_linear(call_of: Callable[[int], Callable[[], object]], size: int, factor: int = 4) -> None:
    """``factor`` times the size is at most a third more than ``factor`` times the work, a square of it is not.

    ``call_of`` makes the call to count for a size; what the first call imports and remembers does not count.
    """
    call_of(size)()
    small, large = lines_run(call_of(size)), lines_run(call_of(size * factor))
    assert large < small * factor * 4 / 3, f"{size}: {small} lines; {size * factor}: {large} lines"
