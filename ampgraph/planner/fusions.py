"""What a runtime's own fusions would make of a region beside a cast: it and what it reads are of one type then."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.dataflow import NONE, Dataflow, Op
from ..core.plan import Why
from ..oplists.patterns import Region
from .decisions import HIGH, VALIDITY, Hold, Tie
from .facts.facts import Facts
from .options import Options

AFFINE = 2  # operators behind a norm: its scale and its bias
WIDE_NODES = 3  # a kernel in float32 and its two Casts


def beside_fusion(facts: Facts, region: Region, units: list[int], side: int) -> list[Hold | Tie]:
    """Keeps a cast from the place in front of a region from where a runtime's fusion would take it along.

    ``units``: the region's. ``side``: what the level says of it: where that is float32 its source is too, else they
    share one decision. So does what scales and shifts the norm by what is not stored.
    """
    flow, options = facts.flow, facts.options
    if not is_fused(flow, options, region):
        return []
    behind = [] if region.complete else _affine(flow, region.result, options.kernels.fusions[region.kind].operators)
    beside = {*_sources(facts, region.source), *(unit for op in behind for unit in op.slots.values())}
    others = sorted(beside - set(units))
    if not others:
        return []
    if side == HIGH:
        return [Hold(tuple(others), VALIDITY, Why("kernel", options.kernels.fusions[region.kind].reason))]
    return [Tie((units[0], *others))]


def is_split(flow: Dataflow, options: Options, region: Region) -> bool:
    """Whether the target knows a region in float32 and not in the low type, where it is many kernels."""
    form = options.kernels.fuses.get(region.kind)
    return form is not None and options.dtype in form.float32_alone and is_closed(flow, region)


def is_closed(flow: Dataflow, region: Region) -> bool:
    """Whether a region has more nodes than a kernel between Casts, and nobody else reads what is inside it."""
    if not region.complete:
        return False
    ids = {op.id for op in region.ops}
    made = (v for op in region.ops if op is not region.result for v in op.outputs)
    many = len([op for op in region.ops if op.slots]) > WIDE_NODES
    return many and all(use.op in ids for v in made for use in flow.uses[v])


def fused_when_wide(flow: Dataflow, options: Options, region: Region) -> bool:
    """Whether such a region is one kernel in float32 between Casts."""
    return is_split(flow, options, region) and region.variant in options.kernels.fuses[region.kind].wide_variants


def in_one_type(flow: Dataflow, options: Options, region: Region) -> bool:
    """Whether a runtime's operator for a region takes data and scale of one type alone."""
    fusion = options.kernels.fusions.get(region.kind)
    return fusion is not None and fusion.takes(flow.opset, options.dtype)


def is_fused(flow: Dataflow, options: Options, region: Region) -> bool:
    """Whether the nodes are of the form that is taken, over the last axis, and nobody else reads what they make."""
    fusion, traits = options.kernels.fusions.get(region.kind), options.lists.traits
    if fusion is None or not in_one_type(flow, options, region):
        return False
    behind = [] if region.complete else _affine(flow, region.result, fusion.operators)
    ops, result = (*region.ops, *behind), [region.result, *behind][-1]
    inner = {op.kind for op in ops if not traits.has(op.role, "stays_in_place")}
    if inner != fusion.operators or not (region.complete or behind):
        return False
    ids = {op.id for op in ops}
    made = (v for op in ops if op is not result for v in op.outputs)
    if any(use.op not in ids for v in made for use in flow.uses[v]):
        return False
    if region.open_axes:  # which the runtime may compute before it looks
        return True
    shape = flow.shape(region.source)
    last = -1 if shape is None else len(shape) - 1
    return len(region.axes) == 1 and region.axes[0] in (-1, last)


def _affine(flow: Dataflow, result: Op, kinds: frozenset[str]) -> list[Op]:
    """What scales and shifts a norm by vectors that are given or computed, taken as stored ones are."""
    found: list[Op] = []
    while len(found) < AFFINE and len(uses := flow.uses[(found or [result])[-1].outputs[0]]) == 1:
        reader = flow.ops[uses[0].op] if uses[0].op != NONE else None
        if reader is None or reader.kind not in kinds or reader.scope != result.scope:
            break
        shapes = [flow.shape(v) for i, v in enumerate(reader.inputs) if i != uses[0].index]
        if any(shape is not None and len(shape) != 1 for shape in shapes):
            break
        found.append(reader)
    return found


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
