"""A classifier as scikit-learn's exporters write it: it ends in a ZipMap, whose maps convert passes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import ampgraph

ROOT = Path(__file__).resolve().parents[1]
TRAIN, TEST = ROOT / "models" / "digits_train.npz", ROOT / "models" / "digits_heldout.npz"


def images(path: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(path) as held:
        return held["image"].reshape(len(held["image"]), -1).astype(np.float32), held["labels"]


def classifier() -> onnx.ModelProto:
    """Least squares on the digits, then Softmax, the label, and a map from class to probability."""
    x, labels = images(TRAIN)
    weights = np.linalg.lstsq(x, 8 * np.eye(10, dtype=np.float32)[labels], rcond=None)[0]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["p"]),
        helper.make_node("ArgMax", ["p"], ["label"], axis=1, keepdims=0),
        helper.make_node("ZipMap", ["p"], ["probabilities"], domain="ai.onnx.ml", classlabels_int64s=list(range(10))),
    ]
    maps = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    outputs = [
        helper.make_tensor_value_info("label", TensorProto.INT64, ["n"]),
        helper.make_value_info("probabilities", helper.make_sequence_type_proto(maps)),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])]
    stored = [numpy_helper.from_array(weights.astype(np.float32), "w")]
    graph = helper.make_graph(nodes, "digits", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def main(folder: Path) -> None:
    onnx.save(classifier(), folder / "classifier.onnx")
    low = ampgraph.convert(folder / "classifier.onnx", level="O2", output=folder / "classifier.O2.onnx")
    x, labels = images(TEST)
    for path in (folder / "classifier.onnx", low):
        found, maps = onnxruntime.InferenceSession(path).run(None, {"x": x})
        print(f"{path.name}: {(found == labels).mean():.2%} right, {max(maps[0], key=maps[0].get)} for the first")


if __name__ == "__main__":
    build = ROOT / "build" / "examples"
    build.mkdir(parents=True, exist_ok=True)
    main(build)
