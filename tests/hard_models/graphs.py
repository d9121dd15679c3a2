"""Writes graphs node by node, with weights from one seed, and the parts that exporters write for every transformer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

LOWEST = float(np.finfo(np.float32).min)
DTYPES = {"float": TensorProto.FLOAT, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}
Shape = Sequence[int | str]


class Graph:
    """One graph in the making; values are known by name, and every method that adds one returns it."""

    def __init__(self, seed: int, opset: int = 20) -> None:
        self.rng, self.opset = np.random.default_rng(seed), opset
        self.nodes: list[NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def op(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """A node with one output, named as the node."""
        name = name or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def split(self, value: str, count: int, axis: int) -> list[str]:
        """Equal parts."""
        names = [f"split_{len(self.nodes)}_{i}" for i in range(count)]
        self.nodes.append(helper.make_node("Split", [value], names, name=names[0], axis=axis, num_outputs=count))
        return names

    def weight(self, name: str, array: np.ndarray) -> str:
        self.weights[name] = np.array(array, order="C")
        return name

    def normal(self, name: str, *shape: int, scale: float | None = None) -> np.ndarray:
        """Random numbers for a weight; ``scale`` is one over the root of the number of inputs if not given."""
        return (self.rng.standard_normal(shape) * (scale or shape[0] ** -0.5)).astype(np.float32)

    def random(self, name: str, *shape: int, scale: float | None = None) -> str:
        return self.weight(name, self.normal(name, *shape, scale=scale))

    def constant(self, value: object, dtype: type = np.float32) -> str:
        """A small initializer; equal ones are one, as exporters share them."""
        array: np.ndarray = np.asarray(value, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.weight(f"constant_{len(self._constants)}", array)
        return self._constants[key]

    def ints(self, *values: int) -> str:
        return self.constant(values, np.int64)

    def linear(self, x: str, name: str, weight: np.ndarray, bias: np.ndarray | None = None) -> str:
        """MatMul with the Add of its bias."""
        if bias is None:
            return self.op("MatMul", x, self.weight(f"{name}.weight", weight), name=name)
        product = self.op("MatMul", x, self.weight(f"{name}.weight", weight), name=f"{name}.product")
        return self.op("Add", product, self.weight(f"{name}.bias", bias.astype(np.float32)), name=name)

    def dense(self, x: str, name: str, width: int, out: int, bias: bool = True) -> str:
        return self.linear(x, name, self.normal(name, width, out), self.normal(name, out, scale=0.05) if bias else None)

    def rms_norm(self, x: str, name: str, weight: np.ndarray) -> str:
        """As torch's exporter writes it."""
        mean = self.op("ReduceMean", self.op("Pow", x, self.constant(2.0)), self.ints(-1), keepdims=1)
        root = self.op("Sqrt", self.op("Add", mean, self.constant(1e-6)))
        scaled = self.op("Mul", x, self.op("Reciprocal", root))
        return self.op("Mul", self.weight(f"{name}.weight", weight), scaled, name=name)

    def layer_norm(self, x: str, name: str, width: int, eps: float = 1e-12) -> str:
        scale = self.weight(f"{name}.weight", (1 + 0.1 * self.rng.standard_normal(width)).astype(np.float32))
        shift = self.random(f"{name}.bias", width, scale=0.05)
        return self.op("LayerNormalization", x, scale, shift, name=name, axis=-1, epsilon=eps)

    def heads(self, x: str, count: int, size: int) -> str:
        """[batch, length, width] to [batch, heads, length, size]."""
        return self.op("Transpose", self.op("Reshape", x, self.ints(0, -1, count, size)), perm=[0, 2, 1, 3])

    def join(self, x: str, width: int) -> str:
        """The reverse of ``heads``."""
        return self.op("Reshape", self.op("Transpose", x, perm=[0, 2, 1, 3]), self.ints(0, -1, width))

    def attend(self, q: str, k: str, v: str, size: int, mask: str) -> str:
        """Scaled dot-product attention of [batch, heads, length, size], as torch's exporter writes it."""
        factor = self.constant(size**-0.25)
        turned = self.op("Transpose", k, perm=[0, 1, 3, 2])
        scores = self.op("MatMul", self.op("Mul", q, factor), self.op("Mul", turned, factor))
        weights = self.op("Softmax", self.op("Add", scores, mask), axis=-1)
        safe = self.op("Where", self.op("IsNaN", weights), self.constant(0.0), weights)
        return self.op("MatMul", safe, v)

    def finish(self, inputs: Mapping[str, tuple[str, Shape]], outputs: Mapping[str, Shape]) -> ModelProto:
        """The checked model, with the type of every value noted, as exporters do."""
        graph = helper.make_graph(
            self.nodes,
            "hard",
            [helper.make_tensor_value_info(name, DTYPES[dtype], shape) for name, (dtype, shape) in inputs.items()],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
            [numpy_helper.from_array(array, name) for name, array in self.weights.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        onnx.checker.check_model(model, full_check=True)
        return model
