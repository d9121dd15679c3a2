"""Validity guard: stored tensors that the low type cannot hold, and the masks that may be floored instead."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op, Value
from ...core.plan import Note, Why
from ..state import CONVERSIONS, HIGH, VALIDITY, State

MASK_PATH = {
    "Add",
    "Where",
    "Expand",
    "Reshape",
    "Transpose",
    "Unsqueeze",
    "Squeeze",
    "Slice",
    "Concat",
    "Identity",
    "Gather",
    "GatherND",
    "GatherElements",
    "Flatten",
    "Tile",
    "Trilu",
    "Split",
    "Cast",
    "CastLike",
    "ConstantOfShape",
    "ScatterND",
    "ScatterElements",
}
MASK_END = {"Softmax", "LogSoftmax"}
ATTENTION_MASK = {"Attention": 3, "com.microsoft::Attention": 5, "com.microsoft::MultiHeadAttention": 5}
FLUSHED_LIMIT = 0.5  # of the elements that are not zero: above it a tensor is not worth storing low
NAMED_FROM = 0.01  # share that flushes to zero from which a tensor is named in the report


@dataclass(frozen=True)
class Extent:
    """The largest finite magnitude, whether some finite element is below the low minimum and none above the maximum,
    the share of the elements that are beyond the range, and of those that are not zero the share flushed to zero."""

    largest: float
    below: bool
    beyond: float
    flushed: float


def guard_weights(state: State) -> dict[int, float]:
    """Keeps readers of tensors that the low type cannot hold in float32; returns the mask constants to floor."""
    flow, options = state.flow, state.options
    floors: dict[int, float] = {}
    extents: dict[object, Extent] = {}
    for value in flow.values:
        if value.dtype != FLOAT32 or not (value.weight or _filled(flow, value)):
            continue
        uses = [u for u in flow.uses[value.id] if u.unit != NONE] if value.weight else []
        if value.weight and all(state.is_high(u.unit) for u in uses) and not _small(flow, value):
            continue  # nobody will read it low: not worth reading it here
        key = flow.weights.key(value)
        if key not in extents:
            extents[key] = _extent(state, value)
        extent = extents[key]
        if extent.largest > options.largest:
            if value.weight and extent.below and _is_mask(flow, value):
                floors[value.id] = -options.largest / 2
            else:
                share = f"{_percent(extent.beyond)} of its elements"
                _hold(state, value, f"reaches {extent.largest:.4g}, beyond {options.dtype} ({share})", hazard=True)
        elif extent.flushed > FLUSHED_LIMIT:
            message = f"{_percent(extent.flushed)} of its elements would flush to zero in {options.dtype}"
            _hold(state, value, message, hazard=False)
        elif extent.flushed > NAMED_FROM:
            state.flushing[value.id] = extent.flushed
    added = _most_added(flow, floors)
    return {value: floor / added for value, floor in floors.items()}


def report_flushing(state: State) -> None:
    """Once all is decided: weights that are read low although a part of them becomes zero, the worst first."""
    flow = state.flow
    for value, share in sorted(state.flushing.items(), key=lambda item: (-item[1], item[0])):
        if any(state.is_low(use.unit) for use in flow.uses[value]):
            message = f"{_percent(share)} of its elements flush to zero in {state.options.dtype}"
            state.notes.append(Note("weight", flow.values[value].name, message))


def _percent(share: float) -> str:
    """Enough digits to tell a few elements of many from none."""
    return f"{100 * share:.3g} %" if share >= 1e-5 else "less than 0.001 %"


def _small(flow: Dataflow, value: Value) -> bool:
    return flow.weights.size(value) <= 1 << 16


def _filled(flow: Dataflow, value: Value) -> bool:
    op = flow.ops[value.producer] if value.producer != NONE else None
    return op is not None and op.role == "ConstantOfShape"


def _extent(state: State, value: Value) -> Extent:
    flow, options = state.flow, state.options
    if not value.weight:
        op = flow.ops[value.producer]
        fill = flow.attribute(op, "value")
        number = float(fill.reshape(-1)[0]) if fill is not None and fill.size else 0.0
        finite = abs(number) if np.isfinite(number) else 0.0
        return Extent(
            finite, False, float(finite > options.largest), float(0 < finite < options.smallest_subnormal / 2)
        )
    largest, flushed, nonzero, beyond, total = 0.0, 0, 0, 0, 0
    below = False
    tiny = np.float32(options.smallest_subnormal / 2)
    for part in flow.weights.chunks(value):
        magnitude = np.abs(part)
        total += magnitude.size
        top = float(magnitude.max(initial=0))
        if not np.isfinite(top):
            magnitude = magnitude[np.isfinite(magnitude)]
            top = float(magnitude.max(initial=0))
        largest = max(largest, top)
        if top > options.largest:
            beyond += int(np.count_nonzero(magnitude > options.largest))
            below |= bool((part[np.isfinite(part)] < -options.largest).any()) and not bool(
                (part[np.isfinite(part)] > options.largest).any()
            )
        small = int(np.count_nonzero(magnitude <= tiny))
        if small:
            flushed += int(np.count_nonzero(magnitude[magnitude <= tiny]))
        nonzero += magnitude.size - small
    nonzero += flushed
    return Extent(largest, below, beyond / total if total else 0.0, flushed / nonzero if nonzero else 0.0)


def exceeds(flow: Dataflow, value: Value, limit: float) -> bool:
    """Whether a finite element of a stored tensor is larger in magnitude than ``limit``."""
    for part in flow.weights.chunks(value):
        magnitude = np.abs(part)
        if magnitude.max(initial=0) > limit and (magnitude[np.isfinite(magnitude)] > limit).any():
            return True
    return False


def _hold(state: State, value: Value, text: str, hazard: bool) -> None:
    """Keeps the readers (or the maker) of a tensor in float32, and names it."""
    flow = state.flow
    why = Why("weight", f"'{value.name}' {text}")
    units = [u.unit for u in flow.uses[value.id] if u.unit != NONE] if value.weight else [value.unit]
    lowered = [u for u in units if not state.is_high(u)]
    for unit in units:
        state.set(unit, HIGH, VALIDITY, why)
        owner = flow.units[unit].op
        if hazard and owner != NONE:
            state.sources.append((owner, why, True))
    if lowered:
        places = sorted({state.place(u) for u in lowered})
        state.notes.append(Note("weight", value.name, f"{text}: {', '.join(places[:3])} stays float32"))


def _is_mask(flow: Dataflow, value: Value) -> bool:
    """Whether every path from a tensor ends in Softmax through additions, selections and moves alone."""
    work, seen, ended = [value.id], set(), False
    while work:
        current = work.pop()
        if current in seen:
            continue
        seen.add(current)
        for use in flow.uses[current]:
            if use.op == NONE:
                return False
            op = flow.ops[use.op]
            if op.role in MASK_END or ATTENTION_MASK.get(op.role) == use.index:
                ended = True
            elif op.role in MASK_PATH and _moves_on(flow, op, use.index):
                work += op.outputs
            else:
                return False
    return ended


def _moves_on(flow: Dataflow, op: Op, index: int) -> bool:
    if op.role == "CastLike" and index == 1:
        return False
    if op.role in CONVERSIONS:
        return flow.values[op.outputs[0]].dtype == FLOAT32
    if op.role == "ScatterND":
        return index in (0, 2)
    return True


def _most_added(flow: Dataflow, floors: dict[int, float]) -> int:
    """How many masks add up before one Softmax: their sum, and a score, must not overflow either."""
    count, most = dict.fromkeys(floors, 1), 1
    for op in flow.ops if floors else ():
        found = [count[v] for v in op.inputs if v in count]
        if found and op.role in MASK_PATH:
            total = sum(found) if op.role == "Add" else max(found)
            count.update(dict.fromkeys(op.outputs, total))
            most = max(most, total)
    return most


def reads_low(state: State, value: int) -> bool:
    """Whether anything on the way from a mask constant to its Softmax is low, so that it would become -inf there."""
    flow, work, seen = state.flow, [value], set()
    while work:
        current = work.pop()
        if current in seen:
            continue
        seen.add(current)
        for use in flow.uses[current]:
            if state.is_low(use.unit):
                return True
            if use.op != NONE and flow.ops[use.op].role in MASK_PATH:
                work += flow.ops[use.op].outputs
    return False


def report_floors(state: State, floors: dict[int, float]) -> None:
    for value, floor in sorted(floors.items()):
        state.notes.append(
            Note(
                "mask",
                state.flow.values[value].name,
                f"elements below the {state.options.dtype} minimum become {floor:g}: it only feeds Softmax",
            )
        )
