"""Takes a step out of the planner, to show what it is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from ampgraph.planner.findings import Findings
from ampgraph.planner.guards import accuracy
from ampgraph.planner.guards.hazards import Hazards
from ampgraph.planner.guards.index import Integers
from ampgraph.planner.guards.integers import Quantized
from ampgraph.planner.guards.ranges import Overflows
from ampgraph.planner.guards.raw import Unscaled
from ampgraph.planner.guards.recurrences import Recurrences
from ampgraph.planner.guards.streams import Streams
from ampgraph.planner.guards.tail import Branches, Tail
from ampgraph.planner.guards.weights import Unstorable
from ampgraph.planner.policies import ampgraph as policy

NOTHING: Mapping[str, Callable[[], object]] = {
    "guard_common_parts": Findings,
    "guard_indices": Integers,
    "guard_integers": Quantized,
    "guard_ranges": Overflows,
    "guard_raw": Unscaled,
    "guard_recurrences": Recurrences,
    "guard_streams": Streams,
    "guard_weights": Unstorable,
    "release_branches": Branches,
    "release_tail": Tail,
    "spread_hazards": Hazards,
}


def without(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of the policy finds nothing; with an underscore, one of the accuracy guards."""
    if step in NOTHING:
        monkeypatch.setattr(policy, step, lambda *given: NOTHING[step]())
    else:
        monkeypatch.setattr(accuracy, step, lambda sight, op: None)
