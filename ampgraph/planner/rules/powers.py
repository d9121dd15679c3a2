"""Powers, squares and products of many elements: they leave float16's range before what they are made of does."""

from __future__ import annotations

from ...core.dataflow import NONE, Op
from ..facts.facts import Facts
from .rule import Sight, Spoilt, looks


@looks(
    "pow",
    "powers",
    "squares",
    "sums_squares",
    "multiplies_up",
    "multiplies",
    trigger="powers but between 0 and 1, squares and sums of squares, products of all elements, of what is not known "
    "to be small; in float16",
    action="float32 for the power; for a sum of squares under a root, up to the root",
)
def power(sight: Sight, op: Op) -> Spoilt:
    """x**2 leaves float16 above 255.9, x**3 above 40.3, and a sum of squares before; a power below 0 near zero."""
    facts, traits = sight.facts, sight.facts.traits
    if facts.options.dtype != "float16":
        return None
    if traits.has(op.role, "multiplies_up"):
        small = facts.bounds.of(op.inputs[0]).size <= 1
        return None if small else (f"{op.kind} multiplies many elements: the result leaves float16 early", [op])
    if op.id in facts.squares:
        return _square(facts, op, facts.squares[op.id])
    if not traits.has(op.role, "powers"):
        return None
    exponent = facts.flow.scalar(op.inputs[traits.positions(op.role, "powers")[0]])
    if exponent is not None and 0 <= exponent <= 1:
        return None
    text = "an unknown exponent" if exponent is None else f"exponent {exponent:g}"
    return f"{op.kind} with {text} leaves float16 early (x**2 above 255.9)", [op]


def _square(facts: Facts, op: Op, value: int) -> Spoilt:
    count = facts.sizes.guessed(op) if facts.traits.has(op.role, "sums_squares") else 1
    fits = count * facts.bounds.of(value).size ** 2 <= facts.low.largest
    if fits and not facts.measured.vanishes(op.outputs[0]):
        return None
    text = f"{op.kind} adds up squares: they leave" if count > 1 else f"{op.kind} squares: the result leaves"
    return f"{text} float16 early (x**2 above 255.9)", [op, *_weighed_under_root(facts, op)]


def _weighed_under_root(facts: Facts, square: Op) -> list[Op]:
    """The products of a square with stored weights whose result goes into a root, with all up to that: what a divisive
    normalisation divides by, x / sqrt(b + g x^2), is large however small the quotient is."""
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
