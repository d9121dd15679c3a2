"""Arithmetic on constants alone stays float32 where ONNX Runtime folds it in float32 and not in the low type."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

import ampgraph
from onnx_text import parse
from planner.support import decisions

MASK = """g (float[4,8] x) => (float[4,4] z) { h = MatMul (x, w)
    e = Equal (m, zero)  f = Where (e, zero, low)  u = Unsqueeze (f, axes)  r = Reshape (u, to)
    a = Add (h, r)  y = Softmax (a)  z = MatMul (y, v) }"""


def model() -> ModelProto:
    rng = np.random.default_rng(0)
    stored = {
        "w": rng.standard_normal((8, 4)),
        "v": np.eye(4),
        "m": np.tril(np.ones((4, 4))),
        "zero": 0.0,
        "low": -100.0,
    }
    arrays = {name: np.array(array, np.float32) for name, array in stored.items()}
    return parse(MASK, {**arrays, "axes": np.array([0]), "to": np.array([4, 4])}, opset=18)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("level", ["O2", "auto"])
def test_it_stays_float32(level: str, dtype: str) -> None:
    found = decisions(ampgraph.convert(model(), level, dtype=dtype))
    assert "Where:f32" in found and "Add:f32" not in found and "MatMul:f32" not in found
    said = ampgraph.explain(model(), "f", level=level, dtype=dtype).slots[0].reason
    assert "of constants alone" in said


@pytest.mark.parametrize(("level", "target"), [("O3", "cuda"), ("O2", "cpu"), ("O2", "cann")])
def test_elsewhere_it_is_decided_as_ever(level: str, target: str) -> None:
    reasons = {d.why.rule for d in ampgraph.plan(model(), level=level, target=target).decisions}
    assert "constant" not in reasons


def test_what_the_runtime_folds_low_goes_low() -> None:
    """Moves: the stored tensor is rounded in the file."""
    text = "g (float[4,8] x) => (float[4,4] y) { t = Transpose (w)  y = MatMul (x, t) }"
    given = parse(text, w=np.ones((4, 8), np.float32), opset=18)
    assert decisions(ampgraph.convert(given, "O2")) == "Cast>f16 Transpose:f16 MatMul:f16 Cast>f32"
