"""Arithmetic on constants and known sizes stays float32 where the runtime folds it in float32, not in the low type.

ONNX Runtime folds constants by the CPU's kernels, of which there are few in low types: low, such nodes run in every
inference. Small ones only: what is folded in float32 is stored in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...core.dataflow import NONE, Op
from ...core.plan import Why
from ...oplists.kernels import Kernels
from ..decisions import ACCURACY, Decisions, Hold
from ..facts.facts import Facts
from ..regions import Regions
from .rule import Findings, Ruling, Sight, runs

LARGE = 1 << 18  # elements
PRODUCT = 1 << 20  # elements of what a product reads, which runs no more


@runs(
    "constant",
    trigger="small arithmetic on constants and known sizes alone, which the runtime folds in float32 alone",
    action="float32 for it, so that what is folded is stored",
    levels="careful",
)
def folded_constants(sight: Sight, decided: Decisions) -> Findings:
    """Holds what a target's fallback computes at load time, in float32 only; nothing where there is no fallback."""
    fallback = sight.facts.options.kernels.fallback
    if fallback is None:
        return Findings()
    text = "of constants alone: folded in float32 when the model is loaded, and not in the low type"
    why = Why("constant", text)
    ops = _unfolded(sight.facts, sight.regions, fallback)
    return Findings([Ruling([Hold(tuple(op.slots.values()), ACCURACY, why)]) for op in ops])


def _unfolded(facts: Facts, regions: Regions, fallback: Kernels) -> Iterator[Op]:
    """Rule `constant`: yields small operators on constants and known sizes that would not be folded in the low type, as
    ``fallback``, the CPU, has no kernel for it in some slot."""
    flow, known = facts.flow, {NONE, *facts.stored}
    holders, inputs = {scope.op for scope in flow.scopes}, [flow.shape(value) for value in flow.scopes[0].inputs]
    # where all inputs have known sizes, the runtime knows sizes that shape inference lost
    fixed = all(shape is not None and all(isinstance(size, int) for size in shape) for shape in inputs)
    shapes, absent = facts.traits.operators("shapes"), {NONE}
    folded: list[Op] = []
    for op in flow.ops:
        if op.role in shapes and _tells_known_shape(facts, op, fixed):
            known.update(op.outputs)
        elif not known.issuperset(op.inputs) or absent.issuperset(op.inputs):
            continue
        elif op.id not in holders and not facts.traits.has(op.role, "random"):
            known.update(op.outputs)
            folded.append(op)
    low = facts.options.dtype
    for op in folded:
        limit = PRODUCT if regions.classes[op.id] == "allow" else LARGE
        small = all(_size(facts, value, fixed) <= limit for value in (*op.inputs, *op.outputs) if value != NONE)
        slots = (slot.split("@")[0] for slot in op.slots)
        if small and op.slots and not all(fallback.computes(op.kind, flow.opset, slot, low) for slot in slots):
            yield op


def _tells_known_shape(facts: Facts, op: Op, fixed: bool) -> bool:
    """Rule `constant`: whether a Shape reads a value whose last size, of which a head's scale is computed, is in the
    file. ``fixed``: whether all inputs of the model have known sizes, so that any Shape counts. Where other sizes are
    open, and the runtime cannot fold what is computed of them, that takes one Cast more."""
    if not op.inputs or op.inputs[0] == NONE:
        return False
    shape = facts.flow.shape(op.inputs[0])
    return fixed or (shape is not None and all(isinstance(size, int) for size in shape[-1:]))


def _size(facts: Facts, value: int, fixed: bool) -> int:
    """Rule `constant`: the number of elements of a value. An unknown size counts as more than any that is folded, or as
    1 where all inputs of the model have known sizes (``fixed``)."""
    shape, unknown = facts.flow.shape(value), 1 if fixed else LARGE + 1
    sizes = shape if shape is not None else (None,)
    return math.prod(size if isinstance(size, int) else unknown for size in sizes)
