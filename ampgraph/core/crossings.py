"""Values that carry on across the boundary of a body or a function: the same data under another number."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from .dataflow import NONE, Dataflow


class Crossings:
    """By value, those of other scopes that hold the same data. ``before``: what a formal is given, a loop brings back,
    or a body returns. ``after`` is the reverse."""

    def __init__(self, flow: Dataflow) -> None:
        self.before: dict[int, list[int]] = {}
        self.after: dict[int, list[int]] = {}
        for source, target in flow.passed:
            if NONE in (source, target):
                continue  # an optional input that is not given
            self.before.setdefault(target, []).append(source)
            self.after.setdefault(source, []).append(target)

    def origins(self, value: int) -> set[int]:
        """The value, and all values of other scopes that it gets its data from: a formal's arguments, a loop's last
        state, a body's results."""
        return _carried_over(value, self.before)

    def origins_into(self, found: set[int]) -> Callable[[Iterable[int]], None]:
        """A function that adds values to ``found``, each with all that `origins` gives."""
        return partial(_add_carried_over, found, self.before) if self.before else found.update

    def copies_into(self, found: set[int]) -> Callable[[Iterable[int]], None]:
        """A function that adds values to ``found``, each with all that `copies` gives."""
        return partial(_add_carried_over, found, self.after) if self.after else found.update

    def copies(self, value: int) -> set[int]:
        """The value, and all values of other scopes that get its data: formals, results of calls and bodies."""
        return _carried_over(value, self.after)


def _add_carried_over(found: set[int], step: dict[int, list[int]], values: Iterable[int]) -> None:
    """Adds the values and all that they carry on as."""
    found.update(values)
    for value in step.keys() & values:
        found |= _carried_over(value, step)


def _carried_over(value: int, step: dict[int, list[int]]) -> set[int]:
    """All values that hold the same data as this one, by steps across boundaries."""
    if value not in step:
        return {value}
    found, work = {value}, [value]
    while work:
        for other in step.get(work.pop(), ()):
            if other not in found:
                found.add(other)
                work.append(other)
    return found
