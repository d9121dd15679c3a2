"""Checks that every slot holds one type that it admits. A failure is a defect of ampgraph, never of the user."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.errors import AmpError
from ..core.graph import Graph
from ..core.pass_ import Change


@dataclass(frozen=True)
class VerifyTypes:
    """The pass that verifies types. ``known``: conflicts that the model had before. Raises AmpError for a new one:
    AMP901, or AMP402 where the plan was ``given`` and so may contradict itself. ``low``: of the dataflow."""

    known: frozenset[str] = frozenset()
    given: bool = False
    low: str = "float16"

    def __repr__(self) -> str:
        return f"VerifyTypes({len(self.known)} known)" if self.known else "VerifyTypes()"

    def __call__(self, graph: Graph) -> Change:
        """Edits nothing, and counts 0."""
        new = [conflict for conflict in graph.conflicts(self.low) if conflict not in self.known]
        if new and self.given:
            raise AmpError(
                "AMP402",
                f"the plan contradicts itself: {new[0]}",
                hint="make the plan again; --fp32 and --low steer it without editing",
            )
        if new:
            raise AmpError(
                "AMP901",
                f"the converted model would be invalid: {new[0]}",
                hint="this is a defect of ampgraph: please report it with the model; --fp32 on that node avoids it",
            )
        return Change(0)
