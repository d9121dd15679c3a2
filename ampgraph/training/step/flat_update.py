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
from .choices import NextState
from .groups import ParameterGroup, distinct
from .optimizers import OPTIMIZERS, AdamW, Elementwise, Optimizer
from .state_tensors import AVERAGE, EMA, SLOT, StateBuilder
from .training_step import Run
from .update_graph import UpdateGraph
from .vectors import LOW, by_width, dims, hold_as_vectors, joined, low_source, pieces_of, size, split, together

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
    """Parameters of a group that are moved together, in the gradients. ``handed``: their gradients in float32, one
    behind another; flat where ``vectors``: the graph holds such parameters as vectors. ``whole``: all of these side by
    side, where the gradients read them so."""

    parameters: tuple[Value, ...]
    handed: tuple[Value, ...]
    group: ParameterGroup
    vectors: bool = False
    whole: Value | None = None

    @property
    def scope(self) -> str:
        """What slots of all of them are called."""
        more = len(self.parameters) - 1
        return f"{self.parameters[0].name}+{more}" if more else self.parameters[0].name or ""

    @property
    def by_element(self) -> bool:
        """Whether the optimizer is known to move each element by itself."""
        return type(self.group.optimizer) in OPTIMIZERS.values()


@dataclass(frozen=True)
class Move:
    """What the update of a parameter takes from its group; ``choices``: takes all next numbers. ``alone``: chosen with
    no others, whose elements ranks share out."""

    optimizer: Optimizer
    begun: Sequence[Value]
    average: tuple[Value, Value] | None
    holds: Value | None
    choices: list[NextState]
    alone: bool = False

    def choose(self, olds: Sequence[Value], old: Value, new: Value) -> None:
        """``new`` follows on state, unless the step does not hold."""
        self.choices.append(NextState(tuple(olds), old, new, self.alone))


def parts_of(
    states: StateBuilder,
    parameters: Sequence[Value],
    gradients: Sequence[Value],
    groups: Sequence[ParameterGroup],
    how: Together,
) -> list[Part]:
    """All parameters in runs, group by group; only those of optimizers that are known are moved together."""
    parts = []
    for group in distinct(groups):
        rows = zip(parameters, gradients, groups, strict=True)
        mine = {parameter: gradient for parameter, gradient, own in rows if own.pattern == group.pattern}
        known = type(group.optimizer) in OPTIMIZERS.values()
        for run in _runs(list(mine), how.longest if known else 0):
            found = [mine[parameter] for parameter in run]
            if how.vectors and len(run) > 1:
                parts.append(_vectors(states, run, found, group))
            else:
                wide = [states.builder.cast(gradient, ir.DataType.FLOAT) for gradient in found]
                parts.append(Part(tuple(run), tuple(wide), group))
    return parts


def _vectors(states: StateBuilder, run: list[Value], gradients: list[Value], group: ParameterGroup) -> Part:
    """Parameters, and gradients, of one type lie side by side. The low ones, those of products, come last: ONNX Runtime
    goes back from the last node first, so that their operands are given back where their layer is done."""
    rows = list(zip(run, map(low_source, gradients), strict=True))
    rows.sort(key=lambda row: [LOW.index(value.dtype) if value.dtype in LOW else -1 for value in row])
    rows = _matrices_last(rows)
    parameters = tuple(p for p, _ in rows)
    whole = hold_as_vectors(states, parameters)
    return Part(parameters, tuple(pieces_of(states.builder, [g for _, g in rows])), group, True, whole)


def gradient_of(update: UpdateGraph, part: Part) -> Value:
    """The gradient of a part in the update, flat where there are several parameters. Each has a Reshape, vectors too:
    ONNX Runtime goes back from the last node first, and so each is computed where its layer is, from numbers that are
    in the cache."""
    b, given = update.states.builder, [update.read(value) for value in part.handed]
    if len(part.parameters) > 1 and not part.vectors:
        given = [b.typed(b.op("Reshape", one, b.ints(-1)), ir.DataType.FLOAT, size(one)) for one in given]
    return together(b, given)


def _matrices_last(rows: list[tuple[Value, Value]]) -> list[tuple[Value, Value]]:
    """Of those whose gradients are low, which are last, matrices of one width behind the others."""
    first = next((place for place, (_, gradient) in enumerate(rows) if gradient.dtype in LOW), len(rows))
    low = rows[first:]
    matrices = by_width([parameter for parameter, _ in low])
    order = sorted(zip(matrices, low, strict=True), key=lambda one: one[0])
    return rows[:first] + [row for _, row in order]


