"""Small numbers that the low type loses: an eps, and what constants in a row leave of a value."""

from __future__ import annotations

from ...core.dataflow import NONE, Op
from ..facts.facts import Facts
from .rule import Sight, Spoilt, looks, reaches

DIVISION_EPS = 1e-3  # x / (y + eps): below it, y + eps loses eps and the quotient leaves the range
STEPS = 16  # operators looked back for constants in a row


@looks(
    "eps",
    "adds_epsilon",
    trigger="`y + eps` or `max(y, eps)` with an eps that vanishes, before a division, root or logarithm",
    action="float32 from the sum to what it keeps away from zero",
)
def small_epsilon(sight: Sight, op: Op) -> Spoilt:
    traits, options = sight.facts.traits, sight.facts.options
    eps = _epsilon(sight, op)
    if not eps:
        return None
    chain = reaches(sight, op, traits.operators("needs_epsilon"), traits.operators("carries_epsilon"))
    if not chain:
        return None
    end = chain[-1]
    before = chain[-2].outputs if len(chain) > 1 else op.outputs
    divisors = traits.positions(end.role, "divides")
    divides = any(end.inputs[place] in before for place in divisors)
    if divisors and not divides:
        return None
    if eps >= sight.facts.low.smallest_normal and not (divides and options.dtype == "float16"):
        return None
    rooted = traits.has(end.role, "roots")
    further = reaches(sight, end, traits.operators("divides"), frozenset()) if rooted else []
    normal = f"smallest normal {sight.facts.low.smallest_normal:.3g}"
    text = f"eps {eps:g} is lost in {options.dtype} ({normal}) before {end.kind}"
    return text, [op, *chain, *further]


def _epsilon(sight: Sight, op: Op) -> float:
    """The small number that an operator keeps its result away from zero with; 0 for none."""
    flow = sight.facts.flow
    numbers = [n for v in op.inputs[:2] if v != NONE and (n := flow.scalar(v)) is not None]
    if len(op.inputs) == 1 and (lowest := flow.number(op, "min")) is not None:  # an operand in later versions
        numbers.append(lowest)
    return abs(numbers[0]) if len(numbers) == 1 and 0 < abs(numbers[0]) < DIVISION_EPS else 0.0


@looks(
    "tiny",
    "scalings",
    trigger="constants in a row that multiply by less than the smallest normal number of float16, undone later",
    action="float32 for what they leave; what was measured tells better",
)
def shrunk(sight: Sight, op: Op) -> Spoilt:
    if sight.facts.stored.isdisjoint(op.inputs):
        return None
    if sight.facts.options.dtype != "float16" or op.outputs[0] in sight.facts.measured.ranges:
        return None
    if (factor := _shrinks(sight.facts, op)) is None:
        return None
    return f"constants multiply by {factor:.1g} up to here: float16 keeps few digits of what is left", [op]


def _shrinks(facts: Facts, op: Op) -> float | None:
    """By what constants in a row multiply a value up to here, where that is below float16's normal numbers, and this
    operator makes it less; else None."""
    own = _factor(facts, op)
    if own is None or not 0 < abs(own[0]) < 1:
        return None
    factor = abs(own[0]) * _before(facts, own[1])
    return factor if 0 < factor < facts.low.smallest_normal else None


def _before(facts: Facts, value: int) -> float:
    """By what constants multiplied a value, back to what computes otherwise."""
    factor, traits = 1.0, facts.traits
    for _ in range(STEPS):
        op = facts.flow.writer(value)
        if op is None:
            break
        scaled = _factor(facts, op)
        if scaled is not None:
            factor, value = factor * abs(scaled[0]), scaled[1]
        elif any(traits.has(op.role, trait) for trait in ("moves", "conversions", "negates")):
            value = op.inputs[0]
        else:
            break
    return factor


def _factor(facts: Facts, op: Op) -> tuple[float, int] | None:
    """The stored number by which an operator multiplies a value, and that value; None where it does not."""
    flow, traits = facts.flow, facts.traits
    if not traits.has(op.role, "scalings") or len(op.inputs) != 2 or NONE in op.inputs:
        return None
    divisor = traits.positions(op.role, "divides")
    for place, value in enumerate(op.inputs):
        number = flow.scalar(value)
        if number and (place in divisor or not divisor):
            return (1 / number if divisor else number), op.inputs[1 - place]
    return None
