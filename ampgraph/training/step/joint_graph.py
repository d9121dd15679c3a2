"""A training step in the making: forward, loss and gradients in one graph; then, when it is low, the update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ...core.errors import AmpError, nearest
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
from ..forward.losses import cross_entropy, mse
from ..forward.lowerings.batch_norm import lower_batch_norm
from ..forward.lowerings.dropout import lower_dropout
from ..forward.lowerings.losses import lower_losses
from ..forward.lowerings.random_numbers import is_random, lower_random
from ..forward.parameters import find_parameters, frozen_names
from ..forward.read import FLOATS, described, infer
from ..gradients.builder import Builder
from ..gradients.driver import differentiate
from .loss_scale import LossScale
from .optimizers import Optimizer
from .packed_forward import FORWARD, keep_originals, originals, pack
from .planner_marks import hold_norms, hold_seed, mark_branches
from .state_tensors import COUNTER, PARAMETER, RUNNING, StateBuilder
from .training_step import KEY, StepLayout, TrainingStep
from .update import Scale, add_scale, add_update

LOSSES = ("cross_entropy", "mse")
SEED = 0x5EED


@dataclass(frozen=True)
class Read:
    """What was read of a graph before it is changed: names."""

    loss: str
    given: ExportedBackward | None  # None for a forward graph
    forward: str  # packed
    frozen: set[str]
    buffers: dict[str, str]  # and the output that is the next value


class JointGraph:
    """Forward, loss and gradients in one graph, on the way to a step."""

    def __init__(self, model: ir.Model, read: Read, parameters: Sequence[ir.Value]) -> None:
        self.model, self.graph, self.given, self.forward = model, model.graph, read.given, read.forward
        self.named, self.parameters = read.loss, list(parameters)
        self.scale: Scale | None = None
        self.stored = originals(self.graph)
        self.states = StateBuilder(Builder(self.graph, "step"))
        self.batch = [value for value in self.graph.inputs if value.name not in self.graph.initializers]
        if self.given is not None:
            self.batch = [value for value in self.batch if value.name != self.given.seed]
        self.running = lower_batch_norm(self.graph, exported_mode=self.given is not None, frozen=read.frozen)
        self.iteration = self._dropout()
        infer(model)
        hold_norms(model)
        self.labels, self.classes = "", 0
        self.class_inputs: tuple[ClassInput, ...] = ()
        self.made: dict[str, ir.Value] = {}
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
        outputs = {value.name: value for value in self.graph.outputs if value.name not in read.buffers.values()}
        if read.loss in outputs:
            self.class_inputs = read_class_inputs(self.graph, outputs[read.loss])
        lower_losses(self.graph)
        if self.given is not None:
            found, self.made = self.given.values(self.graph)
            return _scalar(found, self.states.builder)
        outputs = {value.name: value for value in self.graph.outputs if value.name in outputs}
        if read.loss in outputs:
            return _scalar(outputs[read.loss], self.states.builder)
        return self._added_loss(read.loss, outputs)

    def _added_loss(self, name: str, outputs: Mapping[str | None, ir.Value]) -> ir.Value:
        """A loss of the first output, with an input for its labels."""
        if name not in LOSSES:
            known = [*LOSSES, *(str(output) for output in outputs)]
            hint = nearest(name, known) or f"there are: {', '.join(known)}"
            raise AmpError("AMP213", f"--loss {name} is neither a loss nor an output", hint=hint)
        result = next(iter(outputs.values()))
        if result.shape is None or result.dtype not in FLOATS or (name == "cross_entropy" and len(result.shape) < 2):
            message = f"cannot take {name} of output '{result.name}', {described(result)}"
            raise AmpError("AMP213", message, hint="name an output that is the loss")
        dims, dtype = list(result.shape), result.dtype
        axis = 1 if len(dims) > 3 else len(dims) - 1
        if name == "cross_entropy":
            size = dims.pop(axis)
            self.classes, dtype = size if isinstance(size, int) else 0, ir.DataType.INT64
            if self.classes == 1:
                message = f"cross_entropy of output '{result.name}', {described(result)}, is 0: it has one class"
                raise AmpError("AMP213", message, hint="compute BCEWithLogitsLoss in the module, and name its output")
        labels = ir.Value(
            name=self.states.builder.fresh("labels"), type=ir.TensorType(dtype or FLOATS[0]), shape=ir.Shape(dims)
        )
        self.graph.inputs.append(labels)
        self.batch.append(labels)
        self.labels = labels.name or ""
        b = self.states.builder
        b.scope = "loss"
        made = cross_entropy(b, result, labels, axis=axis) if name == "cross_entropy" else mse(b, result, labels)
        made.type, made.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([])
        return made

    def differentiate(self, policy: LossScale | None) -> None:
        """Gradients and new running values, each an output behind the loss; the state so far."""
        self.scale = add_scale(self.states, policy)
        seed = None if self.scale is None else self.scale.seed
        if self.given is None:
            found = differentiate(self.graph, self.loss, self.parameters, seed)
        else:
            found = chosen(self.made, self.parameters)
            if self.given.seed:
                b = self.states.builder
                start_from(b, self.given.seed, b.number(1) if seed is None else seed)
        self.graph.outputs.extend(_named_output(self.states.builder, value) for value in found)
        self.graph.outputs.extend(_named_output(self.states.builder, new) for _, new in self.running)
        infer(self.model)
        mark_branches(self.graph)
        if seed is not None:
            hold_seed(self.graph, seed)
        for parameter in self.parameters:
            self.states.adopt(parameter, PARAMETER)
        for old, _ in self.running:
            self.states.adopt(old, RUNNING)

    def match_types(self) -> None:
        """The first values of parameters that are low now."""
        for parameter in self.parameters:
            _match_type(parameter)

    def finish(self, optimizer: Optimizer, clip_norm: float | None, options: dict[str, Any]) -> TrainingStep:
        """The update behind the gradients, which are no outputs any more."""
        _, *made = list(self.graph.outputs)
        count = len(self.parameters)
        del self.graph.outputs[1:]
        self.states.builder = Builder(self.graph, "step")
        running = [(old, new) for (old, _), new in zip(self.running, made[count:], strict=True)]
        updated = add_update(self.states, self.parameters, made[:count], optimizer, self.scale, clip_norm, running)
        if self.iteration is not None:
            b = self.states.builder
            self.states.commit(self.iteration, b.op("Add", self.iteration, b.constant(np.array(1, np.int64))))
        layout = StepLayout(
            states=tuple(self.states.entries()),
            inputs=tuple(value.name or "" for value in self.batch),
            labels=self.labels,
            classes=self.classes,
            class_inputs=self.class_inputs,
            loss=self.loss_name(),
            finite=updated.finite,
            norm=updated.norm,
            options=options,
        )
        self.graph.sort()
        keep_originals(self.graph, self.stored, {entry.name for entry in layout.states})
        self.model.metadata_props[KEY] = layout.to_json()
        self.model.metadata_props[FORWARD] = self.forward
        return TrainingStep(self.model, layout)

    def loss_name(self) -> str:
        return self.graph.outputs[0].name or ""


def begin(
    forward: ir.Model,
    loss: str | None,
    policy: LossScale | None,
    freeze: Sequence[str],
    gradients: Mapping[str, str] | None,
    seed: str | None,
) -> JointGraph:
    """The graph, its loss found, and what is trained."""
    given = read_exported_backward(forward, loss, gradients, seed)
    loss = _loss_name(given, loss, policy)
    parts = forward if given is None else forward_part(forward, given)
    names = [value.name or "" for value in find_parameters(parts, freeze)]
    parameters = [forward.graph.initializers[name] for name in names]
    if given is not None:
        refuse_copies(forward, parts, parameters)
    frozen = frozen_names(parts, freeze)
    buffers = read_buffers(forward, frozen, given is not None)
    return JointGraph(forward, Read(loss, given, pack(parts), frozen, buffers), parameters)


def _loss_name(given: ExportedBackward | None, loss: str | None, policy: LossScale | None) -> str:
    """What is differentiated. Raises AmpError AMP213 for nothing, AMP215 where the loss scale has no place."""
    if given is None:
        if loss is None:
            hint = f"--loss {', '.join(LOSSES)}, or the name of an output that is a float32 scalar"
            raise AmpError("AMP213", "no loss is named, and no output is a parameter's gradient", hint=hint)
        if not isinstance(loss, str):
            raise AmpError("AMP213", f"loss={loss!r} is no name", hint=f"{', '.join(LOSSES)}, or that of an output")
        return loss
    if policy is not None and not given.seed:
        message = "the gradients start from no input: a loss scale behind them would protect nothing"
        hint = "export it with one, --seed-input names it; or --loss-scale none"
        raise AmpError("AMP215", message, hint=hint)
    return given.loss


def _scalar(value: ir.Value, b: Builder) -> ir.Value:
    dims = None if value.shape is None else list(value.shape)
    if value.dtype != ir.DataType.FLOAT or dims is None or any(dim != 1 for dim in dims):
        message = f"output '{value.name}' is no float32 scalar but {value.dtype} {dims}"
        raise AmpError("AMP213", message, hint="export the mean of the loss, or take cross_entropy or mse")
    if not dims:
        return value
    flat = b.op("Reshape", value, b.ints())
    flat.type, flat.shape = value.type, ir.Shape([])
    return flat


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
