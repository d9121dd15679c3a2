"""Cosine similarities: a norm that divides a sum of products of two values."""

from __future__ import annotations

from collections.abc import Container

from ...core.dataflow import NONE, Op
from ..facts.facts import Facts
from ..regions import Regions


def ends_cosine(facts: Facts, regions: Regions, squares: Container[int], op: Op) -> bool:
    """Whether an operator ends a norm that divides a sum of products of two values. ``squares``: products of one."""
    flow, traits = facts.flow, facts.traits
    if op.id not in regions.inside:
        return False
    for total in (flow.writer(v) for v in op.inputs if v != NONE):
        if total is None or not traits.has(total.role, "sums") or total.id not in regions.of_op:
            continue
        product = flow.writer(total.inputs[0])
        if product is not None and traits.has(product.role, "multiplies") and product.id not in squares:
            return len({v for v in product.inputs if v != NONE}) == 2
    return False
