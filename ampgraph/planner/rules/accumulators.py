"""Products whose kernel adds up in float16: what that rounds grows with the depth of the contraction. And recurrent
layers whose kernel does.

A sum of K random products, each product and each sum rounded, is off by 0.3 sqrt(K) roundings, relative to its size
(1.5e-4 sqrt(K) from K = 64 to 8,192, and bit for bit so on WebGPU: tests/webgpu). Errors of products that follow one
another add up as squares: as one product of all their depths. An addition of two branches, or a bounded function,
starts anew.
"""

from __future__ import annotations

import math

from ...core.dataflow import NONE, Op
from ...core.plan import Why
from ..decisions import ACCURACY, Decisions, Hold
from ..facts.facts import Facts
from .rule import Findings, Ruling, Sight, ruling, runs

GROWTH = 0.3
"""Roundings that a product is off by, for each root of its depth."""
ALLOWED = 6.6e-3
"""Relative error of products in a row: two thirds of the tolerance of a check, unless another is given."""

Chain = frozenset[int]


@runs(
    "accumulator",
    trigger="products in a row, deeper together than the target's float16 accumulators can add up",
    action="float32 for the deepest of them",
)
def deep_products(sight: Sight, decided: Decisions) -> Findings:
    """Follows the products that lead to each value, and holds the deepest of them, one after the other, where they are
    too deep together for float16 accumulators; what is held counts no more."""
    facts = sight.facts
    flow, dtype = facts.flow, facts.options.dtype
    if facts.options.kernels.accumulates != dtype:
        return Findings()
    error = GROWTH * facts.low.rounding
    depths: dict[int, int] = {}
    chains: dict[int, Chain] = {}
    rulings = []
    for op in flow.ops:
        chain = _products_before(facts, op, chains, depths)
        if facts.traits.has(op.role, "products") and not any(decided.is_high(unit) for unit in op.slots.values()):
            depths[op.id] = depth(facts, op)
            chain |= {op.id}
            total = sum(depths[product] for product in chain)
            while total > (ALLOWED / error) ** 2:
                deepest = max(sorted(chain), key=depths.__getitem__)
                rulings.append(_hold_product(facts, flow.ops[deepest], depths[deepest], error * math.sqrt(total)))
                chain -= {deepest}
                total -= depths[deepest]
        chains.update((value, chain) for value in op.outputs if value != NONE)
    return Findings(rulings)


@runs(
    "inside",
    trigger="a recurrent layer that the target's kernel computes in the low type inside, step by step",
    action="float32 for it",
)
def low_inside(sight: Sight, decided: Decisions) -> Findings:
    """Holds operators, such as recurrent layers, whose kernel rounds inside; sums have a rule of their own."""
    facts = sight.facts
    inside = facts.options.kernels.low_inside
    kinds = inside.keys() - facts.traits.operators("sums")
    found = [op for op in facts.flow.with_roles(kinds) if op.slots]
    return Findings(
        [ruling(facts, Why("inside", f"{inside[op.kind]}: errors add up from step to step"), [op]) for op in found]
    )


def _hold_product(facts: Facts, op: Op, depth: int, error: float) -> Ruling:
    """Rule `accumulator`: holds a product in float32. ``depth``: how many products it adds up; ``error``: the relative
    error of its row of products, of which it is one."""
    dtype = facts.options.dtype
    text = f"{depth:,} products added up in {dtype}: with the products before and behind, {error:.1e} of the result"
    return Ruling([Hold(tuple(op.slots.values()), ACCURACY, Why("accumulator", text))])


def _products_before(facts: Facts, op: Op, chains: dict[int, Chain], depths: dict[int, int]) -> Chain:
    """Rule `accumulator`: the products (ids) whose errors reach an operator's result: of all operands that it
    multiplies, of any other the deepest row of one operand; none behind a bounded function or a sum of branches."""
    given, traits = [chains[value] for value in op.inputs if value in chains], facts.traits
    if traits.has(op.role, "bounded") or (traits.has(op.role, "additions") and _branch_count(facts, op) > 1):
        return Chain()
    if traits.has(op.role, "products") or traits.has(op.role, "multiplies"):
        return Chain().union(*given)
    return max(given, key=lambda chain: (sum(depths[product] for product in chain), sorted(chain)), default=Chain())


def _branch_count(facts: Facts, op: Op) -> int:
    """Rule `accumulator`: how many operands of an addition are branches: computed, or stored and of several axes."""
    values = [facts.flow.values[value] for value in op.inputs if value != NONE]
    return sum(not value.weight or sum(size != 1 for size in facts.sizes.dims(value.id)) > 1 for value in values)


def depth(facts: Facts, op: Op) -> int:
    """How many products of two elements a product operator adds up into one element, with open dimensions guessed: for
    an Einsum by its equation, a convolution by its weights' shape, else by the summed axis of the first operand."""
    dims = [facts.sizes.dims(value) for value in op.inputs[:2]]
    equation = facts.flow.attribute(op, "equation")
    if equation:
        left, _, result = str(equation).replace(" ", "").partition("->")
        sizes = dict(zip(left.partition(",")[0], dims[0], strict=False))
        return math.prod(size for letter, size in sizes.items() if letter not in result)
    if facts.traits.has(op.role, "channels_by_rows"):
        return math.prod(dims[1][1:])
    if facts.traits.positions(op.role, "biased"):
        return dims[1][0]
    return dims[0][-2 if facts.flow.attribute(op, "transA") else -1]
