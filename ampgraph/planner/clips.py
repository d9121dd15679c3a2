"""Clips without a kernel in the low type: written as Max and Min, which have one, where they would be low."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..core.dataflow import NONE, Dataflow, Op
from ..core.plan import MAX_AND_MIN, Rewrite
from .options import Options
from .selection import touched

UNBOUND = 3.4e38  # beyond it a bound is none: the default of old Clips
SINCE = 8  # Max and Min spread their operands from this opset on


def possible_clips(flow: Dataflow, options: Options) -> list[Op]:
    """The Clips that could be written so, whatever their types will be."""
    bounds = flow.with_roles(options.lists.traits.operators("bounds"))
    found = [op for op in bounds if _may_be_written(flow, options, op)]
    named = touched(flow, options.named) if found else set()
    return [op for op in found if op.id not in named]  # the user speaks of the others: they stay


def with_kernels(options: Options, clips: Sequence[Op]) -> Options:
    """The same, as if there were a kernel for these Clips."""
    kernels = options.kernels
    entries = {**kernels.entries, **{op.kind: (f"1- T=float,{options.dtype}",) for op in clips}}
    return replace(options, kernels=replace(kernels, entries=entries))


def written(flow: Dataflow, op: Op) -> Rewrite:
    """The rewrite of one Clip."""
    return Rewrite(
        flow.scopes[op.scope].path, MAX_AND_MIN, (op.index,), (flow.values[op.inputs[0]].name,), 0, 0.0, "clip"
    )


def _may_be_written(flow: Dataflow, options: Options, op: Op) -> bool:
    """Whether an operator has no low kernel, others have, and its bounds are known and low numbers."""
    kernels, dtype, opset = options.kernels, options.dtype, flow.opset
    if not op.slots or opset < SINCE or flow.scopes[op.scope].kind == "function":
        return False
    unit = flow.units[next(iter(op.slots.values()))]
    if dtype not in unit.admits or kernels.admits(op.kind, opset, unit.slot, dtype) is not False:
        return False
    if not all(kernels.admits(kind, opset, "T", dtype) for kind in options.lists.traits.operators("extremes")):
        return False
    limits = bounds(flow, op)
    known = [bound for bound in limits if bound is not None]
    return len(known) == len(limits) and any(abs(n) < UNBOUND for n in known) and _are_low(known, options)


def _are_low(numbers: list[float], options: Options) -> bool:
    return all(abs(n) <= options.largest or abs(n) >= UNBOUND for n in numbers) and numbers == sorted(numbers)


def bounds(flow: Dataflow, op: Op) -> list[float | None]:
    """The lower and the upper bound; None for one that is not known, infinite for one that is not there."""
    if len(op.inputs) == 1:
        given = [flow.number(op, name) for name in ("min", "max")]
        return [side * float("inf") if n is None else float(n) for side, n in zip((-1, 1), given, strict=True)]
    operands = [*op.inputs[1:], NONE][:2]
    return [side * float("inf") if v == NONE else flow.scalar(v) for side, v in zip((-1, 1), operands, strict=True)]
