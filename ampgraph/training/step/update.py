"""The end of a training step: finite check, unscale, clip, optimizer, commit, the next loss scale.

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
from ..forward.batch_norm import Average
from ..gradients.builder import FLOAT, Builder, Term
from ..gradients.rules.norms import BATCH
from .flat_update import Move, Part, gradient_of, move_part
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
    """What becomes of unscaled gradients and of new parameters.

    Args:
        clip_norm: the largest L2 norm of all unscaled gradients together.
        clip_value: the largest absolute value of one number of an unscaled gradient.
        ema: the decay of the running average of the parameters, which is kept beside them.

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
    """The loss scale in the graph: ``seed`` in float32 is what gradients start from, ``values`` is its state."""

    policy: LossScale
    seed: Value
    values: Mapping[str, Value]  # by the names of `LossScaleState`; empty for a static scale

    @property
    def skips(self) -> bool:
        """Whether a step whose gradients overflow leaves the state as it was."""
        return isinstance(self.policy, DynamicLossScale) or self.policy.skip


@dataclass(frozen=True)
class Updated:
    """Names of the outputs that say how a step went, empty where there is none; what was moved with what."""

    finite: str = ""
    norm: str = ""
    runs: tuple[Run, ...] = ()


def add_scale(states: StateBuilder, policy: LossScale | None) -> Scale | None:
    """Adds the state of a loss scale to a training graph; None for no loss scale."""
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
    """Writes the update of the parameters by their scaled gradients, which are float32, and commits all their state.

    ``running``: further state and its next value, which a step that is not finite leaves as it was.
    """
    states, b = update.states, update.builder
    b.scope = ""
    scaled = [gradient_of(update, part) for part in parts]
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
    """The scale that gradients are divided by, in float32, and the state of the loss scale as the update reads it."""
    if not scale.values:
        return update.read(scale.seed), {}
    values = {name: update.read(value) for name, value in scale.values.items()}
    seed = update.builder.cast(values["scale"], ir.DataType.FLOAT)
    update.same(scale.seed if seed is not values["scale"] else None, seed)
    return seed, values


def _move_parameters(
    update: UpdateGraph, rows: Sequence[tuple[Part, Value]], options: UpdateOptions, holds: Value | None
) -> tuple[Run, ...]:
    """Moves the parameters of every group, and counts the update."""
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
    """Whether no element is inf or NaN: x * 0 is 0 for every number, and a sum of zeros cannot overflow."""
    zeros = [b.op("ReduceSum", b.op("Mul", g, b.number(0)), keepdims=0) for g in gradients]
    return b.op("Equal", b.total(zeros), b.number(0))


def _gradients_finite(b: Builder, gradients: Sequence[Value], norm: Value | None, more: Sequence[Value]) -> Value:
    """Whether scaled gradients and ``more`` are finite. Norms tell, where the gradients have one: beyond float32, from
    1.8e19 on, it would clip every gradient to 0."""
    if norm is None:
        return all_finite(b, [*gradients, *more])
    norms = [norm, *(b.op("ReduceL1", value, keepdims=0) for value in more)]
    return b.op("Less", b.total(norms), b.number(math.inf))


def _clip(b: Builder, gradients: Sequence[Value], options: UpdateOptions) -> tuple[Sequence[Value], Value | None]:
    """The gradients after clipping, and their norm before it where the norm is what limits them."""
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
    """A group's table of learning rates at the number of updates so far; its last row holds for all that follow."""
    assert group.optimizer is not None
    b, more = states.builder, f"/{number}" if number else ""
    table = states.add(f"step/learning_rates{more}", np.array([group.optimizer.lr], np.float32), SCHEDULE)
    table.shape = ir.Shape([f"schedule{number or ''}"])
    last = states.add(f"step/last_rate{more}", np.int64(0), SCHEDULE)
    return b.op("Gather", table, b.op("Min", count, last), axis=0)


def _average_weights(b: Builder, decay: float, count: Value) -> tuple[Value, Value]:
    """What remains of the old average, and what of the new parameter enters: all of it at the first update.

    As torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn.
    """
    first = b.op("Equal", count, b.int64(0))
    kept = b.op("Where", first, b.number(0), b.number(decay))
    return kept, b.op("Where", first, b.number(1), b.number(1 - decay))


def _add_output(b: Builder, name: str, value: Value | None, dtype: ir.DataType) -> str:
    """Makes a scalar an output of the step: the name that it has there, empty where there is no value.

    One that is an output already keeps that name, and an Identity of it gets the new one.
    """
    if value is None:
        return ""
    output = b.op("Identity", value) if value.is_graph_output() else value
    output.name = b.fresh(name)
    output.type = ir.TensorType(dtype)
    output.shape = ir.Shape([])
    b.graph.outputs.append(output)
    return output.name


# -- state that the gradients make anew beside what is trained ---------------------------------------------------------


@dataclass(frozen=True)
class RunningMove:
    """``new`` follows on state; of several, which are vectors, side by side. ``old``: those that it was computed from
    side by side. ``unchecked``: float32 numbers that are known to be finite if the gradients are, or no float32."""

    olds: tuple[Value, ...]
    new: Value
    old: Value | None = None
    unchecked: bool = False


def running_moves(
    b: Builder,
    averages: Sequence[Average],
    others: Sequence[tuple[Value, Value]],
    skips: bool,
    told: Collection[Value] = (),
) -> list[RunningMove]:
    """What the gradients make of ``averages``, and of ``others``, state and its next value; of all averages with one
    rate side by side, as old + (batch - old) rate. ``skips``: whether a step
    may leave it as it is. ``told``: statistics of a batch that are finite if the gradients are."""
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
    """Whether statistics can be moved as one vector: several, each read by itself, with one rate."""
    olds = {one.old for one in averages if one.old.dtype == FLOAT}
    return 1 < len(olds) == len(averages) and len({one.rate for one in averages}) == 1


def _vector_move(
    b: Builder, olds: Sequence[Value], new: Value, old: Value | None = None, known: bool = False
) -> RunningMove:
    """What some statistics become: ``new`` is their next numbers as one float32 vector, ``old`` the present ones."""
    return RunningMove(tuple(olds), b.typed(new, FLOAT, sum(map(size, olds))), old, known)


def covered_by_gradients(graph: ir.Graph, trained: Collection[Value]) -> set[Value]:
    """Means and variances of a batch that, from here on, are finite if the gradients of ``trained`` are: those of a
    BatchNormalization whose scale is trained.

    If its mean is not finite, then neither is its variance a, nor if the sum of squares is not, from which the next
    value is made. Where steps are skipped, its gradient is multiplied by sqrt(a) / a, and not by 1 / sqrt(a), which is
    the same number but NaN for infinity: so the gradient of the scale is NaN, whatever arrives. But something must: a
    norm that the loss is not differentiated through may share its scale with one that it is.
    """
    found: set[Value] = set()
    for node in graph:
        if BATCH in node.meta and node.inputs[1] in trained:
            mean, variance = node.inputs[3], node.inputs[4]
            squares = None if variance is None or (maker := variance.producer()) is None else maker.inputs[0]
            if variance is not None and mean is not None and squares is not None and _shows_in_gradients(variance):
                found |= {mean, *(value for reader in squares.consumers() for value in reader.outputs)}
    return found


def _shows_in_gradients(variance: Value) -> bool:
    """Whether a non-finite variance shows in the gradients: they are multiplied by sqrt(a) / a."""
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
    """In an update's graph: the results of nodes of a kind that read some values."""
    return [node.outputs[0] for value in values for node in value.consumers() if node.op_type == kind]
