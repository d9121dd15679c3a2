"""Masks that are written for low types: less the largest in each row, which no Softmax sees, so that rows that are
hidden whole keep their scores beside numbers like -10,000; and the number before the mask, where the target's runtime
fails to read it behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op
from ...core.graph import Attribute, NodeEditor
from ...oplists.traits import at
from ..fusions import regions
from ..known import IsLow, Known, named
from ..rewrite import RewriteRule, in_function, is_read_low

SOFTMAX_BY_ROWS = 13  # the opset from which a Softmax without an axis is one over the last
AXES_ARE_READ = 18  # the opset from which ReduceMax reads its axes


@dataclass(frozen=True)
class MaskByRows(RewriteRule):
    """Of what makes a mask, which is only added to scores before Softmaxes, or only taken away from them; one that is
    taken away less its smallest number. ``source``: the first that the maker reads."""

    source: str

    names = ("mask",)
    reading = ("source",)
    writes = "Mask by rows"
    tried = True

    @classmethod
    def find(cls, known: Known) -> Iterator[MaskByRows]:
        flow, traits = known.flow, known.traits
        adding = flow.with_roles(traits.operators("additions") | traits.operators("subtracts"))
        added = {flow.values[value].producer for op in adding for value in op.inputs if value != NONE}
        making = (traits.operators("affine") | traits.operators("mask_path")) - traits.operators("additions")
        made = [op for op in map(flow.ops.__getitem__, sorted(added - {NONE})) if op.role in making]
        found = [op for op in made if len(op.outputs) == 1 and op.slots and _is_mask(known, op)]
        if found and not _is_fused(known):
            for op in found:
                read = next((v for v in op.inputs if v != NONE), NONE)
                if read != NONE:
                    yield cls("mask", *cls.place(flow, op), flow.values[read].name)

    def pays(self, known: Known, is_low: IsLow) -> bool:
        """Where the mask is added low."""
        return is_read_low(known, self.ops(known.flow)[0], is_low)

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        (op,) = self.edited(editor)
        self.operands(editor, flow)
        self.refuse(len(op.outputs) == 1)
        mask = flow.values[op.outputs[0]]
        name, uses = op.name or mask.name or "mask", flow.uses[mask.id]
        taken = all(use.op != NONE and at(flow.ops[use.op].kind, "subtracts", use.index) for use in uses)
        kind, word = ("ReduceMin", "smallest") if taken else ("ReduceMax", "largest")
        read, attributes = [mask], dict[str, Attribute](keepdims=1)
        if flow.opset < AXES_ARE_READ:
            attributes["axes"] = [-1]
        else:
            read.append(editor.constant(np.array([-1], np.int64), f"{name}_axes", op))
        (most,) = editor.add(
            kind, read, [mask], attributes, behind=op, name=f"{mask.name}_{kind}", node=f"{name}_{word}", of=op
        )
        (less,) = editor.add(
            "Sub", [mask, most], [mask], name=f"{mask.name}_Sub", node=f"{name}_by_rows", of=op, shaped=True
        )
        editor.give(less, [flow.place(use) for use in uses])


def _is_mask(known: Known, op: Op) -> bool:
    flow, traits, value = known.flow, known.traits, op.outputs[0]
    uses = flow.uses[value]
    places = [(flow.ops[use.op].role, use.index) for use in uses if use.op != NONE]
    only = any(all(traits.at(role, trait, index) for role, index in places) for trait in ("additions", "subtracts"))
    if not only or not 0 < len(places) == len(uses) or in_function(flow, op):
        return False
    if not _ends_by_rows(known, value) or not flow.shape(value) or known.masks.is_shifted(value):  # what soon tells
        return False
    return known.masks.hidden_by(value) > 0 and _is_computed(known, value)


def _is_computed(known: Known, value: int) -> bool:
    """Whether a value is made of constants in range and of inputs, some at least, by arithmetic and moves alone:
    scores are products, and what is made of constants hides no row by chance."""
    flow, traits = known.flow, known.traits
    work, seen, given = [value], set[int](), False
    while work:
        current = work.pop()
        if current == NONE or current in seen:
            continue
        seen.add(current)
        item, writer = flow.values[current], flow.writer(current)
        if item.weight:
            if item.dtype == FLOAT32 and not _is_in_range(known, current):
                return False
        elif item.dtype != FLOAT32 or writer is None:
            given = True
        elif any(traits.has(writer.role, trait) for trait in ("affine", "mask_path")):
            work += writer.inputs
        else:
            return False
    return given


def _is_in_range(known: Known, value: int) -> bool:
    """Whether numbers stay low by themselves: larger ones become half the low minimum, or stay float32."""
    array = known.flow.weights.array(known.flow.values[value])
    limit = known.options.largest / known.options.range_margin
    return array is not None and bool((np.abs(array) <= limit).all())


def _ends_by_rows(known: Known, value: int) -> bool:
    """Whether every path from a value ends in a Softmax over the last axis, through additions alone, of which the first
    may take it away."""
    flow, traits, work = known.flow, known.traits, [value]
    while work:
        current = work.pop()
        for use in flow.uses[current]:
            op = flow.ops[use.op] if use.op != NONE else None
            if op is None:
                return False
            if traits.has(op.role, "softmaxes"):
                if not _is_by_rows(flow, op):
                    return False
            elif any(traits.has(op.role, trait) for trait in ("additions", "nothing_in_inference")) or (
                current == value and traits.at(op.role, "subtracts", use.index)
            ):
                work += op.outputs[:1]
            else:
                return False
    return True


def _is_by_rows(flow: Dataflow, op: Op) -> bool:
    axis, shape = flow.number(op, "axis"), flow.shape(op.inputs[0])
    if axis is None:
        return op.kind == op.role and "::" not in op.kind and flow.opset >= SOFTMAX_BY_ROWS
    return axis == -1 or (shape is not None and axis == len(shape) - 1)


def _is_fused(known: Known) -> bool:
    """Whether the target's runtime may make one kernel of the attention, which adds masks in float32: it knows a mask
    by the operators that make it, and starts at a norm."""
    if not any(broken.mask_below for broken in known.options.kernels.broken.values()):
        return False
    kinds = (*(op.role for op in known.flow.ops), *(region.kind for region in regions(known.flow)))
    return any(known.traits.has(kind, "centres_features") for kind in kinds)


@dataclass(frozen=True)
class NumberFirst(RewriteRule):
    """Of a product of two, ``mask`` and ``number``."""

    number: str
    mask: str

    names = ("order",)
    reading = ("number", "mask")
    writes = "number * mask"
    tried = rewires = exchanges = True

    @classmethod
    def find(cls, known: Known) -> Iterator[NumberFirst]:
        flow, broken = known.flow, known.options.kernels.broken
        kinds = {kind for kind, entry in broken.items() if entry.mask_below and known.traits.has(kind, "multiplies")}
        for op in flow.with_roles(kinds):
            if not op.slots or len(op.inputs) != 2 or not known.masks.broken_number(op):
                continue
            if not in_function(flow, op) and flow.scalar(op.inputs[0]) is None and op.id not in named(known):
                mask, number = (flow.values[value].name for value in op.inputs)
                yield cls("order", *cls.place(flow, op), number, mask)

    def pays(self, known: Known, is_low: IsLow) -> bool:
        """Where the mask is added low."""
        return is_read_low(known, self.ops(known.flow)[0], is_low)

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        for place, value in enumerate(self.operands(editor, flow)):
            editor.give(value, [(self.scope, self.nodes[0], place)])
