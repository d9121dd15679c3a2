"""Range guard: what was measured to pass the limit of the low type stays float32, whatever list or level say.

Each value is judged by itself: its writer and its readers stay float32 in the slot that holds it, so that a product is
low unless one of its own tensors passes the limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...core.dataflow import FLOAT32, NONE, Dataflow
from ...core.plan import Note, Why
from ..state import HIGH, RANGE, State
from .weights import MASK_PATH, _is_mask

if TYPE_CHECKING:
    from ...core.ranges import Range

VANISHING_LIMIT = 0.5  # of the elements that are not zero: above it a low value is named
SCORES = {"MatMul", "Einsum", "Gemm", "Conv"}


def measured(flow: Dataflow, ranges: Mapping[str, Range]) -> dict[int, Range]:
    """Value id -> range; what is passed into or out of a body or a function has that of the values it comes from."""
    from ...core.ranges import Range, by_value

    found = by_value(flow, ranges)
    for source, target in flow.passed:  # in the order of the file: an outer border comes before an inner one
        if NONE not in (source, target) and source in found and flow.values[target].dtype == FLOAT32:
            joint = Range()
            for known in (found.get(target), found[source]):
                if known is not None:
                    joint.add(known)
            found[target] = joint
    return found


def passing(state: State) -> dict[int, str]:
    """The values that pass the limit, each with the number in words, without those that only feed a Softmax's mask."""
    options, flow = state.options, state.flow
    if options.ranges is None:
        return {}
    found = measured(flow, options.ranges.values)
    beyond = {
        value: held
        for value, held in found.items()
        if flow.values[value].dtype == FLOAT32 and held.passes(options.dtype, options.range_margin)
    }
    limit = f"limit {options.largest / options.range_margin:.4g} with margin {options.range_margin:g}"
    masks = _Masks(flow, beyond, options.largest / options.range_margin)
    return {
        value: f"'{flow.values[value].name}' reaches {held.absmax:.4g} ({limit})"
        for value, held in beyond.items()
        if not masks.harmless(value)
    }


class _Masks:
    """Values that pass the lower end alone, for what a mask puts upon them: there minus infinity means the same."""

    def __init__(self, flow: Dataflow, beyond: Mapping[int, Range], limit: float) -> None:
        self.flow, self.beyond, self.limit = flow, beyond, limit
        self._known: dict[int, bool] = {}

    def harmless(self, value: int) -> bool:
        """Whether a value beyond the limit is a mask, or scores that would be in range without one."""
        if value not in self._known:
            self._known[value] = False  # while it is looked at: a loop's state
            self._known[value] = self._judge(value)
        return self._known[value]

    def _judge(self, value: int) -> bool:
        if self.beyond[value].high > self.limit or not _is_mask(self.flow, self.flow.values[value]):
            return False
        op = self.flow.writer(value)
        if op is None or op.role not in MASK_PATH:
            return not self._are_scores(value)
        guilty = [v for v in op.inputs if v in self.beyond]
        return all(self.harmless(v) for v in guilty)  # none: a stored mask, which the weights' guard has judged

    def _are_scores(self, value: int) -> bool:
        """Whether products had a part in a value: then it holds what the model computes, and no mask."""
        work, seen = [value], set()
        while work:
            op = self.flow.writer(work.pop())
            if op is None or op.id in seen:
                continue
            seen.add(op.id)
            if op.role in SCORES:
                return True
            work += [v for v in op.inputs if v != NONE]
        return False


def guard_ranges(state: State) -> None:
    """Holds the writer and the readers of every value that passes the limit; the writer is a hazard to what follows."""
    flow = state.flow
    for value, text in sorted(state.passing.items()):
        item, why = flow.values[value], Why("range", text)
        units = [item.unit, *(use.unit for use in flow.uses[value])]
        for unit in dict.fromkeys(u for u in units if u != NONE):
            state.set(unit, HIGH, RANGE, why)
        writer = flow.writer(value)
        if writer is not None and state.is_high(item.unit):
            state.sources.append((writer.id, why, True))


def report_ranges(state: State) -> None:
    """Once all is decided: values beyond the limit, those that are low by a stronger right, and values that vanish."""
    options, flow = state.options, state.flow
    if options.ranges is None:
        return
    for value, text in sorted(state.passing.items()):
        state.notes.append(Note("range", flow.values[value].name, text))
        unit = flow.values[value].unit
        why = state.why[flow.find(unit)] if state.is_low(unit) else None
        if why is not None:
            state.notes.append(Note("overflow", flow.values[value].name, f"{text} but is low: {why.text}"))
    for value, held in measured(flow, options.ranges.values).items():
        share = held.vanishing(options.dtype) if state.is_low(flow.values[value].unit) else 0.0
        if share > VANISHING_LIMIT:
            message = f"{100 * share:.3g} % of its elements flush to zero in {options.dtype}"
            state.notes.append(Note("vanishing", flow.values[value].name, message))
