"""Binary numbers made of real ones: near a threshold a rounding turns the whole of what a sign or comparison makes."""

from __future__ import annotations

from ...core.dataflow import FLOAT32, NONE, Op
from ...core.plan import Why
from ...core.walk import downstream, upstream
from ..decisions import Decisions
from ..facts.facts import Facts
from .accumulators import depth
from .rule import Findings, Sight, ruling, runs


@runs(
    "threshold",
    trigger="a sign of what was computed, or its comparison with a threshold, that a product multiplies",
    action="float32 from the last products before it, but for those that add up few whole numbers",
)
def thresholds(sight: Sight, decided: Decisions) -> Findings:
    """Holds, in binarised and spiking networks, thresholds that are multiplied, back to the products before."""
    facts, found = sight.facts, list[Op]()
    for op in facts.flow.with_roles(facts.traits.operators("thresholds")):
        if any(_is_computed(facts, value) for value in op.inputs) and _is_multiplied(sight, op):
            found += _ops_back_to_products(sight, op)
    held = list({op.id: op for op in found if op.slots}.values())
    text = "a product multiplies what a threshold makes of it: a rounding near that turns all of it"
    return Findings([ruling(facts, Why("threshold", text), held)] if held else [])


def _is_computed(facts: Facts, value: int) -> bool:
    """Rule `threshold`: whether a value is of float32 and no stored tensor."""
    return value != NONE and facts.flow.values[value].dtype == FLOAT32 and value not in facts.stored


def _is_multiplied(sight: Sight, op: Op) -> bool:
    """Rule `threshold`: whether a product reads what a threshold makes, at most moved, selected or shifted and scaled
    by constants: a computed factor or selection beside it may be zero where it jumps."""
    facts, traits = sight.facts, sight.facts.traits

    def further(reader: Op) -> list[int]:
        carries = reader.role in traits.operators("affine", "joins", "selects", "passes_on")
        reads_truths = any(value != NONE and facts.flow.values[value].dtype == "bool" for value in reader.inputs)
        computed = sum(_is_computed(facts, value) for value in reader.inputs)
        alone = computed == 0 if reads_truths else computed <= 1
        return reader.outputs if (carries and alone) or traits.has(reader.role, "thresholds") else []

    uses = downstream(facts.flow, op.outputs, further, facts.crossings.copies)
    return any(use.op in sight.regions.allowed for use in uses)


def _ops_back_to_products(sight: Sight, op: Op) -> list[Op]:
    """Rule `threshold`: a threshold and the operators that make what it reads, back to the last products, with those of
    them that do not add up exactly. What holds whole numbers alone is not followed."""
    facts, allowed = sight.facts, sight.regions.allowed

    def further(maker: Op) -> list[int]:
        return [value for value in maker.inputs if _is_computed(facts, value) and not _is_exact(facts, value)]

    def before_product(maker: Op) -> list[int]:
        return [] if maker.id in allowed else further(maker)

    before = upstream(facts.flow, further(op), before_product, facts.crossings.origins)
    return [op, *(maker for maker in before if not (maker.id in allowed and _adds_up_exactly(facts, maker)))]


def _is_exact(facts: Facts, value: int) -> bool:
    """Rule `threshold`: whether a value holds whole numbers alone, all of which the low type has."""
    known = facts.values.interval(value)
    return known.whole and known.size <= facts.low.exact_up_to


def _adds_up_exactly(facts: Facts, op: Op) -> bool:
    """Rule `threshold`: whether a product with its bias adds up whole numbers, no further than low types count."""
    read = [facts.values.interval(value) for value in op.inputs if value != NONE]
    largest = depth(facts, op) * read[0].size * read[1].size + sum(added.size for added in read[2:])
    return all(interval.whole for interval in read) and largest <= facts.low.exact_up_to
