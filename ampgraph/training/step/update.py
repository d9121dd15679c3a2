"""The second half of a training step, the update: finite check, unscale, clip, optimizer, next state, next loss scale.

Everything here is float32, and float64 where a number near 1 is raised to a power. The order is that of
torch.amp.GradScaler: unscale, look for inf and NaN, clip the unscaled gradients, update only if all is finite.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ...core.errors import AmpError, is_number
from ...formats.onnx.nodes import operand
from ..forward.batch_norm import Average
from ..gradients.builder import FLOAT, Builder, Term
from ..gradients.rules.norms import BATCH
from .flat_update import Move, Part, move_part, update_gradient
from .loss_scale import RULES, DynamicLossScale, LossScale, next_state
from .optimizers import ParameterGroup, distinct
from .state_tensors import COUNTER, SCALE, SCHEDULE, StateBuilder
from .training_step import Run
from .update_graph import UpdateGraph
from .vectors import dims, joined, size

Value = ir.Value
CLIP_EPS = 1e-6  # torch.nn.utils.clip_grad_norm_ adds it to the norm


@dataclass(frozen=True)
class UpdateOptions:
    """What a training step's update does beside its optimizer.

    Args:
        clip_norm: the largest L2 norm of all unscaled gradients together.
        clip_value: the largest absolute value of one number of an unscaled gradient.
        ema: the decay of the running average of the parameters, which is kept beside them, between 0 and 1.

    Raises AmpError AMP322 for numbers that make no sense, and for both ways to clip at once.
    """

    clip_norm: float | None = None
    clip_value: float | None = None
    ema: float | None = None

    def __post_init__(self) -> None:
        for name in ("clip_norm", "clip_value"):
            if (given := getattr(self, name)) is None:
                continue
            with np.errstate(over="ignore"):
                if not is_number(given) or not np.float32(given) > 0:
                    raise AmpError("AMP322", f"{name}={given!r} is not a positive number", hint="for example 1.0")
            object.__setattr__(self, name, float(given))
        if self.clip_norm is not None and self.clip_value is not None:
            message = "clip_norm and clip_value cannot be combined: the result depends on which comes first"
            raise AmpError("AMP322", message, hint="omit one of them")
        if self.ema is not None:
            if not is_number(self.ema) or not 0 < self.ema < 1:
                raise AmpError("AMP322", f"ema={self.ema!r} is not a number between 0 and 1", hint="for example 0.999")
            object.__setattr__(self, "ema", float(self.ema))


@dataclass(frozen=True)
class Scale:
    """The loss scale in the graph: its policy; ``seed``, the float32 scalar that gradients start from; its state."""

    policy: LossScale
    seed: Value
    values: Mapping[str, Value]  # by the names of `LossScaleState`; empty for a static scale

    @property
    def skips(self) -> bool:
        """Whether a step whose gradients overflow leaves the state as it was."""
        return isinstance(self.policy, DynamicLossScale) or self.policy.skip


@dataclass(frozen=True)
class Updated:
    """What the update adds to a step's layout: the names of the outputs that say whether gradients were finite, and
    their norm ("" for none), and the parameters that were moved together."""

    finite: str = ""
    norm: str = ""
    runs: tuple[Run, ...] = ()


def add_scale(states: StateBuilder, policy: LossScale | None) -> Scale | None:
    """Adds the state of a loss scale to the gradients of a training step; None for no loss scale."""
    if policy is None:
        return None
    first = policy.start()
    if not isinstance(policy, DynamicLossScale):
        return Scale(policy, states.add("step/scale", np.float32(first.scale), SCALE), {})
    kept = RULES[policy.rule].typed(first)
    names = {"pending": "pending_scale"}
    values = {name: states.add(f"step/{names.get(name, name)}", kept[name], SCALE) for name in kept}
    return Scale(policy, states.builder.cast(values["scale"], ir.DataType.FLOAT), values)


def add_update(
    update: UpdateGraph,
    parts: Sequence[Part],
    scale: Scale | None,
    options: UpdateOptions,
    running: Sequence[RunningMove],
) -> Updated:
    """Writes a training step's update of the parameters by their scaled float32 gradients, and commits all state.

    Args:
        parts: all parameters in runs that are moved together, with their gradients.
        scale: the loss scale, as `add_scale` gives it.
        running: further state and its next value; a step that is skipped leaves it as it was, as all state.
    """
    states, b = update.states, update.builder
    b.scope = ""
    scaled = [update_gradient(update, part) for part in parts]
    seed, values = (None, {}) if scale is None else _read_scale(update, scale)
    unscaled = scaled if seed is None else [b.op("Div", gradient, seed) for gradient in scaled]
    gradients, norm = _clip(b, unscaled, options)
    kept = [(move, [update.read(old) for old in move.olds], update.read(move.new)) for move in running]
    more = [new for move, _, new in kept if not move.unchecked]
    finite = None if scale is None else _gradients_finite(b, scaled, norm, more)
    holds = finite if scale is not None and scale.skips else None
    runs = _move_parameters(update, list(zip(parts, gradients, strict=True)), options, holds)
    b.scope = ""
    for move, olds, new in kept:
        old = b.joined(olds) if holds is not None or move.old is not None else olds[0]
        update.same(move.old, old)
        update.choose(olds, old, new)
    if scale is not None and isinstance(scale.policy, DynamicLossScale) and finite is not None:
        terms = {name: Term(b, value, value) for name, value in values.items()}
        after = next_state(scale.policy, terms, Term(b, finite, ir.DataType.BOOL))
        states.commit({old: new for name, old in values.items() if (new := after[name].value) is not old})
    update.commit_choices(holds)
    said = _add_output(b, "finite", finite, ir.DataType.BOOL), _add_output(b, "grad_norm", norm, ir.DataType.FLOAT)
    return Updated(*said, runs)


def _read_scale(update: UpdateGraph, scale: Scale) -> tuple[Value, dict[str, Value]]:
    """In an update's graph: the loss scale that gradients are divided by, in float32, and the loss scale's state by
    name, empty for a static one."""
    if not scale.values:
        return update.read(scale.seed), {}
    values = {name: update.read(value) for name, value in scale.values.items()}
    seed = update.builder.cast(values["scale"], ir.DataType.FLOAT)
    update.same(scale.seed if seed is not values["scale"] else None, seed)
    return seed, values


def _move_parameters(
    update: UpdateGraph, rows: Sequence[tuple[Part, Value]], options: UpdateOptions, holds: Value | None
) -> tuple[Run, ...]:
    """In an update's graph: moves the parameters of every group, ``rows`` of runs with their unscaled gradients, and
    counts the update. ``holds``: a truth value that is false where the step is skipped; None: none is."""
    states, b, runs = update.states, update.builder, []
    count = states.add("step/count", np.int64(0), COUNTER)
    counted = b.op("Add", count, b.int64(1))
    average = None if options.ema is None else _average_weights(b, options.ema, count)
    for number, group in enumerate(distinct([part.group for part, _ in rows])):
        assert group.optimizer is not None
        rate = _learning_rate(states, group, number, count)
        b.scope = ""
        begun = group.optimizer.begin(b, rate, counted)
        move = Move(group.optimizer, begun, average, holds)
        for part, gradient in rows:
            if part.group.pattern == group.pattern:
                runs.append(move_part(update, part, gradient, move))
    states.commit({count: counted}, when=holds)
    return tuple(runs)


def all_finite(b: Builder, gradients: Sequence[Value]) -> Value:
    """Adds the check whether no element of some gradients is inf or NaN: x * 0 is 0 for every finite number, and a sum
    of zeros cannot overflow."""
    zeros = [b.op("ReduceSum", b.op("Mul", g, b.number(0)), keepdims=0) for g in gradients]
    return b.op("Equal", b.total(zeros), b.number(0))


def _gradients_finite(b: Builder, gradients: Sequence[Value], norm: Value | None, more: Sequence[Value]) -> Value:
    """In an update's graph: whether scaled gradients and the values ``more`` are finite. With a ``norm`` of the
    gradients that is asked instead: where it is beyond float32 (elements from 1.8e19 on), it would clip every gradient
    to 0."""
    if norm is None:
        return all_finite(b, [*gradients, *more])
    norms = [norm, *(b.op("ReduceL1", value, keepdims=0) for value in more)]
    return b.op("Less", b.total(norms), b.number(math.inf))


def _clip(b: Builder, gradients: Sequence[Value], options: UpdateOptions) -> tuple[Sequence[Value], Value | None]:
    """In an update's graph: the unscaled gradients after clipping, and their common norm before it; None for the norm
    where it is not what they are clipped by."""
    if options.clip_value is not None:
        low, high = b.number(-options.clip_value), b.number(options.clip_value)
        return [b.op("Clip", gradient, low, high) for gradient in gradients], None
    if options.clip_norm is None:
        return gradients, None
    norm = b.op("Sqrt", b.total([b.op("ReduceSumSquare", gradient, keepdims=0) for gradient in gradients]))
    gap = b.op("Div", b.number(options.clip_norm), b.op("Add", norm, b.number(CLIP_EPS)))
    factor = b.op("Min", gap, b.number(1))
    return [b.op("Mul", gradient, factor) for gradient in gradients], norm


def _learning_rate(states: StateBuilder, group: ParameterGroup, number: int, count: Value) -> Value:
    """In an update's graph: the learning rate of group ``number``: the row of its table at the number of updates so far
    (``count``), or the last row beyond it. Adds the table, of one row at first, and the number of its last row to the
    state."""
    assert group.optimizer is not None
    b, more = states.builder, f"/{number}" if number else ""
    table = states.add(f"step/learning_rates{more}", np.array([group.optimizer.lr], np.float32), SCHEDULE)
    table.shape = ir.Shape([f"schedule{number or ''}"])
    last = states.add(f"step/last_rate{more}", np.int64(0), SCHEDULE)
    return b.op("Gather", table, b.op("Min", count, last), axis=0)


def _average_weights(b: Builder, decay: float, count: Value) -> tuple[Value, Value]:
    """In an update's graph: the factors of the old running average and of the new parameter in the next average; 0 and
    1 at the first update. As torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn."""
    first = b.op("Equal", count, b.int64(0))
    kept = b.op("Where", first, b.number(0), b.number(decay))
    return kept, b.op("Where", first, b.number(1), b.number(1 - decay))


def _add_output(b: Builder, name: str, value: Value | None, dtype: ir.DataType) -> str:
    """In an update's graph: makes a scalar an output called ``name``, or like it if that is taken; returns the name, ""
    where there is no value. Of one that is an output already an Identity becomes that output."""
    if value is None:
        return ""
    output = b.op("Identity", value) if value.is_graph_output() else value
    output.name = b.fresh(name)
    output.type = ir.TensorType(dtype)
    output.shape = ir.Shape([])
    b.graph.outputs.append(output)
    return output.name


# -- running states: statistics of norms, and buffers, whose next values the gradients' graph computes -----------------


@dataclass(frozen=True)
class RunningMove:
    """The next value of a running state, or of several vectors side by side, in the gradients' graph."""

    olds: tuple[Value, ...]  # the states
    new: Value  # their next values, side by side
    old: Value | None = None  # their present values side by side, where the graph has that
    unchecked: bool = False  # not to be checked: it is finite if the gradients are, or is not float32


