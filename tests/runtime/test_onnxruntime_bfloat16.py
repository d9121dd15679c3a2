"""bfloat16 in and out of ONNX Runtime, which has no numpy type for it."""

import ml_dtypes
import numpy as np
import pytest

import ampgraph
from onnx_text import parse

MODEL = """<ir_version: 10, opset_import: ["": 21]>
low (bfloat16[2,n] x, float[2,n] y) => (bfloat16[2,n] both, float[2,n] z) {{
  {first}
  z = Neg(y)
}}"""
FIRSTS = {"moved": "both = Identity(x)", "rounded": "both = Cast<to = 16>(y)"}


@pytest.mark.parametrize("first", FIRSTS)
def test_bfloat16_outputs_beside_others(first):
    y = np.linspace(-3, 3, 10, dtype=np.float32).reshape(2, 5)
    low = y.astype(ml_dtypes.bfloat16)
    found = ampgraph.run(parse(MODEL.format(first=FIRSTS[first])), {"x": low, "y": y}, device="cpu")
    assert found["both"].dtype == ml_dtypes.bfloat16 and found["both"].tobytes() == low.tobytes()
    assert np.array_equal(found["z"], -y)
