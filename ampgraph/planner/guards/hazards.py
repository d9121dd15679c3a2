"""What a hazard does downstream: it ties gray operators to float32 up to the next product, norm or bounded function."""

from __future__ import annotations

from ...core.dataflow import NONE
from ...core.plan import Why
from ..state import ACCURACY, RANGE, State, describe

STOPS = {"Softmax", "LogSoftmax", "Sigmoid", "Tanh", "Sin", "Cos", "Erf", "HardSigmoid", "Hardmax", "Softsign", "Atan"}
"""Bounded functions: whatever comes in, what goes out is in range."""


def spread_hazards(state: State) -> None:
    """Follows every source. A hazard of accuracy ties gray operators; one of range ties all but products, and what a
    bounded function or a norm reads."""
    flow = state.flow
    seen: set[tuple[int, bool]] = set()
    for source, reason, of_range in state.sources:
        if flow.ops[source].role in STOPS:
            continue
        origin = describe(flow, flow.ops[source])
        why = Why("hazard", f"reads what '{origin}' made in float32 ({reason.text})")
        work = [source]
        while work:
            op = flow.ops[work.pop()]
            if (op.id, of_range) in seen:
                continue
            seen.add((op.id, of_range))
            for value in _results(state, op.id):
                for use in flow.uses[value]:
                    if use.op == NONE or use.unit == NONE:
                        continue
                    reader = flow.ops[use.op]
                    cls = state.class_of_op[reader.id]
                    ends = reader.role in STOPS or cls in ("white", "kept", "")
                    if ends:
                        if of_range and cls != "white":
                            state.hold(reader, RANGE, why)
                        continue
                    if of_range or cls in ("gray", "black"):
                        state.hold(reader, RANGE if of_range else ACCURACY, why)
                    work.append(reader.id)


def _results(state: State, op: int) -> list[int]:
    """The float32 values that carry on from an operator, into and out of bodies as well."""
    flow = state.flow
    values = [v for v in flow.ops[op].outputs if flow.values[v].dtype == "float32"]
    return [c for v in values for c in state.borders.copies(v) if flow.values[c].unit != NONE]
