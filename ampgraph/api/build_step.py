"""`ampgraph.build_training_step`: from a forward graph to a training step, low by the ordinary planner and passes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..core.errors import AmpError, is_number
from ..formats.onnx.graph import OnnxGraph, quiet_collector
from ..planner.steps import Options
from ..training.forward.read import read_forward
from ..training.step.joint_graph import JointGraph, begin
from ..training.step.loss_scale import DynamicLossScale, LossScale, StaticLossScale, parse_loss_scale
from ..training.step.optimizers import Optimizer, as_optimizer, spelled
from ..training.step.training_step import TrainingStep
from . import pipeline

DEFAULT = "default"


def build_training_step(
    model: Any,
    *,
    loss: str | None = None,
    optimizer: str | Optimizer,
    level: str = "O2",
    dtype: str = "float16",
    loss_scale: str | LossScale | None = DEFAULT,
    clip_norm: float | None = None,
    freeze: str | Sequence[str] = (),
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
        loss_scale: a policy of `ampgraph.training.step.loss_scale`, its command-line form, or None for neither scale
            nor skipped steps. By default dynamic at O1, O2 and auto with float16, else None.
        clip_norm: the largest L2 norm of all unscaled gradients together.
        freeze: name patterns of parameters that are not trained. One that matches the running mean or variance of a
            BatchNormalization leaves that node in the form of inference: it computes with these statistics, which stay
            as they are; where the graph has its backward they only stay.
        output: write the step there.
        gradients: for a graph that has its backward, the output that is a parameter's gradient, by parameter. By
            default outputs ``gradient:P``, ``P.grad``, ``grad_P`` and ``P_grad`` are the gradient of parameter P.
        seed: the float32 scalar input that these gradients start from, which becomes the loss scale. By default one
            of ``seed``, ``scale``, ``grad_output``, ``tangents_1``.

    Raises:
        AmpError: AMP205 for a model that is a training step already, AMP210 an operator without gradient rule, AMP211
            a parameter without gradient, AMP212 a shape that is not known, AMP213 a loss that is none, AMP215 for
            gradients, seeds and buffers that do not fit, AMP305 for ``freeze``, AMP320 for the loss scale, AMP322 for
            optimizer and clip_norm.
    """
    optimizer, policy, clip_norm = as_optimizer(optimizer), _policy(loss_scale, level, dtype), _clip(clip_norm)
    freeze = (freeze,) if isinstance(freeze, str) else tuple(freeze)
    with quiet_collector():
        options = pipeline.build_options(level, dtype, "ampgraph", None, fp32, low, target, None, None, "ONNX")
        joint = begin(read_forward(model), loss, policy, freeze, gradients, seed)
        joint.differentiate(policy)
        _lower_precision(joint, options)
        message = {
            "level": level,
            "dtype": dtype,
            "target": options.target,
            "loss": joint.named,
            "clip_norm": clip_norm,
        }
        message |= {"optimizer": spelled(optimizer), "loss_scale": "none" if policy is None else str(policy)}
        step = joint.finish(optimizer, clip_norm, message)
    if output is not None:
        step.save(output)
    return step


def _lower_precision(joint: JointGraph, options: Options) -> None:
    """Plans and casts forward and backward together."""
    if options.level.name == "O0":
        return
    graph = OnnxGraph(joint.model)
    stored = frozenset(v.name or "" for v in joint.parameters) if options.level.name == "O3" else frozenset()
    plan, flow = pipeline.planned(graph, options, stored)
    pipeline.applied(graph, plan, flow)
    joint.match_types()


def _policy(given: str | LossScale | None, level: str, dtype: str) -> LossScale | None:
    if isinstance(given, str):
        if given != DEFAULT:
            return parse_loss_scale(given)
        return DynamicLossScale() if dtype == "float16" and level in ("O1", "O2", "auto") else None
    if given is not None and not isinstance(given, (StaticLossScale, DynamicLossScale)):
        hint = f"static:{given} for a scale that stays" if is_number(given) else "ampgraph.DynamicLossScale()"
        raise AmpError("AMP320", f"loss_scale={given!r} is neither a policy nor the text of one", hint=hint)
    return given


def _clip(given: float | None) -> float | None:
    if given is None:
        return None
    with np.errstate(over="ignore"):
        if not is_number(given) or not np.float32(given) > 0:
            raise AmpError("AMP322", f"clip_norm={given!r} is not a positive number", hint="for example 1.0")
    return float(given)
