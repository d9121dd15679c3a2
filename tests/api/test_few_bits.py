"""Models of ONNX Runtime's own quantizers in float16: right, smaller, the few-bit weights bit for bit."""

from __future__ import annotations

import onnx
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.quantization.quant_utils import QuantFormat

import ampgraph
from onnx_text import parse

NET = """g (int64[2, 16] ids) => (float[2, 16, 64] y) {
    e = Gather (table, ids)  h = MatMul (e, w)  r = Relu (h)  y = MatMul (r, v)
}"""
FEW = {
    "symmetric": {"is_symmetric": True},
    "zero points": {"is_symmetric": False},
    "QDQ": {"is_symmetric": True, "quant_format": QuantFormat.QDQ},
    "embedding": {"is_symmetric": True, "op_types_to_quantize": ("MatMul", "Gather")},
    "embedding with zero points": {"is_symmetric": False, "op_types_to_quantize": ("MatMul", "Gather")},
    "eight bits": {"is_symmetric": True, "bits": 8},
}
INTEGERS = (onnx.TensorProto.UINT8, onnx.TensorProto.INT8, onnx.TensorProto.INT4, onnx.TensorProto.UINT4)


def net():
    return parse(NET, table=(512, 64), w=(64, 256), v=(256, 64), opset=21)


def few_bits(how):
    quantizer = MatMulNBitsQuantizer(net(), block_size=32, **({"bits": 4} | FEW[how]))
    quantizer.process()
    return quantizer.model.model


def integers(model):
    return {t.name: t.raw_data for t in model.graph.initializer if t.data_type in INTEGERS}


def stored(model):
    return sum(numpy_helper.to_array(t).nbytes for t in model.graph.initializer)


@pytest.mark.parametrize("how", FEW)
@pytest.mark.parametrize("level", ["O2", "auto"])
def test_few_bits_with_float16_around_them(tmp_path, how, level):
    given = few_bits(how)
    made = ampgraph.convert(given, level, check="off")
    assert integers(given) == integers(made) != {}
    floats = {t.data_type for t in made.graph.initializer} - {*INTEGERS, onnx.TensorProto.INT64}
    assert floats == {onnx.TensorProto.FLOAT16} and stored(made) < stored(given)
    kinds = [node.op_type for node in made.graph.node]
    assert kinds.count("Cast") == 1 and [k for k in kinds if k != "Cast"] == [n.op_type for n in given.graph.node]
    onnx.save(given, tmp_path / "given.onnx")
    onnx.save(made, tmp_path / "made.onnx")
    assert ampgraph.verify(tmp_path / "given.onnx", tmp_path / "made.onnx").ok


@pytest.mark.parametrize("weights", [QuantType.QInt8, QuantType.QUInt8])
def test_int8_of_the_dynamic_quantizer_stays_as_it_is(tmp_path, weights):
    onnx.save(net(), tmp_path / "net.onnx")
    quantize_dynamic(
        tmp_path / "net.onnx", tmp_path / "given.onnx", weight_type=weights, op_types_to_quantize=["MatMul"]
    )
    ampgraph.convert(tmp_path / "given.onnx", output=tmp_path / "made.onnx", check="off")
    given, made = onnx.load(tmp_path / "given.onnx"), onnx.load(tmp_path / "made.onnx")
    assert integers(given) == integers(made) != {}
    for kind in ("DynamicQuantizeLinear", "MatMulInteger"):
        assert [n for n in given.graph.node if n.op_type == kind] != []
        assert [n.op_type for n in made.graph.node].count(kind) == [n.op_type for n in given.graph.node].count(kind)
    assert ampgraph.verify(tmp_path / "given.onnx", tmp_path / "made.onnx").ok
    assert stored(made) <= stored(given)
