"""The update of a loss scale as nodes: the same arithmetic as `loss_scale.DynamicLossScale.update`, on scalars."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np
import onnx_ir as ir

from ..gradients.builder import Builder
from .loss_scale import RULES, DynamicLossScale

Value = ir.Value
TYPES = {"float32": ir.DataType.FLOAT, "float64": ir.DataType.DOUBLE}
LONGEST = 1 << 12  # an interval up to here has tables: 8 or 12 bytes in the file for each step of it
GREATEST = {"float32": 2.0**127, "float64": 2.0**1023}
"""The greatest power of two of a type."""


@dataclass(frozen=True)
class ScaleValues:
    """A `LossScaleState` in a graph: the scales in the rule's number type, the others int32. ``counter``: below the
    interval, as a policy leaves it. ``pending``: of a rule that is late."""

    scale: Value
    counter: Value
    credit: Value
    overflows: Value
    pending: Value | None = None

    def named(self) -> dict[str, Value]:
        """By the names of `LossScaleState`, those that there are."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in found.items() if value is not None}


def next_scale(b: Builder, policy: DynamicLossScale, state: ScaleValues, finite: Value) -> ScaleValues:
    """The state after a step whose gradients were all ``finite``, or were not."""
    if state.pending is None:
        return _decided(b, policy, state, finite)
    decided = _decided(b, policy, replace(state, scale=state.pending), finite)
    return replace(decided, scale=b.op("Identity", state.pending), pending=decided.scale)


def _decided(b: Builder, policy: DynamicLossScale, state: ScaleValues, finite: Value) -> ScaleValues:
    """What follows from the scale of ``state``. A patience of one overflow is never spent, and stays; overflows
    in a row are counted where somebody loses patience."""
    one, zero = _int(b, 1), _int(b, 0)
    spent = state.overflows
    if policy.patience is not None:
        spent = b.op("Where", finite, zero, b.op("Add", state.overflows, one))
    if _is_one_product(policy) and policy.interval <= LONGEST:
        scale, counter = _looked_up(b, policy, state, finite)
        return ScaleValues(scale, counter, state.credit, spent)
    counted = b.op("Add", state.counter, one)
    stays = b.op("Less", counted, _int(b, policy.interval))
    scale, credit = _chosen(b, policy, state, stays, finite)
    return ScaleValues(scale, b.op("Where", b.op("And", finite, stays), counted, zero), credit, spent)


def _looked_up(b: Builder, policy: DynamicLossScale, state: ScaleValues, finite: Value) -> tuple[Value, Value]:
    """The next scale and counter, from a row for each counter from 0 and a last one for an overflow."""
    length = policy.interval
    factors = np.ones(length + 1, RULES[policy.rule].number)
    factors[-2:] = policy.growth, policy.backoff
    counters = np.append(np.arange(1, length + 1, dtype=np.int32), np.int32(0))
    counters[length - 1] = 0
    row = b.op("Where", finite, state.counter, _int(b, length))
    made = b.op("Mul", state.scale, b.op("Gather", b.constant(factors), row, axis=0))
    counter = b.op("Gather", b.constant(counters), row, axis=0)
    return _within_range(b, policy, state.scale, made), counter


def _within_range(b: Builder, policy: DynamicLossScale, scale: Value, made: Value) -> Value:
    """A scale multiplied, or as it was where that is infinite, under a rule that looks. Powers of two, doubled, end at
    the greatest of them."""
    if not RULES[policy.rule].finite_only:
        return made
    if policy.growth == 2 and all(math.frexp(number)[0] == 0.5 for number in (policy.init, policy.backoff)):
        return b.op("Min", made, _number(b, RULES[policy.rule].number, GREATEST[RULES[policy.rule].number]))
    return b.op("Where", b.op("IsInf", made), scale, made)


def _is_one_product(policy: DynamicLossScale) -> bool:
    """Whether growing and shrinking is a product with one of two numbers, exactly, and nothing else."""
    rule, factors = RULES[policy.rule], (policy.growth, policy.backoff)
    plain = policy.hysteresis == 1 and policy.floor is None and policy.cap is None
    exact = rule.product == rule.number or all(float(np.float32(factor)) == factor for factor in factors)
    return plain and exact and (not rule.divides or math.frexp(policy.backoff)[0] == 0.5)


def _chosen(
    b: Builder, policy: DynamicLossScale, state: ScaleValues, stays: Value, finite: Value
) -> tuple[Value, Value]:
    """The next scale and credit."""
    one, credit = _int(b, 1), state.credit
    grown = b.op("Where", stays, state.scale, _grown(b, policy, state.scale))
    shrunk = _shrunk(b, policy, state.scale)
    if policy.hysteresis != 1:
        spends = b.op("Greater", state.credit, one)
        shrunk = b.op("Where", spends, state.scale, shrunk)
        left = b.op("Where", spends, b.op("Sub", state.credit, one), state.credit)
        full = _int(b, policy.hysteresis)
        kept = full if policy.refill == "finite" else b.op("Where", stays, state.credit, full)
        credit = b.op("Where", finite, kept, left)
    return b.op("Where", finite, grown, shrunk), credit


def _int(b: Builder, number: int) -> Value:
    return b.constant(np.array(number, np.int32))


def _grown(b: Builder, policy: DynamicLossScale, scale: Value) -> Value:
    rule = RULES[policy.rule]
    grown = _times(b, policy, scale, policy.growth, divides=False)
    if rule.finite_only:
        grown = b.op("Where", b.op("IsInf", grown), scale, grown)
    return grown if policy.cap is None else b.op("Min", grown, _number(b, rule.number, policy.cap))


def _shrunk(b: Builder, policy: DynamicLossScale, scale: Value) -> Value:
    rule = RULES[policy.rule]
    factor = 1 / policy.backoff if rule.divides else policy.backoff
    shrunk = _times(b, policy, scale, factor, divides=rule.divides)
    return shrunk if policy.floor is None else b.op("Max", shrunk, _number(b, rule.number, policy.floor))


def _times(b: Builder, policy: DynamicLossScale, scale: Value, factor: float, divides: bool) -> Value:
    """scale * factor or scale / factor in the type that the rule multiplies in, rounded to the type of the scale.

    A product of two numbers of a type is rounded alike in that type and in a wider one that holds it whole.
    """
    rule = RULES[policy.rule]
    whole = not divides and float(np.float32(factor)) == factor and rule.product == "float64"
    if rule.product == rule.number or whole:
        return b.op("Div" if divides else "Mul", scale, _number(b, rule.number, factor))
    wide = b.op("Cast", scale, to=int(TYPES[rule.product]))
    made = b.op("Div" if divides else "Mul", wide, _number(b, rule.product, factor))
    return b.op("Cast", made, to=int(TYPES[rule.number]))


def _number(b: Builder, dtype: str, number: float) -> Value:
    with np.errstate(over="ignore"):
        return b.constant(np.array(number, dtype))
