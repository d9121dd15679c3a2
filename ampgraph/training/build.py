"""From a forward graph to a training step: loss, gradients, casts by level, update."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from .. import pipeline
from ..errors import AmpError, nearest
from ..formats.onnx_format import OnnxGraph, quiet_collector
from ..planner import Options
from .forward import FLOATS, find_parameters, infer, read_forward
from .given import Given, chosen, forward_part, read_given, refuse_copies, start_from
from .loss_scale import DynamicLossScale, LossScale, parse_loss_scale
from .losses import cross_entropy, mse
from .lower_batch_norm import lower_batch_norm
from .lower_dropout import lower_dropout
from .lower_losses import lower_losses
from .lower_random import is_random, lower_random
from .onnx_backward.builder import Builder
from .onnx_backward.driver import differentiate
from .optimizers import Optimizer, parse_optimizer, spelled
from .packing import FORWARD, keep_originals, originals, pack
from .precision import hold_norms, hold_seed, mark_branches
from .state import COUNTER, PARAMETER, RUNNING, States
from .step import KEY, Layout, TrainingStep
from .update import add_scale, add_update

LOSSES = ("cross_entropy", "mse")
DEFAULT = "default"
SEED = 0x5EED


def build_training_step(
    model: Any,
    *,
    loss: str | None = None,
    optimizer: str | Optimizer,
    level: str = "O2",
    dtype: str = "float16",
    loss_scale: str | LossScale | None = DEFAULT,
    clip_norm: float | None = None,
    freeze: Sequence[str] = (),
    fp32: Sequence[str] = (),
    low: Sequence[str] = (),
    target: str | None = None,
    output: str | os.PathLike[str] | None = None,
    gradients: Mapping[str, str] | None = None,
    seed: str | None = None,
) -> TrainingStep:
    """A training step of a forward graph, or of one that has its backward, for stock ONNX Runtime.

    Args:
        model: what `ampgraph.convert` takes, in float32 and with its weights.
        loss: ``cross_entropy`` (of the first output, with an input ``labels`` of class numbers), ``mse`` (with an input
            ``labels`` like the first output), or the name of an output that is a float scalar. A graph with gradients
            has its loss: by default its only float scalar output.
        optimizer: `SGD`, `Adam` or `AdamW`, or their command-line form, ``sgd:lr=0.1,momentum=0.9``.
        level, dtype, fp32, low, target: as for `ampgraph.convert`; they hold for forward and backward. Parameters and
            all other state are float32, but for O3, which stores parameters low.
        loss_scale: a policy of `ampgraph.training.loss_scale`, its command-line form, or None for neither scale nor
            skipped steps. By default dynamic at O1, O2 and auto with float16, else None.
        clip_norm: the largest L2 norm of all unscaled gradients together.
        freeze: name patterns of parameters that are not trained.
        output: write the step there.
        gradients: for a graph that has its backward, the output that is a parameter's gradient, by parameter. By
            default outputs ``gradient:P``, ``P.grad``, ``grad_P`` and ``P_grad`` are the gradient of parameter P.
        seed: the float32 scalar input that these gradients start from, which becomes the loss scale. By default one
            of ``seed``, ``scale``, ``grad_output``, ``tangents_1``.

    Raises:
        AmpError: AMP205 for a model that is a training step already, AMP210 an operator without gradient rule, AMP211
            a parameter without gradient, AMP212 a shape that is not known, AMP213 a loss that is none, AMP215 gradients
            and seeds that do not fit, AMP320 and AMP322 for loss scale and optimizer.
    """
    optimizer = parse_optimizer(optimizer) if isinstance(optimizer, str) else optimizer
    policy = _policy(loss_scale, level, dtype)
    if clip_norm is not None and not clip_norm > 0:
        raise AmpError("AMP322", f"clip_norm={clip_norm} is not a positive number", hint="for example 1.0")
    with quiet_collector():
        options = pipeline.build_options(level, dtype, "ampgraph", None, fp32, low, target, None, None, "ONNX")
        joint, parameters = _begin(read_forward(model), loss, policy, freeze, gradients, seed)
        joint.differentiate(parameters, policy)
        joint.lower_precision(options)
        told = {"level": level, "dtype": dtype, "target": options.target, "loss": joint.named, "clip_norm": clip_norm}
        told |= {"optimizer": spelled(optimizer), "loss_scale": "none" if policy is None else str(policy)}
        step = joint.finish(optimizer, clip_norm, told)
    if output is not None:
        step.save(output)
    return step


class _Joint:
    """Forward, loss and gradients in one graph, on the way to a step."""

    def __init__(self, model: ir.Model, loss: str, given: Given | None, forward: str) -> None:
        self.model, self.graph, self.given, self.forward = model, model.graph, given, forward
        self.named = loss
        self.stored = originals(self.graph)
        self.states = States(Builder(self.graph, "step"))
        self.batch = [value for value in self.graph.inputs if value.name not in self.graph.initializers]
        if given is not None:
            self.batch = [value for value in self.batch if value.name != given.seed]
        self.running = lower_batch_norm(self.graph, exported_mode=given is not None)
        self.iteration = self._dropout()
        infer(model)
        hold_norms(model)
        self.labels, self.classes = "", 0
        self.made: dict[str, ir.Value] = {}
        self.loss = self._loss(loss)
        infer(model)
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

    def _loss(self, name: str) -> ir.Value:
        """The scalar that is differentiated."""
        lower_losses(self.graph)
        if self.given is not None:
            found, self.made = self.given.values(self.graph)
            return _scalar(found, self.states.builder)
        outputs = {value.name: value for value in self.graph.outputs}
        if name in outputs:
            return _scalar(outputs[name], self.states.builder)
        if name not in LOSSES:
            known = [*LOSSES, *(str(output) for output in outputs)]
            hint = nearest(name, known) or f"there are: {', '.join(known)}"
            raise AmpError("AMP213", f"--loss {name} is neither a loss nor an output", hint=hint)
        result = self.graph.outputs[0]
        if result.shape is None or result.dtype not in FLOATS or (name == "cross_entropy" and len(result.shape) < 2):
            told = f"cannot take {name} of output '{result.name}': {result.dtype} {result.shape}"
            raise AmpError("AMP213", told, hint="name an output that is the loss")
        dims, dtype = list(result.shape), result.dtype
        axis = 1 if len(dims) > 3 else len(dims) - 1
        if name == "cross_entropy":
            size = dims.pop(axis)
            self.classes, dtype = size if isinstance(size, int) else 0, ir.DataType.INT64
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

    def differentiate(self, parameters: Sequence[ir.Value], policy: LossScale | None) -> None:
        self.parameters = list(parameters)
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

    def lower_precision(self, options: Options) -> None:
        """Plans and casts forward and backward together, by the ordinary planner and passes."""
        if options.level.name == "O0":
            return
        stored = frozenset(v.name or "" for v in self.parameters) if options.level.name == "O3" else frozenset()
        graph = OnnxGraph(self.model)
        plan, flow = pipeline.planned(graph, options, stored)
        pipeline.applied(graph, plan, flow)
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
        layout = Layout(
            states=tuple(self.states.entries()),
            inputs=tuple(value.name or "" for value in self.batch),
            labels=self.labels,
            classes=self.classes,
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


def _begin(
    forward: ir.Model,
    loss: str | None,
    policy: LossScale | None,
    freeze: Sequence[str],
    gradients: Mapping[str, str] | None,
    seed: str | None,
) -> tuple[_Joint, list[ir.Value]]:
    """The graph, its loss found, and what is trained."""
    given = read_given(forward, loss, gradients, seed)
    loss = _loss_name(given, loss, policy)
    parts = forward if given is None else forward_part(forward, given)
    names = [value.name or "" for value in find_parameters(parts, freeze)]
    parameters = [forward.graph.initializers[name] for name in names]
    if given is not None:
        refuse_copies(forward, parts, parameters)
    return _Joint(forward, loss, given, pack(parts)), parameters


def _policy(given: str | LossScale | None, level: str, dtype: str) -> LossScale | None:
    if given == DEFAULT:
        return DynamicLossScale() if dtype == "float16" and level in ("O1", "O2", "auto") else None
    return parse_loss_scale(given) if isinstance(given, str) else given


def _loss_name(given: Given | None, loss: str | None, policy: LossScale | None) -> str:
    """What is differentiated. Raises AmpError AMP213 for nothing, AMP215 where the loss scale has no place."""
    if given is None:
        if loss is None:
            hint = f"--loss {', '.join(LOSSES)}, or the name of an output that is a float32 scalar"
            raise AmpError("AMP213", "no loss is named, and no output is a parameter's gradient", hint=hint)
        return loss
    if policy is not None and not given.seed:
        told = "the gradients start from no input: a loss scale behind them would protect nothing"
        hint = "export it with one, --seed-input names it; or --loss-scale none"
        raise AmpError("AMP215", told, hint=hint)
    return given.loss


def _scalar(value: ir.Value, b: Builder) -> ir.Value:
    dims = None if value.shape is None else list(value.shape)
    if value.dtype != ir.DataType.FLOAT or dims is None or any(dim != 1 for dim in dims):
        told = f"output '{value.name}' is no float32 scalar but {value.dtype} {dims}"
        raise AmpError("AMP213", told, hint="export the mean of the loss, or take cross_entropy or mse")
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
