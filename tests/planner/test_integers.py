"""Quantized models: sums of integers, islands between DequantizeLinear and QuantizeLinear, and floats beside them."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, helper, numpy_helper

import ampgraph
from onnx_text import array, parse
from planner.support import LEVELS, casts, converted, decisions, dtype_of, float32_and_low, kinds, topics
from planner.without import without

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
RNG = np.random.default_rng(11)
quantization = pytest.importorskip("onnxruntime.quantization")
F = np.float32


class Samples(quantization.CalibrationDataReader):  # type: ignore[name-defined, misc]
    """What ONNX Runtime's tool measures ranges on."""

    def __init__(self, data: list[dict[str, np.ndarray]]) -> None:
        self.left = iter(data)

    def get_next(self) -> Mapping[str, np.ndarray] | None:
        return next(self.left, None)


class MobileNet:
    """Two inverted residuals behind a stem: depthwise products, ReLU6, HardSwish and squeeze-and-excite."""

    def __init__(self, opset: int) -> None:
        self.rng = np.random.default_rng(5)
        self.nodes: list[onnx.NodeProto] = []
        self.stored: dict[str, np.ndarray] = {"zero": np.array(0, F), "six": np.array(6, F)}
        value = self.emit("HardSwish" if opset >= 14 else "Relu", self.conv("x", 3, 8, 3, stride=2))
        for excited in (False, True):
            value = self.emit("Add", value, self.block(value, 8, 24, excited))
        pooled = self.emit("Flatten", self.emit("GlobalAveragePool", self.conv(value, 8, 16, 1)))
        self.nodes.append(helper.make_node("Gemm", [pooled, self.weight(16, 10), self.weight(10)], ["y"]))
        graph = helper.make_graph(
            self.nodes, "mobilenet", [helper.make_tensor_value_info("x", 1, [1, 3, 32, 32])],
            [helper.make_tensor_value_info("y", 1, [1, 10])],
            [numpy_helper.from_array(array, name) for name, array in self.stored.items()],
        )  # fmt: skip
        self.model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)

    def emit(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=f"{kind}_{len(self.nodes)}", **attributes))
        return name

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.stored)}"
        self.stored[name] = (self.rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) + 1)).astype(F)
        return name

    def conv(self, value: str, inputs: int, outputs: int, size: int, groups: int = 1, stride: int = 1) -> str:
        weights = self.weight(outputs, inputs // groups, size, size), self.weight(outputs)
        return self.emit("Conv", value, *weights, pads=[size // 2] * 4, group=groups, strides=[stride] * 2)

    def block(self, value: str, narrow: int, wide: int, excited: bool) -> str:
        made = self.emit("Clip", self.conv(value, narrow, wide, 1), "zero", "six")
        made = self.emit("Clip", self.conv(made, wide, wide, 3, groups=wide), "zero", "six")
        if excited:
            squeezed = self.emit("Relu", self.conv(self.emit("GlobalAveragePool", made), wide, 8, 1))
            made = self.emit("Mul", made, self.emit("HardSigmoid", self.conv(squeezed, 8, wide, 1)))
        return self.conv(made, wide, narrow, 1)


SAMPLES = [{"x": array((1, 3, 32, 32), f"x{number}") / F(0.3)} for number in range(4)]


@cache
def quantized(opset: int) -> ModelProto:
    """A MobileNet as that tool quantizes it: QuantizeLinear and DequantizeLinear around every value."""
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "float.onnx"), Path(folder, "int8.onnx")
        onnx.save(MobileNet(opset).model, before)
        form = quantization.QuantFormat.QDQ
        quantization.quantize_static(before, after, Samples(SAMPLES), quant_format=form, per_channel=True)
        return onnx.load(after)


def fused(model: ModelProto, folder: Path) -> Counter[str]:
    """The integer operators that ONNX Runtime makes of a model."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 4
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = Counter(node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node)
    return Counter(
        {kind: n for kind, n in found.items() if kind.startswith("QLinear") or "Integer" in kind or kind == "QGemm"}
    )


@pytest.mark.slow
@pytest.mark.parametrize("opset", [13, 17, 21])
def test_an_int8_mobilenet_stays_as_it_is(opset: int, tmp_path: Path) -> None:
    model = quantized(opset)
    before = fused(model, tmp_path)
    assert before["QLinearConv"] >= 6
    for level in LEVELS:
        result = ampgraph.convert(model, level, check="off")
        assert result.opset_import == model.opset_import
        assert casts(result) - casts(model) <= 4, level
        assert fused(result, tmp_path) == before, level
        found = ampgraph.verify(model, result, data=SAMPLES)
        assert found.ok
        assert any(line.startswith("quantized   left as they are") for line in found.lines())


def test_without_the_guard_the_islands_are_cast_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = quantized(17)
    without(monkeypatch, "quantized")
    result = ampgraph.convert(model, "O2")
    assert casts(result) > 4
    assert fused(result, tmp_path)["QLinearConv"] == 0


def test_quantized_plans_and_pixels() -> None:
    plan = ampgraph.plan(quantized(17), "O2")
    notes = [note for note in plan.notes if note.topic == "quantized"]
    assert notes and "as they are" in notes[0].text
    assert "quantized" in {decision.why.rule for decision in plan.decisions if decision.kind == "Conv"}
    # pixels are scaled in the low type
    text = (
        "g (uint8[2,4] n, float[4,4] f) => (float[2,4] y) { c = Cast <to = 1> (n)  m = Mul (c, k)  y = MatMul (m, f) }"
    )
    result = converted(parse(text, {"k": np.float32(1 / 255)}), "O2")
    assert dtype_of(result, "Mul") == "f16"


QDQ = """i = QuantizeLinear (x, s, z)  d = DequantizeLinear (i, s, z)
    j = DequantizeLinear (w, s, z2)  m = MatMul (d, j)"""
QDQ_WEIGHTS: Mapping[str, Any] = {
    "s": np.float32(0.02),
    "z": np.uint8(128),
    "z2": np.int8(0),
    "w": RNG.integers(-100, 100, (64, 64), np.int8),
    "f": RNG.standard_normal((64, 64)).astype(np.float32) / 8,
}


def test_floats_beside_islands() -> None:
    text = f"g (float[8,64] x) => (float[8,64] y) {{ {QDQ} t = Tanh (m)  p = MatMul (t, f)  y = Relu (p) }}"
    result = converted(parse(text, QDQ_WEIGHTS), "O2")
    assert [dtype_of(result, "MatMul", n) for n in (0, 1)] == ["f32", "f16"], decisions(result)
    assert casts(result) == 2
    # quantized weights of a float product are no island
    text = "g (float[8,64] x) => (float[8,64] y) { j = DequantizeLinear (w, s, z2)  y = MatMul (x, j) }"
    older, newer = (converted(parse(text, known=QDQ_WEIGHTS, opset=opset), "O2") for opset in (17, 21))
    assert dtype_of(older, "MatMul") == "f16" and kinds(newer).count("Cast") == 2  # scale and all: input and output
    # floats among quantized operators are not cast
    text = f"""g (float[8,64] x) => (float[8,64] y) {{ {QDQ} t = Tanh (m)  r = Mul (t, x)
        k = QuantizeLinear (r, s, z)  y = DequantizeLinear (k, s, z) }}"""
    for opset in (13, 21):
        assert casts(converted(parse(text, known=QDQ_WEIGHTS, opset=opset), "O2")) == 0, opset


INTEGERS = """g (float[4,64] x) => (float[4,64] y) {
    q, xs, z = DynamicQuantizeLinear (x)  a = MatMulInteger (q, w, z)  b = Add (a, bias)
    c = Cast <to = 1> (b)  r = Reshape (c, shape)  s = Mul (xs, ws)  m = Mul (r, s)
    p = MatMul (m, f)  y = Relu (p) }"""
INTEGER_WEIGHTS: Mapping[str, Any] = {
    "w": RNG.integers(0, 100, (64, 64), np.int8),
    "bias": np.full(64, 90000, np.int32),
    "shape": np.array([4, 64]),
    "ws": np.float32(3e-4),
    "f": RNG.standard_normal((64, 64)).astype(np.float32) / 8,
}
POSITIVE = {"x": RNG.random((4, 64), np.float32) * 1e-2}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_integers_are_float32_until_they_are_scaled(level: str, dtype: str) -> None:
    model = parse(INTEGERS, INTEGER_WEIGHTS)
    reference, result = float32_and_low(model, POSITIVE, level, dtype=dtype)
    error = np.linalg.norm(result["y"] - reference["y"]) / np.linalg.norm(reference["y"])
    assert error < (2e-3 if dtype == "float16" else 1e-2)
    assert [dtype_of(converted(model, level, dtype=dtype), "MatMul")] == ["f16" if dtype == "float16" else "bf16"]
    assert "integer-sum" in topics(ampgraph.plan(model, level)) or level == "O1"


def test_without_the_guard_sums_of_integers_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "integer-sum")
    _, result = float32_and_low(parse(INTEGERS, INTEGER_WEIGHTS), POSITIVE, "O2")
    assert not np.isfinite(result["y"]).all()


@pytest.mark.parametrize(("scaling", "constant"), [("Mul", 1e-5), ("Div", 1e5)])
def test_integers_that_are_scaled_down(scaling: str, constant: float) -> None:
    text = f"""g (int32[2,4] n, float[4,4] f) => (float[2,4] y) {{
        c = Cast <to = 1> (n)  m = {scaling} (c, k)  y = MatMul (m, f) }}"""
    model = parse(text, {"k": np.float32(constant)})
    feeds = {"n": np.full((2, 4), 300_000, np.int32), "f": np.eye(4, dtype=np.float32)}
    reference, result = float32_and_low(model, feeds, "O2")
    np.testing.assert_allclose(result["y"], reference["y"], rtol=2e-3)
