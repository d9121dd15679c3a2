"""What all features of a product have in common, and a norm takes away: low, it drowns the differences that remain.

A LayerNormalization subtracts the mean of its features. Where the columns of a weight are nearly alike, that mean is
many times what is left, and the low type has no digits for both. It holds at O3 as well: nothing would be right there.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...core.arrays import Array
from ...core.dataflow import FLOAT32, NONE, Op
from ...core.plan import Why
from ..decisions import Decisions
from ..facts.facts import Facts
from ..regions import Regions
from .rule import Findings, Ruling, Sight, ruling, runs

READ = 1 << 28  # elements: a larger weight is not looked at
ROWS = 64  # of a weight are looked at
LOST = 2.0**-6  # of the differences: what rounding the common part alone may cost


@runs(
    "common",
    trigger="a norm behind products whose features are nearly alike: it takes away what they have in common",
    action="float32 for the norm, and what adds and moves on the way to it",
    levels="every",
)
def common_part(sight: Sight, decided: Decisions) -> Findings:
    facts = sight.facts
    norms = [op for op in _candidates(facts, sight.regions) if op.slots and _centres(facts, sight.regions, op)]
    shares = _shares(facts, norms)
    found = []
    for op in norms:
        share = shares.get(op.inputs[0], 0.0)
        if share * facts.low.rounding > LOST:
            found.append(_ruling(facts, [op, *_before(facts, [op])], share))
    return Findings(found)


def _shares(facts: Facts, norms: list[Op]) -> dict[int, float]:
    """By value that a norm reads, directly or through additions: the largest share of the products in it."""
    shares = dict[int, float]()
    for op in sorted(_before(facts, norms), key=lambda one: one.id):
        weight = _weight(facts, op)
        own = _share(facts, op, weight) if weight is not None else 0.0
        shares[op.outputs[0]] = max([own, *(shares.get(v, 0.0) for v in op.inputs)])
    return shares


def _ruling(facts: Facts, ops: list[Op], share: float) -> Ruling:
    times = f"{share:.3g} times" if share < float("inf") else "infinitely"
    text = (
        f"{ops[0].kind} takes away what its features have in common, {times} what is left by a product's weights: "
        f"{facts.options.dtype} has no digits for both"
    )
    return ruling(facts, Why("common", text), ops)


def _candidates(facts: Facts, regions: Regions) -> list[Op]:
    """The operators of norms and of their regions."""
    centring = facts.traits.operators("centres_features")
    ids = {op.id for op in facts.flow.with_roles(centring)}
    ids |= {op for op, kind in regions.of_op.items() if kind in centring}
    return [facts.flow.ops[op] for op in sorted(ids)]


def _centres(facts: Facts, regions: Regions, op: Op) -> bool:
    """Whether an operator takes the mean of the last axis away, by itself or as what starts a region that does."""
    kind = regions.of_op.get(op.id, op.role)
    return facts.traits.has(kind, "centres_features") and any(
        (writer := facts.flow.writer(v)) is not None and regions.of_op.get(writer.id) != kind
        for v in op.inputs[:1]
        if v != NONE
    )


def _before(facts: Facts, norms: list[Op]) -> Iterator[Op]:
    """The operators between norms and the products whose results are added up for them, with these; each once."""
    flow, traits = facts.flow, facts.traits
    work, seen = [v for op in norms for v in op.inputs[:1]], set[int]()
    while work:
        writer = flow.writer(value) if (value := work.pop()) != NONE else None
        if writer is None or writer.id in seen or flow.values[value].dtype != FLOAT32:
            continue
        seen.add(writer.id)
        product = _weight(facts, writer) is not None
        if product or any(traits.has(writer.role, t) for t in ("additions", "reshapes", "nothing_in_inference")):
            yield writer
            work += [] if product else writer.inputs


def _weight(facts: Facts, op: Op) -> int | None:
    """The stored matrix of a product."""
    listing = facts.options.lists.of(op.role)
    if listing is None or listing.cls != "white":
        return None
    values = facts.flow.values
    stored = [v for v in op.inputs[:2] if v != NONE and values[v].weight and len(facts.flow.shape(v) or ()) == 2]
    return stored[0] if len(stored) == 1 else None


def _share(facts: Facts, op: Op, weight: int) -> float:
    """How many times the differences between the columns of a product's weight what they have in common is."""
    array = facts.flow.weights.array(facts.flow.values[weight], limit=READ) if weight == op.inputs[1] else None
    if array is None:
        return 0.0
    return _alike(array.T if facts.flow.number(op, "transB") else array)


def _alike(array: Array) -> float:
    """rms of the rows' means over rms of what is left of the rows, of some rows."""
    if array.shape[-1] < 2 or not array.size:
        return 0.0
    rows = array[:: -(-len(array) // ROWS)].astype(np.float64)
    means = rows.mean(-1, keepdims=True)
    common, left = float(np.sqrt((means**2).mean())), float(np.sqrt(((rows - means) ** 2).mean()))
    return 0.0 if not (common and np.isfinite(left)) else common / left if left else float("inf")
