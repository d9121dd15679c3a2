"""Kernels that two types would break: what is low beside an operator that is held in float32 may follow it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...core.plan import Why
from ..decisions import LOW, Decisions, describe
from ..facts.facts import Facts
from ..joints import Joint
from ..regions import Regions
from ..stages import Loose
from .tail import Releases, may_be_free


@dataclass(frozen=True)
class Joined(Releases):
    """``values``: those between two operators of which a kernel is lost where their types differ."""

    values: frozenset[int] = field(default_factory=frozenset)


def release_joined(facts: Facts, regions: Regions, joints: Sequence[Joint], loose: Loose) -> Joined:
    """Prices each kernel that two types would break, and lets the cut decide what a list makes low beside what is held.

    A product is never left to the cut, nor is anything at a level that makes all low. ``loose``: what is held by now.
    """
    low = facts.options.dtype
    released: dict[int, Why] = {}
    wide: dict[int, Why] = {}
    priced: set[int] = set()
    for joint in joints if facts.guards_hold else ():
        units = joint.units(facts.flow)
        held = [loose.is_high(unit) for unit in units]
        if any(held) or low in joint.join.low:
            priced.update(joint.values)
        if held.count(True) == 1:
            root, why = loose.find(units[held.index(False)]), _why(facts, joint, held[0])
            wide[root] = why
            if loose.sides[root] == LOW and may_be_free(loose, root):
                released[root] = why
    fixed = _roots_of_products(facts, regions, loose) if released else set[int]()
    released = {root: why for root, why in released.items() if root not in fixed}
    return Joined(released, {}, wide, frozenset(priced))


def _why(facts: Facts, joint: Joint, first: bool) -> Why:
    name, target = describe(facts.flow, joint.first if first else joint.then), facts.options.target
    return Why("joined", f"with '{name}', which is float32: both are one kernel on {target}, {joint.join.makes}")


def _roots_of_products(facts: Facts, regions: Regions, decisions: Decisions) -> set[int]:
    return {root for op in regions.white for root in decisions.units_of(facts.flow.ops[op])}
