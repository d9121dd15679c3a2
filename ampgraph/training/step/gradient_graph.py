"""The first half of a training step, built from a forward graph: forward, loss and gradients in one graph, which is
planned and cast; `finish` then adds the second, the update, and gives the step."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ...core.dataflow import MARKED
from ...core.errors import AmpError
from ...core.json_types import JsonObject
from ..forward.batch_norm import lower_batch_norm, refuse_synchronised
from ..forward.exported_backward import (
    ExportedBackward,
    forward_part,
    gradients_of,
    read_exported_backward,
    refuse_copies,
    start_from,
)
from ..forward.losses import LOSSES, ClassInput, add_loss, as_scalar, lower_losses, read_class_inputs, weighted_sum
from ..forward.parameters import KEEP, buffer_values, find_parameters, frozen_names, read_buffers
from ..forward.random_numbers import is_random, lower_dropout, lower_random
from ..forward.read import fix_batch, infer
from ..gradients.builder import Builder
from ..gradients.driver import differentiate
from .flat_update import Grouping, parameter_runs
from .loss_scale import LossScale
from .norms_together import run_norms_together
from .optimizers import Groups, distinct
from .packed_forward import FORWARD, keep_originals, originals, pack
from .penalty import GradientPenalty, PenaltyBuilder
from .planner_marks import hold_norms, hold_seed, mark_branches, pin_boundary_products
from .state_tensors import COUNTER, GIVEN, PARAMETER, RUNNING, StateBuilder
from .training_step import KEY, StepLayout, TrainingStep
from .update import (
    RunningMove,
    Scale,
    Updated,
    UpdateOptions,
    add_scale,
    add_update,
    covered_by_gradients,
    running_moves,
)
from .update_graph import UpdateGraph

SEED = 0x5EED
WHOLE = "its gradient penalty is of the whole batch, and no mean over the samples"
PENALTY = "penalty"  # the name of that part of a loss


class GradientGraph:
    """Forward, loss and gradients of a training step in one graph. The order of use: the constructor, `differentiate`;
    then the caller plans the graph and inserts Casts; `match_types`, `finish`. ``handed`` and ``moved`` name the
    outputs that the update reads: the gradient of each parameter in ``parameters``, and of each running state (of
    BatchNormalization, then of buffers) what its next value is made of."""

    def __init__(
        self,
        forward: ir.Model,
        losses: Mapping[str, float] | None,
        policy: LossScale | None,
        freeze: Sequence[str],
        gradients: Mapping[str, str] | None,
        seed: str | None,
        groups: Groups,
        batch: int | None = None,
    ) -> None:
        """Finds what is trained, adds the loss, and rewrites what trains otherwise than it infers.

        Args:
            forward: the graph, changed in place; with its own backward where it was exported so.
            losses: name -> weight of each; None for a graph with its backward.
            policy: the loss scale, None for none.
            freeze: patterns of parameters that are not trained.
            gradients, seed: names in an exported backward, see `read_exported_backward`.
            groups: the optimizer of each parameter.
            batch: the batch size, where the step is for one alone; the forward graph that is packed beside it for
                evaluation stays open.
        """
        self.model, self.graph = forward, forward.graph
        self.backward = read_exported_backward(forward, next(iter(losses), None) if losses else None, gradients, seed)
        self.losses = _weighted_losses(self.backward, losses, policy)
        parts = forward if self.backward is None else forward_part(forward, self.backward)
        self._sort_parameters(parts, find_parameters(parts, freeze), groups)
        frozen = frozen_names(parts, freeze)
        buffers = read_buffers(forward, frozen, self.backward is not None)
        self.forward = pack(parts)
        if batch is not None:
            fix_batch(forward, batch)
            infer(forward)
        self.penalty: GradientPenalty | None = None
        self.scale: Scale | None = None
        self.stored = originals(self.graph)
        self.states = StateBuilder(Builder(self.graph, "step"))
        own = {*self.graph.initializers, *([self.backward.seed] if self.backward is not None else [])}
        self.batch = [value for value in self.graph.inputs if value.name not in own]
        refuse_synchronised(self.graph, frozen)
        self._lower(frozen)
        self.labels, self.classes = "", 0
        self.class_inputs: tuple[ClassInput, ...] = ()
        self.exported_gradients: dict[str, ir.Value] = {}
        self.outputs = {v.name or "": v for v in self.graph.outputs if v.name not in buffers.values()}
        self.parts: dict[str, ir.Value] = {}
        self.loss = self._add_loss()
        infer(self.model)
        self.buffers = buffer_values(self.graph, buffers)
        self.loss.name = self.states.builder.fresh("loss") if self.loss.name != "loss" else "loss"
        self.graph.outputs.clear()
        self.graph.outputs.append(self.loss)

    def _sort_parameters(self, parts: ir.Model, found: Sequence[ir.Value], groups: Groups) -> None:
        """Of a training step's gradients: sorts the parameters ``found`` by their group: trained here (`parameters`,
        with `groups`), trained by another step (`given`), or frozen."""
        names = [value.name or "" for value in found]
        stored = self.graph.initializers
        rows = [(stored[name], group) for name, group in zip(names, groups.assigned(names), strict=True)]
        if self.backward is not None:
            refuse_copies(self.model, parts, [value for value, _ in rows])
        self.parameters = [value for value, group in rows if group.optimizer is not None]
        self.groups = [group for _, group in rows if group.optimizer is not None]
        self.given = [value for value, group in rows if group.shared]

    def _lower(self, frozen: Collection[str]) -> None:
        """Of a training step's gradients: rewrites BatchNormalization, Dropout and random numbers as they train, and
        marks what the planner is to know. ``frozen``: names of parameters whose norms keep their statistics."""
        read_in = list(self.graph)
        self.running = lower_batch_norm(self.graph, exported_mode=self.backward is not None, frozen=frozen)
        self.iteration = self._lower_random_numbers()
        if list(self.graph) != read_in:
            infer(self.model)
        self.graph.meta[MARKED] = True
        hold_norms(self.model)

    def _lower_random_numbers(self) -> ir.Value | None:
        """Of a training step's gradients: rewrites Dropout and random numbers as functions of a counter in the state,
        and returns this counter; None where the graph draws no numbers."""
        if not any(node.op_type == "Dropout" or is_random(node) for node in self.graph):
            return None
        counter = self.states.add("step/iteration", np.int64(0), COUNTER)
        lower_dropout(self.graph, counter, SEED)
        lower_random(self.graph, counter, SEED)
        return counter

    def _add_loss(self) -> ir.Value:
        """Of a training step's gradients: adds the loss, and returns the scalar that is differentiated: the weighted
        sum of the losses, or what an exported backward is the gradient of. Sets `parts`, the losses by name."""
        for name in self.losses:
            if name in self.outputs:
                self.class_inputs += read_class_inputs(self.graph, self.outputs[name])
        lower_losses(self.graph)
        b = self.states.builder
        if self.backward is not None:
            found, self.exported_gradients = self.backward.values(self.graph)
            return as_scalar(b, found)
        self.outputs = {v.name or "": v for v in self.graph.outputs if v.name in self.outputs}
        self.parts = {name: self._add_term(b, name) for name in self.losses}
        return weighted_sum(Builder(self.graph, "loss"), self.parts, self.losses)

    def _add_term(self, b: Builder, name: str) -> ir.Value:
        """Of a training step's gradients: one loss as a scalar: the forward's output ``name``, or a loss of that kind
        added behind its first output, whose labels become an input."""
        if name in self.outputs:
            return as_scalar(b, self.outputs[name])
        added = add_loss(b, name, self.outputs)
        self.batch.append(added.labels)
        self.labels, self.classes = added.labels.name or "", added.classes
        return added.value

    def _add_penalty(self, penalty: GradientPenalty) -> None:
        """Of a training step's gradients: adds a gradient penalty to the loss, before `differentiate` goes on; it
        becomes one of its `parts`. Raises AmpError AMP215 for a graph with its own backward."""
        if self.backward is not None:
            message = "a gradient penalty needs gradients of its own, and the graph has its backward"
            raise AmpError("AMP215", message, hint="build the step from the forward graph, or export the penalty in it")
        maker = PenaltyBuilder(self.model, penalty, None if self.scale is None else self.scale.seed)
        inputs = [value for value in self.batch if value.name != self.labels]
        term = maker.value(self.loss, self.outputs, inputs, self.parameters)
        b, whole = Builder(self.graph, "loss"), self.loss
        name, whole.name = whole.name, b.fresh("loss/without_penalty")
        self.loss = weighted_sum(b, {"": whole, PENALTY: term}, {"": 1, PENALTY: penalty.weight})
        self.loss.name = name
        self.parts[PENALTY] = term
        self.graph.outputs[0] = self.loss

    def differentiate(
        self, policy: LossScale | None, penalty: GradientPenalty | None = None, pins_boundary_products: bool = True
    ) -> None:
        """Adds the gradients of a training step; they, what next running states are made of, and the parts of the loss
        become outputs behind the loss, and parameters and running statistics become state. ``pins_boundary_products``:
        whether small products at the boundary may stay float32."""
        if self.backward is None and pins_boundary_products:
            pin_boundary_products(self.graph, self.loss)
        self.scale = add_scale(self.states, policy)
        self.penalty = penalty
        if penalty is not None:
            self._add_penalty(penalty)
        seed = None if self.scale is None else self.scale.seed
        if self.backward is None:
            found = differentiate(self.graph, self.loss, self.parameters, seed)
        else:
            found = gradients_of(self.exported_gradients, self.parameters)
            if self.backward.seed:
                b = self.states.builder
                start_from(b, self.backward.seed, b.number(1) if seed is None else seed)
        self.handed = self._add_outputs(found)
        with self.states.builder.float32(KEEP):
            self.moved = self._add_outputs([*(one.batch for one in self.running), *(new for _, new in self.buffers)])
        self._report_parts()
        infer(self.model)
        mark_branches(self.graph)
        if seed is not None:
            hold_seed(self.graph, seed)
        running = [*(one.old for one in self.running), *(old for old, _ in self.buffers)]
        for kind, values in ((PARAMETER, self.parameters), (GIVEN, self.given), (RUNNING, running)):
            for value in values:
                self.states.adopt(value, kind)

    def _add_outputs(self, values: Iterable[ir.Value]) -> list[str]:
        """Of a training step's gradients: makes outputs of values and returns their names; each is an Identity, since a
        value may be the gradient of several parameters."""
        outputs = [self.states.builder.copy(value) for value in values]
        self.graph.outputs.extend(outputs)
        return [output.name or "" for output in outputs]

    def _report_parts(self) -> None:
        """Of a training step's gradients: adds an output for each part of a loss that has several."""
        if list(self.parts.values()) == [self.loss]:
            self.parts = {}
        b = Builder(self.graph, "loss")
        self.parts = {name: b.copy(value) for name, value in self.parts.items()}
        for name, output in self.parts.items():
            output.name = b.fresh(f"loss/{name}")
        self.graph.outputs.extend(self.parts.values())

    def match_types(self) -> None:
        """Of a training step's gradients: rounds the first values of parameters whose type the plan has made low."""
        for parameter in (*self.parameters, *self.given):
            tensor = parameter.const_value
            if tensor is not None and parameter.dtype is not None and tensor.dtype != parameter.dtype:
                low = tensor.numpy().astype(parameter.dtype.numpy())
                parameter.const_value = ir.tensor(low, name=parameter.name)

    def finish(self, options: UpdateOptions, said: JsonObject) -> TrainingStep:
        """Adds the update to the planned gradients, and returns the training step. ``said``: the options of
        `build_training_step`, which the step's layout keeps. To be called once."""
        how = Grouping.on(said.get("target"))
        if how.vectors:
            run_norms_together(self.graph, how.longest)
        gradients = self._remove_outputs(self.handed)
        batch, new = self._remove_copies(len(self.running)), self._remove_outputs(self.moved[len(self.running) :])
        self.states.builder = b = Builder(self.graph, "step")
        parts = parameter_runs(self.states, self.parameters, gradients, self.groups, how)
        skips = self.scale is not None and self.scale.skips
        told = covered_by_gradients(self.graph, self.parameters) if skips else ()
        averages = [replace(one, batch=value) for one, value in zip(self.running, batch, strict=True)]
        others = [(old, value) for (old, _), value in zip(self.buffers, new, strict=True)]
        running = running_moves(b, averages, others, skips, told)
        update = UpdateGraph(self.graph, self.states)
        updated = add_update(update, parts, self.scale, options, running)
        if self.iteration is not None:
            one = update.builder.int64(1)
            drawn = update.read(self.iteration)
            update.states.commit({drawn: update.builder.op("Add", drawn, one)})
        update.join(self.graph)
        return self._step_with_layout(updated, running, said)

    def _remove_outputs(self, names: Sequence[str]) -> list[ir.Value]:
        """Of a training step's gradients: ends that the named values are outputs, which only two separate graphs need,
        and returns the values."""
        found = {value.name: value for value in self.graph.outputs}
        for name in names:
            self.graph.outputs.remove(found[name])
        return [found[name] for name in names]

    def _remove_copies(self, count: int) -> list[ir.Value]:
        """Of a training step's gradients: as `_remove_outputs` for the first ``count`` of `moved`, but removes their
        Identities too and returns what these copied."""
        found = []
        for value in self._remove_outputs(self.moved[:count]):
            made = value.producer()
            source = made.inputs[0] if made is not None and made.op_type == "Identity" else None
            found.append(value if source is None else source)
            if made is not None and source is not None:
                self.graph.remove(made, safe=True)
        return found

    def _step_with_layout(self, updated: Updated, running: Sequence[RunningMove], said: JsonObject) -> TrainingStep:
        """The training step with its layout, which says what each input and output is for, in its metadata, beside the
        packed forward graph. ``updated``: what the update added."""
        # patterns and learning rates of the groups where there are several, in the order of their tables
        rated = tuple((g.pattern, float(g.optimizer.lr)) for g in distinct(self.groups) if g.optimizer is not None)
        outputs = [value.name or "" for value in self.graph.outputs]
        layout = StepLayout(
            states=tuple(self.states.entries()),
            inputs=tuple(value.name or "" for value in self.batch),
            labels=self.labels,
            classes=self.classes,
            class_inputs=self.class_inputs,
            loss=outputs[0],
            finite=updated.finite,
            norm=updated.norm,
            groups=rated if len(rated) > 1 else (),
            parts=tuple(zip(self.parts, outputs[1:], strict=False)),  # they stand behind the loss
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


def _weighted_losses(
    backward: ExportedBackward | None, losses: Mapping[str, float] | None, policy: LossScale | None
) -> Mapping[str, float]:
    """The losses of a training step, name -> weight: those given, or the one of an exported ``backward``. Raises
    AmpError AMP213 for neither, AMP215 for several losses, a weight, or a loss scale that a backward cannot take."""
    if backward is None:
        if losses is None:
            hint = f"--loss {', '.join(LOSSES)}, or the name of an output that is a float32 scalar"
            raise AmpError("AMP213", "no loss is named, and no output is a parameter's gradient", hint=hint)
        return losses
    if losses and (len(losses) > 1 or losses.get(backward.loss) != 1):
        message = "the graph has its gradients: they are of one loss, which has no weight"
        hint = "weigh the losses in the module, or build the step from the forward graph"
        raise AmpError("AMP215", message, hint=hint)
    if policy is not None and not backward.seed:
        message = "the gradients start from no input: a loss scale behind them would protect nothing"
        hint = "export it with one, --seed-input names it; or --loss-scale none"
        raise AmpError("AMP215", message, hint=hint)
    return {backward.loss: 1.0}
