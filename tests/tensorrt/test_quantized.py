"""Quantized files for TensorRT: their structure stays, what is around it goes low, and all of it is built."""

from __future__ import annotations

from collections import Counter

import pytest
from onnx import ModelProto, TensorProto

import ampgraph
from ampgraph.runtime.tensorrt_rtx import BuildAnswer, BuildJob, build_all
from planner.support import dtype_of
from tensorrt.quantized_models import MODELS

WAYS = [(level, dtype) for level in ("O1", "O2", "auto") for dtype in ("float16", "bfloat16")]
SHARE = ("int8 attention, opset 21", "fp8 block, opset 19", "int4 attention, opset 23")
REFUSED = {"ONNX Runtime, uint8 net": "Non-zero zero point is not supported"}
"""In float32 as well, and why."""


def made(name: str, level: str, dtype: str) -> ModelProto:
    return ampgraph.convert(MODELS[name](), level, dtype=dtype, target="tensorrt", check="off")


def quantizers(model: ModelProto) -> Counter[tuple[str, int]]:
    """QuantizeLinear and DequantizeLinear, each with the type of what is stored as quantized or as its zero point."""
    stored = {one.name: one.data_type for one in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type.endswith("quantizeLinear")]
    return Counter((node.op_type, stored.get(node.input[-1], 0)) for node in nodes if len(node.input) > 2)


def built(name: str, trt_python: str) -> None:
    """Nothing is refused that float32 is taken for; never more kernels, as many products of integers, attentions."""
    models = [MODELS[name](), *(made(name, *way) for way in WAYS)]
    assert all(quantizers(model) == quantizers(models[0]) for model in models[1:])
    before, *after = build_all(map(BuildJob, models), python=trt_python)
    if name in REFUSED:
        assert REFUSED[name] in before.why and all(REFUSED[name] in one.why for one in after)
        return
    assert before.engine is not None, before.why
    for way, one in zip(WAYS, after, strict=True):
        assert one.engine is not None, (way, one.why)
        assert len(one.engine.kernels) <= len(before.engine.kernels), way
        assert products(one) == products(before) or one.engine.attentions, way
        assert one.engine.attentions == ("attention" in name), way


def products(answer: BuildAnswer) -> list[str]:
    """The kernels that are products, by their kind."""
    kernels = answer.engine.kernels if answer.engine is not None else ()
    return sorted(kernel.kind for kernel in kernels if kernel.kind in ("gemm", "conv", "fc"))


@pytest.mark.parametrize("name", SHARE)
def test_quantized_models_are_built(name: str, trt_python: str) -> None:
    built(name, trt_python)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if name not in SHARE])
def test_all_quantized_models_are_built(name: str, trt_python: str) -> None:
    built(name, trt_python)


@pytest.mark.parametrize("opset", [21, 23])
@pytest.mark.parametrize("level", ["O1", "O2", "auto"])
def test_stored_weights_are_dequantized_in_the_type_of_their_product(level: str, opset: int) -> None:
    """So no Cast stands between them, at O1 either, and the scales are stored in that type."""
    model = made(f"int4 attention, opset {opset}", level, "float16")
    read = {name for node in model.graph.node if node.op_type == "MatMul" for name in node.input}
    dequantized = [node for node in model.graph.node if node.op_type == "DequantizeLinear"]
    scales = {one.name: one.data_type for one in model.graph.initializer if one.name.endswith("_scale")}
    assert len(dequantized) == 4 and all(node.output[0] in read for node in dequantized)
    assert set(scales.values()) == {TensorProto.FLOAT16}


def test_what_is_around_goes_low() -> None:
    """Products of integers keep their float32; the attention between them is low."""
    model = made("int8 attention, opset 21", "O2", "float16")
    assert dtype_of(model, "Softmax") == "f16"
    assert {one.data_type for one in model.graph.initializer if one.name.endswith("_scale")} == {TensorProto.FLOAT}
