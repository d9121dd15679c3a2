"""What a later opset would free, and what it would take off the target."""

from __future__ import annotations

from ..core.dataflow import NONE, Dataflow, Unit
from ..core.plan import Plan
from ..oplists.options import Options
from ..oplists.patterns import find_regions
from ..rules.fusions import is_split


def freed_at(flow: Dataflow, options: Options, unit: Unit) -> int:
    """The first later opset of the default domain at which a unit may be low, by schema and kernels of the target; of a
    unit without a standard operator, if it lacks a Cast, the first that has one. 0 for none."""
    op = flow.ops[unit.op] if unit.op != NONE else None
    if op is None or "::" in op.kind or not unit.version:
        return flow.later_version("Cast", "T2", flow.opset, options.dtype) if unit.freed_at else 0
    slot, since = unit.slot.split("@")[0], flow.opset
    if options.dtype not in unit.admits:
        since = flow.later_version(op.kind, slot, flow.opset, options.dtype)
    for opset in range(since, flow.newest + 1) if since else ():
        if options.kernels.admits(op.kind, opset, slot, options.dtype) is not False:
            return opset if opset > flow.opset else 0
    return 0


def later_opsets(flow: Dataflow, plan: Plan, options: Options) -> set[int]:
    """The later opsets, up to the newest that the target takes, each of which would free something that the plan keeps
    in float32 for want of a type, a kernel or an operator."""
    decisions = [decision for decision in plan.decisions if decision.why.rule == "opset"]
    places = {(decision.scope, decision.index, decision.slot) for decision in decisions}
    found = set[int]()
    for unit in flow.units:
        op = flow.ops[unit.op] if unit.op != NONE else None
        if op is not None and (flow.scopes[op.scope].path, op.index, unit.slot) in places:
            found.add(freed_at(flow, options, unit))
    for region in find_regions(flow) if "gelu" in options.rewrites else ():  # could be their operators, which are low
        admits = options.kernels.admits(region.kind, region.since, "T", options.dtype)
        if admits and region.since > flow.opset and is_split(flow, options, region):
            found.add(region.since)
    newest = options.kernels.newest_opset or flow.newest
    return {opset for opset in found if 0 < opset <= newest}


def off_target(flow: Dataflow, options: Options) -> set[str]:
    """Choice of an opset: standard operators that the target has kernels for, and none at the opset of the model."""
    kernels = options.kernels
    return {op.kind for op in flow.ops if op.kind in kernels.entries and not kernels.runs(op.kind, flow.opset)}
