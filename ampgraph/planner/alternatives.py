"""What other words would save or mend, for the report: told where it costs little to know."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ..core.dataflow import NONE, Dataflow
from ..core.plan import Note, Plan
from ..oplists.options import Options
from .assemble import DecidedModel, assemble
from .decisions import FP32_STREAM
from .policies.registry import policy
from .resolve import level_of
from .steps import decide

MOST = 1000  # operators: two more plans of them take a quarter of a second
ASKED, OTHER = "O2", "auto"


def alternatives(flow: Dataflow, options: Options, plan: Plan) -> list[Note]:
    """What auto would save of a plan at O2, and a float32 stream would mend for few Casts: in a model of few operators
    that has Casts between nodes."""
    if plan.level != ASKED or not policy(plan.policy).ours or len(flow.ops) > MOST:
        return []
    inner = {flow.values[v].name for op in flow.ops for v in op.outputs if v != NONE}
    inner -= {flow.values[v].name for v in flow.scopes[0].outputs}
    if inner.isdisjoint(edge.value for edge in plan.casts):
        return []
    return [*_by_auto(flow, options, plan), *_by_stream(flow, options, plan)]


def _by_auto(flow: Dataflow, options: Options, plan: Plan) -> list[Note]:
    recipe = replace(options.recipe, level=OTHER)
    other = assemble(decide(flow, replace(options, recipe=recipe, level=level_of(recipe))), plan.digest)
    saved, count = len(plan.casts) - len(other.casts), len(plan.casts)
    text = f"optional: --level {OTHER} takes {count - saved:,} Casts instead of {count:,}"
    return [Note("level", "", text)] if saved > 0 else []


def _by_stream(flow: Dataflow, options: Options, plan: Plan) -> list[Note]:
    """A stream that takes a Cast for each addition and one for its beginning, or two where its norms are float32 inside
    their kernels: there it is low for that alone."""
    if options.recipe.fp32_stream:
        return []
    decided = decide(flow, replace(options, recipe=replace(options.recipe, fp32_stream=True)))
    held = _additions(decided, plan)
    other = assemble(decided, plan.digest)
    more = len(_paid(flow, other, decided.task.fused)) - len(_paid(flow, plan, decided.task.fused))
    if not held or more > (held + 1) * (2 if decided.task.fused else 1):
        return []
    casts = f"{more} more Cast{'s' * (more != 1)}" if more > 0 else "no more Casts"
    text = f"keeps {held} addition{'s' * (held > 1)} of the residual stream in float32 for {casts}"
    return [Note("stream", "", f"optional, more exact: --fp32-stream {text}")]


def _additions(decided: DecidedModel, plan: Plan) -> int:
    """How many additions that are low in a plan the option holds."""
    flow, additions = decided.flow, decided.options.lists.traits.operators("additions")
    low = {(one.scope, one.index) for one in plan.decisions if one.dtype == plan.dtype}
    whys = (
        decided.settled.why(unit)
        for op in flow.ops
        if op.role in additions and op.id not in decided.region_of and (flow.scopes[op.scope].path, op.index) in low
        for unit in op.slots.values()
    )
    return sum(why is not None and why.rule == FP32_STREAM for why in whys)


def _paid(flow: Dataflow, plan: Plan, fused: Collection[int]) -> list[str]:
    """The values whose Casts no kernel takes along."""
    inside = {flow.place(use) for uses in flow.uses for use in uses if use.op in fused}
    made = {flow.values[v].name for op in fused for v in flow.ops[op].outputs if v != NONE}
    return [edge.value for edge in plan.casts if edge.value not in made and not inside.issuperset(edge.uses)]
