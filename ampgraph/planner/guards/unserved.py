"""Units that a list makes low behind products that the target runs in float32 alone: Casts may be all that it adds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...core.plan import Why
from ..decisions import HIGH, VALIDITY, Decisions
from ..facts.facts import Facts
from ..regions import Regions
from ..stages import Loose
from .tail import Releases, may_be_free


@dataclass(frozen=True)
class Unserved(Releases):
    """What only products without a low kernel make."""


def release_unserved(facts: Facts, regions: Regions, loose: Loose) -> Unserved:
    """Lets the cut decide what a list makes low where no product before it has a kernel for that.

    A list makes arithmetic low since the products around it are: what comes from one that is not is cast for it.
    """
    if not facts.guards_hold:
        return Unserved()
    held = _held_by_kernels(loose)
    white = (op for op in map(facts.flow.ops.__getitem__, sorted(regions.white)) if op.slots)
    products = {op.id: not held.isdisjoint(op.slots.values()) for op in white}
    if not any(products.values()):
        return Unserved()
    made = _made_by(facts, products)
    why = Why("unserved", "no product before it has a kernel in the low type")
    found: dict[int, bool] = {}  # by unit: whether that holds for all of it
    for op in facts.flow.ops:
        for root in loose.units_of(op):
            found[root] = found.get(root, True) and op.id not in products and made.get(op.id, False)
    free = [root for root, holds in found.items() if holds and loose.is_low(root) and may_be_free(loose, root)]
    return Unserved(dict.fromkeys(free, why))


def _held_by_kernels(decisions: Decisions) -> set[int]:
    """Units that schema or kernels keep in float32."""
    sides, ranks = decisions.sides, decisions.ranks
    return {unit for unit, root in enumerate(decisions.roots) if sides[root] == HIGH and ranks[root] == VALIDITY}


def _made_by(facts: Facts, products: Mapping[int, bool]) -> dict[int, bool]:
    """By operator with a product before it, whether all the nearest are ``products`` that are noted so."""
    found, values = dict[int, bool](), dict[int, bool]()
    for op in facts.flow.ops:
        near = [values[v] for v in op.inputs if v in values]
        if near:
            found[op.id] = all(near)
        seen = products[op.id] if op.id in products else found.get(op.id)
        for value in op.outputs if seen is not None else ():
            for copy in facts.borders.copies(value):
                values[copy] = values.get(copy, True) and bool(seen)
    return found
