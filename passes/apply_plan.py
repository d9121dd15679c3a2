"""Gives every value and stored tensor the type that the plan says, and inserts the plan's casts."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cache

from ..core.annotations import conversion_metadata, reason_text
from ..core.dataflow import FLOAT32, NONE, Dataflow, Op, Value
from ..core.graph import DescribedGraph, DescribingEditor, Editor, Graph
from ..core.pass_ import Change, plan_mismatch
from ..core.plan import CastEdge, JointRounding, Plan, Rounding, WeightEdit
from ..oplists.traits import has


@dataclass(frozen=True)
class ApplyPlan:
    """The pass that gives a graph the types of a plan. ``plan`` names operators by their places in the graph as it is
    now, its rewrites done. ``describe``: nodes that become low and new Casts say so in the model, with the reason,
    where its format can. A plan is applied once: raises AmpError AMP402 for a graph without its decisions."""

    plan: Plan
    describe: bool = False

    def __repr__(self) -> str:
        return f"ApplyPlan({self.plan.level}, {self.plan.dtype}, {len(self.plan.casts)} casts)"

    def __call__(self, graph: Graph) -> Change:
        """Edits the graph; counts the values that become low, stored tensors, casts and roundings."""
        plan = self.plan
        if plan.changes_nothing:
            return Change(0)
        flow = graph.dataflow(plan.dtype, frozenset(plan.low_io))
        low = _low_units(plan, flow)
        with graph.editor(flow, signatures(plan, flow)) as editor:
            count = _retype(editor, flow, plan.dtype, low) + _edit(editor, flow, plan)
            if count and self.describe and isinstance(editor, DescribingEditor) and isinstance(graph, DescribedGraph):
                editor.describe(_reasons(editor, flow, plan), conversion_metadata(plan, graph.metadata()))
        return Change(count)


def _reasons(editor: Editor, flow: Dataflow, plan: Plan) -> Iterator[tuple[Op, str, str]]:
    """Pass `ApplyPlan`, for metadata: (operator, type, reason of its first low slot) of those that become low."""
    why = {(d.scope, d.index): d.why for d in reversed(plan.decisions) if d.dtype != FLOAT32 and d.index >= 0}
    shared = {id(reason): reason for reason in why.values()}  # thousands of decisions share one
    texts = {number: reason_text(reason) for number, reason in shared.items()}
    paths = [scope.path if editor.edits(scope.id) else None for scope in flow.scopes]
    for op in flow.ops:
        path = paths[op.scope]
        reason = None if path is None else why.get((path, op.index))
        if reason is not None:
            yield op, plan.dtype, texts[id(reason)]


def _retype(editor: Editor, flow: Dataflow, dtype: str, low: set[int]) -> int:
    """Pass `ApplyPlan`: gives the values of the units ``low`` the type ``dtype``; returns how many."""
    count, edited = 0, [editor.edits(scope.id) for scope in flow.scopes]
    for value in flow.values:
        if value.unit != NONE and edited[value.scope] and value.dtype == FLOAT32 and value.low_source == NONE:
            if value.unit in low:
                editor.retype(value, dtype)
                count += 1
            elif value.producer != NONE and not low.isdisjoint(flow.ops[value.producer].slots.values()):
                editor.keep_type(flow.ops[value.producer], FLOAT32)  # it follows an input, and must say so now
    return count


def _edit(editor: Editor, flow: Dataflow, plan: Plan) -> int:
    """Pass `ApplyPlan`: carries out the plan's edits of stored tensors, then those that are rounded together, then its
    casts and roundings; returns how many. Raises AmpError AMP402 for a plan of another model."""
    inserts: list[CastEdge | Rounding] = [*plan.casts, *plan.roundings]
    named = {edit.value for edit in plan.weights} | {edge.value for edge in inserts}
    values = {(flow.scopes[v.scope].path, v.name): v for v in flow.values if v.name in named}
    count, factors = 0, _factors(plan)
    for edit in plan.weights:
        value = _value_of(values, flow, edit)
        if editor.edits(value.scope):
            factor = factors.get((edit.scope, edit.value), 1.0)
            editor.weight(value, edit.store, plan.dtype, edit.uses, edit.floor, factor)
            count += 1
    for item in plan.together or ():
        op = _op(flow, item)
        if not item.shares and editor.edits(op.scope) and not editor.round_together(op, plan.dtype):
            raise plan_mismatch(f"rounds parameters of node {item.index} in scope '{item.scope}' together")
    for edge in inserts:
        value = _value_of(values, flow, edge)
        if not editor.edits(value.scope):
            continue
        count += 1
        if isinstance(edge, CastEdge):
            editor.cast(value, edge.to, edge.uses)
        else:
            editor.round(value, plan.dtype, edge.uses)
    return count


def _factors(plan: Plan) -> dict[tuple[str, str], float]:
    """Pass `ApplyPlan`: (scope, name) of a stored tensor -> what it is multiplied by before it is rounded; of several
    factors the product, in plan order. Raises AmpError AMP402 for a tensor that the plan does not round."""
    low = {(edit.scope, edit.value) for edit in plan.weights if edit.store != FLOAT32 and edit.floor is None}
    found: dict[tuple[str, str], float] = {}
    for item in plan.together or ():
        for scope, value, factor in item.shares:
            if (scope, value) not in low:
                raise plan_mismatch(f"multiplies '{value}' in scope '{scope}', which it does not round", "has")
            found[scope, value] = found.get((scope, value), 1.0) * factor
    return found


def _op(flow: Dataflow, item: JointRounding) -> Op:
    """Pass `ApplyPlan`: the operator whose operands ``item`` rounds together. Raises AmpError AMP402 without one."""
    try:
        return flow.at(item.scope, item.index)
    except LookupError:
        raise plan_mismatch(f"rounds operands of node {item.index} in scope '{item.scope}' together") from None


def signatures(plan: Plan, flow: Dataflow) -> dict[str, Hashable]:
    """Pass `ApplyPlan`: path of each function's scope -> all that the plan does inside of that call, with paths from
    there: calls of a function with equal ones share one copy. Empty without functions."""
    paths = {scope.path for scope in flow.scopes if scope.kind == "function"}
    if not paths:
        return {}
    inside: dict[str, list[Hashable]] = {path: [] for path in paths}

    @cache
    def owners(scope: str) -> list[str]:
        """The paths of the function calls that a scope is or is in, the outermost first."""
        parts = scope.split("/")
        around = ["/".join(parts[:n]) for n in range(2, len(parts) + 1)]
        return [path for path in around if path in paths]

    for d in plan.decisions:
        if d.dtype != FLOAT32:
            for path in owners(d.scope):
                inside[path].append((d.scope[len(path) :], d.index, d.slot, d.dtype))
    edits: list[tuple[CastEdge | WeightEdit, tuple[Hashable, ...]]] = [(edge, (edge.to,)) for edge in plan.casts]
    factors = _factors(plan)
    edits += [(edit, (edit.store, edit.floor, factors.get((edit.scope, edit.value)))) for edit in plan.weights]
    for item, rest in edits:
        for path in owners(item.scope):
            uses = tuple((scope[len(path) :], op, position) for scope, op, position in item.uses)
            inside[path].append((item.scope[len(path) :], item.value, uses, *rest))
    return {path: tuple(rows) for path, rows in inside.items()}


def _low_units(plan: Plan, flow: Dataflow) -> set[int]:
    """Pass `ApplyPlan`: the units that are low. Raises AmpError AMP402 unless the plan decides just the model's."""
    slots: dict[tuple[str, int, str], int] = {}  # (scope, index, slot), as plans name units -> unit
    for unit in flow.units:
        if unit.op == NONE:
            slots["", NONE, unit.slot] = unit.id
        else:
            op = flow.ops[unit.op]
            slots[flow.scopes[op.scope].path, op.index, unit.slot] = unit.id
    low, decided = set(), set()
    for d in plan.decisions:
        found = slots.get((d.scope, d.index, d.slot))
        if found is None:
            raise plan_mismatch(f"decides {d.kind} {d.scope}/{d.index} ({d.slot})")
        decided.add(found)
        if d.dtype != FLOAT32:
            low.add(found)
    if len(decided) < len(slots):
        scope, index, slot = next(place for place, unit in slots.items() if unit not in decided)
        raise plan_mismatch(f"leaves {scope}/{index} ({slot}) undecided", "has")
    return low


def _value_of(values: dict[tuple[str, str], Value], flow: Dataflow, edit: CastEdge | WeightEdit | Rounding) -> Value:
    """Pass `ApplyPlan`: the value that an edit of a plan names. Raises AmpError AMP402 where there is none, it is not
    read there, or it is not stored, nor filled with one number. ``values``: (scope, name) -> value."""
    value = values.get((edit.scope, edit.value))
    writer = None if value is None else flow.writer(value.id)
    filled = writer is not None and has(writer.role, "fills")
    if value is None or (isinstance(edit, WeightEdit) and not (value.weight or filled)):
        raise plan_mismatch(f"changes value '{edit.value}' in scope '{edit.scope}'")
    if not edit.uses:
        return value
    uses = {flow.place(use) for use in flow.uses[value.id]}
    for place in edit.uses:
        if place not in uses:
            scope, op, position = place
            raise plan_mismatch(f"gives '{edit.value}' to {scope}/{op} ({position})")
    return value
