"""Parameters that are moved together: one set of slots and one pass of each kind for a whole run of small tensors.

As the multi-tensor optimizers of Apex and torch do: what a runtime spends on each operator is spent once for a run and
not once for a parameter. A run is as long as its temporaries may be; a larger parameter is moved alone. Every number is
that of the update one by one, but for the norm of all gradients, which is summed in another order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..gradients.builder import Builder
from .groups import ParameterGroup, distinct
from .optimizers import OPTIMIZERS, AdamW, Elementwise, Optimizer
from .state_tensors import AVERAGE, EMA, SLOT, StateBuilder

Value = ir.Value
FLOAT = int(ir.DataType.FLOAT)
ON_CPU, ELSEWHERE = 1 << 17, 1 << 22
"""Numbers of a run. On a CPU its temporaries stay in the cache (benchmarks/train_cpu.md); elsewhere launches are saved,
and a temporary takes 16 MB."""


@dataclass(frozen=True)
class Part:
    """Parameters of a group that are moved together. ``gradient``: float32, flat where there are several."""

    parameters: tuple[Value, ...]
    gradient: Value
    group: ParameterGroup


@dataclass(frozen=True)
class Move:
    """What the update of a parameter takes from its group."""

    optimizer: Optimizer
    begun: Sequence[Value]
    average: tuple[Value, Value] | None
    holds: Value | None


def longest_run(target: object) -> int:
    """How many numbers are moved together at most."""
    return ON_CPU if target == "cpu" else ELSEWHERE


def parts_of(
    b: Builder, parameters: Sequence[Value], gradients: Sequence[Value], groups: Sequence[ParameterGroup], limit: int
) -> list[Part]:
    """All parameters in runs of at most ``limit`` numbers, group by group; only those of optimizers that are known."""
    parts = []
    for group in distinct(groups):
        rows = zip(parameters, gradients, groups, strict=True)
        mine = {parameter: gradient for parameter, gradient, own in rows if own.pattern == group.pattern}
        together = type(group.optimizer) in OPTIMIZERS.values()
        for run in _runs(list(mine), limit if together else 0):
            parts.append(Part(tuple(run), _flat(b, [mine[parameter] for parameter in run]), group))
    return parts


def move_together(states: StateBuilder, part: Part, move: Move) -> None:
    """Commits several parameters and their common slots; a step that does not hold moves them by zero."""
    b, optimizer, begun = states.builder, move.optimizer, move.begun
    assert isinstance(optimizer, Elementwise)
    b.scope = f"{part.parameters[0].name}+{len(part.parameters) - 1}"
    sizes = [_size(parameter) for parameter in part.parameters]
    slots = [states.add(f"{s}/{b.scope}", np.zeros(sum(sizes), np.float32), SLOT) for s in optimizer.slots]
    wide = [_wide(b, parameter) for parameter in part.parameters]
    apart = isinstance(optimizer, AdamW)  # its decay is that of the parameter, and not of the gradient
    gradient = part.gradient
    if not apart and optimizer.weight_decay:
        _, gradient = optimizer.decayed(b, _flat(b, wide), gradient, begun)
    total, after = optimizer.moved(b, gradient, slots, begun)
    if move.holds is not None:
        total = b.op("Where", move.holds, total, b.number(0))
        begun = [*begun[:-1], b.op("Where", move.holds, begun[-1], b.number(1))] if apart else begun
    states.commit(dict(zip(slots, after, strict=True)), when=move.holds)
    for parameter, old, piece in zip(part.parameters, wide, _split(b, total, sizes), strict=True):
        b.scope = parameter.name or ""
        kept = optimizer.decayed(b, old, gradient, begun)[0] if apart else old
        new = b.op("Sub", kept, b.op("Reshape", piece, b.ints(*_shape(parameter))))
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
        if _size(parameter) >= limit or not _size(parameter):
            yield [parameter]
            continue
        if sum(map(_size, run)) + _size(parameter) > limit:
            yield run
            run = []
        run.append(parameter)
    if run:
        yield run


def _flat(b: Builder, values: Sequence[Value]) -> Value:
    """One value as it is, several as a vector."""
    if len(values) == 1:
        return values[0]
    return b.op("Concat", *(b.op("Reshape", value, b.ints(-1)) for value in values), axis=0)


def _split(b: Builder, value: Value, sizes: Sequence[int]) -> list[Value]:
    return b.ops("Split", len(sizes), value, b.ints(*sizes), axis=0)


def _wide(b: Builder, parameter: Value) -> Value:
    return parameter if parameter.dtype == ir.DataType.FLOAT else b.op("Cast", parameter, to=FLOAT)


def _shape(parameter: Value) -> tuple[int, ...]:
    return parameter.shape.numpy() if parameter.shape is not None else ()


def _size(parameter: Value) -> int:
    return math.prod(_shape(parameter))
