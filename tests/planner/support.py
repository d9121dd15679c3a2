"""What the planner's tests share: models from text, conversions, strict runs, and decisions as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

import ampgraph
from ampgraph.core.plan import Plan
from ampgraph.numerics.strict.session import run_strict

LEVELS = ("O1", "O2", "O3", "auto")
SHORT = {TensorProto.FLOAT: "f32", TensorProto.FLOAT16: "f16", TensorProto.BFLOAT16: "bf16", TensorProto.BOOL: "bool"}
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def converted(model: ModelProto, level: str = "O2", **options: Any) -> ModelProto:
    """The converted model, checked; converting it again changes nothing."""
    result = ampgraph.convert(model, level, **options)
    onnx.checker.check_model(result, full_check=True)
    patterns = {"fp32", "low", "io"} & set(options)
    if not patterns:
        again = ampgraph.convert(result, level, **options)
        assert again.SerializeToString(deterministic=True) == result.SerializeToString(deterministic=True)
    return result


def float32_and_low(
    model: ModelProto, feeds: Mapping[str, Any], level: str = "O2", **options: Any
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What the model gives in float32, and converted in a strict run."""
    return run_strict(model, feeds), run_strict(converted(model, level, **options), feeds)


def element_types(model: ModelProto) -> dict[str, int]:
    """Element type by value name, by onnx's own inference."""
    bare = ModelProto()
    bare.CopyFrom(model)
    del bare.graph.value_info[:]
    graph = onnx.shape_inference.infer_shapes(bare, strict_mode=True).graph
    types = {i.name: i.data_type for i in graph.initializer}
    for value in (*graph.input, *graph.output, *graph.value_info):
        types[value.name] = value.type.tensor_type.elem_type
    return types


def decisions(model: ModelProto) -> str:
    """Every node with the type it computes in, in the order of the file: ``Cast>f16 MatMul:f16 Cast>f32``.

    A node without a float result shows its first float input; one without any is left out, as are constants.
    """
    types, words = element_types(model), []
    for node in model.graph.node:
        floats = [types[v] for v in (*node.output, *node.input) if v and types.get(v) in FLOATS]
        if node.op_type == "Cast":
            words.append(f"Cast>{SHORT.get(types[node.output[0]], 'int')}")
        elif floats and node.op_type not in ("Constant", "Shape"):
            words.append(f"{node.op_type}:{SHORT[floats[0]]}")
    return " ".join(words)


def dtype_of(model: ModelProto, kind: str, number: int = 0) -> str:
    """The type that the given node of a kind computes in."""
    words = [word for word in decisions(model).split() if word.startswith(f"{kind}:")]
    return words[number].split(":")[1]


def casts(model: ModelProto) -> int:
    """Cast nodes between float types."""
    types = element_types(model)
    return sum(
        n.op_type == "Cast" and types[n.input[0]] in FLOATS and types[n.output[0]] in FLOATS for n in model.graph.node
    )


def topics(plan: Plan) -> set[str]:
    return {note.topic for note in plan.notes}


def kinds(model: ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def model_of(
    nodes: Iterable[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[int]]],
    outputs: Mapping[str, tuple[int, Sequence[int]]],
    weights: Mapping[str, np.ndarray],
    opset: int = 17,
) -> ModelProto:
    """A model from nodes; types are (element type, shape)."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, *kind) for name, kind in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
