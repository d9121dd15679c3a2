"""What is done to a model before it is planned, as the recipe says: what of its inputs and outputs is to be low,
weights frozen, the runtime's own optimisation, and the opset: the least one that frees operators or saves Casts, and
moves nothing off the target. Some targets take that unasked for a low type: where the types in the file decide, a
schema without the type is all that keeps an operator in float32.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from ..core.dataflow import FLOAT32, Dataflow
from ..core.errors import AmpError, Unmatched, nearest
from ..core.graph import LOW, Graph
from ..core.plan import Note, Plan
from ..core.progress import Progress, silent
from ..core.recipe import Recipe
from ..core.shown import plural
from ..formats import adapters
from ..formats.onnx import io as onnx_io
from ..formats.onnx.graph import OnnxGraph
from ..formats.onnx.walk import copied
from ..report.summary import choices
from ..runtime.optimized import kind_of, walk_nodes
from ..runtime.optimizing import SIZE_LIMIT, NodeCounter, NotOptimized, best_fused, node_count
from . import pipeline

if TYPE_CHECKING:
    from ..oplists.options import Options


LOWERED = frozenset({"", FLOAT32, *LOW})
"""Types of inputs and outputs that may be low, or are; none stands for one that the file does not say."""


def low_interface(graph: Graph, io: Iterable[str]) -> frozenset[str]:
    """For `convert --io`: the graph inputs and outputs that are to be low. AmpError AMP305 for a word that means none,
    or asks it of what is no float32 tensor."""
    words = list(io)
    if not words:
        return frozenset()
    names = graph.interface()
    chosen: set[str] = set()
    for word in words:
        pattern, _, kind = word.partition("=")
        if word == "low":
            chosen |= set(names)
            continue
        matched = [n for n in names if fnmatch.fnmatchcase(n, pattern)]
        if kind not in ("low", "keep") or not matched:
            problem = f"'{word}' matches no input or output" if not matched else f"'{word}' does not say =low or =keep"
            known = nearest(pattern, list(names)) or f"there are: {', '.join(list(names)[:8])}"
            raise (
                AmpError("AMP305", problem, hint=known)
                if matched
                else Unmatched("AMP305", problem, hint=known, word=word)
            )
        if kind == "low" and LOWERED.isdisjoint(names[name] for name in matched):
            problem = f"'{word}' asks for what cannot be low: '{matched[0]}' is {names[matched[0]]}"
            raise Unmatched("AMP305", problem, hint="omit it: only float32 tensors become low", word=word)
        chosen = chosen | set(matched) if kind == "low" else chosen - set(matched)
    return frozenset(chosen)


# -- weights that are inputs too --------------------------------------------------------------------------------------


def frozen(graph: Graph, recipe: Recipe) -> int:
    """For `convert --freeze`: turns stored tensors that are inputs too into constants, which can be stored low, where
    the recipe or the version of the file says so; returns how many there were."""
    return adapters.freeze(graph, recipe.freeze_weights)


def frozen_notes(graph: Graph, plan: Plan, count: int, asked: bool) -> list[Note]:
    """What was done, or else what it would save: where other readers need float32 less, for a weight is stored twice
    then. ``graph``: not converted yet; ``count``: what `frozen` returned; ``asked``: whether the user asked for it."""
    if count:
        text = f"{plural(count, 'weight')} listed as inputs: constants now, which nobody can override"
        text += "" if asked else "; --no-freeze-weights keeps them inputs"
        return [Note("inputs", "", text)] if asked or not plan.changes_nothing else []
    sizes = adapters.defaults(graph)
    cast = {item.value for item in plan.casts if not item.scope and item.value in sizes}
    text = (
        f"{plural(len(cast), 'weight')} listed as inputs, float32 and cast when it runs: --freeze-weights makes them "
        f"constants, which saves some {sum(sizes[name] for name in cast) // 2:,} bytes and {plural(len(cast), 'Cast')}"
    )
    return [Note("inputs", "", text)] if cast else []


# -- the opset --------------------------------------------------------------------------------------------------------

AUTO = "auto"
Score = tuple[int, int, int]
"""What is worse the larger it is: products in float32, Casts, other operators in float32."""


@dataclass(frozen=True)
class Moved:
    """A graph in the opset that a recipe names. ``notes``: why there, or what that moves off the target; ``opset``: the
    one that was chosen for it, 0 where none was."""

    graph: Graph
    notes: tuple[Note, ...] = ()
    opset: int = 0


def moved(graph: Graph, recipe: Recipe, options: Options | None, low_io: frozenset[str], progress: Progress) -> Moved:
    """The model in the opset that its conversion asks for. ``options``: None where a plan is given. Raises AmpError
    AMP307."""
    unasked = recipe.opset is None and options is not None and options.dtype in options.kernels.raises_opset
    if options is not None and (recipe.opset == AUTO or unasked):
        return _at_least_opset(graph, replace(options, ranges=None), low_io, progress)
    after = at_given(graph, recipe, progress)
    if options is None or recipe.opset is None:
        return Moved(after)
    lost = _without_kernel(after, options, low_io) - _without_kernel(graph, options, low_io)
    text = f"opset {recipe.opset} moves {', '.join(sorted(lost))} off {options.target}, which has no kernel there"
    return Moved(after, (Note("opset", "", text),) if lost else ())


def _without_kernel(graph: Graph, options: Options, low_io: frozenset[str]) -> set[str]:
    """For `convert --opset auto`: operators of a model that the target does not run at the model's opset."""
    from ..planner.opsets import off_target

    return off_target(_fresh_dataflow(graph, options, low_io), options)


