"""``--opset auto``: the least opset that frees operators or saves Casts, and moves nothing off the target.

Some targets take it unasked for a low type: where the types in the file decide, a schema without the type is all that
keeps an operator in float32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..core.dataflow import Dataflow
from ..core.errors import AmpError
from ..core.graph import Graph
from ..core.plan import Note, Plan
from ..core.progress import Progress, silent
from ..core.recipe import Recipe
from ..formats import adapters
from ..report.summary import choices
from . import pipeline

if TYPE_CHECKING:
    from ..planner.options import Options

AUTO = "auto"
Score = tuple[int, int, int]
"""What is worse the larger it is: heavy operators in float32, Casts, other operators in float32."""


@dataclass(frozen=True)
class Moved:
    """A graph in the opset that a recipe names. ``notes``: why there, or what that moves off the target; ``opset``: the
    one that was chosen for it, 0 where none was."""

    graph: Graph
    notes: tuple[Note, ...] = ()
    opset: int = 0


def moved(graph: Graph, recipe: Recipe, options: Options | None, low_io: frozenset[str], progress: Progress) -> Moved:
    """The model in the opset that the recipe names. ``options``: None where a plan is given. Raises AmpError AMP307."""
    unasked = recipe.opset is None and options is not None and options.dtype in options.kernels.raises_opset
    if options is not None and (recipe.opset == AUTO or unasked):
        return _least(graph, replace(options, ranges=None), low_io, progress)
    after = at_given(graph, recipe, progress)
    if options is None or recipe.opset is None:
        return Moved(after)
    lost = _without_kernel(after, options, low_io) - _without_kernel(graph, options, low_io)
    text = f"opset {recipe.opset} moves {', '.join(sorted(lost))} off {options.target}, which has no kernel there"
    return Moved(after, (Note("opset", "", text),) if lost else ())


def _without_kernel(graph: Graph, options: Options, low_io: frozenset[str]) -> set[str]:
    from ..planner.opsets import off_target

    copy = adapters.copied(graph)
    copy.prepare()
    return off_target(copy.dataflow(options.dtype, low_io), options)


def at_given(graph: Graph, recipe: Recipe, progress: Progress = silent) -> Graph:
    """The model in the opset that the recipe gives as a number. Raises AmpError AMP307."""
    if recipe.opset is None:
        return graph
    if isinstance(recipe.opset, str):
        hint = "give the number: `ampgraph convert --opset auto --dry-run` names it"
        raise AmpError("AMP307", "--opset auto has no meaning here", hint=hint)
    progress(f"moving to opset {recipe.opset}", 0, 0)
    return adapters.at_opset(graph, recipe.opset)


def _least(graph: Graph, options: Options, low_io: frozenset[str], progress: Progress) -> Moved:
    """Tries every opset at which something becomes possible that is not today."""
    from ..planner.opsets import later_opsets, off_target

    progress("looking for an opset", 0, 0)
    try:
        trial, flow = pipeline.planned(adapters.copied(graph), options, low_io)
    except AmpError as error:
        if error.code != "AMP305" or not low_io:
            raise
        refusal: AmpError | None = error  # its inputs cannot be low there, which a later one may mend
        trial, flow = pipeline.planned(adapters.copied(graph), options, frozenset())
    else:
        refusal = None
    given = flow.opset
    now, beside = _score(trial, flow, options), off_target(flow, options)
    scores: dict[int, Score] = {}
    refused: list[Note] = []
    for opset in sorted(later_opsets(flow, trial, options)):
        try:
            trial, flow = pipeline.planned(adapters.at_opset(graph, opset), options, low_io)
        except AmpError as error:
            if error.code not in ("AMP305", "AMP307"):  # no way there, or its inputs cannot be low there
                raise
            continue
        lost = off_target(flow, options) - beside
        if lost:
            text = f"opset {opset} is not taken: {options.target} has no kernel there for {', '.join(sorted(lost))}"
            refused.append(Note("opset", "", text))
        else:
            scores[opset] = _score(trial, flow, options)
    best = min(scores, key=lambda opset: (scores[opset], opset), default=0)
    if not best and refusal is not None:
        raise refusal
    if not best or (scores[best] >= now and refusal is None):
        return Moved(graph, tuple(refused))
    gained = [f"{a - b:+,} {what}" for a, b, what in zip(scores[best], now, GAINS, strict=True) if a != b]
    note = Note("opset", "", f"moved from opset {given} to {best}: {', '.join(gained) or '--io is low there'}")
    return Moved(adapters.at_opset(graph, best), (note,), best)


GAINS = ("heavy nodes float32", "Casts", "other nodes float32")


def _score(plan: Plan, flow: Dataflow, options: Options) -> Score:
    wide = [
        node.role in options.lists.heavy
        for node in choices(plan, flow, options.lists).chosen
        if node.dtype != plan.dtype
    ]
    return sum(wide), len(plan.casts), len(wide) - sum(wide)
