"""What was decided, written down: every unit with a reason, as a policy's rule gives it, becomes a Plan of decisions,
Casts and stored tensors; of one operator also what the other type would have cost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..core.dataflow import FLOAT32, NONE, Dataflow, Value
from ..core.plan import GRAPH, CastEdge, Decision, Note, Plan, Rounding, WeightEdit, Why
from ..oplists.options import Options
from ..oplists.traits import traits
from ..rules.together import rounded_together
from .costs import STORED_TWICE_LIMIT, CutTask
from .decisions import FP32_STREAM, LOW, Decisions

UNDECIDED = Why("cut", "no neighbour asks for low")


def assemble(decided: DecidedModel, digest: str) -> Plan:
    """The plan: what was decided of the model that has this digest, written down."""
    options, flow = decided.options, decided.flow
    plan = Plan(digest, options.level.name, options.dtype, options.policy, options.target)
    plan.decisions = _decisions(decided)
    plan.roundings = list(decided.roundings)
    sides = decided.settled.sides
    low = {unit for unit, root in enumerate(decided.settled.roots) if sides[root] == LOW}
    for value in flow.values:
        if value.dtype != FLOAT32 or value.container:
            continue
        if value.weight:
            _add_weight(decided, low, value, plan)
        else:
            _add_casts(decided, low, value, plan)
            if value.id in decided.floors:  # filled with one number
                store = "low" if value.unit in low else "float32"
                scope = flow.scopes[value.scope].path
                plan.weights.append(WeightEdit(scope, value.name, store, floor=decided.floors[value.id]))
    plan.together = rounded_together(flow, traits(), options.dtype, plan.weights)
    plan.notes = [*decided.notes, *plan.notes]
    plan.pinned = _pinned_patterns(decided, plan)
    return plan


def _pinned_patterns(decided: DecidedModel, plan: Plan) -> list[str]:
    """Patterns for what the user's words and measured ranges pinned to float32, written into the file so that a later
    conversion keeps it: the user's own, each node that ranges hold, and the first node of each residual stream."""
    flow, held = decided.flow, dict[tuple[str, int], int]()
    for unit, decision in zip(flow.units, plan.decisions, strict=True):
        if unit.op != NONE and decision.dtype == FLOAT32 and decision.why.rule in ("range", FP32_STREAM):
            key = unit.op if decision.why.rule == "range" else decided.settled.find(unit.id)
            held.setdefault((decision.why.rule, key), unit.op)
    patterns = list(decided.options.fp32)
    for op in map(flow.ops.__getitem__, sorted(set(held.values()))):
        if op.name:
            patterns.append(op.name)
        elif op.outputs:
            patterns.append(f"value:{flow.values[op.outputs[0]].name}")
    return list(dict.fromkeys(filter(None, patterns)))


def _decisions(decided: DecidedModel) -> list[Decision]:
    """The plan's `Decision` for each unit, in their order; units of inputs and outputs have index -1."""
    flow, settled, low = decided.flow, decided.settled, decided.options.dtype
    paths, decisions = [scope.path for scope in flow.scopes], []
    for unit, root in zip(flow.units, settled.roots, strict=True):
        dtype, why = low if settled.sides[root] == LOW else FLOAT32, settled.whys[root] or UNDECIDED
        if unit.op != NONE:
            op = flow.ops[unit.op]
            decisions.append(Decision(paths[op.scope], op.index, op.kind, unit.slot, dtype, why))
        else:
            decisions.append(Decision("", -1, GRAPH, unit.slot, dtype, why))
    return decisions


def _add_casts(decided: DecidedModel, low: Collection[int], value: Value, plan: Plan) -> None:
    """Adds to the plan the one Cast that a value needs, if any. ``low``: the ids of units that are low."""
    flow = decided.flow
    is_low = value.unit in low and value.low_source == NONE  # made by a given Cast: low readers take its source
    uses = [use for use in flow.uses[value.id] if use.unit != NONE and not use.given_cast]
    other = [use for use in uses if (use.unit in low) != is_low]
    if other:
        to = FLOAT32 if is_low else decided.options.dtype
        plan.casts.append(CastEdge(flow.scopes[value.scope].path, value.name, to, tuple(map(flow.place, other))))


def _add_weight(decided: DecidedModel, low_units: Collection[int], value: Value, plan: Plan) -> None:
    """Adds to the plan how a stored tensor is kept: low, in both types, or float32 with a Cast where it is read low.
    ``low_units``: the ids of units that are low."""
    flow, options, floor = decided.flow, decided.options, decided.floors.get(value.id)
    uses = flow.uses[value.id]
    low = [use for use in uses if use.unit in low_units and not use.given_cast]
    given = sum([use.given_cast for use in uses]) if decided.seeded else 0  # Casts of the file fold into the weight
    scope = flow.scopes[value.scope].path
    raised = [] if floor is None else [WeightEdit(scope, value.name, "float32", floor=floor)]
    if value.parameter and value.id not in decided.numbers and options.store_weights == "keep":
        if low:
            plan.weights += raised
            plan.casts.append(CastEdge(scope, value.name, options.dtype, tuple(map(flow.place, low))))
        return
    if not low and (not given or given < len(uses)):
        plan.weights += raised
    elif len(low) + given == len(uses):
        plan.weights.append(WeightEdit(scope, value.name, "low", floor=floor))
    elif 4 * flow.weights.size(value) <= STORED_TWICE_LIMIT and (flow.parameters_copied or not value.parameter):
        plan.weights.append(WeightEdit(scope, value.name, "both", tuple(map(flow.place, low)), floor))
    else:
        plan.weights += raised
        plan.casts.append(CastEdge(scope, value.name, options.dtype, tuple(map(flow.place, low))))
        megabytes = 4 * flow.weights.size(value) / 1e6
        message = f"read in both types: stored once in float32 ({megabytes:.0f} MB), cast when it runs"
        plan.notes.append(Note("weight", value.name, message))


@dataclass(frozen=True)
class DecidedModel:
    """A decided model, of which a plan is assembled.

    Attributes:
        settled: side, right and reason of every unit.
        region_of: id of an operator in a region -> the operator that the region stands for.
        seeded: whether anything is low by right, so that the model changes at all.
        asked: what the cut was asked, where it was.
        floors: mask constants, by value, with what replaces their lowest elements.
        roundings: float32 values that some readers get rounded.
        numbers: stored tensors that are numbers of the program's and no parameters, whatever the file calls them.
    """

    flow: Dataflow
    options: Options
    settled: Decisions
    region_of: Mapping[int, str] = field(default_factory=dict)
    seeded: bool = True
    asked: CutTask | None = None
    floors: Mapping[int, float] = field(default_factory=dict)
    roundings: Sequence[Rounding] = ()
    numbers: Collection[int] = frozenset()
    notes: Sequence[Note] = ()

    @property
    def task(self) -> CutTask:
        """What the cut was asked, with the decisions of the end: for the price of changing one of them."""
        asked = self.asked or CutTask(self.flow, self.options, self.settled)
        return replace(asked, decisions=self.settled)
