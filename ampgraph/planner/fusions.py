"""What a runtime's own fusions would make of a region beside a cast: it and what it reads are of one type then."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.dataflow import NONE
from ..core.plan import Why
from ..oplists.patterns import Region
from ..rules.fusions import affine_behind, is_fused
from .decisions import HIGH, VALIDITY, Hold, Tie
from .facts.facts import Facts


def beside_fusion(facts: Facts, region: Region, units: list[int], side: int) -> list[Hold | Tie]:
    """Keeps a cast from the place in front of a region from where a runtime's fusion would take it along.

    ``units``: the region's. ``side``: what the level says of it: where that is float32 its source is too, else they
    share one decision. So does what scales and shifts the norm by what is not stored.
    """
    flow, options = facts.flow, facts.options
    if not is_fused(flow, options, region):
        return []
    kinds = options.kernels.fusions[region.kind].operators
    behind = [] if region.complete else affine_behind(flow, region.result, kinds)
    beside = {*_sources(facts, region.source), *(unit for op in behind for unit in op.slots.values())}
    others = sorted(beside - set(units))
    if not others:
        return []
    if side == HIGH:
        return [Hold(tuple(others), VALIDITY, Why("kernel", options.kernels.fusions[region.kind].reason))]
    return [Tie((units[0], *others))]


def _sources(facts: Facts, value: int) -> Iterator[int]:
    """The units that write a value, and what it is handed on from without a change: calls are written out too."""
    values, scopes = facts.flow.values, facts.flow.scopes
    if value == NONE or values[value].unit == NONE:
        return
    writer = facts.flow.writer(value)
    yield values[value].unit
    for before in facts.borders.before.get(value, ()):
        if "function" in (scopes[values[before].scope].kind, scopes[values[value].scope].kind):
            yield from _sources(facts, before)
    if writer is not None and any(facts.traits.has(writer.role, t) for t in ("casts", "nothing_in_inference")):
        yield from _sources(facts, writer.inputs[0])
