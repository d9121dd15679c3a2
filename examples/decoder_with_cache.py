"""A decoder with its key and value cache: the cache goes in and comes out low, and many steps are verified."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import ampgraph

WORDS, WIDTH = 96, 32
PAST, PRESENT = "past_key_values.0", "present.0"


def decoder() -> onnx.ModelProto:
    """One layer of attention over what is cached and what is new, with seeded weights."""
    rng = np.random.default_rng(0)
    stored = {"embed": (WORDS, WIDTH), "query": (WIDTH, WIDTH), "head": (WIDTH, WORDS)}
    stored |= {"key": (WIDTH, WIDTH), "value": (WIDTH, WIDTH)}
    nodes = [helper.make_node("Gather", ["embed", "input_ids"], ["x"], name="embedding")]
    nodes += [helper.make_node("MatMul", ["x", name], [f"{name}.new"], name=name) for name in ("query", "key", "value")]
    nodes += [
        helper.make_node(
            "Concat", [f"{PAST}.{name}", f"{name}.new"], [f"{PRESENT}.{name}"], axis=1, name=f"{name}.cache"
        )
        for name in ("key", "value")
    ]
    nodes += [
        helper.make_node("Transpose", [f"{PRESENT}.key"], ["keys"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["query.new", "keys"], ["scores"], name="scores"),
        helper.make_node("Softmax", ["scores"], ["shares"], axis=-1, name="shares"),
        helper.make_node("MatMul", ["shares", f"{PRESENT}.value"], ["mixed"], name="mixed"),
        helper.make_node("Add", ["x", "mixed"], ["h"], name="residual"),
        helper.make_node("MatMul", ["h", "head"], ["logits"], name="logits"),
    ]
    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "new"])]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "new", WORDS])]
    for name in ("key", "value"):
        inputs.append(helper.make_tensor_value_info(f"{PAST}.{name}", TensorProto.FLOAT, ["batch", "past", WIDTH]))
        outputs.append(helper.make_tensor_value_info(f"{PRESENT}.{name}", TensorProto.FLOAT, ["batch", "all", WIDTH]))
    weights = [
        numpy_helper.from_array(rng.normal(0, WIDTH**-0.5, shape).astype(np.float32), name)
        for name, shape in stored.items()
    ]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def main(folder: Path) -> None:
    model = decoder()
    low = ampgraph.convert(model, level="O2", io=["past*=low", "present*=low"])
    onnx.save(low, folder / "decoder.O2.onnx")
    types = {v.name: TensorProto.DataType.Name(v.type.tensor_type.elem_type) for v in low.graph.input}
    print(types)
    found = ampgraph.verify(model, low, steps=16)
    print("verdict", "ok" if found.ok else "missed", "over 16 steps, each model on its own cache")


if __name__ == "__main__":
    build = Path(__file__).resolve().parents[1] / "build" / "examples"
    build.mkdir(parents=True, exist_ok=True)
    main(build)
