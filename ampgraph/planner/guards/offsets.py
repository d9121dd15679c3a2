"""Positions added to scores before a softmax: only their differences count, and these are lost where they are large."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.dataflow import NONE, Op
from ..facts.facts import Facts

DEPTH = 8  # operators looked back
READ = 1 << 22  # elements of a stored tensor that are read


def scores_with_positions(facts: Facts, softmax: Op) -> list[Op]:
    """A softmax and the additions before it, where one of them adds what a prefix sum counted, or stored numbers that
    reach a quarter of where the type stops counting; empty elsewhere."""
    held, work, far = {softmax.id: softmax}, [(softmax.inputs[0], DEPTH)], list[Op]()
    traits, found = facts.traits, False
    while work:
        value, left = work.pop()
        for origin in facts.borders.origins(value):
            op = facts.flow.writer(origin)
            if op is None or not left or op.id in held:
                continue
            if traits.has(op.role, "additions"):
                held[op.id] = op
                ways = [way for v in op.inputs if (way := _positions(facts, v, DEPTH)) is not None]
                found |= bool(ways)
                far += [other for way in ways for other in way]
                work += [(v, left - 1) for v in op.inputs]
            elif any(traits.has(op.role, t) for t in ("moves", "conversions", "joins")):
                held[op.id] = op
                work += [(v, left - 1) for v in op.inputs if v != NONE]
    return [op for op in {**held, **{op.id: op for op in far}}.values() if op.slots] if found else []


def _positions(facts: Facts, value: int, left: int) -> list[Op] | None:
    """What scales and moves positions to a value; None where it holds none."""
    flow, traits = facts.flow, facts.traits
    if flow.values[value].weight:
        array = flow.weights.array(flow.values[value], limit=READ)
        return [] if array is not None and _reaches(array, facts.low.counts / 4) else None
    op = flow.writer(value)
    if op is None or not left:
        return None
    if traits.has(op.role, "prefix_sums"):
        return [op]
    if not any(traits.has(op.role, t) for t in ("affine", "moves", "conversions")):
        return None
    ways = [way for v in op.inputs if v != NONE and (way := _positions(facts, v, left - 1)) is not None]
    return [op, *(other for way in ways for other in way)] if ways else None


def _reaches(array: np.ndarray[Any, Any], limit: float) -> bool:
    """Whether the largest finite element of floats is that large; masks are as large below zero."""
    if array.dtype.kind != "f":
        return False
    return float(array[np.isfinite(array)].max(initial=0.0)) >= limit
