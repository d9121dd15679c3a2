"""The dataflows of a graph since its last edit: what was read once is not read again, and none outlives an edit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..core.dataflow import Dataflow, StaleDataflow

Key = tuple[str, frozenset[str]]  # the low type, and the inputs and outputs that are to be low


class EditableGraph:
    """What the graphs of both formats share: dataflows, and which of them are out of date. ``build``: reads the file's
    graph into a dataflow, for the low type and the names of the inputs and outputs that are to be low."""

    def __init__(self, build: Callable[[str, frozenset[str]], Dataflow]) -> None:
        self._build = build
        self._made: dict[Key, Dataflow] = {}  # as read, which nobody outside has: forks are given out
        self._given: list[Dataflow] = []  # those that were given out
        self._revision = 0

    @property
    def revision(self) -> int:
        """For graphs of both formats: a number that grows with every edit."""
        return self._revision

    def dataflow(self, low: str = "float16", low_io: frozenset[str] = frozenset()) -> Dataflow:
        """For graphs of both formats: a snapshot of the graph, without ties that earlier readers made; it is read from
        the file again only behind an edit. ``low_io``: names of inputs and outputs that are to be low. It is out of
        date, and raises StaleDataflow, once the graph is edited."""
        if (low, low_io) not in self._made:
            self._made[low, low_io] = self._build(low, low_io)
        self._given.append(self._made[low, low_io].fork())
        return self._given[-1]

    def conflicts(self, low: str = "float16") -> Sequence[str]:
        """For both formats: a sentence for each slot of two types, and each type that its slot does not admit."""
        return self.dataflow(low).conflicts

    def repairs(self) -> list[str]:
        """What was put right when the model was read, a sentence each; none where a format puts nothing right."""
        return []

    def settle_shapes(self) -> None:
        """Repairs annotated shapes that cannot be; does nothing where a format's shapes are not annotations."""

    def require_newest(self, flow: Dataflow) -> None:
        """For editors of both formats: raises StaleDataflow for a dataflow from before an edit, or of another graph."""
        if not any(flow is given for given in self._given):
            raise StaleDataflow

    def edited(self) -> None:
        """For editors of both formats, behind an edit: makes every dataflow of the graph out of date."""
        self._revision += 1
        for flow in (*self._given, *self._made.values()):
            flow.expire()
        self._given.clear()
        self._made.clear()
