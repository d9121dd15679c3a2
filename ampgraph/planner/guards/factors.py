"""Constants that multiply a value on its way: as many small ones as take it out of float16's range."""

from __future__ import annotations

from ...core.dataflow import NONE, Op
from ..facts.facts import Facts

STEPS = 16  # operators looked back


def shrinks(facts: Facts, op: Op) -> float | None:
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
