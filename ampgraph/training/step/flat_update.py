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

from ..gradients.builder import FLOAT, LOW
from .optimizers import OPTIMIZERS, AdamW, Elementwise, Optimizer, ParameterGroup, distinct
from .state_tensors import AVERAGE, EMA, SLOT, StateBuilder
from .training_step import Run
from .update_graph import UpdateGraph
from .vectors import by_width, dims, hold_as_vectors, joined, low_source, pieces_of, raised, size, split

Value = ir.Value
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
        """How to move parameters on a target: one by one in place on a CPU, together elsewhere, where launches cost."""
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
        """The name under which the optimizer's slots of these parameters are kept."""
        more = len(self.parameters) - 1
        return f"{self.parameters[0].name}+{more}" if more else self.parameters[0].name or ""

    @property
    def by_element(self) -> bool:
        """Whether the optimizer is known to move each element by itself."""
        return type(self.group.optimizer) in OPTIMIZERS.values()


@dataclass(frozen=True)
class Move:
    """What the update of parameters takes from their group. ``average``: what of a running one is kept, and enters."""

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
    """All parameters in runs, group by group; only those of optimizers that are known are moved together."""
    parts = []
    for group in distinct(groups):
        rows = zip(parameters, gradients, groups, strict=True)
        mine = {parameter: gradient for parameter, gradient, own in rows if own.pattern == group.pattern}
        known = type(group.optimizer) in OPTIMIZERS.values()
        for run in _runs_of(list(mine), how.longest if known else 0):
            found = [mine[parameter] for parameter in run]
            if how.vectors and len(run) > 1:
                parts.append(_vectors(states, run, found, group))
            else:
                wide = [states.builder.cast(gradient, FLOAT) for gradient in found]
                parts.append(Part(tuple(run), tuple(wide), group))
    return parts


def _vectors(states: StateBuilder, run: list[Value], gradients: list[Value], group: ParameterGroup) -> Part:
    """Parameters, and gradients, of one type lie side by side. The low ones, those of products, come last: ONNX Runtime
    goes back from the last node first, so that their operands are given back where their layer is done."""
    rows = list(zip(run, map(low_source, gradients), strict=True))
    rows.sort(key=lambda row: [LOW.index(value.dtype) if value.dtype in LOW else -1 for value in row])
    # of those whose gradients are low, matrices of one width behind the others
    first = next((place for place, (_, gradient) in enumerate(rows) if gradient.dtype in LOW), len(rows))
    matrices = by_width([parameter for parameter, _ in rows[first:]])
    order = sorted(zip(matrices, rows[first:], strict=True), key=lambda one: one[0])
    rows[first:] = [row for _, row in order]
    parameters = tuple(p for p, _ in rows)
    whole = hold_as_vectors(states, parameters)
    return Part(parameters, tuple(pieces_of(states.builder, [g for _, g in rows])), group, True, whole)


def gradient_of(update: UpdateGraph, part: Part) -> Value:
    """The gradient of a part in the update, flat where there are several parameters. Each has a Reshape, vectors too:
    ONNX Runtime goes back from the last node first, and so each is computed where its layer is, from numbers that are
    in the cache."""
    b, given = update.builder, [update.read(value) for value in part.handed]
    if len(part.parameters) > 1 and not part.vectors:
        given = [b.typed(b.op("Reshape", one, b.ints(-1)), FLOAT, size(one)) for one in given]
    return b.joined(given)


def move_part(update: UpdateGraph, part: Part, gradient: Value, move: Move) -> Run:
    """Commits parameters, their running averages and their common slots."""
    many = len(part.parameters) > 1
    if many and not part.vectors:
        return _move_by_one_sum(update, part, gradient, move)
    b, parameters = update.builder, [update.read(parameter) for parameter in part.parameters]
    b.scope = part.scope
    slots = _add_slots(update.states, part, (sum(map(size, parameters)),) if many else dims(parameters[0]))
    old = joined(b, parameters)  # a low one is raised for the arithmetic, and rounded once
    update.same(part.whole, old)
    new, after = move.optimizer.update(b, old, gradient, slots, move.begun)
    averages = _next_averages(update, part, parameters, new, move)
    for slot, moved in zip(slots, after, strict=True):
        update.choose([slot], slot, moved, not part.by_element)
    if not many and old is not parameters[0]:
        old, new = parameters[0], b.op("Cast", new, to=int(parameters[0].dtype or FLOAT))
    update.choose(parameters, old, new, not part.by_element)
    return _run_names(part, slots, averages)


