"""Functions of another opset than the model's: runs and checks see what they compute."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.numerics.strict.session import StrictSession
from onnx_text import parse

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
SAME = "F (a, b) => (c) { s = Sin(a) r = Softsign(s) q = Abs(r) c = Sinh(q) }"
OTHERS = "F (a, b) => (c) { m = MatMul(a, b) r = Relu(m) c = MatMul(r, b) }"


def model(body: str, outer: int, inner: int) -> ModelProto:
    nodes = "e = Exp(x) f = own.F(e, w) k = own.F(f, w) h = MatMul(k, w) y = Softmax(h)"
    text = f"g (float[4, 8] x) => (float[4, 8] y) {{ {nodes} }}"
    function = f'<domain: "own", opset_import: ["" : {inner}]> {body}'
    return parse(text, w=(8, 8), opset=outer, ir=8, domains=("own",), functions=function)


@pytest.mark.parametrize("outer, inner, body", [(17, 14, SAME), (13, 17, SAME), (17, 13, OTHERS), (21, 17, OTHERS)])
def test_what_runs_is_checked(outer: int, inner: int, body: str) -> None:
    source = model(body, outer, inner)
    expected = ort.InferenceSession(source.SerializeToString()).run(None, {"x": X})[0]
    np.testing.assert_allclose(StrictSession(source).run({"x": X})["y"], expected, rtol=1e-5)
    assert ampgraph.verify(source, ampgraph.convert(source, "O2"), data=[{"x": X}]).ok


def test_what_onnx_cannot_convert_is_said() -> None:
    source = model(OTHERS, 13, 17)
    with pytest.raises(AmpError, match="AMP502.*onnx cannot convert function 'F'"):
        StrictSession(source)
