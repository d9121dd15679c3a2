"""Parameters that are moved together: one set of slots and one pass of each kind for a whole run of small tensors.

As the multi-tensor optimizers of Apex and torch do: what a runtime spends on each operator is spent once for a run and
not once for a parameter. A run is as long as its temporaries may be; a larger parameter is moved alone. Every number is
that of the update one by one, but for the norm of all gradients, which is summed in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..gradients.builder import Builder
from .groups import ParameterGroup, distinct
from .optimizers import OPTIMIZERS, AdamW, Elementwise, Optimizer
from .state_tensors import AVERAGE, EMA, SLOT, StateBuilder
from .vectors import LOW, apart, by_width, dims, hold_as_vectors, joined, low_source, size, split

Value = ir.Value
FLOAT = int(ir.DataType.FLOAT)
ON_CPU, ELSEWHERE = 1 << 17, 1 << 22
"""Numbers of a run. On a CPU its temporaries stay in the cache (benchmarks/train_cpu.md); elsewhere launches are saved,
and a temporary takes 16 MB."""


@dataclass(frozen=True)
class Together:
    """How parameters are moved together: ``longest``: how many numbers at most; ``vectors``: whether the graph holds
    those as vectors, so that none of them has a node of its own in the update."""

    longest: int = 0
    vectors: bool = False

    @staticmethod
    def on(target: object) -> Together:
        """On a CPU a parameter is written where it lies, which takes no further copy; elsewhere launches are saved."""
        return Together(ON_CPU) if target == "cpu" else Together(ELSEWHERE, True)


@dataclass(frozen=True)
class Part:
    """Parameters of a group that are moved together. ``gradient``: float32, flat where there are several. ``vectors``:
    the graph holds them as vectors, and this is all of them."""

    parameters: tuple[Value, ...]
    gradient: Value
    group: ParameterGroup
    vectors: Value | None = None


@dataclass(frozen=True)
class Move:
    """What the update of a parameter takes from its group."""

    optimizer: Optimizer
    begun: Sequence[Value]
    average: tuple[Value, Value] | None
    holds: Value | None


def parts_of(
    states: StateBuilder,
    parameters: Sequence[Value],
    gradients: Sequence[Value],
    groups: Sequence[ParameterGroup],
    how: Together,
) -> list[Part]:
    """All parameters in runs, group by group; only those of optimizers that are known."""
    parts = []
    for group in distinct(groups):
        rows = zip(parameters, gradients, groups, strict=True)
        mine = {parameter: gradient for parameter, gradient, own in rows if own.pattern == group.pattern}
        together = type(group.optimizer) in OPTIMIZERS.values()
        for run in _runs(list(mine), how.longest if together else 0):
            whole = _part_of_vectors if how.vectors and len(run) > 1 else _part
            parts.append(whole(states, run, [mine[parameter] for parameter in run], group))
    return parts


def _part(states: StateBuilder, run: list[Value], gradients: list[Value], group: ParameterGroup) -> Part:
    """Each gradient has a Reshape, vectors too: ONNX Runtime goes back from the last node first, and so each is
    computed where its layer is, from numbers that are in the cache."""
    b = states.builder
    if len(run) > 1:
        gradients = [
            b.typed(b.op("Reshape", gradient, b.ints(-1)), ir.DataType.FLOAT, size(parameter))
            for parameter, gradient in zip(run, gradients, strict=True)
        ]
    return Part(tuple(run), joined(b, gradients), group)


def _part_of_vectors(states: StateBuilder, run: list[Value], gradients: list[Value], group: ParameterGroup) -> Part:
    """Parameters, and gradients, of one type lie side by side. The low ones, those of products, come last: ONNX Runtime
    goes back from the last node first, so that their operands are given back where their layer is done."""
    rows = list(zip(run, map(low_source, gradients), strict=True))
    rows.sort(key=lambda row: [LOW.index(value.dtype) if value.dtype in LOW else -1 for value in row])
    rows = _matrices_last(rows)
    parameters = tuple(p for p, _ in rows)
    whole = hold_as_vectors(states, parameters)
    return Part(parameters, joined(states.builder, [g for _, g in rows]), group, whole)


def _matrices_last(rows: list[tuple[Value, Value]]) -> list[tuple[Value, Value]]:
    """Of those whose gradients are low, which are last, matrices of one width behind the others."""
    first = next((place for place, (_, gradient) in enumerate(rows) if gradient.dtype in LOW), len(rows))
    low = rows[first:]
    matrices = by_width([parameter for parameter, _ in low])
    order = sorted(zip(matrices, low, strict=True), key=lambda one: one[0])
    return rows[:first] + [row for _, row in order]


def move_vectors(states: StateBuilder, part: Part, move: Move) -> None:
    """Commits several parameters that are vectors, and their common slots."""
    b, optimizer = states.builder, move.optimizer
    b.scope = scope = f"{part.parameters[0].name}+{len(part.parameters) - 1}"
    count = sum(map(size, part.parameters))
    slots = [states.add(f"{s}/{scope}", np.zeros(count, np.float32), SLOT) for s in optimizer.slots]
    old = part.vectors
    assert old is not None
    new, after = optimizer.update(b, old, part.gradient, slots, move.begun)
    if move.average is not None:
        _average_vectors(states, part, new, move)
    states.commit(dict(zip(slots, after, strict=True)), when=move.holds)
    _commit_apart(states, part.parameters, new, old, move.holds)


def _average_vectors(states: StateBuilder, part: Part, new: Value, move: Move) -> None:
    """Commits the running averages of parameters, whose next values are ``new``."""
    assert move.average is not None
    b, (kept, entering) = states.builder, move.average
    averages = []
    for parameter in part.parameters:
        first = parameter.const_value
        assert first is not None
        shape = states.shapes.get(parameter.name or "", dims(parameter))
        wide = first.numpy().astype(np.float32).reshape(shape)
        averages.append(states.add_vector(f"{EMA}{parameter.name}", wide, AVERAGE))
    old = joined(b, averages)
    moved = b.op("Add", b.op("Mul", old, kept), b.op("Mul", new, entering))
    _commit_apart(states, averages, moved, old, move.holds)


def _commit_apart(states: StateBuilder, vectors: Sequence[Value], new: Value, old: Value, holds: Value | None) -> None:
    """One choice between the old numbers and the new ones, for all vectors."""
    b = states.builder
    chosen = new if holds is None else b.op("Where", holds, new, old)
    states.commit(dict(zip(vectors, apart(b, chosen, vectors), strict=True)))


def move_together(states: StateBuilder, part: Part, move: Move) -> None:
    """Commits several parameters and their common slots; a step that does not hold moves them by zero."""
    b, optimizer, begun = states.builder, move.optimizer, move.begun
    assert isinstance(optimizer, Elementwise)
    b.scope = f"{part.parameters[0].name}+{len(part.parameters) - 1}"
    sizes = [size(parameter) for parameter in part.parameters]
    slots = [states.add(f"{s}/{b.scope}", np.zeros(sum(sizes), np.float32), SLOT) for s in optimizer.slots]
    wide = [_wide(b, parameter) for parameter in part.parameters]
    decays = isinstance(optimizer, AdamW)  # its decay is that of the parameter, and not of the gradient
    gradient = part.gradient
    if not decays and optimizer.weight_decay:
        _, gradient = optimizer.decayed(b, joined(b, wide), gradient, begun)
    total, after = optimizer.moved(b, gradient, slots, begun)
    if move.holds is not None:
        total = b.op("Where", move.holds, total, b.number(0))
        begun = [*begun[:-1], b.op("Where", move.holds, begun[-1], b.number(1))] if decays else begun
    states.commit(dict(zip(slots, after, strict=True)), when=move.holds)
    for parameter, old, piece in zip(part.parameters, wide, split(b, total, sizes), strict=True):
        b.scope = parameter.name or ""
        kept = optimizer.decayed(b, old, gradient, begun)[0] if decays else old
        new = b.op("Sub", kept, b.op("Reshape", piece, b.ints(*dims(parameter))))
        if move.average is not None:
            add_average(states, parameter, new, move)
        states.commit({parameter: new if old is parameter else b.op("Cast", new, to=int(parameter.dtype or FLOAT))})


def add_average(states: StateBuilder, parameter: Value, new: Value, move: Move) -> None:
    """Commits the running average of a parameter, whose next value is ``new``."""
    if move.average is not None and parameter.const_value is not None:
        b, (kept, entering) = states.builder, move.average
        old = states.add(f"{EMA}{parameter.name}", parameter.const_value.numpy().astype(np.float32), AVERAGE)
        states.commit({old: b.op("Add", b.op("Mul", old, kept), b.op("Mul", new, entering))}, when=move.holds)


def _runs(parameters: Sequence[Value], limit: int) -> Iterator[list[Value]]:
    run: list[Value] = []
    for parameter in parameters:
        if size(parameter) >= limit or not size(parameter):
            yield [parameter]
            continue
        if sum(map(size, run)) + size(parameter) > limit:
            yield run
            run = []
        run.append(parameter)
    if run:
        yield run


def _wide(b: Builder, parameter: Value) -> Value:
    return parameter if parameter.dtype == ir.DataType.FLOAT else b.op("Cast", parameter, to=FLOAT)