def move_vectors(update: UpdateGraph, part: Part, gradient: Value, move: Move) -> Run:
    """Commits several parameters that are vectors, and their common slots."""
    states, optimizer = update.states, move.optimizer
    b, parameters = states.builder, [update.read(parameter) for parameter in part.parameters]
    b.scope = part.scope
    slots = _slots(states, part, (sum(map(size, parameters)),))
    old = joined(b, parameters)
    update.same(part.whole, old)
    new, after = optimizer.update(b, old, gradient, slots, move.begun)
    averages = [] if move.average is None else _averaged_vectors(states, part, new, move)
    for slot, moved in zip(slots, after, strict=True):
        move.choose([slot], slot, moved)
    move.choose(parameters, old, new)
    return _run(part, slots, averages)


def _averaged_vectors(states: StateBuilder, part: Part, new: Value, move: Move) -> list[Value]:
    """The running averages of parameters, whose next values are ``new``."""
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
    move.choose(averages, old, b.op("Add", b.op("Mul", old, kept), b.op("Mul", new, entering)))
    return averages


def move_together(update: UpdateGraph, part: Part, gradient: Value, move: Move) -> Run:
    """Commits several parameters and their common slots; a step that does not hold moves them by zero."""
    states, optimizer, begun = update.states, move.optimizer, move.begun
    assert isinstance(optimizer, Elementwise)
    b, parameters, averages = states.builder, [update.read(parameter) for parameter in part.parameters], []
    b.scope = part.scope
    sizes = [size(parameter) for parameter in parameters]
    slots = _slots(states, part, (sum(sizes),))
    wide = [_wide(b, parameter) for parameter in parameters]
    decays = isinstance(optimizer, AdamW)  # its decay is that of the parameter, and not of the gradient
    if not decays and optimizer.weight_decay:
        _, gradient = optimizer.decayed(b, joined(b, wide), gradient, begun)
    total, after = optimizer.moved(b, gradient, slots, begun)
    if move.holds is not None:
        total = b.op("Where", move.holds, total, b.number(0))
        begun = [*begun[:-1], b.op("Where", move.holds, begun[-1], b.number(1))] if decays else begun
    for slot, moved in zip(slots, after, strict=True):
        move.choose([slot], slot, moved)
    for parameter, old, piece in zip(parameters, wide, split(b, total, sizes), strict=True):
        b.scope = parameter.name or ""
        kept = optimizer.decayed(b, old, gradient, begun)[0] if decays else old
        new = b.op("Sub", kept, b.op("Reshape", piece, b.ints(*dims(parameter))))
        averages += add_average(states, parameter, new, move)
        states.commit({parameter: new if old is parameter else b.op("Cast", new, to=int(parameter.dtype or FLOAT))})
    return _run(part, slots, averages)


def move_alone(update: UpdateGraph, part: Part, gradient: Value, move: Move) -> Run:
    """Commits one parameter and its slots. A low one is raised for the arithmetic and rounded once."""
    states, [outer] = update.states, part.parameters
    b, parameter = states.builder, update.read(outer)
    b.scope = part.scope
    slots = _slots(states, part, dims(parameter))
    wide = _wide(b, parameter)
    new, after = move.optimizer.update(b, wide, gradient, slots, move.begun)
    averages = add_average(states, parameter, new, move)
    if wide is not parameter:
        new = b.op("Cast", new, to=int(parameter.dtype or FLOAT))
    for old, moved in zip([parameter, *slots], [new, *after], strict=True):
        move.choose([old], old, moved)
    return _run(part, slots, averages)


def add_average(states: StateBuilder, parameter: Value, new: Value, move: Move) -> list[Value]:
    """The running average of a parameter, whose next value is ``new``, if there is to be one."""
    if move.average is None or parameter.const_value is None:
        return []
    b, (kept, entering) = states.builder, move.average
    old = states.add(f"{EMA}{parameter.name}", parameter.const_value.numpy().astype(np.float32), AVERAGE)
    move.choose([old], old, b.op("Add", b.op("Mul", old, kept), b.op("Mul", new, entering)))
    return [old]


def _slots(states: StateBuilder, part: Part, shape: tuple[int, ...]) -> list[Value]:
    assert part.group.optimizer is not None
    names = part.group.optimizer.slots
    return [states.add(f"{slot}/{part.scope}", np.zeros(shape, np.float32), SLOT) for slot in names]


def _run(part: Part, slots: Sequence[Value], averages: Sequence[Value]) -> Run:
    gradients = _names(part.handed)
    return Run(_names(part.parameters), _names(slots), _names(averages), gradients, whole=not part.by_element)


def _names(values: Sequence[Value]) -> tuple[str, ...]:
    return tuple(value.name or "" for value in values)


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
