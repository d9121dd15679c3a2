"""The dataflows of a graph since its last edit: what was read once is not read again, and none outlives an edit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..core.dataflow import Dataflow, StaleDataflow

Key = tuple[str, frozenset[str]]


class EditableGraph:
    """What graphs of all formats share. ``build``: makes the dataflow for a low type and the inputs and
    outputs to be low.
    """

    def __init__(self, build: Callable[[str, frozenset[str]], Dataflow]) -> None:
        self._build = build
        self._made: dict[Key, Dataflow] = {}
        self._given: list[Dataflow] = []
        self._revision = 0

    @property
    def revision(self) -> int:
        """A number that grows with every edit of a graph of any format."""
        return self._revision

    def dataflow(self, low: str = "float16", low_io: frozenset[str] = frozenset()) -> Dataflow:
        """A snapshot, without the ties that an earlier reader made. ``low_io``: inputs and outputs that are to be low.

        No work where nothing was edited since the last one."""
        if (low, low_io) not in self._made:
            self._made[low, low_io] = self._build(low, low_io)
        self._given.append(self._made[low, low_io].fork())
        return self._given[-1]

    def conflicts(self, low: str = "float16") -> Sequence[str]:
        """Slots that hold two types, and types that a slot does not admit."""
        return self.dataflow(low).conflicts

    def repairs(self) -> list[str]:
        """What was put right when the model was read."""
        return []

    def settle_shapes(self) -> None:
        """Repairs annotated shapes that cannot be; those of this format are not annotations."""

    def require_newest(self, flow: Dataflow) -> None:
        """Raises StaleDataflow for a dataflow that is out of date, or of another graph."""
        if not any(flow is given for given in self._given):
            raise StaleDataflow

    def edited(self) -> None:
        """Makes every dataflow out of date."""
        self._revision += 1
        for flow in (*self._given, *self._made.values()):
            flow.expire()
        self._given.clear()
        self._made.clear()
