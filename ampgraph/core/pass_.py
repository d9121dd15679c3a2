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
    """Runs passes in order; what each changed. ``check``: the graph is verified behind each of them.

    Raises AmpError AMP901 in the name of a pass that leaves an invalid graph, or miscounts."""
    known = frozenset(graph.dataflow().conflicts) if check else frozenset()
    changes = []
    for step in passes:
        before = graph.revision
        changes.append(step(graph))
        if check:
            _verify(step, graph, changes[-1], before, known)
    return changes


def _verify(step: Pass, graph: Graph, change: Change, before: int, known: frozenset[str]) -> None:
    """What the pass promises: types that agree, a valid model, and a count that is 0 just where nothing is edited."""
    new = [conflict for conflict in graph.dataflow().conflicts if conflict not in known]
    problem = new[0] if new else ""
    if not problem and bool(change.count) != (graph.revision != before):
        problem = f"it counts {change.count} changes" + (", and edits the graph" if change.count == 0 else " and edits nothing")
    if not problem:
        try:
            graph.check()
        except AmpError as error:
            problem = error.message
    if problem:
        hint = "this is a defect of the pass"
        raise AmpError("AMP901", f"the graph would be invalid after {step!r}: {problem}", hint=hint)


def foreign(text: str, verb: str = "does not have") -> AmpError:
    """A plan that speaks of something else than this model: AMP402."""
    hint = "a plan fits the model it was made for: make it again"
    return AmpError("AMP402", f"the plan {text}, which this model {verb}", hint=hint)