def running_moves(
    b: Builder,
    averages: Sequence[Average],
    others: Sequence[tuple[Value, Value]],
    skips: bool,
    told: Collection[Value] = (),
) -> list[RunningMove]:
    """The next values of a step's running states, written behind the gradients: of ``averages``, statistics of norms,
    side by side where all have one rate, and of ``others``, state with its next value. ``skips``: whether a step may be
    skipped; then float32 vectors of others are put side by side too, to be chosen by one node. ``told``: statistics of
    a batch that are known to be finite if the gradients are."""
    rows, together = list(others), []
    if _move_as_one(averages):
        old, batch = (joined(b, [getattr(one, name) for one in averages]) for name in ("old", "batch"))
        new = replace(averages[0], batch=batch).next(b, old)
        known = all(one.batch in told for one in averages)
        together.append(_vector_move(b, [one.old for one in averages], new, old, known))
    else:
        after: dict[Value, Value] = {}
        for one in averages:
            after[one.old] = b.typed(one.next(b, after.get(one.old, one.old)), one.old)
        rows = [*after.items(), *others]
    found = {old: new for old, new in rows if skips and old.dtype == FLOAT and len(dims(old)) == 1}
    if len(found) > 1:
        together.append(_vector_move(b, list(found), joined(b, list(found.values()))))
        rows = [(old, new) for old, new in rows if old not in found]
    return [RunningMove((old,), new, unchecked=old.dtype != FLOAT) for old, new in rows] + together


