"""Ties the nodes of a region to one decision, and finds the norms that can be written as their standard operator."""

from __future__ import annotations

from ..core.dataflow import NONE, Dataflow
from ..core.plan import Rewrite, Why
from ..oplists.patterns import Region, find_biases, find_regions
from .classify import VERDICT
from .overrides import touched
from .state import FREE, REGION, Options, State

STANDARD_SINCE = {"LayerNormalization": 17, "RMSNormalization": 23}


def tie_regions(state: State) -> None:
    """One decision for each region, by the class of the operator that it stands for."""
    flow = state.flow
    white = {kind for kind in {op.role for op in flow.ops} if _class(state, kind) == "white"}
    for region in [*find_regions(flow), *find_biases(flow, white)]:
        if any(op.id in state.region_of_op for op in region.ops) or not any(op.slots for op in region.ops):
            continue
        if region.kind == "Bias" and (not _in_range(state, region) or _passes_alone(state, region)):
            continue
        _tie(state, region)


def _tie(state: State, region: Region) -> None:
    governing = region.ops[0].role if region.kind == "Bias" else region.kind
    for op in region.ops:
        state.region_of_op[op.id] = region.kind
        state.class_of_op[op.id] = _class(state, governing)
    root = state.merge([unit for op in region.ops for unit in op.slots.values()])
    value, why = region_verdict(state.options, region.kind, governing)
    if value == FREE:
        state.release(root, why)
    else:
        state.set(root, value, REGION, why)


def region_verdict(options: Options, kind: str, governing: str) -> tuple[int, Why]:
    """What the level says of a region, with the reason."""
    listing, level = options.lists.of(governing), options.level
    cls = listing.cls if listing else "black"
    source = listing.source if listing else "no list"
    name = "its product" if kind == "Bias" else f"{kind}, which these nodes compute"
    rule = getattr(level, cls)
    return VERDICT[rule], Why("region", f"decided with {name}; {source}: {cls} at {level.name} is {rule}")


def _class(state: State, kind: str) -> str:
    listing = state.options.lists.of(kind)
    return listing.cls if listing else ""


def _in_range(state: State, region: Region) -> bool:
    """A bias that leaves the low range must not pull its product into float32."""
    import numpy as np

    array = state.flow.weights.array(state.flow.values[region.bias], limit=1 << 20)
    return (
        array is not None
        and array.size > 0
        and float(np.abs(array[np.isfinite(array)], dtype=np.float64).max(initial=0)) <= state.options.largest
    )


def _passes_alone(state: State, region: Region) -> bool:
    """Whether the sum was measured to leave the low range, and nothing that its product reads or writes."""
    product = region.ops[0]
    return region.result.outputs[0] in state.passing and not any(
        value in state.passing for value in (*product.inputs, *product.outputs)
    )


def find_rewrites(flow: Dataflow, options: Options) -> list[Rewrite]:
    """Decomposed norms that would be low: as the standard operator they keep float32 inside and need no cast."""
    if not any(flow.opset >= since for since in STANDARD_SINCE.values()):
        return []
    named = touched(flow, (*options.fp32, *options.low))  # the user speaks of these nodes: they stay
    regions = (region for region in find_regions(flow) if not any(op.id in named for op in region.ops))
    return [r for region in regions if (r := _rewrite(flow, options, region)) is not None]


def _rewrite(flow: Dataflow, options: Options, region: Region) -> Rewrite | None:
    since = STANDARD_SINCE.get(region.kind, 0)
    level = options.level
    inside = level.float32_inside == "cut" and region.kind in options.kernels.float32_inside
    if not since or flow.opset < since or not (inside or level.kept == "low") or region.scale == NONE:
        return None
    if options.kernels.admits(region.kind, since, "T", options.dtype) is False or _axis(flow, region) != -1:
        return None
    scope = flow.scopes[region.result.scope]
    ids = {op.id for op in region.ops}
    private = all(
        use.op in ids for op in region.ops if op is not region.result for v in op.outputs for use in flow.uses[v]
    )
    shape = flow.shape(region.source)
    width = flow.weights.size(flow.values[region.scale])
    if (
        scope.kind == "function"
        or not private
        or any(op.scope != scope.id for op in region.ops)
        or not shape
        or shape[-1] != width
    ):
        return None
    if any(flow.shape(v) != (width,) for v in (region.scale, region.bias) if v != NONE):
        return None
    inputs = tuple(flow.values[v].name for v in (region.source, region.scale, region.bias) if v != NONE)
    nodes = (*sorted(op.index for op in region.ops if op is not region.result), region.result.index)
    return Rewrite(scope.path, region.kind, nodes, inputs, -1, region.epsilon)


def _axis(flow: Dataflow, region: Region) -> int | None:
    """The one axis that every mean of a norm is over, counted from the end; None when there is no such axis."""
    shape, axes = flow.shape(region.source), region.axes
    if shape is None or len(axes) != 1 or any(flow.attribute(op, "keepdims") == 0 for op in region.reduced):
        return None
    return axes[0] if axes[0] < 0 else axes[0] - len(shape)
