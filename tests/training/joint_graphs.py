"""Graphs that have their backward, made by our own rules, and steps of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ampgraph.api.build_step import build_training_step
from ampgraph.core.errors import AmpError
from ampgraph.training.gradients.driver import differentiate
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step.loss_scale import DynamicLossScale
from training.small_steps import WEIGHTS, batches, regression

SCALE = DynamicLossScale(init=1024.0, interval=3)


def joint(*given, **more):
    """As `marked`, as a file has it: what the gradients say of themselves to the planner is not in it."""
    proto = ir.to_proto(marked(*given, **more))
    onnx.checker.check_model(proto, full_check=True)
    return proto


def marked(names="gradient:{}", seed="seed", wanted=tuple(WEIGHTS), shape=(), extra=True):
    """The forward graph of `small_steps` with its gradients as outputs; without ``seed`` they start from 1."""
    model = ir.from_proto(onnx.shape_inference.infer_shapes(regression(), data_prop=True))
    graph = model.graph
    start = None
    if seed:
        given = ir.Value(name=seed, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))
        graph.inputs.append(given)
        start = given
        if shape:
            start = ir.Value(name="flat", type=given.type, shape=ir.Shape([]))
            axes = ir.Value(name="flat_axes", const_value=ir.tensor(np.zeros(0, np.int64), name="flat_axes"))
            graph.register_initializer(axes)
            graph.append(ir.Node("", "Reshape", [given, axes], outputs=[start]))
    found = differentiate(graph, graph.outputs[0], [graph.initializers[name] for name in wanted], start)
    for name, value in zip(wanted, found, strict=True):
        stored = graph.initializers[name]
        output = ir.Value(name=names.format(name), type=stored.type, shape=ir.Shape(WEIGHTS[name]))
        graph.append(ir.Node("", "Identity", [value], outputs=[output]))
        graph.outputs.append(output)
    return model


def build(model, **options):
    given = {"optimizer": "adam:lr=0.02", "level": "O0", "loss_scale": SCALE, "clip_norm": 0.5}
    return build_training_step(model, **{**given, **options})


def trajectory(step, count=12, strict=False, poisoned=()):
    """What every step tells, and the bits of the state at its end."""
    trainer, told = Trainer(step, "cpu", strict=strict), []
    for number, batch in enumerate(batches(count)):
        if number in poisoned:
            batch["x"][0, 0] = np.inf
        result = trainer.step(batch)
        told.append(f"{result.loss!r} {result.finite} {result.scale} {result.grad_norm!r}")  # NaN is NaN
    return told, {name: array.tobytes() for name, array in trainer.state.items()}


def types(step):
    """Operators and the types of what they make; Identity is a name."""
    nodes = [node for node in step.model.graph if node.op_type != "Identity"]
    return Counter((node.op_type, str([value.dtype for value in node.outputs])) for node in nodes)


def refused(code, model, **options):
    with pytest.raises(AmpError) as caught:
        build(model, **options)
    assert caught.value.code == code and caught.value.hint, caught.value
    return str(caught.value)
