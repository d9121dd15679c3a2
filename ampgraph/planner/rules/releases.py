"""What a list makes low, and the cut may leave float32 where that costs no Cast; and what is the same to the bit in
either type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set

import numpy as np

from ...core.dataflow import FLOAT32, NONE, Op, Value
from ...core.low_types import numpy_type
from ...core.plan import Why
from ..decisions import FREE, HIGH, LIST, LOW, REGION, Decisions
from ..facts.facts import Facts
from ..regions import Regions
from ..scales import scaled_results
from .rule import Findings, Sight, runs

WORTH: Mapping[str, int] = {"infer": -1, "deny": -1, "neutral": 0}
"""What a byte less is worth in an operator behind the last product: -1 where it computes, 0 where it moves data."""


@runs(
    "epilogue",
    trigger="arithmetic behind the last product, whose results are widened",
    action="left to the cut, which prefers float32 where that takes no more Casts",
    levels="careful",
)
def epilogue(sight: Sight, decided: Decisions) -> Findings:
    """Leaves the last arithmetic before a float32 output to the cut: the Cast costs the same in front of it as behind,
    and one rounding is saved."""
    facts, regions = sight.facts, sight.regions
    last = _ops_behind_products(facts, regions, decided) - _ops_before_products(facts, regions, decided)
    last = {op for op in last if regions.classes[op] in WORTH}
    last -= scaled_results(facts, last)
    roots = {root for op in last for root in decided.units_of(facts.flow.ops[op])}
    sharing = {facts.flow.units[unit].op for unit, root in enumerate(decided.roots) if root in roots} - {NONE}
    factors: dict[int, int] = {}  # by unit: -1 where all of it computes, 0 where some of it moves data, 1 elsewhere
    for op in map(facts.flow.ops.__getitem__, sorted(sharing)):
        factor = WORTH[regions.classes[op.id]] if op.id in last else 1
        for root in roots & decided.units_of(op):
            factors[root] = max(factors.get(root, -1), factor)
    preferred = [root for root, factor in factors.items() if factor < 0 and _may_be_free(decided, root)]
    moves = {root: factor for root, factor in factors.items() if factor == 0 and decided.sides[root] == FREE}
    why = Why("epilogue", "no product reads its result")
    why_float32 = Why("epilogue", f"{why.text}: the Cast to the float32 output stands before it, not behind it")
    return Findings(
        released={root: why for root in preferred if decided.sides[root] == LOW},
        byte_worth={**dict.fromkeys(preferred, -1), **moves},
        prefer_float32=dict.fromkeys(preferred, why_float32),
    )


@runs(
    "branches",
    trigger="additions of branches in a training step, and of the gradients that meet in them",
    action="left to the cut, which prefers float32 where that takes no more Casts",
    levels="careful",
)
def branches(sight: Sight, decided: Decisions) -> Findings:
    """Prefers float32 for additions of residual streams and of their gradients, where that takes no more Casts, as
    autocast does, which rounds them for products only."""
    why = Why("branches", "adds branches, in float32 where that takes no more Casts")
    roots = {root for op in sight.facts.flow.ops if op.adds_branches for root in decided.units_of(op)}
    preferred = [root for root in sorted(roots) if _may_be_free(decided, root)]
    return Findings(
        released={root: why for root in preferred if decided.sides[root] == LOW},
        byte_worth=dict.fromkeys(preferred, -1),  # a byte more counts as one less: not enough to pay for a Cast
        prefer_float32=dict.fromkeys(preferred, why),
    )


@runs(
    "unserved",
    trigger="what a list makes low behind products for which the target has no low kernel alone",
    action="left to the cut: Casts may be all that low types add",
    levels="careful",
)
def unserved(sight: Sight, decided: Decisions) -> Findings:
    """Leaves to the cut what a list makes low for the sake of products before it, none of which has a low kernel."""
    facts = sight.facts
    held = {unit for unit, root in enumerate(decided.roots) if decided.is_held(root)}  # by schema or kernels
    allowed = (op for op in map(facts.flow.ops.__getitem__, sorted(sight.regions.allowed)) if op.slots)
    products = {op.id: not held.isdisjoint(op.slots.values()) for op in allowed}
    if not any(products.values()):
        return Findings()
    served = _served_by_products(facts, products)
    why = Why("unserved", "no product before it has a kernel in the low type")
    found: dict[int, bool] = {}  # by unit: whether that holds for all of it
    for op in facts.flow.ops:
        for root in decided.units_of(op):
            found[root] = found.get(root, True) and op.id not in products and served.get(op.id, False)
    free = [root for root, holds in found.items() if holds and decided.is_low(root) and _may_be_free(decided, root)]
    return Findings(released=dict.fromkeys(free, why))


@runs(
    "once",
    trigger="a sum, product, quotient or root of low operands, float32 by its list, that is read low alone",
    action="low: one rounding of the exact result or two of them give the same bits",
    levels="every",
)
def once(sight: Sight, decided: Decisions) -> Findings:
    """Makes low what reads low values and whose float32 result only low readers round again: float32 has more than
    twice the digits of a low type, and two more, so that one rounding gives the same bits (S. A. Figueroa, When is
    double rounding innocuous?, 1995), unless the result is smaller than the low type's normal numbers."""
    flow, classes = sight.facts.flow, sight.regions.classes
    if sight.facts.options.level.infer != "float32":
        return Findings()
    why = Why("once", "reads and is read low alone: rounded once, to the same bits")
    shared, found = Counter(decided.roots), dict[int, Why]()
    for op in flow.with_roles(sight.facts.traits.operators("rounds_once")):
        roots = list(decided.units_of(op))
        if classes[op.id] != "infer" or len(roots) != 1 or shared[roots[0]] != len(op.slots):
            continue
        values = [flow.values[v] for v in (*op.inputs, *op.outputs)]
        by_list = (decided.sides[roots[0]], decided.ranks[roots[0]]) == (HIGH, LIST)
        if by_list and all(_is_low_value(sight.facts, decided, value, op) for value in values):
            found[roots[0]] = why
    return Findings(lowered=found)


