"""Stored tensors that the low type cannot hold, and masks, which may be floored instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ...core.arrays import Array
from ...core.dataflow import FLOAT32, NONE, Value
from ...core.plan import Note, Why
from ..decisions import HIGH, VALIDITY, Decisions, Hold, Source, place
from ..facts.facts import Facts
from ..facts.values import Extent, fill_number
from .rule import Findings, Ruling, Sight, runs

FLUSHED_LIMIT = 0.5  # of the elements that are not zero: above it a tensor is not worth storing low
NAMED_FROM = 0.01  # share that flushes to zero from which a tensor is named in the report
WIDE = ("float64", "int64", "int32")  # types that a low type cannot hold
QUICK = 1 << 16  # elements: a tensor up to here is read even if nobody reads it low


def report_flushing(facts: Facts, found: Findings, settled: Decisions) -> Iterator[Note]:
    """Yields notes on weights that are read low although a part of them becomes zero, the worst first."""
    flow = facts.flow
    for value, share in sorted(found.flushing.items(), key=lambda item: (-item[1], item[0])):
        if any(settled.is_low(use.unit) for use in flow.uses[value]):
            lost = f"{_percent(share)} of its elements become zero in {facts.options.dtype}"
            yield Note("weight", flow.values[value].name, f"{lost}, and it is stored so: a check counts the error")


@runs(
    "weight",
    trigger="a stored tensor with elements beyond the range, or of which most would become zero",
    action="float32 for its readers; a constant that only feeds a softmax becomes half the low minimum",
    levels="every",
    validity=True,
    report=report_flushing,
)
def unstorable_weights(sight: Sight, decided: Decisions) -> Findings:
    """Looks at every stored tensor that may be read low, in the order of the model: holds the readers of one that
    leaves the range or mostly becomes zero; a mask gets a floor instead, and one that partly becomes zero is named."""
    facts = sight.facts
    options, reader, largest = facts.options, _Reader(facts, decided), facts.low.largest
    multiplied = "floor" in options.rewrites
    masks: list[int] = []
    flushing: dict[int, float] = {}
    for value, extent in reader.extents():
        if extent.largest > largest:
            if extent.below and reader.may_floor(value) and facts.masks.has(value.id, multiplied=multiplied):
                masks.append(value.id)
            else:
                share = f"{_percent(extent.beyond)} of its elements"
                text = f"reaches {extent.largest:.4g}, beyond {options.dtype} ({share})"
                reader.hold(value, text, taints=not value.default)  # which a caller may override
        elif extent.flushed > FLUSHED_LIMIT:
            message = f"would become zero in {options.dtype} ({_percent(extent.flushed)} of its elements)"
            reader.hold(value, message, taints=False)
        elif extent.flushed > NAMED_FROM:
            flushing[value.id] = extent.flushed
    floor = -largest / 2 / facts.masks.most_added(masks)
    floors = dict.fromkeys(masks, floor)
    return Findings(reader.found, reader.sources, reader.notes, floors=floors, flushing=flushing)


class _Reader:
    """Rule on stored tensors: reads those that somebody may read low, and holds readers, which it heeds for the next
    ones. ``found``, ``sources``, ``notes``: what becomes its findings."""

    def __init__(self, facts: Facts, decided: Decisions) -> None:
        self.facts, self.decided = facts, decided
        self.held: set[int] = set()  # units, by what represents them
        self.found: list[Ruling] = []
        self.sources: list[Source] = []
        self.notes: list[Note] = []

    def extents(self) -> Iterator[tuple[Value, Extent]]:
        """Rule on stored tensors: yields each float32 tensor that is worth reading with its extent, and those that are
        filled with a number or converted from a wider type. Lazily: what is held meanwhile need not be read."""
        flow = self.facts.flow
        filled = {op.outputs[0]: fill_number(flow, op) for op in flow.with_roles(self.facts.traits.operators("fills"))}
        made = filled | self._converted()
        for value in flow.values:
            if value.dtype == FLOAT32 and _is_stored(value) and self._is_worth_reading(value):
                yield value, self.facts.extent(value)
            elif value.dtype == FLOAT32 and value.id in made:
                yield value, Extent.of([np.asarray(made[value.id], np.float64)], self.facts.low)

    def _is_worth_reading(self, value: Value) -> bool:
        """Rule on stored tensors: whether somebody may read one low, or it is no work to look at it."""
        flow = self.facts.flow
        units = [use.unit for use in flow.uses[value.id] if use.unit != NONE]
        return flow.weights.size(value) <= QUICK or not all(map(self._is_high, units))

    def may_floor(self, value: Value) -> bool:
        """Rule on stored tensors: whether a mask can get a floor: it is stored, or filled with one number in an ONNX
        model where the rewrite `floor` is asked for."""
        writer = self.facts.flow.writer(value.id)
        fills = writer is not None and self.facts.traits.has(writer.role, "fills")
        return value.weight or (fills and bool(self.facts.flow.opset) and "floor" in self.facts.options.rewrites)

    def _is_high(self, unit: int) -> bool:
        """Rule on stored tensors: whether the unit is float32, by earlier rules or by this one."""
        return self.decided.side(unit) == HIGH or self.decided.find(unit) in self.held

    def _converted(self) -> dict[int, Array]:
        """Rule on stored tensors: value -> its numbers, of Casts to float32 of stored tensors of wider types."""
        flow, found = self.facts.flow, dict[int, Array]()
        for op in flow.with_roles(self.facts.traits.operators("conversions")):
            item = flow.values[op.inputs[0]] if op.inputs[0] != NONE else None
            array = flow.weights.array(item) if item is not None and item.weight and item.dtype in WIDE else None
            if array is not None:
                found[op.outputs[0]] = array
        return found

    def hold(self, value: Value, text: str, taints: bool) -> None:
        """Rule on stored tensors: keeps the readers of a stored tensor, or the maker of another, in float32; a note
        says which would be low. ``text``: why; ``taints``: whether their results are sources of taint."""
        flow, why = self.facts.flow, Why("weight", f"'{value.name}' {text}")
        units = [use.unit for use in flow.uses[value.id] if use.unit != NONE] if _is_stored(value) else [value.unit]
        lowered = [unit for unit in units if not self._is_high(unit)]
        self.found.append(Ruling([Hold(tuple(units), VALIDITY, why)]))
        self.held.update(map(self.decided.find, units))
        owners = [flow.units[unit].op for unit in units if taints]
        self.sources += [Source(owner, why, True) for owner in owners if owner != NONE]
        if lowered:
            places = sorted({place(flow, u) for u in lowered})
            self.notes.append(Note("weight", value.name, f"{text}: {', '.join(places[:3])} stays float32"))


def _is_stored(value: Value) -> bool:
    """Rule on stored tensors: whether a value is a stored tensor, or an input with one for where nothing is given."""
    return value.weight or value.default


def floors_read_low(facts: Facts, floors: Mapping[int, float], settled: Decisions) -> dict[int, float]:
    """Of masks that rules found (``floors``: value -> what replaces its lowest elements) those that have to be floored:
    an operator on the way to their Softmax reads them low, or fills them low."""
    values = facts.flow.values
    filled_low = {v for v in floors if not values[v].weight and settled.is_low(values[v].unit)}
    return {v: floor for v, floor in floors.items() if v in filled_low or facts.masks.reads_low(settled, v)}


def report_floors(facts: Facts, floors: Mapping[int, float]) -> Iterator[Note]:
    """Yields a note for every mask that gets another minimum. ``floors``: value -> this minimum."""
    for value, floor in sorted(floors.items()):
        text = f"elements below the {facts.options.dtype} minimum become {floor:g}: it only feeds Softmax"
        if not facts.masks.has(value):
            text += ", times zeros and ones; a row that is masked as a whole may get weights by its scores"
        yield Note("mask", facts.flow.values[value].name, text)


def _percent(share: float) -> str:
    """For a rule's note: a share as a percentage, with enough digits that a few elements are not 0 %."""
    return f"{100 * share:.3g} %" if share >= 1e-5 else "less than 0.001 %"
