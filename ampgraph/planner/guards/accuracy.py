"""Accuracy guards: numbers that anyone can see without data, and that the low type would spoil."""

from __future__ import annotations

import math

from ...core.dataflow import NONE, Dataflow, Op
from ...core.plan import Note, Why
from ..state import ACCURACY, CONVERSIONS, INVERSE_ROOT, SQUARE, State, describe

DIVISION_EPS = 1e-3  # x / (y + eps): below it, y + eps loses eps and the quotient leaves the range
LONG_SUM = {"float16": 2048, "bfloat16": 256}  # integers are exact up to here
SUMS = {
    "ReduceSum",
    "ReduceMean",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "GlobalAveragePool",
    "GlobalLpPool",
    "AveragePool",
    "LpPool",
    "com.microsoft::ReduceSumInteger",
}
PREFIX = {"CumSum", "CumProd"}
SENSITIVE = {"Sqrt", "Log", "Reciprocal", "Div", "Pow", INVERSE_ROOT}
THROUGH = {
    "Identity",
    "Reshape",
    "Transpose",
    "Unsqueeze",
    "Squeeze",
    "Expand",
    "Cast",
    "CastLike",
    "Slice",
    "Flatten",
    "Mul",
}


def guard_accuracy(state: State) -> None:
    """Runs every guard over every operator. At O3 a guard that fires is reported and holds nothing."""
    if state.options.level.accuracy_guards == "off":
        return
    holds = state.options.level.accuracy_guards == "hold"
    for op in state.flow.ops:
        if not op.slots or op.id in state.region_of_op and state.region_of_op[op.id] != "Bias":
            continue
        for guard in (_eps, _exp_sum, _long_sum, _pow, _prefix_sum, _positions):
            found = guard(state, op)
            if found is None:
                continue
            why, ops = found
            if holds:
                effect = [state.hold(other, ACCURACY, why) for other in ops]
                state.sources.extend((other.id, why, False) for other in ops)
                if any(effect):
                    state.notes.append(Note(why.rule, describe(state.flow, op), why.text))
            elif any(state.is_low(u) for other in ops for u in other.slots.values()):
                state.notes.append(Note(f"{why.rule} (not held)", describe(state.flow, op), why.text))


def _reaches(flow: Dataflow, op: Op, kinds: set[str], through: set[str]) -> list[Op]:
    """The chain from an operator to the first of ``kinds`` behind exact moves; empty when there is none."""
    for reader in (r for v in op.outputs for r in flow.readers(v)):
        if reader.role in kinds:
            return [reader]
        if reader.role in through and reader.slots:
            chain = _reaches(flow, reader, kinds, through - {reader.role})
            if chain:
                return [reader, *chain]
    return []


def _eps(state: State, op: Op) -> tuple[Why, list[Op]] | None:
    """y + eps or max(y, eps) with an eps that vanishes, before a division, root or logarithm."""
    if op.role not in ("Add", "Sub", "Max", "Clip"):
        return None
    flow = state.flow
    numbers = [n for v in op.inputs[:2] if v != NONE and (n := flow.scalar(v)) is not None]
    if op.role == "Clip" and (lowest := flow.attribute(op, "min")) is not None:  # before opset 11
        numbers.append(float(lowest))
    if len(numbers) != 1 or not 0 < abs(numbers[0]) < DIVISION_EPS:
        return None
    eps = abs(numbers[0])
    chain = _reaches(flow, op, SENSITIVE, THROUGH)
    if not chain:
        return None
    end = chain[-1]
    before = chain[-2].outputs if len(chain) > 1 else op.outputs
    divides = end.role == "Reciprocal" or (end.role == "Div" and end.inputs[1] in before)
    if end.role == "Div" and not divides:
        return None
    if eps >= state.options.smallest_normal and not (divides and state.options.dtype == "float16"):
        return None
    further = _reaches(flow, end, {"Div", "Reciprocal"}, set()) if end.role == "Sqrt" else []
    normal = f"smallest normal {state.options.smallest_normal:.3g}"
    text = f"eps {eps:g} is lost in {state.options.dtype} ({normal}) before {end.kind}"
    return Why("eps", text), [op, *chain, *further]


