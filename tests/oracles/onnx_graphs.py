"""The random graphs in ONNX, node for node, and a plan of one as the answers are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from ampgraph.core.plan import Plan
from oracles.random_graphs import SIZE, Step

Attributes = dict[str, Any]
FORMS: dict[str, tuple[str, Attributes, list[list[int]]]] = {
    "ToImage": ("Reshape", {}, [[1, SIZE, SIZE, 1]]),
    "ToMatrix": ("Reshape", {}, [[SIZE, SIZE]]),
    "Reshape": ("Reshape", {}, [[SIZE, SIZE]]),
    "BiasAdd": ("Add", {}, []),
    "ToInt": ("Cast", {"to": TensorProto.INT32}, []),
    "ToFloat": ("Cast", {"to": TensorProto.FLOAT}, []),
    "ArgMax": ("ArgMax", {"axis": 0, "keepdims": 0}, []),
    "ReduceMean": ("ReduceMean", {}, [[1]]),
    "ReduceSum": ("ReduceSum", {}, [[1]]),
    "ReduceMax": ("ReduceMax", {}, [[1]]),
    "ReduceMin": ("ReduceMin", {}, [[1]]),
    "MaxPool": ("MaxPool", {"kernel_shape": [1, 1]}, []),
    "AveragePool": ("AveragePool", {"kernel_shape": [1, 1]}, []),
    "Transpose": ("Transpose", {"perm": [1, 0]}, []),
    "Tile": ("Tile", {}, [[1, 1]]),
    "Unsqueeze": ("Unsqueeze", {}, [[0]]),
    "Squeeze": ("Squeeze", {}, [[0]]),
    "Split": ("Split", {"axis": 0, "num_outputs": 2}, []),
    "Concat": ("Concat", {"axis": 0}, []),
    "Slice": ("Slice", {}, [[0, 0], [SIZE, SIZE]]),
    "Einsum": ("Einsum", {"equation": "ij,jk->ik"}, []),
    "CumSum": ("CumSum", {}, [[0]]),
    "Gather": ("Gather", {}, [list(range(SIZE))]),
    "Doubled": ("Mul", {}, []),
    "Shifted": ("Add", {}, []),
    "Halved": ("Div", {}, []),
    "Inverted": ("Div", {}, []),
    "Squared": ("Pow", {}, []),
}
"""By kind of step: operator, attributes, and integer operands behind the others; else the operator of that name."""
SCALED = ("Doubled", "Shifted", "Halved", "Inverted", "Squared")
"""Kinds that have a number of their own as an operand."""


def model(steps: Sequence[Step], outputs: Sequence[str], opset: int = 22) -> ModelProto:
    """The graph as a model: step 3 is node 3 and makes ``n3``; results of several are ``n3``, ``n3:1``."""
    nodes, stored = [], []
    for number, step in enumerate(steps):
        kind, attributes, integers = FORMS.get(step.kind, (step.kind, {}, []))
        weights = [f"w{number}_{place}" for place in range(len(step.weights))]
        stored += [
            _tensor(name, np.full(shape, 0.5, np.float32)) for name, shape in zip(weights, step.weights, strict=True)
        ]
        operands = [name.replace(":0", "") for name in step.operands]
        if step.kind in SCALED:
            stored.append(_tensor(f"two{number}", np.array(2, np.float32)))
            operands.insert(0 if step.kind == "Inverted" else 1, f"two{number}")
        numbers = [f"i{number}_{place}" for place in range(len(integers))]
        stored += [_tensor(name, np.array(given, np.int64)) for name, given in zip(numbers, integers, strict=True)]
        made = [f"n{number}", f"n{number}:1"] if step.kind == "Split" else [f"n{number}"]
        nodes.append(helper.make_node(kind, [*operands, *weights, *numbers], made, f"node{number}", **attributes))
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [SIZE, SIZE]) for name in ("x", "y")]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "random", ports, results, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def _tensor(name: str, array: np.ndarray) -> TensorProto:
    return numpy_helper.from_array(array, name)


def low_nodes(plan: Plan, slots: Iterable[str] = ()) -> list[int]:
    """Numbers of the nodes that have a low slot."""
    return sorted({d.index for d in plan.decisions if d.index >= 0 and d.dtype == plan.dtype})


def casts(plan: Plan) -> list[str]:
    """What is cast, as the answers write it: ``-`` to low, ``+`` to float32. A weight stored low counts as cast."""
    found = {("+" if cast.to == "float32" else "-") + cast.value for cast in plan.casts}
    found |= {"-" + edit.value for edit in plan.weights if edit.store in ("low", "both")}
    return sorted(name for name in found if not name.startswith("-two"))  # numbers are attributes elsewhere


def text(plan: Plan) -> str:
    """A plan as an answer."""
    return " ".join([",".join(map(str, low_nodes(plan))), *casts(plan)])
