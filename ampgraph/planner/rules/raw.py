"""Accuracy guard: arithmetic on the model's own inputs, before the first product.

Inputs come in units of the world: pressures of 1013 and a few, years, prices of millions, samples of a quiet
microphone. What takes their mean off needs the digits that a rounding of the input would take; behind it the low type
has enough. In float32 it costs no more Casts: the one before it stands behind it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ...core.dataflow import FLOAT32, NONE, Op
from ...core.plan import Why
from ...core.walk import upstream
from ..decisions import Decisions
from ..facts.facts import Facts
from ..regions import Regions
from .rule import Findings, Sight, ruling, runs


@dataclass(frozen=True)
class Raw:
    """``ops``: operators, no products, that see float32 inputs of the model, and constants beside them; ``values``:
    what they make, and those inputs; ``products``: products of these, with their biases."""

    ops: set[int]
    values: set[int]
    products: set[int]


def raw(sight: Sight) -> Raw:
    """Follows the model's float32 inputs to the first products."""
    facts, regions = sight.facts, sight.regions
    flow, borders = facts.flow, facts.borders
    constant, values = set[int](), {v.id for v in flow.values if v.producer == NONE and _is_input(facts, v.id)}
    fixed, seen = {NONE, *facts.stored}, set(values)  # with stored ones, with products'
    ops, products = set[int](), set[int]()
    holders = {scope.op for scope in flow.scopes}  # calls, and nodes with bodies: what is inside computes

    def known(value: int, among: Collection[int]) -> bool:
        sources = borders.before.get(value, ())
        return value in among or (len(sources) > 0 and all(v in among for v in sources))

    for op in flow.ops:
        if not borders.before and seen.isdisjoint(op.inputs) and not fixed.issuperset(op.inputs):
            continue  # most of a model: neither before its first products nor made of constants
        plain = [v for v in op.inputs if v not in fixed and not known(v, constant)]
        if not plain:
            constant.update(op.outputs)
            fixed.update(op.outputs)
        elif regions.of_op.get(op.id) == "Bias" and any(flow.values[v].producer in products for v in plain):
            products.add(op.id)
            seen.update(op.outputs)
        elif all(known(v, values) or flow.values[v].dtype != FLOAT32 for v in plain):
            if not any(known(v, values) for v in plain) or not op.slots or op.id in holders:
                continue
            if regions.classes[op.id] == "white":
                products.add(op.id)
                seen.update(op.outputs)
            elif regions.classes[op.id]:
                ops.add(op.id)
                values.update(op.outputs)
                seen.update(op.outputs)
    return Raw(ops, values, products)


def _is_input(facts: Facts, value: int) -> bool:
    """Whether a value is an input of the model that comes in float32, or in float64."""
    flow = facts.flow
    item = flow.values[value]
    plain = item.producer == NONE and not item.weight and item.dtype in (FLOAT32, "float64")
    return plain and value not in facts.borders.before and not flow.scopes[item.scope].path


@runs(
    "raw",
    trigger="arithmetic that adds, subtracts or bends the model's inputs before the first product",
    action="float32 for it, with all that lies before it",
)
def raw_inputs(sight: Sight, decided: Decisions) -> Findings:
    facts, regions, found = sight.facts, sight.regions, sight.of(raw)
    sinks = [op for op in map(facts.flow.ops.__getitem__, sorted(found.ops)) if _spoils(facts, regions, op)]
    if sinks:  # a Cast is for the products behind
        sinks = [op for op in sinks if op.id in facts.with_all_before(regions.white)]
    if not sinks:
        return Findings()
    dtype = facts.options.dtype
    why = Why("raw", f"computes with an input of the model before any product: {dtype} may not hold its digits")
    return Findings([ruling(facts, why, _with_all_before(facts, found, sinks), where=sinks[0])])


def _spoils(facts: Facts, regions: Regions, op: Op) -> bool:
    """Whether an operator may make a small number of large ones, or a usual one of one out of range."""
    return facts.traits.has(op.role, "cancels") or regions.classes[op.id] in ("black", "kept")


def _with_all_before(facts: Facts, found: Raw, sinks: list[Op]) -> list[Op]:
    values = [v for op in sinks for v in op.outputs]
    before = upstream(facts.flow, values, lambda op: op.inputs if op.id in found.ops else (), facts.borders.origins)
    return [op for op in before if op.id in found.ops]
