"""The dataflows of a graph since its last edit: what was read once is not read again, and none outlives an edit."""

from __future__ import annotations

from collections.abc import Callable

from ..core.dataflow import Dataflow, StaleDataflow

Key = tuple[str, frozenset[str]]


class Snapshots:
    """``build``: makes the dataflow for a low type and the borders that are to be low."""

    def __init__(self, build: Callable[[str, frozenset[str]], Dataflow]) -> None:
        self._build = build
        self._made: dict[Key, Dataflow] = {}
        self._given: list[Dataflow] = []
        self.revision = 0

    def get(self, low: str, low_io: frozenset[str]) -> Dataflow:
        """The dataflow as it was built, without the ties that an earlier reader made."""
        if (low, low_io) not in self._made:
            self._made[low, low_io] = self._build(low, low_io)
        self._given.append(self._made[low, low_io].fork())
        return self._given[-1]

    def require_newest(self, flow: Dataflow) -> None:
        """Raises StaleDataflow for a dataflow that is out of date, or of another graph."""
        if not any(flow is given for given in self._given):
            raise StaleDataflow

    def expire(self) -> None:
        """The graph was edited."""
        self.revision += 1
        for flow in (*self._given, *self._made.values()):
            flow.expire()
        self._given.clear()
        self._made.clear()
