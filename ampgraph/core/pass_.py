"""What a pass is, and how a pipeline of them runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .errors import AmpError
from .graph import Graph


@dataclass(frozen=True)
class Change:
    """How much a pass changed, and what the user should hear of it."""

    count: int
    notes: tuple[str, ...] = field(default=())


class Pass(Protocol):
    """A frozen dataclass whose fields are its options, or any function of this type.

    Valid graph in, valid graph out; a second run changes nothing."""

    def __call__(self, graph: Graph) -> Change: ...


def run(passes: Sequence[Pass], graph: Graph, *, check: bool = False) -> list[Change]:
    """Runs passes in order, any `Pass`; what each changed. ``check``: the graph is verified behind each of them.

    Raises AmpError AMP901 in the name of a pass that leaves an invalid graph, or miscounts."""
    known = _faults(graph) if check else frozenset()
    changes = []
    for step in passes:
        before = graph.revision
        changes.append(step(graph))
        if check:
            _verify(step, graph, changes[-1].count, graph.revision - before, known)
    return changes


def _faults(graph: Graph) -> frozenset[str]:
    """Before and behind a `Pass`: a graph's faults: types that do not agree, and what the format's checker says."""
    return frozenset([*graph.conflicts(), *filter(None, [graph.fault()])])


def _verify(step: Pass, graph: Graph, count: int, edits: int, known: frozenset[str]) -> None:
    """Checks what a pass promises: no fault in the graph that was not there before (``known``), and a count of 0 where
    it edited nothing."""
    problems = sorted(_faults(graph) - known)
    if not problems and (count > 0) != (edits > 0):
        problems = [f"it counts {count} changes and " + ("edits the graph" if edits else "edits nothing")]
    if problems:
        hint = "this is a defect of the pass"
        raise AmpError("AMP901", f"{step!r} is faulty: {problems[0]}", hint=hint)


def plan_mismatch(text: str, verb: str = "does not have") -> AmpError:
    """The error for a plan that speaks of something else than this model: AMP402."""
    hint = "a plan fits the model it was made for: make it again"
    return AmpError("AMP402", f"the plan {text}, which this model {verb}", hint=hint)
