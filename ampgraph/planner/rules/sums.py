"""Sums that leave the low type's range, or what it counts to."""

from __future__ import annotations

from ...core.dataflow import Op
from .rule import Sight, Spoilt, looks, reaches


@looks("exp-sum", "exponentials", trigger="exp into a sum, in float16", action="float32 from the exp to its quotient")
def sum_of_exponentials(sight: Sight, op: Op) -> Spoilt:
    traits = sight.facts.traits
    if sight.facts.options.dtype != "float16":
        return None
    through = traits.operators("carries_epsilon")
    chain = reaches(sight, op, traits.operators("adds_exponentials"), through)
    if not chain:
        return None
    chain += reaches(sight, chain[-1], traits.operators("ends_exponentials"), through)
    return "Exp overflows float16 above 11.09 and its sum has no upper bound", [op, *chain]


@looks("long-sum", "sums", trigger="a sum of more elements than the type counts to", action="float32 for the sum")
def long_sum(sight: Sight, op: Op) -> Spoilt:
    dtype = sight.facts.options.dtype
    if (count := sight.facts.sizes.guessed(op)) <= (limit := sight.facts.low.counts):
        return None
    return f"{op.kind} adds {count:,} elements; {dtype} counts to {limit:,}", [op]


@looks("cumsum", "prefix_sums", trigger="a prefix sum", action="float32 for the sum")
def prefix_sum(sight: Sight, op: Op) -> Spoilt:
    dtype = sight.facts.options.dtype
    text = f"{op.kind} is exact up to {sight.facts.low.counts:,} in {dtype}, and every later element inherits the error"
    return text, [op]