def _next_averages(update: UpdateGraph, part: Part, parameters: Sequence[Value], new: Value, move: Move) -> list[Value]:
    """The next running averages of parameters, whose next values are ``new``; none where no average is kept."""
    if move.average is None:
        return []
    states, (kept, entering), averages = update.states, move.average, []
    for parameter in parameters:
        first, shape = parameter.const_value, states.shapes.get(parameter.name or "", dims(parameter))
        assert first is not None
        add = states.add_vector if len(parameters) > 1 else states.add
        averages.append(add(f"{EMA}{parameter.name}", first.numpy().astype(np.float32).reshape(shape), AVERAGE))
    b, old = update.builder, joined(update.builder, averages)
    update.choose(averages, old, b.op("Add", b.op("Mul", old, kept), b.op("Mul", new, entering)), not part.by_element)
    return averages


def _move_by_one_sum(update: UpdateGraph, part: Part, gradient: Value, move: Move) -> Run:
    """In an update: several parameters, each written where it lies; a step that does not hold moves them by zero."""
    states, optimizer, begun = update.states, move.optimizer, move.begun
    assert isinstance(optimizer, Elementwise)
    b, parameters, averages = update.builder, [update.read(parameter) for parameter in part.parameters], []
    b.scope = part.scope
    sizes = [size(parameter) for parameter in parameters]
    slots = _add_slots(states, part, (sum(sizes),))
    wide = [raised(b, parameter) for parameter in parameters]
    decays = isinstance(optimizer, AdamW)  # its decay is that of the parameter, and not of the gradient
    if not decays and optimizer.weight_decay:
        _, gradient = optimizer.decayed(b, joined(b, wide), gradient, begun)
    total, after = optimizer.moved(b, gradient, slots, begun)
    if move.holds is not None:
        total = b.op("Where", move.holds, total, b.number(0))
        begun = [*begun[:-1], b.op("Where", move.holds, begun[-1], b.number(1))] if decays else begun
    for slot, moved in zip(slots, after, strict=True):
        update.choose([slot], slot, moved)
    for parameter, old, piece in zip(parameters, wide, split(b, total, sizes), strict=True):
        b.scope = parameter.name or ""
        kept = optimizer.decayed(b, old, gradient, begun)[0] if decays else old
        new = b.op("Sub", kept, b.op("Reshape", piece, b.ints(*dims(parameter))))
        averages += _next_averages(update, part, [parameter], new, move)
        states.commit({parameter: new if old is parameter else b.op("Cast", new, to=int(parameter.dtype or FLOAT))})
    return _run_names(part, slots, averages)


def _add_slots(states: StateBuilder, part: Part, shape: tuple[int, ...]) -> list[Value]:
    """Optimizer state (momentum, moments) for some parameters moved together, in zeros of one shape."""
    assert part.group.optimizer is not None
    names = part.group.optimizer.slots
    return [states.add(f"{slot}/{part.scope}", np.zeros(shape, np.float32), SLOT) for slot in names]


def _run_names(part: Part, slots: Sequence[Value], averages: Sequence[Value]) -> Run:
    """Which parameters are moved together and by which state, by name, as the step's layout records it."""
    rows = (part.parameters, slots, averages, part.handed)
    parameters, held, averaged, handed = (tuple(value.name or "" for value in row) for row in rows)
    return Run(parameters, held, averaged, handed, whole=not part.by_element)


def _runs_of(parameters: Sequence[Value], limit: int) -> Iterator[list[Value]]:
    """Parameters of an optimizer in runs of up to ``limit`` elements, each in order; one that has ``limit`` or more, or
    no element, is a run of its own, given before the run that it stands in."""
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
