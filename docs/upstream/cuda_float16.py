"""Shows on a CUDA GPU what ONNX Runtime's provider computes wrongly in float16, beside its CPU provider.

python cuda_float16.py      # needs onnx, onnxruntime-gpu and a GPU
"""

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def model(nodes, shape, opset, **stored):
    """Float16 in and out."""
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT16, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT16, None)
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def gelu(count):
    """Two elements at a time are computed."""
    return model([helper.make_node("Gelu", ["x"], ["y"], approximate="tanh")], [count], 20)


def running_sum(count):
    """Added up in float16."""
    return model([helper.make_node("CumSum", ["x", "axis"], ["y"])], [count], 14, axis=np.array(0))


def mean(axis):
    """Its sum is stored in float16."""
    node = helper.make_node("ReduceMean", ["x", "axis"], ["y"], keepdims=0)
    return model([node], [1024, 16] if axis == 0 else [16, 1024], 18, axis=np.array([axis]))


def lstm():
    """Gates and state are float16 inside."""
    random, half = np.random.default_rng(2), np.float16
    sizes = {"w": (1, 256, 64), "r": (1, 256, 64), "b": (1, 512)}
    stored = {name: random.uniform(-1 / 8, 1 / 8, size).astype(half) for name, size in sizes.items()}
    return model([helper.make_node("LSTM", ["x", "w", "r", "b"], ["y"], hidden_size=64)], [50, 1, 64], 14, **stored)


def rms_norm(epsilon):
    """SimplifiedLayerNormFusion takes 1e-5 for an epsilon in float16."""
    nodes = [
        helper.make_node("Pow", ["x", "two"], ["s"]),
        helper.make_node("ReduceMean", ["s", "last"], ["m"], keepdims=1),
        helper.make_node("Add", ["m", "epsilon"], ["a"]),
        helper.make_node("Sqrt", ["a"], ["r"]),
        helper.make_node("Div", ["x", "r"], ["n"]),
        helper.make_node("Mul", ["n", "gain"], ["y"]),
    ]
    half = np.float16
    numbers = {"two": half(2), "epsilon": half(epsilon), "gain": np.ones(64, half), "last": np.array([-1])}
    return model(nodes, [4, 64], 18, **numbers)


def attention(width):
    """Three heads over a past of twelve: keys of eight numbers, values of ``width``."""
    random, half = np.random.default_rng(1), np.float16
    sizes = {"k": (2, 3, 6, 8), "v": (2, 3, 6, width), "pk": (2, 3, 12, 8), "pv": (2, 3, 12, width)}
    stored = {name: random.random(size).astype(half) for name, size in sizes.items()}
    node = helper.make_node("Attention", ["x", "k", "v", "", "pk", "pv"], ["y", "nk", "nv"])
    return model([node], [2, 3, 4, 8], 23, **stored)


def run(made, provider, x):
    """What a provider makes of it, with all optimisations."""
    return (
        ort.InferenceSession(made.SerializeToString(), providers=[provider]).run(None, {"x": x})[0].astype(np.float64)
    )


def fused_epsilon(made):
    """Of the operator that CUDA's session has in the end."""
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.optimized_model_filepath = str(Path(folder, "optimised.onnx"))
        ort.InferenceSession(made.SerializeToString(), options, providers=[CUDA, CPU])
        nodes = onnx.load(options.optimized_model_filepath).graph.node
    return [a.f for node in nodes for a in node.attribute if a.name == "epsilon"]


def main():
    random = np.random.default_rng(0)
    print("epsilon 1e-6 in float16 becomes", fused_epsilon(rms_norm(1e-6)))
    for name, made, x in (
        ("Gelu by tanh of 4 elements", gelu(4), np.array([-1, 0, 1, 2], np.float16)),
        ("Gelu by tanh of 3 elements", gelu(3), np.array([-1, 0, 1], np.float16)),
        ("CumSum of 2,048 elements", running_sum(2048), random.random(2048).astype(np.float16)),
        ("ReduceMean of 1,024 numbers of 70", mean(1), np.full((16, 1024), 70, np.float16)),
        ("LSTM of 50 steps", lstm(), random.standard_normal((50, 1, 64)).astype(np.float16)),
        ("RMSNorm, epsilon 1e-6", rms_norm(1e-6), (1e-3 * random.standard_normal((4, 64))).astype(np.float16)),
        ("Attention, past, values of 8", attention(8), random.random((2, 3, 4, 8)).astype(np.float16)),
        ("Attention, past, values of 10", attention(10), random.random((2, 3, 4, 8)).astype(np.float16)),
    ):
        exact = run(made, CPU, x) if "CumSum" not in name else np.cumsum(x.astype(np.float64))
        found = run(made, CUDA, x)
        print(f"{name}: {np.linalg.norm(found - exact) / np.linalg.norm(exact):.1e}")


if __name__ == "__main__":
    main()
