"""Probabilities before a logarithm: small ones count as much as large ones, and float16 ends at 6e-8, where log is -17.

log(softmax(x)), log(sigmoid(x) + 1e-7), log(1 - clip(p, 1e-7, 1 - 1e-7)): float32 from what makes the probability on.
"""

from __future__ import annotations

from ...core.dataflow import NONE, Op
from ..facts.facts import Facts
from .rule import Sight, Spoilt, looks

LEAST = 6.2e-5  # a floor above the smallest normal number of float16 leaves every digit there; bfloat16 has more room


@looks(
    "probability",
    "logarithms",
    trigger="the logarithm of a probability, or of what it leaves to one, without a floor that is high enough",
    action="float32 from what makes the probability to the logarithm",
)
def small_probability(sight: Sight, op: Op) -> Spoilt:
    facts, dtype = sight.facts, sight.facts.options.dtype
    flow, borders = facts.flow, facts.borders
    made: dict[int, Op] = {}
    between: dict[int, Op] = {}
    work = [op.inputs[0]]
    while work:
        for value in borders.origins(work.pop()):
            writer = flow.writer(value)
            if writer is None or writer.id in made or writer.id in between or not writer.slots:
                continue
            if facts.traits.has(sight.regions.of_op.get(writer.id, writer.role), "probabilities"):
                made[writer.id] = writer
            elif _passes_on(facts, writer):
                between[writer.id] = writer
                work += [v for v in writer.inputs if v != NONE and not flow.values[v].weight]
    if not made or (dtype != "float16" and not any(_turns(facts, one) for one in between.values())):
        return None
    text = f"{op.kind} magnifies small probabilities: {dtype} has few digits for them, or none"
    return text, [op, *between.values(), *made.values()]


def _passes_on(facts: Facts, op: Op) -> bool:
    """Whether an operator shifts by a constant, bounds or moves, and sets no floor that is high enough."""
    flow, traits = facts.flow, facts.traits
    if any(traits.has(op.role, trait) for trait in ("moves", "joins", "conversions", "nothing_in_inference")):
        return True
    if not any(traits.has(op.role, trait) for trait in ("bounds", "extremes", "cancels")):
        return False
    stored = [v for v in op.inputs[:2] if v != NONE and flow.values[v].weight]
    floor = flow.scalar(stored[0]) if stored else flow.number(op, "min")
    raises = traits.has(op.role, "adds_epsilon") and not _turns(facts, op)
    alone = len([v for v in op.inputs[:2] if v != NONE]) - len(stored) == 1
    return alone and not (raises and isinstance(floor, (int, float)) and floor >= LEAST)


def _turns(facts: Facts, op: Op) -> bool:
    """Whether an operator is 1 - p."""
    return facts.traits.has(op.role, "cancels") and not facts.traits.has(op.role, "additions")
