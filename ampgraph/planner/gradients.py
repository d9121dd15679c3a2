"""Gradients in a file that has them: each has the type of its forward operator."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.dataflow import NONE, Dataflow, Op


def forward_of(flow: Dataflow, op: Op) -> Op:
    """The forward operator of a gradient; any other operator itself."""
    return flow.ops[op.follows] if op.follows != NONE else op


def tied_to_forward(flow: Dataflow, op: Op) -> Iterator[tuple[int, int]]:
    """Units of a gradient, each with the one of its forward operator: slot by slot, or the first where the gradient has
    one slot of another name."""
    if op.follows == NONE:
        return
    forward = flow.ops[op.follows].slots
    for slot, unit in op.slots.items():
        owner = forward.get(slot, next(iter(forward.values()), NONE) if len(op.slots) == 1 else NONE)
        if owner != NONE and not flow.units[unit].fixed and not flow.units[owner].fixed:
            yield owner, unit
