"""Values that carry on across the border of a body or a function: the same data under another number."""

from __future__ import annotations

from collections.abc import Iterable

from .dataflow import NONE, Dataflow


class Borders:
    """``before``: what a formal is given, a loop brings back, or a body returns. ``after`` is the reverse."""

    def __init__(self, flow: Dataflow) -> None:
        self.before: dict[int, list[int]] = {}
        self.after: dict[int, list[int]] = {}
        for source, target in flow.passed:
            if NONE in (source, target):
                continue  # an optional input that is not given
            self.before.setdefault(target, []).append(source)
            self.after.setdefault(source, []).append(target)

    def origins(self, value: int) -> set[int]:
        """A value with all that it is passed from."""
        return _closure(value, self.before)

    def add_origins(self, found: set[int], values: Iterable[int]) -> None:
        """Adds several values with all that they are passed from; those that are not there are left out."""
        found.update(values)
        found.discard(NONE)
        for value in self.before.keys() & values if self.before else ():
            found |= self.origins(value)

    def add_copies(self, found: set[int], values: Iterable[int]) -> None:
        """Adds several values with all that they are passed to."""
        found.update(values)
        for value in self.after.keys() & values if self.after else ():
            found |= self.copies(value)

    def copies(self, value: int) -> set[int]:
        """A value with all that it is passed to."""
        return _closure(value, self.after)


def _closure(value: int, step: dict[int, list[int]]) -> set[int]:
    if value not in step:
        return {value}
    found, work = {value}, [value]
    while work:
        for other in step.get(work.pop(), ()):
            if other not in found:
                found.add(other)
                work.append(other)
    return found
