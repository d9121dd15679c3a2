"""What verify says of quantized parts: as they were, or changed."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto, helper

import ampgraph
from ampgraph.report.verification import verification_lines
from onnx_text import parse
from present import present

QDQ = """g (float[2, 8] x) => (float[2, 8] y) <float s = {0.05}, uint8 z = {128}, float t = {0.02}, int8 o = {0}> {
    qx = QuantizeLinear (x, s, z)
    dx = DequantizeLinear (qx, s, z)
    dw = DequantizeLinear (w, t, o)
    [product] p = MatMul (dx, dw)
    qp = QuantizeLinear (p, s, z)
    dp = DequantizeLinear (qp, s, z)
    [outside] h = MatMul (dp, v)
    y = Tanh (h)
}"""


def model() -> ModelProto:
    rng = np.random.default_rng(0)
    weight = rng.integers(-60, 60, (8, 8)).astype(np.int8)
    return parse(QDQ, {"w": weight, "v": rng.standard_normal((8, 8)).astype(np.float32)})


def data() -> list[dict[str, np.ndarray]]:
    return [{"x": np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)}]


def test_quantized_parts() -> None:
    found = ampgraph.verify(model(), ampgraph.convert(model()), data=data())
    assert found.ok and present(found.quantized).to_dict() == {"kept": {"MatMul": 1}, "changed": []}
    assert "quantized   left as they are: 1 MatMul" in verification_lines(found)
    # parts that have changed are named
    other = model()
    place = next(i for i, node in enumerate(other.graph.node) if node.name == "product")
    other.graph.node[place].input[0] = "wide"
    casts = [helper.make_node("Cast", ["dx"], ["low"], to=TensorProto.FLOAT16)]
    casts.append(helper.make_node("Cast", ["low"], ["wide"], to=TensorProto.FLOAT))
    for cast in reversed(casts):
        other.graph.node.insert(place, cast)
    found = ampgraph.verify(model(), other, data=data(), tolerance=0.1)
    assert present(found.quantized).changed == ("MatMul product",)
    assert "quantized   changed: MatMul product; left as they are: none" in verification_lines(found)
    # nothing is said where nothing is quantized
    plain = parse("g (float[2] x) => (float[2] y) { y = Neg (x) }")
    assert not any(line.startswith("quantized") for line in verification_lines(ampgraph.verify(plain, plain)))
