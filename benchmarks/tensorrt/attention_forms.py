"""Written attention: which types around its Softmax TensorRT makes one kernel of, and which its builder dies of.

Exporters write a Softmax whose rows may be wholly masked with a test for NaN behind it that selects zero.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent)]

import numpy as np  # noqa: E402
from engines import built  # noqa: E402
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper  # noqa: E402

from ampgraph.runtime.tensorrt_rtx import BuildAnswer, BuildJob  # noqa: E402

TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
SOFTMAX, TEST, SELECT = "Softmax", "IsNaN", "Where"
SIZES = ((2, 4, 64, 64), (2, 4, 24, 16))
"""Batch, heads, length and head size: an older kernel knows heads of 64 with a float32 Softmax, and no others."""


class Written:
    """Nodes under way, with the type of each value: a Cast wherever two do not meet."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.types: dict[str, str] = {}

    def add(self, kind: str, inputs: list[str], made: str, dtype: str, **attributes: object) -> str:
        """An operator whose float operands have one type."""
        given = [name if name not in self.types else self._cast(name, dtype) for name in inputs]
        self.nodes.append(helper.make_node(kind, given, [made], **attributes))
        self.types[made] = dtype
        return made

    def _cast(self, name: str, dtype: str) -> str:
        made = name if self.types[name] == dtype else f"{name}_{dtype}"
        if made not in self.types:
            self.nodes.append(helper.make_node("Cast", [name], [made], to=TYPES[dtype]))
            self.types[made] = dtype
        return made


