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
        """What both formats' graphs share: a number that grows with every edit."""
        return self._revision

    def dataflow(self, low: str = "float16", low_io: frozenset[str] = frozenset()) -> Dataflow:
        """A snapshot of a file's graph, without an earlier reader's ties. ``low_io``: inputs and outputs that are to be
        low.

        No work where nothing was edited since the last one."""
        if (low, low_io) not in self._made:
            self._made[low, low_io] = self._build(low, low_io)
        self._given.append(self._made[low, low_io].fork())
        return self._given[-1]

    def conflicts(self, low: str = "float16") -> Sequence[str]:
        """In a file of either format: slots that hold two types, and types that a slot does not admit."""
        return self.dataflow(low).conflicts

    def repairs(self) -> list[str]:
        """What was put right when the model was read from its file."""
        return []

    def settle_shapes(self) -> None:
        """Repairs annotated shapes that cannot be; those of this format are not annotations."""

    def require_newest(self, flow: Dataflow) -> None:
        """Formats' edits: raises StaleDataflow for a dataflow that is out of date, or of another graph."""
        if not any(flow is given for given in self._given):
            raise StaleDataflow

    def edited(self) -> None:
        """For both formats, after an edit: makes every dataflow out of date."""
        self._revision += 1
        for flow in (*self._given, *self._made.values()):
            flow.expire()
        self._given.clear()
        self._made.clear()
