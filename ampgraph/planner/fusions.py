"""What a runtime's own fusions would make of a region beside a cast: it and what it reads are of one type then."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.dataflow import NONE
from ..core.plan import Why
from ..oplists.patterns import Region
from .context import Context
from .decisions import HIGH, VALIDITY, Hold, Tie


def beside_fusion(context: Context, region: Region, units: list[int], side: int) -> list[Hold | Tie]:
    """Keeps a cast from the place in front of a region from where a runtime's fusion would take it along.

    ``units``: the region's. ``side``: what the level says of it: where that is float32 its source is too, else they
    share one decision.
    """
    fusion = context.options.kernels.fusions.get(region.kind)
    if fusion is None or not fusion.takes(context.flow.opset, context.options.dtype):
        return []
    sources = sorted(set(_sources(context, region.source)) - set(units))
    if not sources or not _is_fused(context, region, fusion.operators):
        return []
    if side == HIGH:
        return [Hold(tuple(sources), VALIDITY, Why("kernel", fusion.reason))]
    return [Tie((units[0], *sources))]


def _sources(context: Context, value: int) -> Iterator[int]:
    """The units that write a value, and what it is handed on from without a change."""
    flow = context.flow
    while value != NONE and flow.values[value].unit != NONE:
        yield flow.values[value].unit
        writer = flow.writer(value)
        if writer is None or not any(context.traits.has(writer.role, t) for t in ("casts", "nothing_in_inference")):
            return
        value = writer.inputs[0]


def _is_fused(context: Context, region: Region, operators: frozenset[str]) -> bool:
    """Whether the nodes are of the form that is taken, over the last axis, and nobody else reads what they make."""
    flow = context.flow
    inner = [op for op in region.ops if not context.traits.has(op.role, "stays_in_place")]
    if {op.kind for op in inner} != operators or NONE in (region.scale, region.bias) or len(region.axes) != 1:
        return False
    ids = {op.id for op in region.ops}
    made = (v for op in region.ops if op is not region.result for v in op.outputs)
    if any(use.op not in ids for v in made for use in flow.uses[v]):
        return False
    shape = flow.shape(region.source)
    return region.axes[0] == -1 or (shape is not None and region.axes[0] == len(shape) - 1)
