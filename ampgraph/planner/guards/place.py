"""Accuracy guards that look at a node's place: residual streams, and what comes after the last product."""

from __future__ import annotations

import math

from ...core.dataflow import NONE, Op
from ...core.plan import Why
from ..state import ACCURACY, FREE, LIST, LOW, REGION, State

SHORTEST_STREAM = 3  # additions: the errors of n roundings add up to sqrt(n / 12) steps, half a step from here on
MOVES = {"Identity", "Dropout"}


def guard_streams(state: State) -> None:
    """Holds the additions to a residual stream that float32 norms read: each block would round the stream once more.

    Only where float32 takes no more Casts: the stream is widened for a norm anyway, and nobody reads it low.
    """
    if state.options.level.accuracy_guards != "hold":
        return
    wide: dict[int, list[Op]] = {}  # addition -> what moves its result to the readers
    for op in reversed(state.flow.ops):  # readers first
        moves = _moves_to_norms(state, op, wide) if _is_addition(state, op) else None
        if moves is not None:
            wide[op.id] = moves
    head: dict[int, int] = {}  # addition -> the first one of its stream
    streams: dict[int, list[Op]] = {}
    for op in state.flow.ops:
        if op.id not in wide:
            continue
        before = [w.id for v in op.inputs if (w := _source(state, v)) is not None and w.id in head]
        if before or any(_widened(state, v, op) for v in op.inputs):
            head[op.id] = min((head[w] for w in before), default=op.id)
            streams.setdefault(head[op.id], []).append(op)
    for stream in streams.values():
        if len(stream) >= SHORTEST_STREAM:
            _hold(state, stream, [move for op in stream for move in wide[op.id]])


def _hold(state: State, stream: list[Op], moves: list[Op]) -> None:
    dtype, steps = state.options.dtype, math.sqrt(len(stream) / 12)
    why = Why(
        "stream",
        f"in a residual stream that norms read in float32: rounding its {len(stream)} additions to {dtype} "
        f"adds up to {steps:.1f} steps",
    )
    for op in (*stream, *moves):
        if not all(state.is_high(unit) for unit in op.slots.values()):
            state.hold(op, ACCURACY, why)


def _is_addition(state: State, op: Op) -> bool:
    """An addition of two computed values."""
    plain = op.role == "Add" and op.id not in state.region_of_op and state.class_of_op[op.id] == "gray"
    return plain and bool(op.slots) and not any(state.flow.values[v].weight for v in op.inputs)


def _moves_to_norms(state: State, op: Op, wide: dict[int, list[Op]]) -> list[Op] | None:
    """What moves a result on to its readers, where these are float32 norms and additions of the stream; else None."""
    flow, moves, normed = state.flow, {}, False
    work = list(op.outputs)
    while work:
        for use in flow.uses[work.pop()]:
            if use.op == NONE:
                if state.is_low(use.unit):
                    return None  # an output that was asked for in the low type
            elif state.is_high(use.unit):
                normed |= state.class_of_op[use.op] == "kept"
            elif use.unit != NONE and use.op not in wide and use.op not in moves:
                reader = flow.ops[use.op]
                if flow.units[use.unit].border or state.is_low(use.unit) or not _is_move(state, reader):
                    return None
                moves[reader.id] = reader
                work += reader.outputs
    return list(moves.values()) if normed else None


def _is_move(state: State, op: Op) -> bool:
    return op.role in MOVES or state.class_of_op[op.id] == "neutral"


def _source(state: State, value: int) -> Op | None:
    """The operator that made a value, seen through what passes it on."""
    while value != NONE and (op := state.flow.writer(value)) is not None:
        if not _is_move(state, op) or not op.inputs:
            return op
        value = op.inputs[0]
    return None


def _widened(state: State, value: int, reader: Op) -> bool:
    """Whether somebody else reads a value in float32."""
    return any(use.op not in (NONE, reader.id) and state.is_high(use.unit) for use in state.flow.uses[value])


def release_tail(state: State) -> None:
    """Lets the cut decide where results are widened that no further product reads, and prefer float32 there.

    What leaves the graph in float32 is cast anyway: before the last arithmetic costs no more than after it, and saves
    its rounding. A level that makes gray operators low would cast at the very end.
    """
    if state.options.level.accuracy_guards != "hold":
        return
    flow = state.flow
    read, made = _read_by_products(state), _made_by_products(state)
    why = Why("tail", "no product reads its result")
    where_wide = Why("tail", "no product reads its result: widened for the output before it, not after it")
    worth: dict[int, int] = {}  # by unit: -1 where all of it computes, 0 where some of it moves data, 1 elsewhere
    for op in flow.ops:
        cls = state.class_of_op[op.id] if op.id in made and op.id not in read else ""
        own = {"gray": -1, "black": -1, "neutral": 0}.get(cls, 1)
        for root in flow.op_units(op):
            worth[root] = max(worth.get(root, -1), own)
    for root, factor in worth.items():
        if factor < 0:
            _prefer_float32(state, root, why, where_wide)
        elif factor < 1 and state.value[root] == FREE:
            state.tail[root] = factor


def release_branches(state: State) -> None:
    """Lets the cut decide where branches are added in a training step, and prefer float32 where that costs no Cast.

    The residual stream and the gradients that meet in it are then rounded for their products only, as by autocast.
    """
    if state.options.level.accuracy_guards != "hold":
        return
    why = Why("branches", "adds branches, in float32 where that takes no more Casts")
    for op in state.flow.ops:
        for root in state.flow.op_units(op) if op.adds_branches else ():
            _prefer_float32(state, root, why, why)


def _prefer_float32(state: State, root: int, why: Why, where_wide: Why) -> None:
    """A byte more counts as one less: not enough to pay for a Cast."""
    if state.value[root] == LOW and state.rank[root] in (LIST, REGION):
        state.release(root, why)
    if state.value[root] == FREE:
        state.tail[root] = -1
        state.wide[root] = where_wide


def _made_by_products(state: State) -> set[int]:
    """Operators that see what some low product computed."""
    flow, found, values = state.flow, set(), set()
    for op in flow.ops:
        low = any(state.is_low(u) for u in op.slots.values()) or not op.slots  # by decision, or in the file
        if state.class_of_op[op.id] == "white" and low or any(v in values for v in op.inputs):
            found.add(op.id)
            for value in op.outputs:
                values |= state.borders.copies(value)
    return found


def _read_by_products(state: State) -> set[int]:
    """Operators with a product of any type behind them, or whose results leave a body, or the graph in the low type."""
    flow, found, values = state.flow, set(), set()
    for op in reversed(flow.ops):
        low = any(use.op == NONE and state.is_low(use.unit) for v in op.outputs for use in flow.uses[v])
        after = low or any(v in values or v in state.borders.after for v in op.outputs)
        if after or state.class_of_op[op.id] == "white":
            found.add(op.id)
            for value in op.inputs:
                if value != NONE:
                    values |= state.borders.origins(value)
    return found