def attention(low: str, softmax: str, test: str, select: str, size: tuple[int, ...] = SIZES[0]) -> ModelProto:
    """Two low products around a Softmax of its own type, and behind it a test and a selection of theirs."""
    written, inputs = Written(), ("q", "k", "v")
    written.types = dict.fromkeys(inputs, low)
    written.add("MatMul", ["q", "k"], "scores", low)
    written.add(SOFTMAX, ["scores"], "weights", softmax, axis=-1)
    written.add(TEST, ["weights"], "missing", test)
    del written.types["missing"]  # of booleans
    dtype = helper.tensor_dtype_to_np_dtype(TYPES[select])
    written.add("Constant", [], "zero", select, value=numpy_helper.from_array(np.zeros((), dtype)))
    written.add(SELECT, ["missing", "zero", "weights"], "kept", select)
    written.add("MatMul", ["kept", "v"], "y", low)
    *outer, length, width = size
    shapes = {"k": (*outer, width, length)}
    values = [helper.make_tensor_value_info(name, TYPES[low], shapes.get(name, size)) for name in (*inputs, "y")]
    graph = helper.make_graph(written.nodes, "attention", values[:-1], values[-1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def biased(low: str, moved: bool, size: tuple[int, ...] = SIZES[0]) -> ModelProto:
    """A product, what is added to it, Softmax and a product; ``moved``: the addend is reshaped and transposed first."""
    batch, heads, length, width = size
    written, inputs = Written(), ("q", "k", "v")
    written.types = dict.fromkeys(inputs, low)
    dtype = helper.tensor_dtype_to_np_dtype(TYPES[low])
    bias = np.linspace(-1, 1, heads * length**2).astype(dtype)
    stored = {"shape": np.array([length, length, heads]), "axes": np.array([0])}
    stored["bias"] = bias.reshape((length**2, heads) if moved else (1, heads, length, length))
    written.add("MatMul", ["q", "k"], "scores", low)
    if moved:
        written.nodes += [
            helper.make_node("Reshape", ["bias", "shape"], ["rows"]),
            helper.make_node("Transpose", ["rows"], ["heads"], perm=[2, 0, 1]),
            helper.make_node("Unsqueeze", ["heads", "axes"], ["added"]),
        ]
    written.add("Add", ["scores", "added" if moved else "bias"], "shifted", low)
    written.add(SOFTMAX, ["shifted"], "weights", low, axis=-1)
    written.add("MatMul", ["weights", "v"], "y", low)
    values = [helper.make_tensor_value_info(name, TYPES[low], size) for name in (*inputs, "y")]
    tensors = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(written.nodes, "biased", values[:-1], values[-1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def scaled(low: str, early: bool) -> ModelProto:
    """A masked attention whose scaled key is projected and moved; ``early``: it is scaled before it is moved."""
    heads, length, width = 12, 197, 64
    size = heads * width
    written = Written()
    written.types = dict.fromkeys(("x", "q", "v", "mask", "weight", "bias", "factor"), low)
    dtype = helper.tensor_dtype_to_np_dtype(TYPES[low])
    stored = {
        "weight": np.linspace(-1, 1, size**2).reshape(size, size).astype(dtype),
        "bias": np.linspace(-1, 1, size).astype(dtype),
        "factor": np.array(width**-0.5, dtype),
        "shape": np.array([1, length, heads, width]),
    }
    written.add("MatMul", ["x", "weight"], "product", low)
    key = written.add("Add", ["product", "bias"], "key", low)
    key = written.add("Mul", [key, "factor"], "early", low) if early else key
    written.add("Reshape", [key, "shape"], "split", low)
    key = written.add("Transpose", ["split"], "moved", low, perm=[0, 2, 3, 1])
    key = key if early else written.add("Mul", [key, "factor"], "late", low)
    written.add("MatMul", ["q", key], "scores", low)
    written.add("Add", ["scores", "mask"], "masked", low)
    written.add(SOFTMAX, ["masked"], "weights", low, axis=-1)
    written.add("MatMul", ["weights", "v"], "y", low)
    shapes = {"x": (1, length, size), "mask": (1, 1, length, length)}
    names = ("x", "q", "v", "mask", "y")
    values = [
        helper.make_tensor_value_info(name, TYPES[low], shapes.get(name, (1, heads, length, width))) for name in names
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(written.nodes, "scaled", values[:-1], values[-1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def shared(low: str, scaling: str, across: bool, size: tuple[int, ...] = SIZES[1]) -> ModelProto:
    """Masked scores to which others of the same query are added, of stored positions; a number scales the key in a
    type of its own, or, if ``across``, the query for one of the two products."""
    batch, heads, length, width = size
    rows, model, square = batch * heads, heads * width, (batch * heads, length, length)
    written = Written()
    written.types = {**dict.fromkeys(("x", "weight", "bias", "positions", "lowest"), low), "factor": scaling}
    dtype = helper.tensor_dtype_to_np_dtype(TYPES[low])
    stored = {
        "weight": np.linspace(-1, 1, model**2).reshape(model, model).astype(dtype),
        "bias": np.linspace(-1, 1, model).astype(dtype),
        "factor": np.array((3 * width) ** -0.5, helper.tensor_dtype_to_np_dtype(TYPES[scaling])),
        "lowest": np.array(np.finfo(np.float16).min, dtype),
        "positions": np.linspace(-1, 1, rows * width * length).reshape(rows, width, length).astype(dtype),
        "places": np.ascontiguousarray(np.broadcast_to(np.arange(length)[::-1], square)),
        "split": np.array([batch, length, heads, width]),
        "rows": np.array([rows, length, width]),
        "apart": np.array([batch, heads, length, length]),
        "together": np.array(square),
        "heads": np.array([batch, heads, length, width]),
        "whole": np.array([batch, length, model]),
    }
    for one in ("query", "key", "value"):
        stored[f"{one}_weight"] = np.roll(stored["weight"], len(one))
        written.types[f"{one}_weight"] = low
        written.add("MatMul", ["x", f"{one}_weight"], f"{one}_product", low)
        written.add("Add", [f"{one}_product", "bias"], f"{one}_biased", low)
        written.add("Reshape", [f"{one}_biased", "split"], f"{one}_split", low)
        written.add("Transpose", [f"{one}_split"], f"{one}_heads", low, perm=[0, 2, 1, 3])
        written.add("Reshape", [f"{one}_heads", "rows"], one, low)
    query, key = "query", written.add("Transpose", ["key"], "turned", low, perm=[0, 2, 1])
    if across:
        query = written.add("Mul", [query, "factor"], "scaled", scaling)
    else:
        key = written.add("Mul", [key, "factor"], "scaled", scaling)
    written.add("MatMul", [query, key], "scores", low)
    written.add("MatMul", ["query", "positions"], "beside", low)
    written.add("GatherElements", ["beside", "places"], "added", low, axis=2)
    written.add("Add", ["scores", "added"], "shifted", low)
    written.add("Reshape", ["shifted", "apart"], "scores_apart", low)
    written.add("Where", ["hidden", "lowest", "scores_apart"], "masked", low)
    written.add(SOFTMAX, ["masked"], "weights", low, axis=-1)
    written.add("Reshape", ["weights", "together"], "joined", low)
    written.add("MatMul", ["joined", "value"], "made", low)
    written.add("Reshape", ["made", "heads"], "made_apart", low)
    written.add("Transpose", ["made_apart"], "made_turned", low, perm=[0, 2, 1, 3])
    written.add("Reshape", ["made_turned", "whole"], "y", low)
    values = [
        helper.make_tensor_value_info("x", TYPES[low], (batch, length, model)),
        helper.make_tensor_value_info("hidden", TensorProto.BOOL, (batch, 1, length, length)),
        helper.make_tensor_value_info("y", TYPES[low], (batch, length, model)),
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(written.nodes, "shared", values[:-1], values[-1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def grouped(low: str, broadcast: bool, size: tuple[int, ...] = SIZES[1]) -> ModelProto:
    """An attention of bounded scores, which is no one kernel, whose values two heads share: the product broadcasts
    them, or they are repeated before it."""
    batch, heads, length, width = size
    few, model = heads // 2, heads * width
    written = Written()
    written.types = dict.fromkeys(("x", "q", "k", "v", "weight"), low)
    dtype = helper.tensor_dtype_to_np_dtype(TYPES[low])
    stored = {
        "weight": np.linspace(-1, 1, model**2).reshape(model, model).astype(dtype),
        "repeated": np.array([batch, few, 2, length, width]),
        "groups": np.array([batch, few, 2, length, length]),
        "heads": np.array([batch, heads, length, width]),
        "whole": np.array([batch, length, model]),
    }
    written.add("MatMul", ["q", "k"], "scores", low)
    written.add("Tanh", ["scores"], "bounded", low)
    weights = written.add(SOFTMAX, ["bounded"], "weights", low, axis=-1)
    if broadcast:
        written.add("Reshape", [weights, "groups"], "split", low)
        written.add("MatMul", ["split", "v"], "each", low)
        written.add("Reshape", ["each", "heads"], "made", low)
    else:
        written.add("Expand", ["v", "repeated"], "expanded", low)
        written.add("Reshape", ["expanded", "heads"], "values", low)
        written.add("MatMul", [weights, "values"], "made", low)
    written.add("Transpose", ["made"], "turned", low, perm=[0, 2, 1, 3])
    written.add("Reshape", ["turned", "whole"], "joined", low)
    written.add("MatMul", ["joined", "weight"], "branch", low)
    written.add("Add", ["x", "branch"], "y", low)
    whole = (batch, length, model)
    shapes = {"k": (batch, heads, width, length), "v": (batch, few, 1, length, width), "x": whole, "y": whole}
    names = ("x", "q", "k", "v", "y")
    values = [helper.make_tensor_value_info(name, TYPES[low], shapes.get(name, size)) for name in names]
    tensors = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(written.nodes, "grouped", values[:-1], values[-1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def rows(python: str, kept: str) -> dict[str, dict[str, object]]:
    """The row of the table: low types in which all of it is low or, of some size, no attention is fused, what the
    builder says of all of it in float32 before a low product, and the low types in which another form fuses more."""
    wide, low_types = "float32", [name for name in TYPES if name != "float32"]
    types = {low: [(low, low, low), (wide, low, low), (wide, wide, wide)] for low in low_types}
    forms = [(low, size) for low in low_types for size in SIZES]
    jobs = [BuildJob(attention(low, *three, size)) for low, size in forms for three in types[low]]
    answers = iter(built(jobs, python, kept))
    needed, said = [], set[str]()
    for low, _ in forms:
        all_low, softmax_wide, all_wide = (next(answers) for _ in range(3))
        if fused(all_low) and not fused(softmax_wide) and low not in needed:
            needed.append(low)
        if not all_wide.ok:
            said.update(re.findall(r"\b[A-Z]\w+Exception|dies of it", all_wide.why))
    moves = iter(built([BuildJob(biased(low, moved)) for low in low_types for moved in (False, True)], python, kept))
    stored = [low for low in low_types if fused(next(moves)) > fused(next(moves))]
    scales = iter(built([BuildJob(scaled(low, early)) for low in low_types for early in (False, True)], python, kept))
    early = [low for low in low_types if started(next(scales)) > started(next(scales))]
    ways = [(low, scaling) for low in low_types for scaling in (low, wide)]
    operands = iter(built([BuildJob(shared(*way, across)) for way in ways for across in (False, True)], python, kept))
    across = dict.fromkeys(low for low, _ in ways if fused(next(operands)) < fused(next(operands)))
    shares = iter(built([BuildJob(grouped(low, one)) for low in low_types for one in (False, True)], python, kept))
    groups = [low for low in low_types if started(next(shares)) > started(next(shares))]
    row = {"tests": TEST, "selects": SELECT, "low": needed, "refused": "; ".join(sorted(said)), "stored": stored}
    return {SOFTMAX: {**row, "early": early, "across": list(across), "groups": groups}}


def started(answer: BuildAnswer) -> int:
    """How many kernels an engine has."""
    return len(answer.engine.kernels) if answer.engine is not None else 0


def fused(answer: BuildAnswer) -> bool:
    """Whether an attention is one kernel."""
    return answer.engine is not None and answer.engine.attentions > 0
