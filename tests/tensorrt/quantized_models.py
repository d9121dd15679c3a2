"""Small quantized models: a convolution net and a transformer block whose products are QDQ in int8, in FP8 (E4M3), or
whose weights are INT4 or int8 in blocks, by the operators that TensorRT's own tools write and by ONNX Runtime's."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from onnx_text import parse

BLOCK = """g (float[2,24,64] x) => (float[2,24,64] y) {
    n = LayerNormalization <axis = -1> (x, g, b)  h = MatMul (n, w)  t = Add (h, c)  e = Gelu (t)  o = MatMul (e, v)
    s = Softmax <axis = -1> (o)  y = Add (s, x) }"""
NET = """g (float[2,8,16,16] x) => (float[2,16] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, w, c)  r = Relu (a)  d = Conv <pads = [1, 1, 1, 1]> (r, v)  f = Add (d, a)
    q = Relu (f)  m = GlobalAveragePool (q)  p = Flatten (m)  y = MatMul (p, u) }"""
OF_BLOCK = {"w": (64, 128), "v": (128, 64), "c": (128,), "g": np.ones(64, np.float32), "b": (64,)}
OF_NET = {"w": (16, 8, 3, 3), "v": (16, 16, 3, 3), "c": (16,), "u": (16, 16)}

ATTENTION = """g (float[2,64,256] x, float[2,1,64,64] mask) => (float[2,64,256] y) {
    q0 = MatMul (x, wq)  k0 = MatMul (x, wk)  v0 = MatMul (x, wv)
    q1 = Reshape (q0, split)  k1 = Reshape (k0, split)  v1 = Reshape (v0, split)
    q = Transpose <perm = [0, 2, 1, 3]> (q1)  k = Transpose <perm = [0, 2, 3, 1]> (k1)
    v = Transpose <perm = [0, 2, 1, 3]> (v1)
    s = MatMul (q, k)  a = Add (s, mask)  p = Softmax <axis = -1> (a)
    c = MatMul (p, v)  t = Transpose <perm = [0, 2, 1, 3]> (c)  j = Reshape (t, joined)  y = MatMul (j, wo) }"""
OF_ATTENTION = dict.fromkeys(("wq", "wk", "wv", "wo"), (256, 256))
SHAPES = {"split": np.array([2, 64, 4, 64]), "joined": np.array([2, 64, 256])}

INT8, FP8, INT4 = TensorProto.INT8, TensorProto.FLOAT8E4M3FN, TensorProto.INT4
TOP: dict[int, float] = {INT8: 127.0, FP8: 448.0, INT4: 7.0}
PRODUCTS = ("Conv", "MatMul")


def block(opset: int) -> ModelProto:
    """A transformer block, in float32."""
    text = BLOCK
    if opset < 20:  # no Gelu
        text = text.replace("e = Gelu (t)", "k = Sigmoid (t)  e = Mul (t, k)")
    return parse(text, OF_BLOCK, opset=opset)


def net(opset: int) -> ModelProto:
    """A convolution net, in float32."""
    return parse(NET, OF_NET, opset=opset)


def attention(opset: int) -> ModelProto:
    """An attention between projections, in float32."""
    return parse(ATTENTION, {**OF_ATTENTION, **SHAPES}, opset=opset)


def qdq(model: ModelProto, dtype: int, *, axis: bool = True, stored: bool = True) -> ModelProto:
    """Every product between QuantizeLinear and DequantizeLinear: its data by a tensor's scale, its weight by a
    channel's where ``axis``; ``stored``: the weight is stored as quantized, else it is quantized in the file."""
    made = _Quantized(model, dtype)
    for node in list(model.graph.node):
        if node.op_type in PRODUCTS and node.input[1] in made.stored:
            data, weight = node.input[:2]
            node.input[0] = made.pair(data, np.float32(4 / TOP[dtype]), None)
            node.input[1] = made.weight(weight, 0 if node.op_type == "Conv" else 1, axis, stored)
    return made.done()


