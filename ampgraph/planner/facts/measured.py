"""What was measured: ranges by value, and the values that pass the limit of the low type, or what it resolves."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import floor, log2

from ...core.dataflow import FLOAT32, NONE, Dataflow
from ...core.low_types import low_type
from ...core.ranges import Range, ranges_by_value
from ...core.walk import upstream
from ...oplists.options import Options
from .masks import Masks

VANISHING_LIMIT = 0.5  # of the elements that are not zero


def ranges_across_boundaries(flow: Dataflow, ranges: Mapping[str, Range]) -> dict[int, Range]:
    """Facts: value id -> measured range (``ranges``: by name); what is passed into or out of a body or function has the
    ranges of all that is passed to it."""
    found = ranges_by_value(flow, ranges)
    for source, target in flow.passed:  # in the order of the file: an outer boundary comes before an inner one
        if NONE not in (source, target) and source in found and flow.values[target].dtype == FLOAT32:
            joint = Range()
            for known in (found.get(target), found[source]):
                if known is not None:
                    joint.add(known)
            found[target] = joint
    return found


class MeasuredRanges:
    """What the recipe's ranges say of a model; nothing where it has none."""

    def __init__(self, flow: Dataflow, options: Options, masks: Masks) -> None:
        self.flow, self.options, self.traits, self.masks = flow, options, options.lists.traits, masks
        self.low = low_type(options.dtype)
        self._harmless: dict[int, bool] = {}

    @cached_property
    def ranges(self) -> Mapping[int, Range]:
        """Value id -> measured range."""
        return {} if self.options.ranges is None else ranges_across_boundaries(self.flow, self.options.ranges.values)

    @cached_property
    def reach(self) -> Mapping[int, float]:
        """Value id -> the largest magnitude that was measured of it."""
        return {value: held.absmax for value, held in self.ranges.items()}

    def vanishes(self, value: int) -> bool:
        """Whether a value was measured to become mostly zero in the low type."""
        held = self.ranges.get(value)
        return held is not None and held.vanishing_share(self.low.name) > VANISHING_LIMIT

    def passing(self) -> Mapping[int, str]:
        """Value id -> what was measured of it, in words, of values that pass the limit, but for masks and scores behind
        one (`_is_harmless`), and of those that are too coarse before a Softmax."""
        limit = f"limit {self._top:.4g} with margin {self.options.range_margin:g}"
        texts = {
            value: f"'{self.flow.values[value].name}' reaches {held.absmax:.4g} ({limit})"
            for value, held in self._beyond.items()
            if not self._is_harmless(value)
        }
        return {**self._coarse_before_softmax(), **texts}

    @property
    def _top(self) -> float:
        """The largest magnitude that the low type may be measured at: its limit, less the margin."""
        return self.low.largest / self.options.range_margin

    @cached_property
    def _beyond(self) -> Mapping[int, Range]:
        """The float32 values whose measured range leaves the low type, with that range."""
        options, values = self.options, self.flow.values
        return {
            value: held
            for value, held in self.ranges.items()
            if values[value].dtype == FLOAT32 and held.overflows(options.dtype, options.range_margin)
        }

    def _is_harmless(self, value: int) -> bool:
        """Whether a value beyond the limit is a mask, or scores that would be in range without one; judged once."""
        if value not in self._harmless:
            self._harmless[value] = False  # while it is looked at: a loop's state
            self._harmless[value] = self._judge_harmless(value)
        return self._harmless[value]

    def _judge_harmless(self, value: int) -> bool:
        """Whether a value passes the lower end of the range alone, as a mask or for what a mask puts upon it, where
        minus infinity means the same; what products computed is no mask."""
        if self._beyond[value].high > self._top or not self.masks.has(value):
            return False
        op = self.flow.writer(value)
        if op is None or not self.traits.has(op.role, "mask_path"):
            before = upstream(self.flow, [value], lambda op: op.inputs)
            return not any(self.traits.has(op.role, "products") for op in before)  # else what the model computes
        beyond = [v for v in op.inputs if v in self._beyond]
        return all(map(self._is_harmless, beyond))  # none: a stored mask, which the rule on stored tensors judges

    def _coarse_before_softmax(self) -> dict[int, str]:
        """Value id -> what was measured of it, in words, of values of which a Softmax takes the exponential and that
        reach so far up that the low type has steps of a quarter or more. Large negative numbers are masks."""
        found = self.ranges
        flow, traits, dtype, counts = self.flow, self.traits, self.low.name, self.low.exact_up_to
        large = {v for v, held in found.items() if held.high >= counts / 4 and flow.values[v].dtype == FLOAT32}
        if not large:
            return {}
        read = {op.inputs[0]: op.kind for op in flow.with_roles(traits.operators("softmaxes"))}
        for op in flow.with_roles(traits.operators("exponentials")):
            shifted = flow.writer(op.inputs[0])  # by the largest of them, as a softmax is written out
            if shifted is not None and traits.has(shifted.role, "cancels"):
                read[shifted.inputs[0]] = op.kind
        return {
            value: f"'{flow.values[value].name}' reaches {found[value].high:.4g} before {read[value]}, where {dtype} "
            f"has steps of {2.0 ** floor(log2(found[value].high)) / counts * 2:g}"
            for value in sorted(large & read.keys())
        }
