"""What a pass is, and how a pipeline of them runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .errors import AmpError
from .graph import Graph


@dataclass(frozen=True)
class Change:
    """What a pass did: ``count`` of its changes, 0 where it edited nothing, and what the user should hear of it."""

    count: int
    notes: tuple[str, ...] = field(default=())


class Pass(Protocol):
    """A frozen dataclass whose fields are its options, or any function of this type.

    Valid graph in, valid graph out; a second run changes nothing."""

    def __call__(self, graph: Graph) -> Change: ...


def run(passes: Sequence[Pass], graph: Graph, *, check: bool = False) -> list[Change]:
    """Runs passes in order on one graph, and returns what each changed.

    ``check``: verifies the graph behind each pass; raises AmpError AMP901, which names the pass, for a fault that was
    not there before, and for a count of changes where there was no edit, or of none where there was one."""
    known = _faults(graph) if check else frozenset()
    changes = []
    for step in passes:
        before = graph.revision
        changes.append(step(graph))
        if check:
            _verify(step, graph, changes[-1].count, graph.revision - before, known)
    return changes


def _faults(graph: Graph) -> frozenset[str]:
    """For the check of a `Pass`: a graph's faults: slots with two types, and what the format's checker says."""
    return frozenset([*graph.conflicts(), *filter(None, [graph.fault()])])


def _verify(step: Pass, graph: Graph, count: int, edits: int, known: frozenset[str]) -> None:
    """Raises AmpError AMP901 where a pass broke a promise: the graph has a fault that is not among the ``known`` ones
    of before, or its ``count`` of changes and the number of ``edits`` are not both 0 or both more."""
    problems = sorted(_faults(graph) - known)
    if not problems and (count > 0) != (edits > 0):
        problems = [f"it counts {count} changes and " + ("edits the graph" if edits else "edits nothing")]
    if problems:
        hint = "this is a defect of the pass"
        raise AmpError("AMP901", f"{step!r} is faulty: {problems[0]}", hint=hint)


def plan_mismatch(text: str, verb: str = "does not have") -> AmpError:
    """The AmpError AMP402 for a plan of another model: "the plan TEXT, which this model VERB"."""
    hint = "a plan fits the model it was made for: make it again"
    return AmpError("AMP402", f"the plan {text}, which this model {verb}", hint=hint)
