"""What a conversion does to a graph: it makes a plan or follows one that is given, then runs the passes.

The planner is imported in the functions that make a plan: a given plan is followed without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.annotations import pinned_in
from ..core.dataflow import Dataflow
from ..core.errors import AmpError
from ..core.graph import DescribedGraph, Graph, StepGraph
from ..core.low_types import low_type
from ..core.pass_ import Pass, run
from ..core.plan import Note, Plan
from ..core.ranges import exceeds
from ..core.rewrites import Rewrite
from ..oplists.traits import traits
from ..passes.pipeline import default_pipeline
from ..passes.portable_checks import PortableChecks
from ..passes.rewrite_regions import RewriteRegions
from ..rules.together import rounded_together

if TYPE_CHECKING:
    from ..oplists.options import Options


def rewrite_graph(graph: Graph, options: Options, low_io: frozenset[str]) -> tuple[Dataflow, list[Rewrite]]:
    """A step of `convert`: sorts a graph and carries out the rewrites that `find_rewrites` finds. Returns the dataflow
    of the edited graph, and the rewrites. ``low_io``: inputs and outputs to be low. AmpError for a training step."""
    graph.prepare()
    graph.refuse_unknown_training()
    from ..planner.steps import find_rewrites

    flow = graph.dataflow(options.dtype, low_io)
    rewrites = find_rewrites(flow, options)
    return carry_out(rewrites, graph, options.dtype, low_io) if rewrites else flow, rewrites


def carry_out(rewrites: Sequence[Rewrite], graph: Graph, dtype: str, low_io: frozenset[str]) -> Dataflow:
    """A step of `convert` and `apply`: edits a graph by rewrites, which must have been found in this very graph, as
    they name its nodes; returns the dataflow of the edited graph."""
    RewriteRegions(tuple(rewrites), dtype)(graph)
    return graph.dataflow(dtype, low_io)


def with_ranges_of(options: Options, rewrites: Sequence[Rewrite]) -> Options:
    """A step of `convert`: the options, whose ranges have those of the values that rewrites make too: each is the range
    of a value of the model as it was, scaled by a factor."""
    renamed = {name: new for one in rewrites for name, new in one.renamed.items()}
    return replace(options, ranges=options.ranges.scaled(renamed)) if options.ranges and renamed else options


def with_pinned(graph: Graph, options: Options) -> Options:
    """The options of a conversion, with the nodes that an earlier one pinned to float32, as the file's metadata say."""
    return replace(options, pinned=pinned_in(graph.metadata())) if isinstance(graph, DescribedGraph) else options


def plan_graph(
    graph: Graph, options: Options, low_io: frozenset[str], *, passing: bool = False
) -> tuple[Plan, Dataflow]:  # fmt: skip
    """A step of `convert` and `plan`: returns the plan of a graph and the dataflow that its decisions index. The graph
    is left sorted and with the plan's rewrites carried out, ready for `run_passes`.

    ``low_io``: the inputs and outputs that are to be low; ``passing``: nobody keeps the plan, so that it needs no
    digest by which to know its model again."""
    graph.prepare()
    graph.settle_shapes()
    return plan_prepared_graph(graph, options, low_io, passing=passing)


def plan_prepared_graph(
    graph: Graph, options: Options, low_io: frozenset[str], *, passing: bool = False
) -> tuple[Plan, Dataflow]:  # fmt: skip
    """A step of `convert` and `plan`: as `plan_graph`, for a graph that is sorted already and has only shapes that are
    certain, as a training step's, which is not touched before. Raises AmpError AMP403 for ranges of another model,
    AMP305 where the opset has no Cast that ``low_io`` needs."""
    digest = graph.digest() if options.ranges is not None or not passing else ""
    options = with_pinned(graph, options)
    if options.ranges is not None:
        options.ranges.check(digest)
    flow, rewrites = rewrite_graph(graph, options, low_io)
    if low_io and options.dtype == "bfloat16" and 0 < flow.opset < 13:
        raise AmpError(
            "AMP305", f"opset {flow.opset} has no Cast to bfloat16 for --io", hint="add --opset 13, or use float16"
        )
    from ..planner.steps import make_plan

    plan = make_plan(flow, with_ranges_of(options, rewrites), digest)
    plan.rewrites, plan.low_io, plan.opset = rewrites, sorted(low_io), options.moved_to
    plan.notes += [Note("repaired", "", text) for text in graph.repairs()]
    if isinstance(graph, StepGraph) and plan.dtype == "float16" and not plan.changes_nothing:
        plan.notes += [Note("loss scale", "", text) for text in graph.scale_doubts()]
    if options.ranges is not None:
        plan.notes += [Note("samples", "", text) for text in options.ranges.notes]
    return plan, flow


def follow_plan(plan: Plan, graph: Graph) -> tuple[Plan, Dataflow]:
    """For `apply` and `convert(plan=...)`: carries out the rewrites of a given plan on its model. Returns the plan,
    completed where an older format says less, and the dataflow that it indexes. AmpError AMP403 for another model."""
    graph.prepare()
    graph.settle_shapes()
    graph.refuse_unknown_training()
    if plan.digest != graph.digest():
        raise AmpError(
            "AMP403",
            "the plan was made for another model",
            hint="make a plan for this model, or give the one it was made for",
        )
    low_io = frozenset(plan.low_io)
    _refuse_other_weights(plan, graph.dataflow(plan.dtype, low_io))
    flow = carry_out(plan.rewrites, graph, plan.dtype, low_io)
    if plan.together is None:  # as every version decided that wrote format 1, when it applied a plan
        plan = replace(plan, together=rounded_together(flow, traits(), plan.dtype, plan.weights))
    return plan, flow


def _refuse_other_weights(plan: Plan, flow: Dataflow) -> None:
    """For `apply`: raises AmpError AMP403 where the low type cannot hold a weight that the plan makes low. The digest
    by which a plan knows its model does not read large weights. ``flow``: of the model before the rewrites."""
    limit = low_type(plan.dtype).largest
    values = {(flow.scopes[v.scope].path, v.name): v for v in flow.values if v.weight}
    floors = {(edit.scope, edit.value): edit.floor for edit in plan.weights}
    low = dict.fromkeys((edit.scope, edit.value) for edit in plan.weights if edit.store != "float32")
    if plan.policy == "ampgraph":  # by a framework's policy, weights beyond the range are cast on purpose
        low |= dict.fromkeys((cast.scope, cast.value) for cast in plan.casts if cast.to == plan.dtype)
    for place in low:
        value = values.get(place)
        if value is not None and exceeds(flow, value, limit, floors.get(place)):
            raise AmpError(
                "AMP403",
                f"the plan was made for other weights: '{value.name}' is beyond {plan.dtype}",
                hint="make a plan for this model",
            )


def run_passes(
    graph: Graph, plan: Plan, flow: Dataflow, given: bool = False, passes: Sequence[Pass] = (), check: bool = False,
    describe: bool = False,
) -> bool:  # fmt: skip
    """Runs the passes of a conversion over a graph whose rewrites are carried out, and returns whether the model is
    changed. ``flow``: of the graph as it is; ``given``: the plan was given, so that a fault of it is its giver's;
    ``passes``: the user's, after ours; ``check``: verify the graph after each; ``describe``: say in the metadata what
    was done."""
    portable = (PortableChecks(),) if plan.target == "cpu" and isinstance(graph, StepGraph) else ()
    pipeline = default_pipeline(plan, flow, more=(*portable, *passes), given=given, describe=describe)
    changes = run(pipeline, graph, check=check)
    return not plan.changes_nothing or any(change.count for change in changes)
