"""Small forward graphs with their losses, steps of them, and what of a step could not stay on a CUDA device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import ModelProto, numpy_helper

from ampgraph.api.build_step import build_training_step
from ampgraph.formats.onnx.nodes import kind_of
from ampgraph.oplists.kernels import load_kernels
from ampgraph.runtime.onnxruntime_session import CRASHING
from ampgraph.training.gradients.builder import Builder
from ampgraph.training.gradients.driver import differentiate
from ampgraph.training.step.flat_update import Grouping, parameter_runs
from ampgraph.training.step.optimizers import SGD, ParameterGroup
from ampgraph.training.step.packed_forward import FORWARD, pack
from ampgraph.training.step.state_tensors import COUNTER, PARAMETER, RUNNING, StateBuilder
from ampgraph.training.step.training_step import KEY, StepLayout, TrainingStep
from ampgraph.training.step.update import UpdateOptions, add_scale, add_update, running_moves
from ampgraph.training.step.update_graph import UpdateGraph
from onnx_text import parse
from present import present

if TYPE_CHECKING:
    import torch  # which takes seconds, where only a torch_loss needs it

INPUTS, HIDDEN, OUTPUTS, BATCH = 6, 8, 3, 16
WEIGHTS = {"w1": (INPUTS, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, OUTPUTS), "b2": (OUTPUTS,)}


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(shape).astype(np.float32) / 2 for name, shape in WEIGHTS.items()}


def regression() -> ModelProto:
    """tanh(x w1 + b1) w2 + b2 against t: the mean square error is the output ``loss``."""
    model = parse(
        f"""g (float[N,{INPUTS}] x, float[N,{OUTPUTS}] t) => (float loss) {{
          m1 = MatMul (x, w1)  a1 = Add (m1, b1)  h = Tanh (a1)
          m2 = MatMul (h, w2)  y = Add (m2, b2)
          d = Sub (y, t)  s = Mul (d, d)  loss = ReduceMean <keepdims = 0> (s)
        }}""",
        opset=20,
    )
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights().items())
    return model


def batches(count: int, seed: int = 3) -> Iterator[dict[str, np.ndarray]]:
    random = np.random.default_rng(seed)
    for _ in range(count):
        x = random.standard_normal((BATCH, INPUTS)).astype(np.float32)
        yield {"x": x, "t": np.tanh(x[:, :OUTPUTS]).astype(np.float32)}


def torch_loss(parameters: Mapping[str, torch.Tensor], batch: Mapping[str, np.ndarray]) -> torch.Tensor:
    import torch

    x, t = torch.tensor(batch["x"]), torch.tensor(batch["t"])
    h = torch.tanh(x @ parameters["w1"] + parameters["b1"])
    return ((h @ parameters["w2"] + parameters["b2"] - t) ** 2).mean()


class Runner:
    """A step graph on ONNX Runtime, its state as arrays."""

    def __init__(self, step: TrainingStep) -> None:
        self.step, self.state = step, step.initial_state
        proto = ir.to_proto(step.model)
        onnx.checker.check_model(proto, full_check=True)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3  # it warns of every initializer that is an input
        self.session = onnxruntime.InferenceSession(proto.SerializeToString(), options, disabled_optimizers=CRASHING)
        self.names = [output.name for output in self.session.get_outputs()]

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = dict(zip(self.names, self.session.run(None, {**self.step.fed(self.state), **batch}), strict=True))
        states = self.step.layout.states
        self.state = {e.name: e.seen(found[e.output]) if e.output else self.state[e.name] for e in states}
        return found


def layers(count: int, **options: Any) -> TrainingStep:
    """Products of 4 x 4 one behind the other, and a bias behind each."""
    body = "  ".join(f"m{n} = MatMul (h{n}, w{n})  h{n + 1} = Add (m{n}, b{n})" for n in range(count))
    model = parse(
        f"g (float[N,4] h0) => (float[N,4] h{count}) {{ {body} }}",
        {f"w{n}": np.eye(4, dtype=np.float32) for n in range(count)}
        | {f"b{n}": np.zeros(4, np.float32) for n in range(count)},
    )
    given: dict[str, Any] = {
        "optimizer": "adamw",
        "loss_scale": "dynamic",
        "clip_norm": 1.0,
        "ema": 0.99,
        "level": "O0",
    }
    return build_training_step(model, loss="mse", **{**given, **options})


def update_nodes(step: TrainingStep) -> Counter[str]:
    """Nodes that the update adds, but for views of memory: by operator."""
    found = Counter(node.op_type for node in step.model.graph if (node.name or "").startswith("step/"))
    return Counter({kind: count for kind, count in found.items() if kind not in ("Reshape", "Identity")})


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
    parts = parameter_runs(states, [weight, bias], [b.typed(down, weight), b.typed(across, bias)], groups, Grouping())
    update = UpdateGraph(forward, states)
    told = add_update(update, parts, scaled, UpdateOptions(clip), running_moves(b, [], running, skips=False))
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


WHOLE = {"And", "Not", "Or", "Xor", "Shape", "Size", "GreaterOrEqual", "LessOrEqual"}
"""Operators without a float type in them, or whose table of floats has none: the table of kernels lists floats only."""
SLOW = {"If", "Loop", "Scan", "SequenceAt", "SoftmaxCrossEntropyLoss", "Dropout", "ReduceProd"}
"""What has a kernel that waits for the host, or none for the types that gradients need."""


def without_cuda_kernel(step: TrainingStep) -> set[str]:
    """Operators without a CUDA kernel, or with one that leaves the device; Constants are stored ahead."""
    table, nodes = (
        load_kernels("cuda").entries,
        [node for node in step.model.graph.all_nodes() if node.op_type != "Constant"],
    )
    found = {kind for kind in map(kind_of, nodes) if kind not in table and kind not in WHOLE or kind in SLOW}
    return found | {"BatchNormalization in training mode" for node in nodes if "training_mode" in node.attributes}
