"""What an update and a Dropout cost, as counts: passes over a parameter or over the tensor that is dropped from."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest

from ampgraph.api.build_step import build_training_step
from ampgraph.training.step.training_step import session_model
from onnx_text import parse

SIZES = (67, 131)
FORWARD = f"g (float[8,{SIZES[0]}] x) => (float[8,{SIZES[1]}] y) {{ y = MatMul (x, w) }}"
DROPPED = "g (float[32,512] x) => (float loss) <float r = {0.25}, bool t = {1}> "
DROPPED += "{ a = Mul (x, w)  y = Dropout (a, r, t)  loss = ReduceMean <keepdims = 0> (y) }"
VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")


def passes(step, batch, size, tmp_path) -> Counter[str]:
    """Nodes that write ``size`` numbers and compute, by operator, in what ONNX Runtime makes of a step on the CPU."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "optimised.onnx"), 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    proto, _ = session_model(step)
    onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    model = onnx.load(tmp_path / "optimised.onnx")
    nodes = {node.output[0]: node.op_type for node in model.graph.node if node.op_type not in VIEWS}
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in nodes)
    plain = onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), plain, providers=["CPUExecutionProvider"])
    made = session.run(list(nodes), {**step.fed(step.initial_state), **batch})
    return Counter(kind for kind, array in zip(nodes.values(), made, strict=True) if np.size(array) == size)


@pytest.mark.parametrize(
    "optimizer, count",
    [("sgd", 2), ("sgd:momentum=0.9", 4), ("sgd:momentum=0.9,nesterov=yes", 6), ("adam", 12), ("adamw", 13)],
)
def test_an_update_is_so_many_passes(optimizer, count, tmp_path):
    """None of them a copy; the gradient itself is one more."""
    model = parse(FORWARD, w=np.ones(SIZES, np.float32))
    step = build_training_step(model, loss="mse", optimizer=optimizer, level="O0")
    batch = {"x": np.ones((8, SIZES[0]), np.float32), "labels": np.ones((8, SIZES[1]), np.float32)}
    found = passes(step, batch, np.prod(SIZES), tmp_path)
    gradient = found.pop("Gemm", 0) + found.pop("MatMul", 0) + found.pop("FusedMatMul", 0)
    assert gradient == 1 and found.total() == count and not found["Identity"], found


def test_a_dropout_is_so_many_passes(tmp_path):
    """Four of int32 for the numbers, one that compares, the mask, and a product with it forwards and backwards."""
    model = parse(DROPPED, w=np.ones((512,), np.float32))
    step = build_training_step(model, loss="loss", optimizer="sgd", level="O0")
    found = passes(step, {"x": np.ones((32, 512), np.float32)}, 32 * 512, tmp_path)
    numbers = {"Mul": 2, "Add": 2, "GreaterOrEqual": 1, "Where": 1}
    around = {"Mul": 4}  # a, y, and their gradients
    assert found == Counter(numbers) + Counter(around), found