def _exp_sum(state: State, op: Op) -> tuple[Why, list[Op]] | None:
    """exp(x) that is summed: exp leaves float16 at 11.09."""
    if op.role != "Exp" or state.options.dtype != "float16":
        return None
    chain = _reaches(state.flow, op, {"ReduceSum", "ReduceMean", "CumSum", "ReduceLogSum", "Add", "Sum"}, THROUGH)
    if not chain:
        return None
    chain += _reaches(state.flow, chain[-1], {"Div", "Log"}, THROUGH)
    return Why("exp-sum", "Exp overflows float16 above 11.09 and its sum has no upper bound"), [op, *chain]


def _long_sum(state: State, op: Op) -> tuple[Why, list[Op]] | None:
    if op.role not in SUMS:
        return None
    count, limit = _summed(state, op), LONG_SUM[state.options.dtype]
    if count <= limit:
        return None
    return Why("long-sum", f"{op.kind} adds {count:,} elements; {state.options.dtype} counts to {limit:,}"), [op]


def _summed(state: State, op: Op) -> int:
    """How many elements go into one result, with unknown dimensions guessed."""
    flow = state.flow
    dims = flow.dims(op.inputs[0], state.options.dims)
    if op.role.startswith("Global"):
        return math.prod(dims[2:])
    if op.role.endswith("Pool"):
        return math.prod(flow.attribute(op, "kernel_shape") or ())
    axes = flow.attribute(op, "axes")
    if axes is None and len(op.inputs) > 1 and op.inputs[1] != NONE:
        item = flow.values[op.inputs[1]]
        array = flow.weights.array(item) if item.weight else None
        axes = [-1] if array is None else array.reshape(-1).tolist()
    if not axes:
        return 1 if flow.attribute(op, "noop_with_empty_axes") else math.prod(dims)
    return math.prod(dims[a] for a in axes if -len(dims) <= a < len(dims))


def _pow(state: State, op: Op) -> tuple[Why, list[Op]] | None:
    """A power above 1 leaves float16 early: x**2 at 256, x**3 at 40.3; below 0 near zero."""
    if op.role not in ("Pow", SQUARE) or state.options.dtype != "float16":
        return None
    exponent = 2.0 if op.role == SQUARE else state.flow.scalar(op.inputs[1])
    if exponent is not None and 0 <= exponent <= 1:
        return None
    text = "an unknown exponent" if exponent is None else f"exponent {exponent:g}"
    return Why("pow", f"{op.kind} with {text} leaves float16 early (x**2 above 255.9)"), [op]


def _prefix_sum(state: State, op: Op) -> tuple[Why, list[Op]] | None:
    if op.role not in PREFIX:
        return None
    limit = LONG_SUM[state.options.dtype]
    return Why(
        "cumsum",
        f"{op.kind} is exact up to {limit:,} in {state.options.dtype}, and every later element inherits the error",
    ), [op]


def _positions(state: State, op: Op) -> tuple[Why, list[Op]] | None:
    """Angles from positions: a step of float16 above 2048 is 2 rad. Holds what computes them, products included."""
    if op.role not in ("Sin", "Cos"):
        return None
    flow, held, work, seen = state.flow, [op], list(op.inputs), state.angles
    seen.add(op.id)
    if state.activations is None:
        state.activations = _activations(state)
    while work:
        for value in state.borders.origins(work.pop()):
            writer = flow.writer(value)
            if writer is None or writer.id in seen or not writer.slots or writer.id in state.activations:
                continue
            seen.add(writer.id)
            held.append(writer)
            if not (writer.role in CONVERSIONS and flow.values[writer.inputs[0]].dtype != "float32"):
                work += [v for v in writer.inputs if v != NONE]
    return Why("positions", f"angles of {op.kind} lose their period in {state.options.dtype}"), held


def _activations(state: State) -> set[int]:
    """Operators that see what a product or a norm made of data: no positions, and rounded already."""
    flow, found, seen = state.flow, set(), set()
    for op in flow.ops:
        cls = state.class_of_op[op.id]
        product = cls == "white" and not _from_integers(state, op)
        if product or cls == "kept" or any(v in seen for v in op.inputs):
            found.add(op.id)
            for value in op.outputs:
                seen |= state.borders.copies(value)
    return found


def _from_integers(state: State, op: Op, depth: int = 0) -> bool:
    """Whether an operator sees only constants and integers made float: positions, not activations."""
    flow = state.flow
    if depth > 12:
        return False
    for source in op.inputs:
        for value in state.borders.origins(source) if source != NONE else ():
            item = flow.values[value]
            if item.weight or item.dtype != "float32" or value in state.borders.before:
                continue
            writer = flow.writer(value)
            if writer is None or not _from_integers(state, writer, depth + 1):
                return False
    return True
