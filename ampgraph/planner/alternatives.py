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

MOST = 1000  # operators of a model for which two more plans are made: a quarter of a second
ASKED, OTHER = "O2", "auto"


def alternatives(flow: Dataflow, options: Options, plan: Plan) -> list[Note]:
    """Notes on what other options would do for a plan: Casts that auto saves, errors that a float32 stream mends for
    few Casts. Only for small models, where trying costs little."""
    if plan.level != ASKED or not policy(plan.policy).ours or len(flow.ops) > MOST:
        return []
    inner = {flow.values[v].name for op in flow.ops for v in op.outputs if v != NONE}
    inner -= {flow.values[v].name for v in flow.scopes[0].outputs}
    if inner.isdisjoint(edge.value for edge in plan.casts):
        return []
    recipe = replace(options.recipe, level=OTHER)
    other = assemble(decide(flow, replace(options, recipe=recipe, level=level_of(recipe))), plan.digest)
    text = f"optional, may be faster: --level {OTHER} takes {len(other.casts):,} Casts instead of {len(plan.casts):,}"
    fewer = [Note("level", "", text, advice=True)] if len(other.casts) < len(plan.casts) else []
    return [*fewer, *_stream_note(flow, options, plan)]


def _stream_note(flow: Dataflow, options: Options, plan: Plan) -> list[Note]:
    """One note on the additions that --fp32-stream would keep in float32, where that takes at most a Cast for each and
    one for the stream's end (twice as many where norms are fused with their Casts); else none."""
    if options.recipe.fp32_stream:
        return []
    decided = decide(flow, replace(options, recipe=replace(options.recipe, fp32_stream=True)))
    held = _additions_held(decided, plan)
    other = assemble(decided, plan.digest)
    more = len(_values_cast_alone(flow, other, decided.task.fused)) - len(
        _values_cast_alone(flow, plan, decided.task.fused)
    )
    if not held or more > (held + 1) * (2 if decided.task.fused else 1):
        return []
    casts = f"{more} more Cast{'s' * (more != 1)}, slower" if more > 0 else "no more Casts"
    text = f"keeps {held} addition{'s' * (held > 1)} of the residual stream in float32, for {casts}"
    return [Note("stream", "", f"optional, where the error is too large: --fp32-stream {text}", advice=True)]


def _additions_held(decided: DecidedModel, plan: Plan) -> int:
    """How many slots of additions that are low in the plan are float32 in ``decided``, made with --fp32-stream."""
    flow, additions = decided.flow, decided.options.lists.traits.operators("additions")
    low = {(decision.scope, decision.index) for decision in plan.decisions if decision.dtype == plan.dtype}
    ops = [op for op in flow.with_roles(additions) if op.id not in decided.region_of]
    units = [unit for op in ops if (flow.scopes[op.scope].path, op.index) in low for unit in op.slots.values()]
    whys = [decided.settled.why(unit) for unit in units]
    return sum(why is not None and why.rule == FP32_STREAM for why in whys)


def _values_cast_alone(flow: Dataflow, plan: Plan, fused: Collection[int]) -> list[str]:
    """The names of the values whose Casts in a plan are kernels of their own. ``fused``: ids of operators that the
    target's runtime takes into one kernel with the Casts around them."""
    inside = {flow.place(use) for uses in flow.uses for use in uses if use.op in fused}
    made = {flow.values[v].name for op in fused for v in flow.ops[op].outputs if v != NONE}
    return [edge.value for edge in plan.casts if edge.value not in made and not inside.issuperset(edge.uses)]
