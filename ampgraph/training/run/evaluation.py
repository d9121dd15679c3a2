"""The forward graph of a training step with trained weights: written to a file, and evaluated in float32."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ...core.arrays import Array
from ...core.errors import AmpError
from ...formats.onnx.graph import OnnxGraph
from ...runtime.onnxruntime_session import OnnxSession
from ..forward.losses import read_spelled
from ..step.packed_forward import FORWARD, ORIGINAL, unpack
from ..step.state_tensors import AVERAGE, EMA, GIVEN, PARAMETER, RUNNING
from ..step.training_step import TrainingStep
from .dataset import TrainingData
from .step_inputs import IGNORED, StepInputs

TAKEN = (PARAMETER, RUNNING, GIVEN)  # kinds of state that the forward graph holds under the same name


def trained_model(step: TrainingStep, state: Mapping[str, Array], average: bool = False) -> ir.Model:
    """The forward model of a training step with the weights and running statistics of ``state``, in float32 and for
    inference: no Dropout, no batch statistics. ``average``: with the running average of the weights. Raises AmpError
    AMP206 for a step that holds no forward graph, or no average."""
    text = step.model.metadata_props.get(FORWARD)
    if text is None:
        hint = "build the step with ampgraph build-step from a forward graph"
        raise AmpError("AMP206", "holds no forward graph", hint=hint)
    stored = step.model.graph.initializers.values()
    kept = {v.name or "": v.const_value.numpy() for v in stored if v.const_value is not None}
    kept |= {name.removeprefix(ORIGINAL): array for name, array in kept.items() if name.startswith(ORIGINAL)}
    tensors = {entry.name: state[entry.name] for entry in step.layout.of(*TAKEN)}
    if average:
        entries = [entry.name for entry in step.layout.of(AVERAGE)]
        if not entries:
            hint = "build the step with an average: --ema 0.999"
            raise AmpError("AMP206", "keeps no running average of the weights", hint=hint)
        tensors |= {name.removeprefix(EMA): state[name] for name in entries}
    wide = ({name: _to_float32(array) for name, array in arrays.items()} for arrays in (tensors, kept))
    model = unpack(text, *wide)
    for node in model.graph.all_nodes():  # in the form of inference
        if node.op_type == "Dropout" and len(node.inputs) > 2:
            node.resize_inputs(2)
        if node.op_type == "BatchNormalization" and "training_mode" in node.attributes:
            node.attributes.pop("training_mode")
            node.resize_outputs(1)
    return model


def save_trained(
    step: TrainingStep, state: Mapping[str, Array], path: str | os.PathLike[str], average: bool = False
) -> None:
    """Writes the model of `trained_model`, whole or not at all; raises as that, and AmpError AMP105."""
    OnnxGraph(trained_model(step, state, average)).save(path)


def _to_float32(array: Array) -> Array:
    """For an evaluation: a low array in float32, as the forward graph has it; any other as it is."""
    return array.astype(np.float32) if array.dtype.name in ("float16", "bfloat16") else array


class Evaluator:
    """Evaluates a training step's forward graph in float32. It is opened once, with its weights as inputs, so that
    evaluations at any time share one session."""

    def __init__(self, step: TrainingStep, device: str) -> None:
        """Raises AmpError AMP206 for a step that holds no forward graph, and what opening a session raises."""
        self.step, self.feeds = step, StepInputs(step)
        model = trained_model(step, step.initial_state)
        graph = model.graph
        self.weights = [e.name for e in step.layout.of(*TAKEN) if e.name in graph.initializers]
        for name in self.weights:
            value = graph.initializers.pop(name)
            value.const_value = None
            graph.inputs.append(value)
        labels = step.layout.labels
        self.fed = [name for name in self.feeds.ports if name != labels]
        self.terms = read_spelled(str(step.layout.options.get("loss") or ""))
        names = [value.name or "" for value in graph.outputs]
        self.outputs = {kind: kind if kind in names else names[0] for kind in self.terms}
        self.session = OnnxSession(ir.to_proto(model), device)

    def measure(self, state: Mapping[str, Array], data: TrainingData, batch_size: int = 256) -> dict[str, float]:
        """Evaluates the weights of ``state`` on data: how many ``samples``, the mean ``loss`` (the weighted sum of
        several, without a gradient penalty), and ``accuracy`` where the loss is cross_entropy. Raises AmpError AMP503
        for data that do not fit, and where they do not fill one batch of a fixed size."""
        dataset = self.feeds.dataset(data)
        fixed = next((p.shape[0] for p in self.feeds.ports.values() if p.shape and isinstance(p.shape[0], int)), None)
        weights = {name: _to_float32(state[name]) for name in self.weights}
        asked = list(dict.fromkeys(self.outputs.values()))
        sums, samples = {kind: np.zeros(3) for kind in self.terms}, 0
        for batch in dataset.in_order(fixed or batch_size, whole=fixed is not None):
            feeds = {name: batch[name] for name in self.fed} | weights
            results = self.session.run(feeds, outputs=asked)
            labels, count = batch.get(self.step.layout.labels), len(batch[self.fed[0]])
            samples += count
            for kind, sum_ in sums.items():
                sum_ += _batch_sums(kind, results[self.outputs[kind]], labels, count)
        if not samples:
            raise AmpError("AMP503", "there is not one whole batch to evaluate", hint=f"give {fixed} samples or more")
        means = {kind: (loss / max(count, 1), right / max(count, 1)) for kind, (loss, count, right) in sums.items()}
        accuracy = {"accuracy": float(means["cross_entropy"][1])} if "cross_entropy" in means else {}
        loss = float(sum(weight * means[kind][0] for kind, weight in self.terms.items()))
        return {"samples": float(samples), "loss": loss, **accuracy}


def _batch_sums(kind: str, result: Array, labels: Array | None, samples: int) -> tuple[float, int, int]:
    """For an evaluation: of a batch of ``samples`` samples the sum of its losses in float64, over how many numbers it
    is, and how many labels are right (0 where none are classes). ``result``: the output that the loss ``kind`` is taken
    of, or, for another kind, the loss. Raises AmpError AMP503 for a label that is no class."""
    if labels is None or kind not in ("cross_entropy", "mse"):
        return float(result.reshape(())) * samples, samples, 0
    scores = result.astype(np.float64)
    if kind == "mse":
        return float(np.square(scores - labels).sum()), result.size, 0
    scores = np.moveaxis(scores, 1, -1) if scores.ndim > 3 else scores  # as `build` takes it
    counted = labels != IGNORED
    scores, labels = scores[counted], labels[counted]
    classes = scores.shape[-1]
    wrong = labels[(labels < 0) | (labels >= classes)]
    if wrong.size:
        raise AmpError("AMP503", f"label {wrong[0]} is not a class", hint=f"classes are 0 to {classes - 1}")
    top = scores.max(-1, keepdims=True)
    logs = scores - top - np.log(np.exp(scores - top).sum(-1, keepdims=True))
    loss = -float(np.take_along_axis(logs, labels[:, None], -1).sum())
    return loss, len(labels), int((scores.argmax(-1) == labels).sum())
