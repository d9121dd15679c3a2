"""The gradients of a training step as a graph: forward, loss and backward; and, when it is low, the step of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...core.dataflow import MARKED
from ...core.errors import AmpError
from ...core.json_types import JsonObject
from ..forward.buffers import buffer_values, read_buffers
from ..forward.class_inputs import ClassInput, read_class_inputs
from ..forward.exported_backward import (
    ExportedBackward,
    chosen,
    forward_part,
    read_exported_backward,
    refuse_copies,
    start_from,
)
from ..forward.fixed_batch import fix_batch
from ..forward.lowerings.batch_norm import lower_batch_norm
from ..forward.lowerings.dropout import lower_dropout
from ..forward.lowerings.losses import lower_losses
from ..forward.lowerings.random_numbers import is_random, lower_random
from ..forward.parameters import find_parameters, frozen_names
from ..forward.read import infer
from ..forward.sync_norms import refuse_synchronised
from ..gradients.builder import Builder
from ..gradients.driver import differentiate
from .flat_update import Together, parts_of
from .groups import Groups, ParameterGroup, distinct
from .loss import LOSSES, add_loss, as_scalar, weighted
from .loss_scale import LossScale
from .norms_together import run_norms_together
from .packed_forward import FORWARD, keep_originals, originals, pack
from .penalty import GradientPenalty, PenaltyBuilder
from .planner_marks import hold_border_products, hold_norms, hold_seed, mark_branches
from .running_state import RunningMove, running_moves, told_by_gradients
from .state_tensors import COUNTER, GIVEN, PARAMETER, RUNNING, StateBuilder
from .training_step import KEY, StepLayout, TrainingStep
from .update import Scale, Updated, UpdateOptions, add_scale, add_update
from .update_graph import UpdateGraph

SEED = 0x5EED
WHOLE = "its gradient penalty is of the whole batch, and no mean over the samples"
PENALTY = "penalty"  # what that part of a loss is called


@dataclass(frozen=True)
class Read:
    """What was read of a graph before it is changed: names."""

    losses: Mapping[str, float]  # and the weight of each
    backward: ExportedBackward | None  # None for a forward graph
    forward: str  # packed
    frozen: set[str]
    buffers: dict[str, str]  # and the output that is the next value
    groups: dict[str, ParameterGroup]  # of every parameter


class GradientGraph:
    """Forward, loss and gradients; ``handed`` and ``moved`` name its outputs that an update reads: the gradient of each
    parameter, and the next running state."""

    def __init__(self, model: ir.Model, read: Read) -> None:
        self.model, self.graph, self.backward, self.forward = model, model.graph, read.backward, read.forward
        self.losses, stored = read.losses, model.graph.initializers
        self.penalty: GradientPenalty | None = None
        self.parameters = [stored[name] for name, group in read.groups.items() if group.optimizer is not None]
        self.given = [stored[name] for name, group in read.groups.items() if group.shared]
        self.groups = [group for group in read.groups.values() if group.optimizer is not None]
        self.scale: Scale | None = None
        self.stored = originals(self.graph)
        self.states = StateBuilder(Builder(self.graph, "step"))
        self.batch = [value for value in self.graph.inputs if value.name not in self.graph.initializers]
        if self.backward is not None:
            self.batch = [value for value in self.batch if value.name != self.backward.seed]
        refuse_synchronised(self.graph, read.frozen)
        read_in = list(self.graph)
        self.running = lower_batch_norm(self.graph, exported_mode=self.backward is not None, frozen=read.frozen)
        self.iteration = self._dropout()
        if list(self.graph) != read_in:
            infer(model)
        self.graph.meta[MARKED] = True
        hold_norms(model)
        self.labels, self.classes = "", 0
        self.class_inputs: tuple[ClassInput, ...] = ()
        self.exported_gradients: dict[str, ir.Value] = {}
        self.outputs = {v.name or "": v for v in self.graph.outputs if v.name not in read.buffers.values()}
        self.parts: dict[str, ir.Value] = {}
        self.loss = self._loss(read)
        infer(model)
        self.running += buffer_values(self.graph, read.buffers)
        self.loss.name = self.states.builder.fresh("loss") if self.loss.name != "loss" else "loss"
        self.graph.outputs.clear()
        self.graph.outputs.append(self.loss)

    def _dropout(self) -> ir.Value | None:
        if not any(node.op_type == "Dropout" or is_random(node) for node in self.graph):
            return None
        counter = self.states.add("step/iteration", np.int64(0), COUNTER)
        lower_dropout(self.graph, counter, SEED)
        lower_random(self.graph, counter, SEED)
        return counter

    def _loss(self, read: Read) -> ir.Value:
        """The scalar that is differentiated."""
        for name in read.losses:
            if name in self.outputs:
                self.class_inputs += read_class_inputs(self.graph, self.outputs[name])
        lower_losses(self.graph)
        b = self.states.builder
        if self.backward is not None:
            found, self.exported_gradients = self.backward.values(self.graph)
            return as_scalar(b, found)
        self.outputs = {v.name or "": v for v in self.graph.outputs if v.name in self.outputs}
        self.parts = {name: self._term(b, name) for name in read.losses}
        return weighted(Builder(self.graph, "loss"), self.parts, read.losses)

    def _term(self, b: Builder, name: str) -> ir.Value:
        if name in self.outputs:
            return as_scalar(b, self.outputs[name])
        added = add_loss(b, name, self.outputs)
        self.batch.append(added.labels)
        self.labels, self.classes = added.labels.name or "", added.classes
        return added.value

    def _penalised(self, penalty: GradientPenalty) -> None:
        """Adds a penalty to the loss; both are parts of it."""
        if self.backward is not None:
            message = "a gradient penalty needs gradients of its own, and the graph has its backward"
            raise AmpError("AMP215", message, hint="build the step from the forward graph, or export the penalty in it")
        maker = PenaltyBuilder(self.model, penalty, None if self.scale is None else self.scale.seed)
        inputs = [value for value in self.batch if value.name != self.labels]
        term = maker.value(self.loss, self.outputs, inputs, self.parameters)
        b, whole = Builder(self.graph, "loss"), self.loss
        name, whole.name = whole.name, b.fresh("loss/without_penalty")
        self.loss = weighted(b, {"": whole, PENALTY: term}, {"": 1, PENALTY: penalty.weight})
        self.loss.name = name
        self.parts[PENALTY] = term
        self.graph.outputs[0] = self.loss

    def differentiate(
        self, policy: LossScale | None, penalty: GradientPenalty | None = None, holds_borders: bool = True
    ) -> None:
        """Gradients, new running values and parts of the loss, each an output behind the loss; the state so far.

        ``holds_borders``: whether small products at the border may stay float32.
        """
        if self.backward is None and holds_borders:
            hold_border_products(self.graph, self.loss)
        self.scale = add_scale(self.states, policy)
        self.penalty = penalty
        if penalty is not None:
            self._penalised(penalty)
        seed = None if self.scale is None else self.scale.seed
        if self.backward is None:
            found = differentiate(self.graph, self.loss, self.parameters, seed)
        else:
            found = chosen(self.exported_gradients, self.parameters)
            if self.backward.seed:
                b = self.states.builder
                start_from(b, self.backward.seed, b.number(1) if seed is None else seed)
        self.handed = self._given_out(found)
        self.moved = self._given_out(new for _, new in self.running)
        self._report_parts()
        infer(self.model)
        mark_branches(self.graph)
        if seed is not None:
            hold_seed(self.graph, seed)
        for parameter in self.parameters:
            self.states.adopt(parameter, PARAMETER)
        for value in self.given:
            self.states.adopt(value, GIVEN)
        for old, _ in self.running:
            self.states.adopt(old, RUNNING)

    def _given_out(self, values: Iterable[ir.Value]) -> list[str]:
        """Makes outputs; a value may be several parameters' gradient."""
        outputs = [_named_output(self.states.builder, value) for value in values]
        self.graph.outputs.extend(outputs)
        return [output.name or "" for output in outputs]

    def _report_parts(self) -> None:
        """Outputs of their own, by a builder whose nodes are no update; a loss that is one whole has no parts."""
        if list(self.parts.values()) == [self.loss]:
            self.parts = {}
        b = Builder(self.graph, "loss")
        self.parts = {name: _named_output(b, value) for name, value in self.parts.items()}
        for name, output in self.parts.items():
            output.name = b.fresh(f"loss/{name}")
        self.graph.outputs.extend(self.parts.values())

    def match_types(self) -> None:
        """The first values of parameters that are low now."""
        for parameter in (*self.parameters, *self.given):
            _match_type(parameter)

    def finish(self, options: UpdateOptions, said: JsonObject) -> TrainingStep:
        """The step of these gradients and of an update by them, which is joined to them. ``said``: its options."""
        how = Together.on(said.get("target"))
        if how.vectors:
            run_norms_together(self.graph, how.longest)
        gradients, moved = self._taken_back(self.handed), self._taken_back(self.moved)
        self.states.builder = b = Builder(self.graph, "step")
        parts = parts_of(self.states, self.parameters, gradients, self.groups, how)
        skips = self.scale is not None and self.scale.skips
        told = told_by_gradients(self.graph, self.parameters) if skips else ()
        running = running_moves(b, [(old, new) for (old, _), new in zip(self.running, moved, strict=True)], skips, told)
        update = UpdateGraph(self.graph, self.states)
        updated = add_update(update, parts, self.scale, options, running)
        if self.iteration is not None:
            one = update.builder.constant(np.array(1, np.int64))
            drawn = update.read(self.iteration)
            update.states.commit({drawn: update.builder.op("Add", drawn, one)})
        update.join(self.graph)
        return self._written(updated, running, said)

    def _taken_back(self, names: Sequence[str]) -> list[ir.Value]:
        """Outputs, which are none of the step."""
        found = {value.name: value for value in self.graph.outputs}
        for name in names:
            self.graph.outputs.remove(found[name])
        return [found[name] for name in names]

    def _written(self, updated: Updated, running: Sequence[RunningMove], said: JsonObject) -> TrainingStep:
        layout = StepLayout(
            states=tuple(self.states.entries()),
            inputs=tuple(value.name or "" for value in self.batch),
            labels=self.labels,
            classes=self.classes,
            class_inputs=self.class_inputs,
            loss=self.loss_name(),
            finite=updated.finite,
            norm=updated.norm,
            groups=self._rated(),
            parts=self._told_parts(),
            whole_batch=WHOLE if self.penalty is not None and not self.penalty.of_samples else "",
            runs=updated.runs,
            moved=tuple((move.new.name or "", tuple(old.name or "" for old in move.olds)) for move in running),
            options=said,
        )
        self.graph.sort()
        keep_originals(self.graph, self.stored, {entry.name for entry in layout.states})
        self.model.metadata_props[KEY] = layout.to_json()
        self.model.metadata_props[FORWARD] = self.forward
        return TrainingStep(self.model, layout)

    def _rated(self) -> tuple[tuple[str, float], ...]:
        """Patterns and learning rates of the groups where there are several, in the order of their tables."""
        rows = [(g.pattern, float(g.optimizer.lr)) for g in distinct(self.groups) if g.optimizer is not None]
        return tuple(rows) if len(rows) > 1 else ()

    def _told_parts(self) -> tuple[tuple[str, str], ...]:
        """The parts of the loss and their outputs, which stand behind the loss."""
        outputs = [value.name or "" for value in self.graph.outputs]
        return tuple(zip(self.parts, outputs[1 : 1 + len(self.parts)], strict=True))

    def loss_name(self) -> str:
        return self.graph.outputs[0].name or ""


