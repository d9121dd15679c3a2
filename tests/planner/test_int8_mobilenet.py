"""A MobileNet as ONNX Runtime's own tool quantizes it: depthwise products, ReLU6, HardSwish and squeeze-and-excite."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

import ampgraph
from ampgraph.report.verification import verification_lines
from planner.support import casts
from planner.test_integers import fused

quantization = pytest.importorskip("onnxruntime.quantization")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
F = np.float32


class MobileNet:
    """Two inverted residuals behind a stem: expansion, depthwise product, projection."""

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


class Samples(quantization.CalibrationDataReader):  # type: ignore[name-defined, misc]
    """What the tool measures ranges on."""

    def __init__(self, data: list[dict[str, np.ndarray]]) -> None:
        self.left = iter(data)

    def get_next(self) -> Mapping[str, np.ndarray] | None:
        return next(self.left, None)


def quantized(opset: int, folder: Path, data: list[dict[str, np.ndarray]]) -> ModelProto:
    onnx.save(MobileNet(opset).model, folder / "float.onnx")
    quantization.quantize_static(
        folder / "float.onnx", folder / "int8.onnx", Samples(data), quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
    )  # fmt: skip
    return onnx.load(folder / "int8.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("opset", [13, 17])
def test_an_int8_mobilenet_stays_as_it_is(opset: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    data = [{"x": rng.standard_normal((1, 3, 32, 32)).astype(F)} for _ in range(4)]
    model = quantized(opset, tmp_path, data)
    before = fused(model, tmp_path)
    assert before["QLinearConv"] >= 6
    for level in ("O2", "O3", "auto"):
        result = ampgraph.convert(model, level, check="off")
        assert result.opset_import == model.opset_import
        assert casts(result) - casts(model) <= 4, level
        assert fused(result, tmp_path) == before, level
        found = ampgraph.verify(model, result, data=data)
        assert found.ok
        assert any(line.startswith("quantized   left as they are") for line in verification_lines(found))