def _move_as_one(averages: Sequence[Average]) -> bool:
    """Whether running statistics can be moved as one vector: several in float32, no state twice, all of one rate."""
    olds = {one.old for one in averages if one.old.dtype == FLOAT}
    return 1 < len(olds) == len(averages) and len({one.rate for one in averages}) == 1


def _vector_move(
    b: Builder, olds: Sequence[Value], new: Value, old: Value | None = None, known: bool = False
) -> RunningMove:
    """The `RunningMove` of several running states: ``new`` is their next numbers as one float32 vector, ``old`` the
    present ones if the graph has them so; ``known``: they are finite if the gradients are."""
    return RunningMove(tuple(olds), b.typed(new, FLOAT, sum(map(size, olds))), old, known)


def covered_by_gradients(graph: ir.Graph, trained: Collection[Value]) -> set[Value]:
    """Statistics of a batch that need no finite check of their own, as they are finite if the gradients of ``trained``
    are: those of a BatchNormalization whose scale is trained. Changes the graph, so that this holds.

    Where the mean, or the sum of squares of which the next variance is made, is not finite, the variance a is not
    either. The gradient of the scale is multiplied by 1 / sqrt(a), 0 for an infinite a; here that becomes sqrt(a) / a,
    the same number but NaN for infinity, so that the gradient of the scale is NaN, whatever arrives. Something must
    arrive: a norm that the loss is not differentiated through is left out (it may share its scale with another)."""
    found: set[Value] = set()
    for node in graph:
        if BATCH not in node.meta or node.inputs[1] not in trained:
            continue
        mean, variance = operand(node, 3), operand(node, 4)
        maker = variance.producer()
        squares = None if maker is None else maker.inputs[0]
        if squares is not None and _shows_in_gradients(variance):
            found |= {mean, *(value for reader in squares.consumers() for value in reader.outputs)}
    return found


def _shows_in_gradients(variance: Value) -> bool:
    """Makes a variance a that is not finite show in the gradients, by sqrt(a) / a in the place of 1 / sqrt(a), and
    returns whether there are such gradients: false for a norm that the loss is not differentiated through."""
    roots = _results_of_kind(_results_of_kind([variance], "Add"), "Sqrt")
    inverses = [made.producer() for made in _results_of_kind(roots, "Reciprocal")]
    for node in inverses:
        root = None if node is None else node.inputs[0]
        maker = None if root is None else root.producer()
        assert node is not None and maker is not None
        node.op_type = "Div"
        node.resize_inputs(2)
        node.replace_input_with(1, maker.inputs[0])
    return bool(inverses)


def _results_of_kind(values: Collection[Value], kind: str) -> list[Value]:
    """In a step's graph: the results of the nodes of an operator ``kind`` that read one of these values."""
    return [node.outputs[0] for value in values for node in value.consumers() if node.op_type == kind]
