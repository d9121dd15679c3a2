"""A small model for tests that run one, and what it takes: a bias that may be fed, and a factor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from npz import write_npz

X = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
BIAS = np.array([1, 2, 3], np.float32)
FEEDS: dict[str, np.ndarray] = {"x": X, "scale": np.ones(4, np.float32), "n": np.array(2, np.int64)}


def tensor(name: str, kind: int, shape: list[Any]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(low: bool = False) -> onnx.ModelProto:
    """``y = (x + bias) * n`` in float32, and ``rows``, a number a row; ``bias`` may be fed. ``low``: in bfloat16."""
    kind = TensorProto.BFLOAT16 if low else TensorProto.FLOAT
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    inputs, outputs = [tensor("x", kind, ["batch", 3])], [tensor("y", kind, ["batch", 3])]
    held = []
    if not low:
        nodes = [
            helper.make_node("Add", ["x", "bias"], ["sum"]),
            helper.make_node("Cast", ["n"], ["factor"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["sum", "factor"], ["y"], name="product"),
            helper.make_node("Neg", ["scale"], ["rows"]),
        ]
        inputs += [tensor("scale", kind, ["batch"]), tensor("n", TensorProto.INT64, []), tensor("bias", kind, [3])]
        outputs += [tensor("rows", kind, ["batch"])]
        held = [numpy_helper.from_array(BIAS, "bias")]
    graph = helper.make_graph(nodes, "g", inputs, outputs, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def written(folder: Path) -> Path:
    """The folder, with ``m.onnx``, and ``data.npz`` with what it takes and labels beside."""
    onnx.save(model(), folder / "m.onnx")
    write_npz(folder / "data.npz", {**FEEDS, "labels": np.arange(4)})
    return folder