def _fresh_dataflow(graph: Graph, options: Options, low_io: frozenset[str]) -> Dataflow:
    """The dataflow of a copy of the graph, which stays as it is."""
    copy = adapters.copied(graph)
    copy.prepare()
    return copy.dataflow(options.dtype, low_io)


def at_given(graph: Graph, recipe: Recipe, progress: Progress = silent) -> Graph:
    """The model in the opset that the recipe gives as a number. Raises AmpError AMP307."""
    if recipe.opset is None:
        return graph
    if isinstance(recipe.opset, str):
        hint = "give the number: `ampgraph convert --opset auto --dry-run` names it"
        raise AmpError("AMP307", "--opset auto has no meaning here", hint=hint)
    progress(f"moving to opset {recipe.opset}", 0, 0)
    return adapters.at_opset(graph, recipe.opset)


def _at_least_opset(graph: Graph, options: Options, low_io: frozenset[str], progress: Progress) -> Moved:
    """For `convert --opset auto`: the model at the least later opset at which something more can be low, tried one by
    one; as it is where none gains."""
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
    now, beside = _plan_score(trial, flow, options), off_target(flow, options)
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
            scores[opset] = _plan_score(trial, flow, options)
    best = min(scores, key=lambda opset: (scores[opset], opset), default=0)
    if not best and refusal is not None:
        raise refusal
    if not best or (scores[best] >= now and refusal is None):
        return Moved(graph, tuple(refused))
    gained = [f"{a - b:+,} {what}" for a, b, what in zip(scores[best], now, GAINS, strict=True) if a != b]
    note = Note("opset", "", f"moved from opset {given} to {best}: {', '.join(gained) or '--io is low there'}")
    return Moved(adapters.at_opset(graph, best), (note,), best)


GAINS = ("products in float32", "Casts", "other nodes in float32")


def _plan_score(plan: Plan, flow: Dataflow, options: Options) -> Score:
    """For `convert --opset auto`: how good a plan is, less is better: float32 products, Casts, other float32 nodes."""
    wide = [
        node.role in options.lists.products
        for node in choices(plan, flow, options.lists).chosen
        if node.dtype != plan.dtype
    ]
    return sum(wide), len(plan.casts), len(wide) - sum(wide)


# -- the runtime's own offline optimisation ---------------------------------------------------------------------------

Optimize = bool | str
"""Whether to, or the Python of an environment whose onnxruntime does it."""
OWN = "com.microsoft::"


def optimised(graph: Graph, wanted: Optimize, options: Options | None, progress: Progress = silent) -> Moved:
    """For `convert --optimize`: the model as the runtime optimises it, with a note that says what was done; as it is
    where that is no gain.

    Raises AmpError AMP304 for a format or target whose runtime has no such operators, AMP404 beside a plan, AMP501
    where there is no onnxruntime, AMP502 where it refuses the model, AMP508 for a Python that cannot be asked.
    """
    if not wanted:
        return Moved(graph)
    if options is None:
        hint = "a plan is of the graph as it is: optimise and plan in one go"
        raise AmpError("AMP404", "optimize= cannot change the given plan", hint=hint)
    if not isinstance(graph, OnnxGraph):
        raise AmpError("AMP304", f"{graph.format} models are not for ONNX Runtime", hint="omit --optimize")
    if not any(kind.startswith(OWN) for kind in options.kernels.entries):
        hint = "omit --optimize: it fuses by itself when it loads the model"
        raise AmpError("AMP304", f"{options.target} has none of ONNX Runtime's own operators", hint=hint)
    if low := _low_types(graph, options):
        text = f"not done: the model holds {low} already"
    elif not len(graph.model.graph):
        text = "not done: the model has no nodes"
    else:
        progress("optimising", 0, 0)
        graph, text = _best_fused_graph(graph, wanted if isinstance(wanted, str) else "", options)
    return Moved(graph, (Note("optimize", "", text),))


