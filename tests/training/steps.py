"""Small training steps, put together by hand from the pieces that `build` uses."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ampgraph.training.gradients.builder import Builder
from ampgraph.training.step.flat_update import Together, parts_of
from ampgraph.training.step.groups import ParameterGroup
from ampgraph.training.step.optimizers import SGD
from ampgraph.training.step.packed_forward import FORWARD, pack
from ampgraph.training.step.running_state import running_moves
from ampgraph.training.step.state_tensors import COUNTER, PARAMETER, RUNNING, StateBuilder
from ampgraph.training.step.training_step import KEY, StepLayout, TrainingStep
from ampgraph.training.step.update import UpdateOptions, add_scale, add_update
from ampgraph.training.step.update_graph import UpdateGraph
from present import present

FLOAT, CLASSES = ir.DataType.FLOAT, 3


def linear_step(optimizer=None, scale=None, clip=None, low=False, counted=False):
    """Softmax regression of 4 numbers to 3 classes; gradients by hand.

    ``low``: the product is float16. ``counted``: a counter in the state changes the data at every step, as Dropout's
    does, and a running mean of the data is kept.
    """
    rng = np.random.default_rng(7)
    x = ir.Value(name="x", type=ir.TensorType(FLOAT), shape=ir.Shape(["batch", 4]))
    weight = _stored("weight", rng.standard_normal((4, CLASSES)).astype(np.float32))
    bias = _stored("bias", np.zeros(CLASSES, np.float32))
    forward = ir.Graph([x], [], nodes=[], initializers=[weight, bias], opset_imports={"": 21}, name="linear")
    model = ir.Model(forward, ir_version=10)
    b = Builder(forward, "forward")
    logits = b.op("Gemm", x, weight, bias)
    logits.name, logits.type, logits.shape = "logits", ir.TensorType(FLOAT), ir.Shape(["batch", CLASSES])
    forward.outputs.append(logits)
    packed = pack(model)

    forward.outputs.clear()
    forward.remove(present(logits.producer()), safe=True)
    labels = ir.Value(name="labels", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape(["batch"]))
    forward.inputs.append(labels)
    b, data = Builder(forward, "step"), x
    states = StateBuilder(b)
    iteration = mean = None
    if counted:
        iteration = states.add("step/iteration", np.int64(0), COUNTER)
        mean = states.add("mean", np.zeros(4, np.float32), RUNNING)
        odd = b.op("Cast", b.op("Mod", iteration, b.constant(np.array(3, np.int64))), to=int(FLOAT))
        data = b.op("Mul", x, b.op("Add", b.op("Mul", odd, b.number(0.25)), b.number(1)))
    one_hot = b.op("OneHot", labels, b.ints(CLASSES), b.constant(np.array([0, 1], np.float32)))
    if low:
        product = b.op("MatMul", _low(b, data), _low(b, weight))
        raised = b.op("Add", b.op("Cast", product, to=int(FLOAT)), bias)
    else:
        raised = b.op("Gemm", data, weight, bias)
    chances = b.op("LogSoftmax", raised, axis=1)
    rows = b.op("ReduceSum", b.op("Mul", chances, one_hot), b.ints(1), keepdims=0)
    loss = b.op("Neg", b.op("ReduceMean", rows, keepdims=0))
    loss.name, loss.type, loss.shape = "loss", ir.TensorType(FLOAT), ir.Shape([])
    forward.outputs.append(loss)
    scaled = add_scale(states, scale)
    error = b.op("Sub", b.op("Exp", chances), one_hot)
    size = b.op("Cast", b.op("Gather", b.op("Shape", x), b.ints(0)), to=int(FLOAT))
    error = b.op("Div", error, size)
    if scaled is not None:
        error = b.op("Mul", error, scaled.seed)
    if low:
        made = b.op("MatMul", _low(b, b.op("Transpose", data, perm=[1, 0])), _low(b, error))
        down = b.op("Cast", made, to=int(FLOAT))
    else:
        down = b.op("Gemm", data, error, transA=1)
    across = b.op("ReduceSum", error, b.ints(0), keepdims=0)
    for value in (weight, bias):
        states.adopt(value, PARAMETER)
    running = []
    if mean is not None:
        seen = b.op("ReduceMean", x, b.ints(0), keepdims=0)
        running = [(mean, b.op("Add", b.op("Mul", mean, b.number(0.9)), b.op("Mul", seen, b.number(0.1))))]
    groups = [ParameterGroup("*", optimizer or SGD(0.1))] * 2
    parts = parts_of(states, [weight, bias], [b.typed(down, weight), b.typed(across, bias)], groups, Together())
    update = UpdateGraph(forward, states)
    told = add_update(update, parts, scaled, UpdateOptions(clip), running_moves(b, running, skips=False))
    if iteration is not None:
        drawn, more = update.read(iteration), update.states.builder
        update.states.commit({drawn: more.op("Add", drawn, more.constant(np.array(1, np.int64)))})
    update.join(forward)
    layout = StepLayout(
        states=tuple(states.entries()),
        inputs=("x", "labels"),
        labels="labels",
        classes=CLASSES,
        loss="loss",
        finite=told.finite,
        norm=told.norm,
        options={"loss": "cross_entropy", "loss_scale": "none" if scale is None else str(scale)},
    )
    model.metadata_props[KEY] = layout.to_json()
    model.metadata_props[FORWARD] = packed
    return TrainingStep(model, layout)


def _stored(name, array):
    tensor = ir.tensor(array, name=name)
    return ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)


def _low(b, value):
    return b.op("Cast", value, to=int(ir.DataType.FLOAT16))


def blobs(count=96, seed=0):
    """Three clouds of points and the number of each point's cloud."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    centres = np.array([[2, 0, 0, 1], [0, 2, 0, -1], [0, 0, 2, 0]], np.float32)
    x = centres[labels] + rng.standard_normal((count, 4)).astype(np.float32) * 0.3
    return {"x": x.astype(np.float32), "labels": labels}