def begin(
    forward: ir.Model,
    losses: Mapping[str, float] | None,
    policy: LossScale | None,
    freeze: Sequence[str],
    gradients: Mapping[str, str] | None,
    seed: str | None,
    groups: Groups,
    batch: int | None = None,
) -> GradientGraph:
    """The graph, its loss found, and what is trained. ``batch``: its size, where the step is for one alone; the forward
    graph that is packed beside it stays open."""
    backward = read_exported_backward(forward, next(iter(losses), None) if losses else None, gradients, seed)
    losses = _losses(backward, losses, policy)
    parts = forward if backward is None else forward_part(forward, backward)
    names = [value.name or "" for value in find_parameters(parts, freeze)]
    of_names = dict(zip(names, groups.assigned(names), strict=True))
    if backward is not None:
        refuse_copies(forward, parts, [forward.graph.initializers[name] for name in names])
    frozen = frozen_names(parts, freeze)
    buffers = read_buffers(forward, frozen, backward is not None)
    read = Read(losses, backward, pack(parts), frozen, buffers, of_names)
    if batch is not None:
        fix_batch(forward, batch)
        infer(forward)
    return GradientGraph(forward, read)


def _losses(
    backward: ExportedBackward | None, losses: Mapping[str, float] | None, policy: LossScale | None
) -> Mapping[str, float]:
    """What is differentiated, with weights. Raises AmpError AMP213 for nothing, AMP215 where the loss scale or weights
    have no place."""
    if backward is None:
        if losses is None:
            hint = f"--loss {', '.join(LOSSES)}, or the name of an output that is a float32 scalar"
            raise AmpError("AMP213", "no loss is named, and no output is a parameter's gradient", hint=hint)
        return losses
    if losses and (len(losses) > 1 or losses.get(backward.loss) != 1):
        message = "the graph has its gradients: they are of one loss, which has no weight"
        raise AmpError(
            "AMP215", message, hint="weigh the losses in the module, or build the step from the forward graph"
        )
    if policy is not None and not backward.seed:
        message = "the gradients start from no input: a loss scale behind them would protect nothing"
        hint = "export it with one, --seed-input names it; or --loss-scale none"
        raise AmpError("AMP215", message, hint=hint)
    return {backward.loss: 1.0}


def _named_output(b: Builder, value: ir.Value) -> ir.Value:
    """An output of its own: a value may be several parameters' gradient."""
    output = b.op("Identity", value)
    output.type, output.shape = value.type, value.shape
    return output


def _match_type(parameter: ir.Value) -> None:
    """The first value of a parameter that is low now."""
    tensor = parameter.const_value
    if tensor is not None and parameter.dtype is not None and tensor.dtype != parameter.dtype:
        parameter.const_value = ir.tensor(tensor.numpy().astype(parameter.dtype.numpy()), name=parameter.name)
