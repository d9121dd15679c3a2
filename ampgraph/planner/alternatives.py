"""What another level would save, for the report: told where it costs little to know."""

from __future__ import annotations

from dataclasses import replace

from ..core.dataflow import NONE, Dataflow
from ..core.plan import Note, Plan
from .options import Options
from .policies.registry import policy
from .resolve import level_of
from .steps import make_plan

MOST = 2000  # operators: a second plan of them takes a quarter of a second
ASKED, OTHER = "O2", "auto"


def other_levels(flow: Dataflow, options: Options, plan: Plan) -> list[Note]:
    """How many Casts of a plan at O2 auto would save, in a model of few operators that has Casts between nodes."""
    if plan.level != ASKED or not policy(plan.policy).ours or len(flow.ops) > MOST or not _has_inner(flow, plan):
        return []
    recipe = replace(options.recipe, level=OTHER)
    other = make_plan(flow, replace(options, recipe=recipe, level=level_of(recipe)), plan.digest)
    saved = len(plan.casts) - len(other.casts)
    text = f"--level {OTHER} would save {saved} of {len(plan.casts)} Cast{'s' * (len(plan.casts) > 1)}"
    return [Note("level", "", text)] if saved > 0 else []


def _has_inner(flow: Dataflow, plan: Plan) -> bool:
    """Whether a plan casts what a node makes and another one reads."""
    made = {flow.values[v].name for op in flow.ops for v in op.outputs if v != NONE}
    outer = {flow.values[v].name for v in flow.scopes[0].outputs}
    return any(edge.value in made - outer for edge in plan.casts)
