"""The optimizer's part of an update: parameters in runs that are moved together as one vector, with one set of slots.

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
"""The most numbers in a run. On a CPU its temporaries stay in the cache (benchmarks/train_cpu.md); elsewhere launches
are saved, and a temporary takes 16 MB."""


@dataclass(frozen=True)
class Grouping:
    """How an update moves parameters together: at most ``longest`` numbers in a run; ``vectors``: whether the graph
    holds the parameters of a run as vectors, so that none of them has a node of its own in the update."""

    longest: int = 0
    vectors: bool = False

    @staticmethod
    def on(target: object) -> Grouping:
        """How an update moves parameters on a target: each in place on a CPU, elsewhere as vectors."""
        return Grouping(ON_CPU) if target == "cpu" else Grouping(ELSEWHERE, True)


@dataclass(frozen=True)
class Part:
    """A run of parameters of a group that an update moves together, as values of the gradients' graph. ``handed``:
    their gradients in float32, side by side as long as the run; if the parameters are ``vectors`` in the graph, these
    are vectors too. ``whole``: all the parameters side by side, where the gradients read them so."""

    parameters: tuple[Value, ...]
    handed: tuple[Value, ...]
    group: ParameterGroup
    vectors: bool = False
    whole: Value | None = None

    @property
    def scope(self) -> str:
        """The name of a run's slots: its first parameter, and how many more there are."""
        more = len(self.parameters) - 1
        return f"{self.parameters[0].name}+{more}" if more else self.parameters[0].name or ""

    @property
    def by_element(self) -> bool:
        """Whether the optimizer of a run is known to move each element by itself: ours are, a user's may not be."""
        return type(self.group.optimizer) in OPTIMIZERS.values()


@dataclass(frozen=True)
class Move:
    """What all runs of a group have in common in an update."""

    optimizer: Optimizer
    begun: Sequence[Value]  # the optimizer's scalars
    average: tuple[Value, Value] | None  # factors of the old running average and of the new parameter; None: no average
    holds: Value | None  # a truth value, false where the step is skipped; None: no step is


def parameter_runs(
    states: StateBuilder,
    parameters: Sequence[Value],
    gradients: Sequence[Value],
    groups: Sequence[ParameterGroup],
    how: Grouping,
) -> list[Part]:
    """All parameters of an update in runs, group by group, with the gradients of each; those of a user's optimizer are
    each a run. Makes vectors of parameters where ``how`` says so."""
    parts = []
    for group in distinct(groups):
        rows = zip(parameters, gradients, groups, strict=True)
        mine = {parameter: gradient for parameter, gradient, own in rows if own.pattern == group.pattern}
        known = type(group.optimizer) in OPTIMIZERS.values()
        for run in _into_runs(list(mine), how.longest if known else 0):
            found = [mine[parameter] for parameter in run]
            if how.vectors and len(run) > 1:
                parts.append(_vector_part(states, run, found, group))
            else:
                wide = [states.builder.cast(gradient, FLOAT) for gradient in found]
                parts.append(Part(tuple(run), tuple(wide), group))
    return parts


def _vector_part(states: StateBuilder, run: list[Value], gradients: list[Value], group: ParameterGroup) -> Part:
    """A run of an update whose parameters become vectors of the graph; those of one type lie side by side, as do their
    gradients. Low gradients, those of products, come last: ONNX Runtime orders nodes from the last one backwards, so
    that their operands are freed where their layer is done."""
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


def update_gradient(update: UpdateGraph, part: Part) -> Value:
    """The gradient of a run in the update, flat where it has several parameters. Each then gets a Reshape, also one
    that is flat already: ONNX Runtime orders nodes from the last one backwards, so it is computed where its layer is,
    from numbers in the cache."""
    b, given = update.builder, [update.read(value) for value in part.handed]
    if len(part.parameters) > 1 and not part.vectors:
        given = [b.typed(b.op("Reshape", one, b.ints(-1)), FLOAT, size(one)) for one in given]
    return b.joined(given)


def move_part(update: UpdateGraph, part: Part, gradient: Value, move: Move) -> Run:
    """Moves a run of parameters by its gradient, and commits them, their running averages and their common slots."""
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
    """Adds the running averages of parameters to the state, commits their next values, where ``new`` are the
    parameters' own, side by side, and returns the averages; none where no average is kept."""
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
    """Moves a run of parameters, each written in place, by pieces of one common step; a step that is skipped moves them
    by zero, so that no Where reads the old ones."""
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
    """Adds the optimizer's slots for a run of parameters to the state, zeros of a ``shape``."""
    assert part.group.optimizer is not None
    names = part.group.optimizer.slots
    return [states.add(f"{slot}/{part.scope}", np.zeros(shape, np.float32), SLOT) for slot in names]


def _run_names(part: Part, slots: Sequence[Value], averages: Sequence[Value]) -> Run:
    """A run of parameters with its slots, averages and gradients by name, as the step's layout records it."""
    rows = (part.parameters, slots, averages, part.handed)
    parameters, held, averaged, handed = (tuple(value.name or "" for value in row) for row in rows)
    return Run(parameters, held, averaged, handed, whole=not part.by_element)


def _into_runs(parameters: Sequence[Value], limit: int) -> Iterator[list[Value]]:
    """Parameters of an optimizer in runs of up to ``limit`` elements, in order; one that has ``limit`` or more, or no
    element, is a run of its own, and comes before the run that is being filled then."""
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
