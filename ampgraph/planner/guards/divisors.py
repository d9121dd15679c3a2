"""Sums of squares with weights of their own under a root: what a divisive normalisation divides by.

x / sqrt(b + g x^2), with a product of stored weights g, as models of image compression have it: the squares leave the
range in the product's operand, and what they add up to in its result, however small the quotient is.
"""

from __future__ import annotations

from ...core.dataflow import NONE, Op
from ..facts.facts import Facts


def weighed_under_root(facts: Facts, square: Op) -> list[Op]:
    """The products of a square with stored weights whose result goes into a root, with all up to that."""
    flow, traits = facts.flow, facts.traits
    found: list[Op] = []
    for product in (r for v in square.outputs for r in flow.readers(v)):
        stored = any(v != NONE and flow.values[v].weight for v in product.inputs)
        if stored and traits.has(product.role, "products"):
            found += _up_to_root(facts, product)
    return found


def _up_to_root(facts: Facts, product: Op) -> list[Op]:
    """From a product over sums with constants to a root; empty where it does not end in one."""
    flow, traits, chain = facts.flow, facts.traits, [product]
    while len(readers := list(flow.readers(chain[-1].outputs[0]))) == 1:
        chain.append(readers[0])
        if traits.has(readers[0].role, "roots") or _is_root(facts, readers[0]):
            return chain
        others = [v for v in readers[0].inputs if v != NONE and v != chain[-2].outputs[0]]
        shifts = traits.has(readers[0].role, "affine") and all(flow.values[v].weight for v in others)
        if not (shifts or traits.has(readers[0].role, "adds_epsilon")):
            break
    return []


def _is_root(facts: Facts, op: Op) -> bool:
    """Whether an operator is a power of a half, or of minus a half."""
    exponents = [facts.flow.scalar(op.inputs[place]) for place in facts.traits.positions(op.role, "powers")]
    return any(n is not None and abs(n) == 0.5 for n in exponents)
