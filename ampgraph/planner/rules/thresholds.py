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
    """Binarised and spiking networks: what makes the numbers whose signs are multiplied, back to the products."""
    facts, found = sight.facts, list[Op]()
    for op in facts.flow.with_roles(facts.traits.operators("thresholds")):
        if any(_is_computed(facts, value) for value in op.inputs) and _is_multiplied(sight, op):
            found += _up_to(sight, op)
    held = list({op.id: op for op in found if op.slots}.values())
    text = "a product multiplies what a threshold makes of it: a rounding near that turns all of it"
    return Findings([ruling(facts, Why("threshold", text), held)] if held else [])


def _is_computed(facts: Facts, value: int) -> bool:
    """Whether a value is of float32 and no constant."""
    return value != NONE and facts.flow.values[value].dtype == FLOAT32 and value not in facts.stored


def _is_multiplied(sight: Sight, op: Op) -> bool:
    """Whether a product reads what a threshold makes, moved, chosen from or shifted and scaled by constants at most: a
    factor or choice beside it that is computed may be zero where it jumps."""
    facts, traits = sight.facts, sight.facts.traits

    def further(reader: Op) -> list[int]:
        carries = reader.role in traits.operators("affine", "joins", "selects", "passes_on")
        truths = any(value != NONE and facts.flow.values[value].dtype == "bool" for value in reader.inputs)
        alone = sum(_is_computed(facts, value) for value in reader.inputs) <= (not truths)
        return reader.outputs if carries and alone or traits.has(reader.role, "thresholds") else []

    uses = downstream(facts.flow, op.outputs, further, facts.crossings.copies)
    return any(use.op in sight.regions.allowed for use in uses)


def _up_to(sight: Sight, op: Op) -> list[Op]:
    """The operators that make what a threshold reads, back to products, with those that round."""
    facts, allowed = sight.facts, sight.regions.allowed

    def further(maker: Op) -> list[int]:
        return [value for value in maker.inputs if _is_computed(facts, value) and not _is_exact(facts, value)]

    before = upstream(
        facts.flow, further(op), lambda maker: [] if maker.id in allowed else further(maker), facts.crossings.origins
    )
    return [op, *(maker for maker in before if not (maker.id in allowed and _adds_up_exactly(facts, maker)))]


def _is_exact(facts: Facts, value: int) -> bool:
    """Whether a value holds whole numbers alone, as the low type has them."""
    known = facts.values.interval(value)
    return known.whole and known.size <= facts.low.exact_up_to


def _adds_up_exactly(facts: Facts, op: Op) -> bool:
    """Whether a product adds up whole numbers that the low type has, to no more than it counts."""
    known = [facts.values.interval(value) for value in op.inputs if value != NONE]
    largest = depth(facts, op) * known[0].size * known[1].size + sum(one.size for one in known[2:])
    return all(one.whole for one in known) and largest <= facts.low.exact_up_to
