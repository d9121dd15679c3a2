"""What a runtime's own fusions would make of a region beside a cast: it and what it reads are of one type then."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.dataflow import NONE
from ..core.plan import Why
from ..oplists.patterns import Region
from ..rules.fusions import affine_behind, is_fused
from .context import Context
from .decisions import HIGH, VALIDITY, Hold, Tie


def beside_fusion(context: Context, region: Region, units: list[int], side: int) -> list[Hold | Tie]:
    """Keeps a cast from the place in front of a region from where a runtime's fusion would take it along.

    ``units``: the region's. ``side``: what the level says of it: where that is float32 its source is too, else they
    share one decision. So does what scales and shifts the norm by what is not stored.
    """
    flow, options = context.flow, context.options
    if not is_fused(flow, options, region):
        return []
    behind = (
        [] if region.complete else affine_behind(flow, region.result, options.kernels.fusions[region.kind].operators)
    )
    beside = {*_sources(context, region.source), *(unit for op in behind for unit in op.slots.values())}
    others = sorted(beside - set(units))
    if not others:
        return []
    if side == HIGH:
        return [Hold(tuple(others), VALIDITY, Why("kernel", options.kernels.fusions[region.kind].reason))]
    return [Tie((units[0], *others))]


def _sources(context: Context, value: int) -> Iterator[int]:
    """The units that write a value, and what it is handed on from without a change: calls are written out too."""
    values, scopes = context.flow.values, context.flow.scopes
    if value == NONE or values[value].unit == NONE:
        return
    writer = context.flow.writer(value)
    yield values[value].unit
    for before in context.borders.before.get(value, ()):
        if "function" in (scopes[values[before].scope].kind, scopes[values[value].scope].kind):
            yield from _sources(context, before)
    if writer is not None and any(context.traits.has(writer.role, t) for t in ("casts", "nothing_in_inference")):
        yield from _sources(context, writer.inputs[0])
