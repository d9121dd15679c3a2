"""A Clip without a kernel in the low type as Max and Min, which have one, where it would be low."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...core.dataflow import NONE, Dataflow, Op
from ...core.graph import NodeEditor
from ..known import IsLow, Known, named_ops
from ..rewrite import RewriteRule, all_low, in_function

UNBOUND = 3.4e38  # a bound of this magnitude or more is none: the default of old Clips
SINCE = 8  # Max and Min spread their operands from this opset on
SIDES = (("Max", "min"), ("Min", "max"))
"""What keeps the lower bound, then the upper one, and the attribute that an old Clip has it in."""


@dataclass(frozen=True)
class MaxAndMin(RewriteRule):
    """Writes a Clip as Max and Min. ``source``: the name of what is clipped."""

    source: str

    names = ("clip",)
    counted = ("node", "written as {} each")
    reading = ("source",)
    writes = "Max and Min"

    @classmethod
    def find(cls, known: Known) -> Iterator[MaxAndMin]:
        """Yields every Clip without a low kernel whose bounds fit the low type and which no pattern names."""
        flow = known.flow
        for op in flow.with_roles(known.traits.operators("bounds")):
            if _lacks_a_kernel(known, op) and _has_low_bounds(known, op) and op.id not in named_ops(known):
                yield cls("clip", *cls.place(flow, op), flow.values[op.inputs[0]].name)

    def supposes(self, known: Known) -> frozenset[str]:
        """Kinds that a trial plan takes as if they had a kernel, to see whether the Clip would be low."""
        return frozenset(op.kind for op in self.ops(known.flow))

    def pays(self, known: Known, is_low: IsLow) -> bool:
        """Whether a trial plan makes the Clip low: in float32 it has its kernel."""
        return all_low(self.ops(known.flow), is_low)

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """Writes Max by the lower bound, then Min by the upper one; nothing for a bound that float32 never reaches."""
        (op,), (value,) = self.edited(editor), self.operands(editor, flow)
        limits = bounds(flow, op)
        self.refuse(len(op.outputs) == 1 and None not in limits)
        old, behind = flow.values[op.outputs[0]], None
        name = op.name or old.name or "Clip"
        for place, ((kind, attribute), limit) in enumerate(zip(SIDES, limits, strict=True), 1):
            if limit is None or abs(limit) >= UNBOUND:
                continue
            if len(op.inputs) > place:
                bound = flow.values[op.inputs[place]]
            else:
                bound = editor.constant(np.array(limit, np.float32), f"{name}_{attribute}", behind or op)
            (value,) = editor.add(
                kind,
                [value, bound],
                [old],
                behind=behind or op,
                name=f"{old.name}_{kind}",
                node=f"{name}_{kind}",
                metadata_of=op,
            )
            behind = value
        editor.supersede(value, old)
        editor.remove(op)
        for given in op.inputs[1:]:
            if given != NONE:
                editor.drop_unread(flow.values[given])


def bounds(flow: Dataflow, op: Op) -> list[float | None]:
    """Rewrite of a Clip: its lower and upper bound; None for one that is not known, infinite where there is none. An
    old Clip of one operand has them as attributes."""
    unbounded = (-float("inf"), float("inf"))
    if len(op.inputs) == 1:
        given = [flow.number(op, name) for name in ("min", "max")]
        return [none if number is None else float(number) for none, number in zip(unbounded, given, strict=True)]
    operands = [*op.inputs[1:], NONE][:2]
    return [none if v == NONE else flow.scalar(v) for none, v in zip(unbounded, operands, strict=True)]


def _lacks_a_kernel(known: Known, op: Op) -> bool:
    """Rewrite of a Clip: whether the target has no low kernel of it, and those of Max and Min."""
    flow, kernels, dtype = known.flow, known.options.kernels, known.options.dtype
    if not op.slots or flow.opset < SINCE or in_function(flow, op):
        return False
    unit = flow.units[next(iter(op.slots.values()))]
    if dtype not in unit.admits or kernels.admits(op.kind, flow.opset, unit.slot, dtype) is not False:
        return False
    return all(kernels.admits(kind, flow.opset, "T", dtype) for kind in known.traits.operators("extremes"))


def _has_low_bounds(known: Known, op: Op) -> bool:
    """Rewrite of a Clip: whether its bounds are known, in order and in the low type's range, and one bounds at all."""
    limits = bounds(known.flow, op)
    numbers = [limit for limit in limits if limit is not None]
    finite = [number for number in numbers if abs(number) < UNBOUND]
    in_range = all(abs(number) <= known.options.largest for number in finite)
    return len(numbers) == len(limits) and bool(finite) and in_range and numbers == sorted(numbers)
