"""What was measured: ranges by value, and the values that pass the limit of the low type, or what it resolves."""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, log2
from types import MappingProxyType
from typing import NewType

from ...core.dataflow import FLOAT32, NONE, Dataflow
from ...core.ranges import Range, by_value
from ..context import Context
from .masks import is_mask

EXACT = MappingProxyType({"float16": 2048, "bfloat16": 256})
"""Integers are exact up to here: from then on steps are 2."""

Passing = NewType("Passing", Mapping[int, str])
"""Values that pass the limit, each with the number in words."""


def measured(flow: Dataflow, ranges: Mapping[str, Range]) -> dict[int, Range]:
    """Value id -> range; what is passed into or out of a body or a function has that of the values it comes from."""
    found = by_value(flow, ranges)
    for source, target in flow.passed:  # in the order of the file: an outer border comes before an inner one
        if NONE not in (source, target) and source in found and flow.values[target].dtype == FLOAT32:
            joint = Range()
            for known in (found.get(target), found[source]):
                if known is not None:
                    joint.add(known)
            found[target] = joint
    return found


def passing(context: Context) -> Passing:
    """The values that pass the limit, without those that only feed a Softmax's mask."""
    options, flow = context.options, context.flow
    if options.ranges is None:
        return Passing({})
    found = measured(flow, options.ranges.values)
    beyond = {
        value: held
        for value, held in found.items()
        if flow.values[value].dtype == FLOAT32 and held.passes(options.dtype, options.range_margin)
    }
    limit = f"limit {options.largest / options.range_margin:.4g} with margin {options.range_margin:g}"
    masks = _Masks(context, beyond, options.largest / options.range_margin)
    texts = {
        value: f"'{flow.values[value].name}' reaches {held.absmax:.4g} ({limit})"
        for value, held in beyond.items()
        if not masks.harmless(value)
    }
    return Passing({**_coarse(context, found), **texts})


def _coarse(context: Context, found: Mapping[int, Range]) -> dict[int, str]:
    """What a softmax takes the exponential of, where steps of the low type are a quarter of a power of e and more.

    Large negative numbers are masks, and count for nothing in a row that has any other.
    """
    flow, traits, dtype = context.flow, context.traits, context.options.dtype
    limit = EXACT[dtype] / 4
    large = {value for value, held in found.items() if held.high >= limit and flow.values[value].dtype == FLOAT32}
    if not large:
        return {}
    read = {op.inputs[0]: op.kind for op in flow.with_roles(traits.operators("softmaxes"))}
    for op in flow.with_roles(traits.operators("exponentials")):
        shifted = flow.writer(op.inputs[0])  # by the largest of them, as a softmax is written out
        if shifted is not None and traits.has(shifted.role, "cancels"):
            read[shifted.inputs[0]] = op.kind
    return {
        value: f"'{flow.values[value].name}' reaches {found[value].high:.4g} before {read[value]}, where {dtype} has "
        f"steps of {2.0 ** floor(log2(found[value].high)) / EXACT[dtype] * 2:g}"
        for value in sorted(large & read.keys())
    }


class _Masks:
    """Values that pass the lower end alone, for what a mask puts upon them: there minus infinity means the same."""

    def __init__(self, context: Context, beyond: Mapping[int, Range], limit: float) -> None:
        self.context, self.beyond, self.limit = context, beyond, limit
        self._known: dict[int, bool] = {}

    def harmless(self, value: int) -> bool:
        """Whether a value beyond the limit is a mask, or scores that would be in range without one."""
        if value not in self._known:
            self._known[value] = False  # while it is looked at: a loop's state
            self._known[value] = self._judge(value)
        return self._known[value]

    def _judge(self, value: int) -> bool:
        if self.beyond[value].high > self.limit or not is_mask(self.context, value):
            return False
        op = self.context.flow.writer(value)
        if op is None or not self.context.traits.has(op.role, "mask_path"):
            return not self._are_scores(value)
        guilty = [v for v in op.inputs if v in self.beyond]
        return all(self.harmless(v) for v in guilty)  # none: a stored mask, which the weights' guard has judged

    def _are_scores(self, value: int) -> bool:
        """Whether products had a part in a value: then it holds what the model computes, and no mask."""
        work, seen = [value], set[int]()
        while work:
            op = self.context.flow.writer(work.pop())
            if op is None or op.id in seen:
                continue
            seen.add(op.id)
            if self.context.traits.has(op.role, "products"):
                return True
            work += [v for v in op.inputs if v != NONE]
        return False
