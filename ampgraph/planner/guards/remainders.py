"""What is left of a number from which a sum of products is taken that comes close to it.

One less a cosine similarity is the distance of near twins. The variance of a Gaussian process is the prior's, less a
quadratic form of the covariances, which near the data is almost the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...core.dataflow import NONE, Op
from ..facts.facts import Facts
from ..regions import Regions
from .cosines import ends_cosine


def remainder(facts: Facts, regions: Regions, squares: Mapping[int, int], op: Op) -> list[Op]:
    """All that must be float32 for it, from the operator that subtracts; empty where it takes no such thing."""
    flow, places = facts.flow, facts.traits.positions(op.role, "subtracts")
    if not places and not regions.inside:
        return []
    for writer in (flow.writer(v) for v in op.inputs if v != NONE):
        if writer is None:
            continue
        if ends_cosine(facts, regions, squares, writer) and any(flow.scalar(v) is not None for v in op.inputs):
            return [op, writer]
        taken = [op.inputs[place] for place in places]
        form = _quadratic_form(facts, squares, writer) if taken == writer.outputs else []
        if form:
            return [op, writer, *form]
    return []


def _quadratic_form(facts: Facts, squares: Mapping[int, int], total: Op) -> list[Op]:
    """What makes a sum of k times (K k), with a stored matrix K, and k; empty where it is none."""
    flow, traits = facts.flow, facts.traits
    form = flow.writer(total.inputs[0]) if traits.has(total.role, "sums") and total.inputs[0] != NONE else None
    if form is None or form.id not in squares or not traits.has(form.role, "multiplies"):
        return []
    makers = [w for v in form.inputs if v != NONE and (w := flow.writer(v)) is not None]
    return [form, *makers] if any(traits.has(w.role, "products") for w in makers) else []