def _low_types(graph: OnnxGraph, options: Options) -> str:
    """For `convert --optimize`: the low types that a model has; what was converted is not fused anew, so that
    converting again changes nothing."""
    flow = _fresh_dataflow(graph, options, frozenset())
    return " and ".join(low for low in LOW if any(value.dtype == low for value in flow.values))


def runs_on(options: Options, proto: onnx.ModelProto) -> bool:
    """For `convert --optimize`: whether the target has kernels for the operators of ONNX Runtime's own in a model, and
    the CPU has, on which the result is checked."""
    imported = {entry.domain: entry.version for entry in proto.opset_import}
    kinds = {(kind_of(node), imported.get(node.domain, 1)) for node, _ in walk_nodes(proto.graph)}
    tables = [table for table in (options.kernels, options.kernels.fallback) if table is not None]
    return all(table.runs(kind, opset) for kind, opset in kinds if kind.startswith(OWN) for table in tables)


def _best_fused_graph(graph: OnnxGraph, python: str, options: Options) -> tuple[OnnxGraph, str]:
    """For `convert --optimize`: the best graph that the runtime's optimisers make of a model, and a note on it."""
    try:
        found = best_fused(
            _whole_proto(graph), options.kernels.provider, lambda made: runs_on(options, made), python=python
        )
    except NotOptimized as why:
        code = "AMP501" if why.elsewhere else "AMP502"
        hint = "name an environment that has it with --runtime PYTHON, or omit --optimize"
        raise AmpError(code, f"ONNX Runtime does not optimise the model: {why}", hint=hint) from why
    by = found.counter.provider.removesuffix("ExecutionProvider")
    if not found.how:
        return graph, f"nothing makes fewer than the {found.before} nodes that {by} runs"
    fused = OnnxGraph(onnx_io.deserialize(found.proto, None))
    if worse := _why_worse(graph, fused, found.counter, options):
        return graph, f"not kept, by {found.how}: {worse}"
    return fused, f"by {found.how}: {found.before} -> {found.after} nodes that {by} runs, in float32"


def _why_worse(plain: OnnxGraph, fused: OnnxGraph, counter: NodeCounter, options: Options) -> str:
    """For `convert --optimize`: why the fused model would be worse to convert than the given one; "" for better.

    What counts are the nodes that the target's provider runs; where there is no such provider, those of the files.
    """
    there = counter.provider == options.kernels.provider
    before, after = (_converted_proto(graph, options) for graph in (plain, fused))
    try:
        least = counter(before) if there else node_count(before)
    except NotOptimized:  # nothing to compare with: that is the model's own fault, and said where it is converted
        return ""
    try:
        nodes = counter(after) if there else node_count(after)
    except NotOptimized as why:
        return f"converted then, {why}"
    where = f"that {counter.provider.removesuffix('ExecutionProvider')} runs" if there else "of the file"
    return f"{nodes} nodes {where} in {options.dtype}, {least} without it" if nodes > least else ""


def _converted_proto(graph: OnnxGraph, options: Options) -> onnx.ModelProto:
    """For `convert --optimize`: the model converted on trial, weights included."""
    copy = OnnxGraph(onnx_io.deserialize(_whole_proto(graph), None))
    plan, flow = pipeline.planned(copy, replace(options, ranges=None), frozenset())
    pipeline.applied(copy, plan, flow)
    return onnx_io.to_proto(copy.model)


def _whole_proto(graph: OnnxGraph) -> onnx.ModelProto:
    """For `convert --optimize`: the model with its weights in it, for an optimiser. NotOptimized for too many."""
    if sum(tensor.nbytes for tensor in onnx_io.external_tensors(graph.model)) > SIZE_LIMIT:
        raise NotOptimized("it is over 2 GB in one piece")
    model = copied(graph.model)
    ir.external_data.load_to_model(model)
    return onnx_io.to_proto(model)
