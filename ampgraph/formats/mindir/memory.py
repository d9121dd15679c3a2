"""Values of a MindIR model that lie in one memory, of which some are written in place."""

from __future__ import annotations

from ...core.dataflow import NONE, Op
from .values import SHARED, MindirValues


class Memory:
    """Collects views and writes while a model is read."""

    def __init__(self, values: MindirValues) -> None:
        self._values = values
        self._shares: dict[int, int] = {}  # value -> another in the same memory
        self._seen: set[int] = set()  # values that share their memory
        self._changed: set[int] = set()  # values that are written in place
        self._rewriting: list[Op] = []  # operators that write their first operand and give it back

    def share(self, one: int, other: int) -> None:
        """Two values lie in the same memory."""
        self._shares[self._find(one)] = self._find(other)
        self._seen |= {one, other}

    def changes(self, value: int) -> None:
        """A value is written in place."""
        self._changed.add(value)

    def rewrites(self, op: Op) -> None:
        """An operator writes its first operand and gives it back."""
        self._rewriting.append(op)

    def _find(self, value: int) -> int:
        while value in self._shares and self._shares[value] != value:
            value = self._shares[value]
        return value

    def hold_shared(self) -> None:
        """What is written in place is never cast: the copy would be written, or read too early."""
        given = {source for source, _ in self._values.flow.passed}
        for op in self._rewriting:  # in order: what one that is seen gives back is seen too
            if op.inputs[0] in given or self._is_seen(op.inputs[0]):
                self._hold_rewriting(op)
        changed = {self._find(value) for value in self._changed}
        for value in self._values.flow.values if changed else ():
            if self._find(value.id) in changed:
                self._values.hold(value, SHARED)

    def _is_seen(self, value: int) -> bool:
        """Whether anything but its one reader could see that a value changes."""
        flow = self._values.flow
        return len(flow.uses[value]) > 1 or flow.values[value].producer == NONE or value in self._seen

    def _hold_rewriting(self, op: Op) -> None:
        first, flow = op.inputs[0], self._values.flow
        self.changes(first)
        for made in op.outputs:
            self.share(made, first)
        for unit in op.slots.values():
            flow.merge((unit, self._values.fixed_unit(f"rewritten {len(flow.units)}", SHARED)))
