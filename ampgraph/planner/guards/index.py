"""Validity guard: index and length arithmetic in float. floor(8191 / 2) must stay 4095 at every level."""

from __future__ import annotations

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op
from ...core.plan import Note, Why
from ..state import CONVERSIONS, HIGH, VALIDITY, State, describe
from .hazards import STOPS

COMPARE = {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"}
EXACT = {
    *("Floor", "Ceil", "Round", "Neg", "Abs", "Add", "Sub", "Mul", "Identity", "Reshape", "Unsqueeze", "Squeeze"),
    *("Expand", "Transpose", "Slice", "Gather", "Concat"),
}
"""What makes integers of integers."""
SIZES = {"Range": (0, 1, 2), "OneHot": (1,)}


def guard_indices(state: State) -> None:
    """Holds whatever computes an integer, a size or a comparison of integers in float32."""
    flow = state.flow
    counted = state.counted = _integer_valued(state)
    seen: set[int] = set()  # what an earlier sink has held already
    for op in flow.ops:
        sink = _sink(flow, op, counted)
        if sink is None:
            continue
        text, values = sink
        why = Why("index", f"{text} '{describe(flow, op)}'")
        held = _hold_upstream(state, values, why, seen)
        if op.role in COMPARE:
            held += state.hold(op, VALIDITY, why)
        elif op.role in CONVERSIONS:
            state.hold(op, VALIDITY, why)
        if held:
            state.notes.append(
                Note("index", describe(flow, op), f"{held} node{'s' * (held > 1)} of index arithmetic stay float32")
            )


def _sink(flow: Dataflow, op: Op, counted: set[int]) -> tuple[str, list[int]] | None:
    """What an operator makes of a float that must be exact, and the float inputs concerned."""
    values = flow.values
    if op.role in CONVERSIONS and op.slots and values[op.outputs[0]].dtype.startswith(("int", "uint")):
        return "an integer is computed from it in", [op.inputs[0]]
    if op.role in ("Resize", "Upsample"):
        scales = op.inputs[1:2] if len(op.inputs) == 2 else op.inputs[2:3]
        return "a size is computed from it in", [v for v in scales if v != NONE]
    if op.role in SIZES and op.slots:
        return "a length is computed from it in", [op.inputs[i] for i in SIZES[op.role] if i < len(op.inputs)]
    if op.role in COMPARE and any(v in counted for v in op.inputs):
        return "integers are compared in", list(op.inputs)
    return None


def _integer_valued(state: State) -> set[int]:
    """Float values that are integers in disguise: a Cast of integers, and what moves or compares them exactly."""
    flow, found = state.flow, set()
    for op in flow.ops:
        if op.role in CONVERSIONS:
            source, made = flow.values[op.inputs[0]], flow.values[op.outputs[0]].dtype == FLOAT32
            integer = made and (source.dtype.startswith(("int", "uint")) or source.id in found)
        elif op.role in EXACT and any(v in found for v in op.inputs):
            floats = [flow.values[v] for v in op.inputs if v != NONE and flow.values[v].dtype == FLOAT32]
            integer = all(item.weight or item.id in found for item in floats)
        else:
            continue
        if integer:
            found |= state.borders.copies(op.outputs[0])
    return found


def _hold_upstream(state: State, values: list[int], why: Why, seen: set[int]) -> int:
    """Holds the elementwise arithmetic behind some values, back to products, norms and bounded functions."""
    flow, held, before = state.flow, 0, state.borders.before
    work = [v for v in values if v != NONE]
    while work:
        value = work.pop()
        if value in seen or flow.values[value].dtype != FLOAT32:
            continue
        seen.add(value)
        if value in before:  # made in a body, or by a caller
            held += flow.values[value].unit != NONE and state.set(flow.values[value].unit, HIGH, VALIDITY, why)
            work += before[value]
            continue
        op = flow.writer(value)
        if op is None or not op.slots or state.class_of_op[op.id] in ("white", "kept") or op.role in STOPS:
            continue
        held += state.hold(op, VALIDITY, why)
        if not (op.role in CONVERSIONS and flow.values[op.inputs[0]].dtype != FLOAT32):
            work += [v for v in op.inputs if v != NONE]
    return held
