"""Checks that every slot holds one type that it admits. A failure is a defect of ampgraph, never of the user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import AmpError
from .base import Change


@dataclass(frozen=True)
class VerifyTypes:
    """``known``: conflicts that the model had before. Raises AmpError AMP901 for a new one."""

    known: frozenset[str] = frozenset()

    def __call__(self, graph: Any) -> Change:
        new = [conflict for conflict in graph.dataflow().conflicts if conflict not in self.known]
        if new:
            raise AmpError(
                "AMP901",
                f"the converted model would be invalid: {new[0]}",
                hint="this is a defect of ampgraph: please report it with the model; --fp32 on that node avoids it",
            )
        return Change(0)
