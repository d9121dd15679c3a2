"""Values of a MindIR model that lie in one memory, of which some are written in place."""

from __future__ import annotations

from .values import SHARED, MindirValues


class Memory:
    """Collects views and writes while a model is read."""

    def __init__(self, values: MindirValues) -> None:
        self._values = values
        self._shares: dict[int, int] = {}  # value -> another in the same memory
        self._changed: set[int] = set()  # values that are written in place

    def share(self, one: int, other: int) -> None:
        """Two values lie in the same memory."""
        self._shares[self._find(one)] = self._find(other)

    def changes(self, value: int) -> None:
        """A value is written in place."""
        self._changed.add(value)

    def _find(self, value: int) -> int:
        while value in self._shares and self._shares[value] != value:
            value = self._shares[value]
        return value

    def hold_shared(self) -> None:
        """What is written in place is never cast: the copy would be written, or read too early."""
        changed = {self._find(value) for value in self._changed}
        for value in self._values.flow.values if changed else ():
            if self._find(value.id) in changed:
                self._values.hold(value, SHARED)