def _is_low_value(facts: Facts, decided: Decisions, value: Value, op: Op) -> bool:
    """Rule `once`: whether an operand of ``op`` is low, or a stored number that the low type holds exactly; whether all
    readers of its result are low and none is a Cast of the file."""
    flow = facts.flow
    if value.weight:
        number = flow.scalar(value.id)
        return number is not None and float(np.asarray(number, numpy_type(facts.low.name))) == number
    if value.dtype != FLOAT32 or value.container or value.unit == NONE:
        return False
    if value.producer != op.id:
        return decided.is_low(value.unit)
    return all(use.unit != NONE and not use.given_cast and decided.is_low(use.unit) for use in flow.uses[value.id])


def _may_be_free(decisions: Decisions, root: int) -> bool:
    """For rules that leave units to the cut: whether one is free, or low by nothing stronger than a list or region."""
    side = decisions.sides[root]
    return side == FREE or (side == LOW and decisions.ranks[root] in (LIST, REGION))


def _ops_behind_products(facts: Facts, regions: Regions, decided: Decisions) -> set[int]:
    """Rule `epilogue`: the ids of low products (without a slot: low in the file) and of all operators behind them."""
    flow, found, values = facts.flow, set[int](), set[int]()
    add, allowed = facts.crossings.copies_into(values), regions.allowed
    for op in flow.ops:
        is_low_product = op.id in allowed and (not op.slots or any(map(decided.is_low, op.slots.values())))
        if is_low_product or not values.isdisjoint(op.inputs):
            found.add(op.id)
            add(op.outputs)
    return found


def _ops_before_products(facts: Facts, regions: Regions, decided: Decisions) -> Set[int]:
    """Rule `epilogue`: the ids of operators with a product, a body's end or a low output of the model behind them."""
    flow = facts.flow
    outputs = {value for scope in flow.scopes for value in scope.outputs}
    ends = {v for v in outputs if any(use.op == NONE and decided.is_low(use.unit) for use in flow.uses[v])}
    writers = {flow.values[value].producer for value in ends | facts.crossings.after.keys()} - {NONE}
    return facts.with_all_before(regions.allowed | writers)


def _served_by_products(facts: Facts, products: Mapping[int, bool]) -> dict[int, bool]:
    """Rule `unserved`: id of an operator behind products -> whether ``products`` says True of all the nearest ones."""
    found, values = dict[int, bool](), dict[int, bool]()
    for op in facts.flow.ops:
        nearest = [values[v] for v in op.inputs if v in values]
        if nearest:
            found[op.id] = all(nearest)
        said = products.get(op.id, found.get(op.id))
        for value in op.outputs if said is not None else ():
            for copy in facts.crossings.copies(value):
                values[copy] = values.get(copy, True) and bool(said)
    return found