def weight_only(model: ModelProto, dtype: int, size: int = 32) -> ModelProto:
    """Weights of MatMul in blocks of ``size`` rows, a scale for each, by DequantizeLinear-21."""
    made = _Quantized(model, dtype)
    for node in list(model.graph.node):
        if node.op_type == "MatMul" and node.input[1] in made.stored:
            node.input[1] = made.blocked(node.input[1], size)
    return made.done()


def by_onnxruntime(model: ModelProto, way: str) -> ModelProto:
    """What ONNX Runtime's quantizers make of a model: `int8`, `uint8` or `fp8` by samples, `int4` of its weights."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    if way == "int4":
        quantizer = pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer")
        form = quantizer.QuantFormat.QDQ
        quantizer = quantizer.MatMulNBitsQuantizer(model, block_size=32, is_symmetric=True, quant_format=form)
        quantizer.process()
        made: ModelProto = quantizer.model.model
        return made
    types = {"int8": ("QInt8", "QInt8"), "uint8": ("QUInt8", "QInt8"), "fp8": ("QFLOAT8E4M3FN",) * 2}[way]
    data, weight = (getattr(quantization.QuantType, name) for name in types)
    sizes = {one.name: [dim.dim_value for dim in one.type.tensor_type.shape.dim] for one in model.graph.input}
    random = np.random.default_rng(0)
    samples = [{n: random.standard_normal(s).astype(np.float32) for n, s in sizes.items()} for _ in range(4)]

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.left: Iterator[dict[str, np.ndarray]] = iter(samples)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.left, None)

    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder, "m.onnx"), Path(folder, "q.onnx")
        onnx.save(model, source)
        method = quantization.CalibrationMethod
        quantization.quantize_static(
            source, result, Reader(), activation_type=data, weight_type=weight, per_channel=way == "int8",
            extra_options={"QuantizeBias": False, "ActivationSymmetric": way != "uint8"},
            op_types_to_quantize=PRODUCTS if way == "fp8" else None,
            calibrate_method=method.Distribution if way == "fp8" else method.MinMax,
        )  # fmt: skip
        return onnx.load(result)


class _Quantized:
    """Adds what quantizes to a model, each before what reads it."""

    def __init__(self, model: ModelProto, dtype: int) -> None:
        self.model, self.dtype, self.added = model, dtype, dict[str, list[NodeProto]]()
        self.stored = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
        self.pairs: dict[str, str] = {}

    def pair(self, value: str, scale: np.ndarray | np.float32, axis: int | None) -> str:
        """A value, quantized and back."""
        if value not in self.pairs:
            more: dict[str, Any] = {} if axis is None else {"axis": axis}
            names = [self._store(f"{value}_scale", np.asarray(scale)), self._zero(value, np.asarray(scale).shape)]
            nodes = [
                helper.make_node("QuantizeLinear", [value, *names], [f"{value}_q"], f"{value}_q", **more),
                helper.make_node("DequantizeLinear", [f"{value}_q", *names], [f"{value}_dq"], f"{value}_dq", **more),
            ]
            self.added[value], self.pairs[value] = nodes, f"{value}_dq"
        return self.pairs[value]

    def weight(self, name: str, axis: int, by_axis: bool, stored: bool) -> str:
        """A weight by a scale a channel, or by one."""
        data = self.stored[name]
        others = tuple(one for one in range(data.ndim) if one != axis)
        top = np.abs(data).max(axis=others, keepdims=True) if by_axis else np.abs(data).max(keepdims=True)
        scale = (top / TOP[self.dtype]).astype(np.float32)
        shape = scale.reshape(-1) if by_axis else scale.reshape(())
        more: dict[str, Any] = {"axis": axis} if by_axis else {}
        if not stored:
            return self.pair(name, shape, axis if by_axis else None)
        names = [self._store(f"{name}_scale", shape), self._zero(name, shape.shape)]
        low = self._tensor(f"{name}_low", data / scale)
        node = helper.make_node("DequantizeLinear", [low, *names], [f"{name}_dq"], f"{name}_dq", **more)
        self.added[name] = [node]
        return f"{name}_dq"

    def blocked(self, name: str, size: int) -> str:
        """A weight in blocks of rows."""
        data = self.stored[name]
        cut = data.reshape(-1, size, data.shape[1])
        scale = (np.abs(cut).max(axis=1) / TOP[self.dtype]).astype(np.float32)
        low = self._tensor(f"{name}_low", (cut / scale[:, None]).reshape(data.shape))
        given = [low, self._store(f"{name}_scale", scale)]
        node = helper.make_node("DequantizeLinear", given, [f"{name}_dq"], f"{name}_dq", axis=0, block_size=size)
        self.added[name] = [node]
        return f"{name}_dq"

    def done(self) -> ModelProto:
        """The model, with what was added in front of all else where it reads weights, else behind what it reads."""
        graph = self.model.graph
        written = {output: number for number, node in enumerate(graph.node) for output in node.output}
        nodes: list[tuple[int, NodeProto]] = [(2 * number, node) for number, node in enumerate(graph.node)]
        nodes += [(2 * written.get(name, -1) + 1, node) for name, some in self.added.items() for node in some]
        nodes.sort(key=lambda one: one[0])
        del graph.node[:]
        graph.node.extend(node for _, node in nodes)
        read = {name for node in graph.node for name in node.input}
        kept = [one for one in graph.initializer if one.name in read]
        del graph.initializer[:]
        graph.initializer.extend(kept)
        return self.model

    def _store(self, name: str, data: np.ndarray) -> str:
        self.model.graph.initializer.append(numpy_helper.from_array(data.astype(np.float32), name))
        return name

    def _zero(self, value: str, shape: tuple[int, ...]) -> str:
        return self._tensor(f"{value}_zero", np.zeros(shape, np.float32))

    def _tensor(self, name: str, data: np.ndarray) -> str:
        values = data if self.dtype == FP8 else np.clip(np.round(data), -TOP[self.dtype], TOP[self.dtype])
        flat = [float(one) if self.dtype == FP8 else int(one) for one in np.asarray(values).reshape(-1)]
        self.model.graph.initializer.append(helper.make_tensor(name, self.dtype, data.shape, flat))
        return name


Made = Callable[[], ModelProto]
MODELS: dict[str, Made] = {
    **{f"int8 block, opset {n}": partial(lambda n: qdq(block(n), INT8), n) for n in (17, 19, 21, 23)},
    **{f"int8 net, opset {n}": partial(lambda n: qdq(net(n), INT8), n) for n in (13, 19, 21, 23)},
    **{f"int8 attention, opset {n}": partial(lambda n: qdq(attention(n), INT8), n) for n in (17, 21, 23)},
    "int8 net, weights quantized in the file": lambda: qdq(net(17), INT8, stored=False),
    "int8 net, a scale a tensor": lambda: qdq(net(21), INT8, axis=False),
    **{f"fp8 block, opset {n}": partial(lambda n: qdq(block(n), FP8, axis=False), n) for n in (19, 21, 23)},
    **{f"fp8 net, opset {n}": partial(lambda n: qdq(net(n), FP8, axis=False), n) for n in (19, 21)},
    **{f"fp8 attention, opset {n}": partial(lambda n: qdq(attention(n), FP8, axis=False), n) for n in (19, 21, 23)},
    **{f"int4 block, opset {n}": partial(lambda n: weight_only(block(n), INT4), n) for n in (21, 23)},
    **{f"int4 attention, opset {n}": partial(lambda n: weight_only(attention(n), INT4), n) for n in (21, 23)},
    "int8 weights in blocks": lambda: weight_only(block(21), INT8),
    "ONNX Runtime, int8 block": lambda: by_onnxruntime(block(21), "int8"),
    "ONNX Runtime, int8 net": lambda: by_onnxruntime(net(17), "int8"),
    "ONNX Runtime, uint8 net": lambda: by_onnxruntime(net(17), "uint8"),
    "ONNX Runtime, fp8 block": lambda: by_onnxruntime(block(21), "fp8"),
    "ONNX Runtime, int4 attention": lambda: by_onnxruntime(attention(21), "int4"),
}
"""By what each is."""
