"""A constant factor beside a product is rounded together with what the product stores: no tensor is scaled by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper

import ampgraph
from ampgraph.planner import assemble
from onnx_text import parse
from planner.support import converted, float32_and_low

RANDOM = np.random.default_rng(11)
W = RANDOM.normal(0, 0.2, (64, 64)).astype(np.float32)
V = RANDOM.normal(0, 0.2, (64, 64)).astype(np.float32)
B = RANDOM.normal(0, 1, 64).astype(np.float32)
X = {"x": RANDOM.normal(1, 1, (16, 64)).astype(np.float32)}
S = np.float32(1.0004)  # between two numbers of float16, and of bfloat16
BODIES = {
    "behind a product": "a = MatMul (x, w)  r = Mul (a, s)  t = Relu (r)",
    "before a product": "a = Relu (x)  t = Mul (s, a)",
    "with a bias": "a = MatMul (x, w)  d = Add (a, b)  r = Mul (d, s)  t = Relu (r)",
    "divided": "a = MatMul (x, w)  r = Div (a, s)  t = Relu (r)",
    "a constant behind it": "a = Relu (x)  r = Mul (s, a)  t = Add (r, b)",
    "behind moves": "a = MatMul (x, w)  u = Unsqueeze (a, one)  r = Mul (u, s)  q = Squeeze (r, one)  t = Relu (q)",
    "by way of an identity": "i = Identity (s)  a = MatMul (x, w)  r = Mul (a, i)  t = Relu (r)",
    "a Gemm": "a = Gemm <alpha = 0.5> (x, w, b)  r = Mul (a, s)  t = Relu (r)",
}


def model(body: str, **more: Any) -> ModelProto:
    known = {"w": W, "b": B, "s": S, "v": V, "one": np.array([1]), **more}
    text = f"{body}  y = MatMul (t, v)"
    used = {name: array for name, array in known.items() if any(f"{c}{name}{e}" in text for c in "( " for e in "),")}
    return parse(f"g (float[16,64] x) => (float[16,64] y) {{ {text} }}", used)


def scaled_by(given: ModelProto, dtype: str) -> float:
    """By how much the result is too large or too small as a whole."""
    want, found = (y["y"].astype(np.float64) for y in float32_and_low(given, X, "O3", dtype=dtype))
    return abs(float((found * want).sum() / (want * want).sum()) - 1)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_nothing_is_scaled(body: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = 2.0**-11 if dtype == "float16" else 2.0**-8
    given = model(body, s=np.float32(1 + 0.9 * step))
    together = scaled_by(given, dtype)
    monkeypatch.setattr(assemble, "rounded_together", lambda *given: [])
    assert together < step / 5 and together < scaled_by(given, dtype) / 3


def stored(given: ModelProto, **options: Any) -> dict[str, np.ndarray]:
    result = converted(given, "O3", **options)
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in result.graph.initializer}


@pytest.mark.parametrize(
    "body",
    [
        "a = MatMul (x, w)  r = Mul (a, s)  q = Relu (r)  t = Add (q, a)",  # the product is read beside the factor
        "a = MatMul (x, w)  c = MatMul (a, w)  r = Mul (c, s)  t = Relu (r)",  # and here the weights are
        "a = MatMul (x, x2)  r = Mul (a, s)  t = Relu (r)",  # computed operands
    ],
)
def test_what_is_read_elsewhere_stays(body: str) -> None:
    given = model(body.replace("x2", "w") if "x2" not in body else f"x2 = MatMul (w, w)  {body}")
    for name, array in stored(given).items():
        before = next(numpy_helper.to_array(t) for t in given.graph.initializer if t.name == name)
        np.testing.assert_array_equal(array, before.astype(np.float16))


def test_low_numbers_stay_what_they_are() -> None:
    held = stored(model(BODIES["behind a product"], w=W.astype(np.float16).astype(np.float32)))
    np.testing.assert_array_equal(held["w"], W.astype(np.float16))
    exact = stored(model(BODIES["behind a product"], s=np.float32(1.5)))
    np.testing.assert_array_equal(exact["w"], W.astype(np.float16))


def test_two_factors_of_one_product_and_what_is_nearly_too_large() -> None:
    body = "a = Relu (x)  p = Mul (a, s)  c = MatMul (p, w)  r = Mul (c, s2)  t = Relu (r)"
    large = np.where(W > 0.4, np.float32(65503), W)
    held = stored(model(body, w=large, s2=np.float32(0.9996)))
    low = {name: float(held[name]) for name in ("s", "s2")}
    factor = float(S) / low["s"] * float(np.float32(0.9996)) / low["s2"]
    assert np.isfinite(held["w"]).all()
    small = W <= 0.4
    np.testing.assert_array_equal(held["w"][small], (W.astype(np.float64) * factor).astype(np.float16)[small])


def test_a_factor_of_two_products_is_given_to_both() -> None:
    """As attention scales queries and keys by the root of one number, which others may read as well."""
    body = "a = MatMul (x, w)  q = Mul (a, s)  c = MatMul (x, v)  k = Mul (c, s)  u = Add (q, k)  t = Add (u, s)"
    held = stored(model(body))
    factor = float(S) / float(held["s"])
    np.testing.assert_array_equal(held["w"], (W.astype(np.float64) * factor).astype(np.float16))


def test_what_several_read_is_given_where_it_moves_far() -> None:
    near = np.float32(0.451801)  # 0.94 times 2^-12 of it are lost
    body = "a = MatMul (x, w)  q = Mul (a, s)  c = MatMul (x, v)  k = Mul (c, s)  t = Add (q, k)"
    np.testing.assert_array_equal(stored(model(body, s=near))["w"], W.astype(np.float16))
    alone = stored(model(BODIES["behind a product"], s=near))
    assert not np.array_equal(alone["w"], W.astype(np.float16))


@pytest.mark.parametrize("zeros", ["z", "i"])
def test_shared_zeros_are_the_same_times_anything(zeros: str) -> None:
    """As an exporter writes equal biases of layers that were not trained."""
    body = f"i = Identity (z)  a = MatMul (x, w)  d = Add (a, {zeros})  r = Mul (d, s)  e = Add (r, z)  t = Relu (e)"
    held = stored(model(body, z=np.zeros(64, np.float32)))
    np.testing.assert_array_equal(held["w"], (W.astype(np.float64) * (float(S) / float(held["s"]))).astype(np.float16))


def test_bytes_on_disk_are_those_in_memory(tmp_path: Any) -> None:
    given = model(BODIES["with a bias"])
    ampgraph.convert(given, output=tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == ampgraph.convert(given).SerializeToString()
