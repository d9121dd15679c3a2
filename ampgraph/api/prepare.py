"""What `convert` does to a model before it is planned: which inputs and outputs are to be low (--io), weights made
constants (--freeze-weights), the runtime's own optimisation (--optimize), another opset (--opset).

--opset auto takes the opset with the least in float32 and the fewest Casts that moves nothing off the target. Some
targets do so unasked for a low type: where the types in the file decide, a schema without the type is all that keeps an
operator in float32.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable
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
from ..formats.onnx.walk import copy_model
from ..report.summary import node_choices
from ..runtime.optimized import kind_of, walk_nodes
from ..runtime.optimizing import SIZE_LIMIT, NodeCounter, NotOptimized, best_fused, node_count
from . import pipeline

if TYPE_CHECKING:
    from ..oplists.options import Options


LOWERED = frozenset({"", FLOAT32, *LOW})
"""Types of inputs and outputs that may become low, or are; "" stands for one that the file does not say."""


def low_interface(graph: Graph, io: Iterable[str]) -> frozenset[str]:
    """For `convert --io`: the names of the graph inputs and outputs that are to be low.

    ``io``: ``low`` for all, or ``PATTERN=low`` and ``PATTERN=keep`` with a glob of names; the last word on a name
    holds. Raises AmpError AMP305 for a pattern that matches nothing, or of which nothing can be low."""
    words = list(io)
    if not words:
        return frozenset()
    dtypes = graph.interface()
    chosen: set[str] = set()
    for word in words:
        pattern, _, kind = word.partition("=")
        if word == "low":
            chosen |= set(dtypes)
            continue
        matched = [name for name in dtypes if fnmatch.fnmatchcase(name, pattern)]
        known = nearest(pattern, list(dtypes)) or f"there are: {', '.join(list(dtypes)[:8])}"
        if not matched:
            raise Unmatched("AMP305", f"'{word}' matches no input or output", hint=known, word=word)
        if kind not in ("low", "keep"):
            raise AmpError("AMP305", f"'{word}' does not say =low or =keep", hint=known)
        if kind == "low" and LOWERED.isdisjoint(dtypes[name] for name in matched):
            problem = f"'{word}' asks for what cannot be low: '{matched[0]}' is {dtypes[matched[0]]}"
            raise Unmatched("AMP305", problem, hint="omit it: only float32 tensors become low", word=word)
        chosen = chosen | set(matched) if kind == "low" else chosen - set(matched)
    return frozenset(chosen)


# -- weights that are inputs too --------------------------------------------------------------------------------------


def freeze_weights(graph: Graph, recipe: Recipe) -> int:
    """For `convert --freeze-weights`: turns stored tensors that are inputs too into constants, which can be stored low;
    where the recipe does not say whether, files that list all that they store are taken so. Returns how many."""
    return adapters.freeze(graph, recipe.freeze_weights)


def notes_on_frozen(graph: Graph, plan: Plan, count: int, asked: bool) -> list[Note]:
    """For `convert --freeze-weights`: a note that ``count`` weights were made constants, as `freeze_weights` returned;
    for none, on what that would save where the plan casts weights that are inputs; an empty list for nothing to say.
    ``graph``: before the plan is carried out; ``asked``: whether the user gave the option."""
    if count:
        text = f"{plural(count, 'weight')} listed as inputs: constants now, which nobody can override"
        text += "" if asked else "; --no-freeze-weights keeps them inputs"
        return [Note("inputs", "", text)] if asked or not plan.changes_nothing else []
    sizes = adapters.defaults(graph)  # bytes of each weight that is an input, by name
    cast = {item.value for item in plan.casts if not item.scope and item.value in sizes}
    text = (
        f"{plural(len(cast), 'weight')} listed as inputs, float32 and cast when it runs: --freeze-weights makes them "
        f"constants, which saves some {sum(sizes[name] for name in cast) // 2:,} bytes and {plural(len(cast), 'Cast')}"
    )
    return [Note("inputs", "", text)] if cast else []


# -- the opset --------------------------------------------------------------------------------------------------------

AUTO = "auto"
Score = tuple[int, int, int]
"""How bad a plan is, less is better: products in float32, Casts, other operators in float32, compared in this order."""


@dataclass(frozen=True)
class Prepared:
    """A graph after a step of `convert` before planning, the optimisation or the opset. ``notes``: what the step did,
    or why it did nothing; ``opset``: the one that --opset auto chose, 0 where it chose none."""

    graph: Graph
    notes: tuple[Note, ...] = ()
    opset: int = 0


def move_opset(
    graph: Graph, recipe: Recipe, options: Options | None, low_io: frozenset[str], progress: Progress
) -> Prepared:
    """For `convert --opset`: the model in the opset that the recipe asks for, or that suits a target which wants it
    chosen; with a note on operators that a given number moves off the target. ``options``: None where a plan is given.
    Raises AmpError AMP307 for an opset that the model cannot be moved to."""
    unasked = recipe.opset is None and options is not None and options.dtype in options.kernels.raises_opset
    if options is not None and (recipe.opset == AUTO or unasked):
        return _at_best_opset(graph, replace(options, ranges=None), low_io, progress)
    after = at_given_opset(graph, recipe, progress)
    if options is None or recipe.opset is None:
        return Prepared(after)
    lost = _without_kernel(after, options, low_io) - _without_kernel(graph, options, low_io)
    if not lost:
        return Prepared(after)
    text = f"opset {recipe.opset} moves {', '.join(sorted(lost))} off {options.target}, which has no kernel there"
    return Prepared(after, (Note("opset", "", text),))


def _without_kernel(graph: Graph, options: Options, low_io: frozenset[str]) -> set[str]:
    """For `convert --opset`: the kinds of operators of a model for which the target has no kernel at its opset."""
    from ..planner.opsets import off_target

    return off_target(_fresh_dataflow(graph, options, low_io), options)


def _fresh_dataflow(graph: Graph, options: Options, low_io: frozenset[str]) -> Dataflow:
    """The dataflow of a copy of the graph, which stays as it is."""
    copy = adapters.copy_graph(graph)
    copy.prepare()
    return copy.dataflow(options.dtype, low_io)


def at_given_opset(graph: Graph, recipe: Recipe, progress: Progress = silent) -> Graph:
    """The model in the opset that the recipe gives as a number; as it is where the recipe gives none. Raises AmpError
    AMP307 for ``auto``, or an opset that the model cannot be moved to."""
    if recipe.opset is None:
        return graph
    if isinstance(recipe.opset, str):
        hint = "give the number: `ampgraph convert --opset auto --dry-run` names it"
        raise AmpError("AMP307", "--opset auto has no meaning here", hint=hint)
    progress(f"moving to opset {recipe.opset}", 0, 0)
    return adapters.at_opset(graph, recipe.opset)


def _at_best_opset(graph: Graph, options: Options, low_io: frozenset[str], progress: Progress) -> Prepared:
    """For `convert --opset auto`: the model at the later opset whose plan has the best score, the least one of several,
    with a note on what that gains; as it is where none is better, with a note on each opset that would move operators
    off the target. Where --io asks for inputs that cannot be low at the model's own opset, any that allows them is
    better; without one the error AMP305 is raised."""
    from ..planner.opsets import later_opsets, off_target

    progress("looking for an opset", 0, 0)
    refusal: AmpError | None = None
    try:
        trial, flow = pipeline.plan_graph(adapters.copy_graph(graph), options, low_io)
    except AmpError as error:
        if error.code != "AMP305" or not low_io:
            raise
        refusal = error  # its inputs cannot be low here, but perhaps at a later opset
        trial, flow = pipeline.plan_graph(adapters.copy_graph(graph), options, frozenset())
    opset_now, score_now, lost_now = flow.opset, _plan_score(trial, flow, options), off_target(flow, options)
    scores: dict[int, Score] = {}
    refused: list[Note] = []
    for opset in sorted(later_opsets(flow, trial, options)):
        try:
            trial, flow = pipeline.plan_graph(adapters.at_opset(graph, opset), options, low_io)
        except AmpError as error:
            if error.code not in ("AMP305", "AMP307"):  # no way there, or its inputs cannot be low there
                raise
            continue
        lost = off_target(flow, options) - lost_now
        if lost:
            text = f"opset {opset} is not taken: {options.target} has no kernel there for {', '.join(sorted(lost))}"
            refused.append(Note("opset", "", text))
        else:
            scores[opset] = _plan_score(trial, flow, options)
    best = min(scores, key=lambda opset: (scores[opset], opset), default=0)
    if not best and refusal is not None:
        raise refusal
    if not best or (scores[best] >= score_now and refusal is None):
        return Prepared(graph, tuple(refused))
    gained = [f"{a - b:+,} {what}" for a, b, what in zip(scores[best], score_now, GAINS, strict=True) if a != b]
    note = Note("opset", "", f"moved from opset {opset_now} to {best}: {', '.join(gained) or '--io is low there'}")
    return Prepared(adapters.at_opset(graph, best), (note,), best)


GAINS = ("products in float32", "Casts", "other nodes in float32")  # the words for the numbers of a Score


def _plan_score(plan: Plan, flow: Dataflow, options: Options) -> Score:
    """For `convert --opset auto`: how bad a plan is: its products in float32, Casts, other nodes in float32."""
    float32 = [node for node in node_choices(plan, flow, options.lists).chosen if node.dtype != plan.dtype]
    products = sum(node.role in options.lists.products for node in float32)
    return products, len(plan.casts), len(float32) - products


# -- the runtime's own offline optimisation ---------------------------------------------------------------------------

Optimize = bool | str
"""Whether the runtime is to optimise the model, or the Python of an environment whose onnxruntime does it."""
OWN = "com.microsoft::"


def optimise(graph: Graph, wanted: Optimize, options: Options | None, progress: Progress = silent) -> Prepared:
    """For `convert --optimize`: the model as the runtime optimises it, with a note that says what was done; as it is
    where that is no gain.

    Raises AmpError AMP304 for a format or target whose runtime has no such operators, AMP404 beside a plan, AMP501
    where there is no onnxruntime, AMP502 where it refuses the model, AMP508 for a Python that cannot be asked."""
    if not wanted:
        return Prepared(graph)
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
    return Prepared(graph, (Note("optimize", "", text),))


def _low_types(graph: OnnxGraph, options: Options) -> str:
    """For `convert --optimize`: the low types that a model holds, as words; "" for none. A model with some is not fused
    anew, so that converting twice changes nothing."""
    flow = _fresh_dataflow(graph, options, frozenset())
    return " and ".join(low for low in LOW if any(value.dtype == low for value in flow.values))


def runs_on(options: Options, proto: onnx.ModelProto) -> bool:
    """For `convert --optimize`: whether the target has kernels for those operators of a model that are ONNX Runtime's
    own, and the CPU has too, on which the result is checked."""
    imported = {entry.domain: entry.version for entry in proto.opset_import}
    kinds = {(kind_of(node), imported.get(node.domain, 1)) for node, _ in walk_nodes(proto.graph)}
    tables = [table for table in (options.kernels, options.kernels.fallback) if table is not None]
    return all(table.runs(kind, opset) for kind, opset in kinds if kind.startswith(OWN) for table in tables)


def _best_fused_graph(graph: OnnxGraph, python: str, options: Options) -> tuple[OnnxGraph, str]:
    """For `convert --optimize`: the graph with the fewest nodes that the runtime's optimisers make of a model, or the
    model itself where that is no gain, and a note on which. ``python``: as `Optimize` says, "" for this environment.
    Raises AmpError AMP501 where there is no onnxruntime, AMP502 where it refuses the model."""
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


def _why_worse(given: OnnxGraph, fused: OnnxGraph, counter: NodeCounter, options: Options) -> str:
    """For `convert --optimize`: why the fused model, converted, is worse than the given one, converted: it does not
    open or has more nodes; "" where it is not. Counted are the nodes that the target's provider runs, or those of the
    files where ``counter`` counts for another provider."""
    by_provider = counter.provider == options.kernels.provider
    count: Callable[[onnx.ModelProto], int] = counter if by_provider else node_count
    given_proto, fused_proto = (_converted_proto(graph, options) for graph in (given, fused))
    try:
        least = count(given_proto)
    except NotOptimized:  # nothing to compare with: that is the model's own fault, and said where it is converted
        return ""
    try:
        nodes = count(fused_proto)
    except NotOptimized as why:
        return f"converted then, {why}"
    where = f"that {counter.provider.removesuffix('ExecutionProvider')} runs" if by_provider else "of the file"
    return f"{nodes} nodes {where} in {options.dtype}, {least} without it" if nodes > least else ""


def _converted_proto(graph: OnnxGraph, options: Options) -> onnx.ModelProto:
    """For `convert --optimize`: the model converted on trial, without measured ranges, with its weights in it."""
    copy = OnnxGraph(onnx_io.deserialize(_whole_proto(graph), None))
    plan, flow = pipeline.plan_graph(copy, replace(options, ranges=None), frozenset())
    pipeline.run_passes(copy, plan, flow)
    return onnx_io.to_proto(copy.model)


def _whole_proto(graph: OnnxGraph) -> onnx.ModelProto:
    """For `convert --optimize`: the model with its weights in it, for an optimiser. Raises NotOptimized for more than
    2 GB of them, which one message cannot hold."""
    if sum(tensor.nbytes for tensor in onnx_io.external_tensors(graph.model)) > SIZE_LIMIT:
        raise NotOptimized("it is over 2 GB in one piece")
    model = copy_model(graph.model)
    ir.external_data.load_to_model(model)
    return onnx_io.to_proto(model)
