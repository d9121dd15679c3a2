"""Units that a list makes low, and that the cut may leave float32 where that costs no Cast."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from ...core.dataflow import NONE, Op
from ...core.plan import Why
from ..decisions import FREE, LIST, LOW, REGION, Decisions, Ledger
from ..facts.facts import Facts
from ..regions import Regions
from ..scales import scaled_results
from ..stages import Guarded, Loose

WORTH: Mapping[str, int] = {"gray": -1, "black": -1, "neutral": 0}
"""What a byte less is worth in an operator behind the last product: -1 where it computes, 0 where it moves data."""


@dataclass(frozen=True)
class Releases:
    """``released``: units that the cut decides instead of the list; ``worth``: of free units, what a byte saved there
    is worth, 1 where none is given; ``wide``: those that are float32 where that takes no more Casts, with the reason.
    """

    released: Mapping[int, Why] = field(default_factory=dict)
    worth: Mapping[int, int] = field(default_factory=dict)
    wide: Mapping[int, Why] = field(default_factory=dict)

    def enter(self, ledger: Ledger) -> None:
        for unit, why in self.released.items():
            ledger.release(unit, why)


@dataclass(frozen=True)
class Tail(Releases):
    """What no further product reads."""


@dataclass(frozen=True)
class Branches(Releases):
    """Where branches are added in a training step."""


def release_tail(facts: Facts, regions: Regions, guarded: Guarded) -> Tail:
    """Lets the cut decide where results are widened that no further product reads, and prefer float32 there.

    What leaves the graph in float32 is cast anyway: before the last arithmetic costs no more than after it, and saves
    its rounding. A level that makes gray operators low would cast at the very end. A number that the target takes into
    the kernel of the product in front is no arithmetic of its own.
    """
    if not facts.guards_hold:
        return Tail()
    read, made = _read_by_products(facts, regions, guarded), _made_by_products(facts, regions, guarded)
    behind = {op for op in made - read if regions.classes[op] in WORTH}
    behind -= scaled_results(facts, behind)
    roots = {root for op in behind for root in guarded.units_of(facts.flow.ops[op])}
    units = {unit for unit, root in enumerate(guarded.roots) if root in roots}
    factors: dict[int, int] = {}  # by unit: -1 where all of it computes, 0 where some of it moves data, 1 elsewhere
    for op in (op for op in facts.flow.ops if units and not units.isdisjoint(op.slots.values())):
        own = WORTH[regions.classes[op.id]] if op.id in behind else 1
        for root in roots & guarded.units_of(op):
            factors[root] = max(factors.get(root, -1), own)
    preferred = [root for root, factor in factors.items() if factor < 0 and may_be_free(guarded, root)]
    moves = {root: factor for root, factor in factors.items() if factor == 0 and guarded.sides[root] == FREE}
    why = Why("tail", "no product reads its result")
    where_wide = Why("tail", "no product reads its result: widened for the output before it, not after it")
    return Tail(
        {root: why for root in preferred if guarded.sides[root] == LOW},
        {**dict.fromkeys(preferred, -1), **moves},
        dict.fromkeys(preferred, where_wide),
    )


def release_branches(facts: Facts, loose: Loose) -> Branches:
    """Lets the cut decide where branches are added in a training step, and prefer float32 where that costs no Cast.

    The residual stream and the gradients that meet in it are then rounded for their products only, as by autocast.
    """
    if not facts.guards_hold:
        return Branches()
    why = Why("branches", "adds branches, in float32 where that takes no more Casts")
    roots = {root for op in facts.flow.ops if op.adds_branches for root in loose.units_of(op)}
    preferred = [root for root in sorted(roots) if may_be_free(loose, root)]
    return Branches(
        {root: why for root in preferred if loose.sides[root] == LOW},
        dict.fromkeys(preferred, -1),  # a byte more counts as one less: not enough to pay for a Cast
        dict.fromkeys(preferred, why),
    )


def may_be_free(decisions: Decisions, root: int) -> bool:
    """Whether a unit is free, or low by nothing stronger than a list or a region."""
    side = decisions.sides[root]
    return side == FREE or (side == LOW and decisions.ranks[root] in (LIST, REGION))


def _made_by_products(facts: Facts, regions: Regions, guarded: Guarded) -> set[int]:
    """Operators that see what some low product computed."""
    flow, found, values = facts.flow, set[int](), set[int]()
    add, white = facts.borders.copies_into(values), regions.white
    for op in flow.ops:
        if not values.isdisjoint(op.inputs) or (op.id in white and _may_be_low(guarded, op)):
            found.add(op.id)
            add(op.outputs)
    return found


def _read_by_products(facts: Facts, regions: Regions, guarded: Guarded) -> Set[int]:
    """Operators with a product of any type behind them, or whose results leave a body, or the graph in the low type."""
    flow = facts.flow
    left = {value for scope in flow.scopes for value in scope.outputs}
    ends = {v for v in left if any(use.op == NONE and guarded.is_low(use.unit) for use in flow.uses[v])}
    writers = {flow.values[value].producer for value in ends | facts.borders.after.keys()} - {NONE}
    return facts.with_all_before(regions.white | writers)


def _may_be_low(guarded: Guarded, op: Op) -> bool:
    """Whether an operator is low, by decision or in the file."""
    return not op.slots or any(guarded.is_low(unit) for unit in op.slots.values())
