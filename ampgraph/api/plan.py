"""`ampgraph.plan`: the decisions as data; `ampgraph.explain`: why a node has its precision."""

from __future__ import annotations

from ..core.arguments import check_callable, check_kind
from ..core.collector import quiet_collector
from ..core.errors import AmpError
from ..core.plan import Plan
from ..core.progress import Progress, silent
from ..core.recipe import OtherFields, Recipe, Unpack
from ..formats.checks import faults_reported
from ..planner.steps import decide, find_rewrites
from ..report.explain import SHOWN, Explanation, replaced_nodes
from ..report.explain import explain as explained
from . import pipeline
from .calibrate import Measuring
from .keywords import recipe_for, takes_recipe
from .kinds import Data, Model, path_of
from .steps import prepare_to_plan

NAME = "give a node's name"


@takes_recipe
def plan(
    model: Model,
    level: str | int | None = None,
    *,
    recipe: Recipe | str | None = None,
    data: Data = None,
    **fields: Unpack[OtherFields],
) -> Plan:
    """The plan that `convert` would apply.

    Args:
        model: what `convert` takes.
        level: O0, O1, O2, O3 or auto; O2, or the policy's own, if not given.
        recipe: an `ampgraph.Recipe`, or the short text of one.
        data: samples to measure ranges on, as in `convert`.
        **fields: of the recipe; each replaces the recipe's own:

    Raises:
        AmpError: for every mistake in the input or the arguments.
    """
    wanted = recipe_for(plan, recipe, {"level": level, **fields})
    with quiet_collector(), faults_reported(path_of(model)):
        graph, options, low_io = prepare_to_plan(model, wanted, Measuring(data))
        return pipeline.plan_graph(graph, options, low_io)[0]


@takes_recipe
def explain(
    model: Model,
    node: str,
    level: str | int | None = None,
    *,
    recipe: Recipe | str | None = None,
    data: Data = None,
    progress: Progress | None = None,
    **fields: Unpack[OtherFields],
) -> Explanation:
    """One node's decisions, as `convert` with this recipe makes them.

    Args:
        model: what `convert` takes.
        node: a node's name, an output's name, or a pattern as ``fp32`` takes it that means one node.
        level: O0, O1, O2, O3 or auto; O2, or the policy's own, if not given.
        recipe: an `ampgraph.Recipe`, or the short text of one.
        data: samples to measure ranges on, as in `convert`.
        progress: hears of progress: what is done, how much of it, of how much.
        **fields: of the recipe; each replaces the recipe's own:

    Raises:
        AmpError: AMP308 for a name that means no node or several, and what `convert` raises.
    """
    check_kind("node", [] if node is None else node, (str,), NAME)
    found = explain_all(model, node, level, recipe=recipe, data=data, progress=progress, **fields)
    if len(found) == 1:
        return found[0]
    shown = ", ".join(one.node for one in found[:SHOWN]) + (" ..." if len(found) > SHOWN else "")
    hint = f"name one of them: {shown}; ampgraph.explain_all has all"
    raise AmpError("AMP308", f"'{node}' means {len(found)} nodes", hint=hint)


@takes_recipe
def explain_all(
    model: Model,
    nodes: str,
    level: str | int | None = None,
    *,
    recipe: Recipe | str | None = None,
    data: Data = None,
    progress: Progress | None = None,
    **fields: Unpack[OtherFields],
) -> list[Explanation]:
    """The decisions of every node that a pattern means, as `convert` with this recipe makes them.

    Args:
        model: what `convert` takes.
        nodes: a pattern as ``fp32`` takes it: a glob of names, ``op:Kind``, ``scope:layers.3.*``, ``value:NAME``.
        level: O0, O1, O2, O3 or auto; O2, or the policy's own, if not given.
        recipe: an `ampgraph.Recipe`, or the short text of one.
        data: samples to measure ranges on, as in `convert`.
        progress: hears of progress: what is done, how much of it, of how much.
        **fields: of the recipe; each replaces the recipe's own:

    Raises:
        AmpError: AMP308 for a pattern that means no node, and what `convert` raises.
    """
    check_callable("progress", progress)
    check_kind("nodes", [] if nodes is None else nodes, (str,), NAME)
    wanted = recipe_for(explain_all, recipe, {"level": level, **fields})
    hear = progress or silent
    with quiet_collector(), faults_reported(path_of(model)):
        graph, options, low_io = prepare_to_plan(model, wanted, Measuring(data), hear, as_made=True)
        hear("planning", 0, 0)
        graph.prepare()
        options = pipeline.with_pinned(graph, options)
        graph.refuse_unknown_training()
        flow = graph.dataflow(options.dtype, low_io)
        rewrites = find_rewrites(flow, options)
        replaced = replaced_nodes(flow, rewrites)
        flow = pipeline.carry_out(rewrites, graph, options.dtype, low_io)
        return explained(decide(flow, pipeline.with_ranges_of(options, rewrites)), nodes, replaced)
