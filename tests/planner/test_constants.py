"""Arithmetic on constants alone stays float32 where ONNX Runtime folds it in float32 and not in the low type."""

from __future__ import annotations

import numpy as np
import onnx
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


SCALED = """g (float[N,4,8] x) => (float[N,4,4] z) {
    q = MatMul (x, w)  k = MatMul (x, w)  t = Transpose <perm = [0, 2, 1]> (k)
    sizes = Shape (q)  size = Slice (sizes, last, end)  count = Cast <to = 1> (size)  root = Sqrt (count)
    scale = Div (one, root)  s = Mul (q, scale)  m = MatMul (s, t)  y = Softmax (m)  z = MatMul (y, v) }"""
SCALED_STORED = {"w": np.ones((8, 4), np.float32), "v": np.eye(4, dtype=np.float32), "one": np.float32(1)}
SCALED_STORED |= {"last": np.array([-1]), "end": np.array([np.iinfo(np.int64).max])}


@pytest.mark.parametrize("level", ["O2", "auto"])
def test_a_scale_of_a_known_size_stays_float32(level: str) -> None:
    """As exporters write attention: one number, cast when the model is loaded."""
    given = parse(SCALED.replace("[N,", "[2,"), SCALED_STORED, opset=17)
    found = decisions(ampgraph.convert(given, level))
    assert "Cast>f32 Sqrt:f32 Div:f32 Cast>f16 Mul:f16" in found
    onnx.checker.check_model(ampgraph.convert(given, level), full_check=True)


OF_SIZES = """g (float[ROWS,8] x) => (float[ROWS,4] z) { h = MatMul (x, w)  n = Mul (half, two)  r = Reshape (h, n)
    sizes = Shape (r)  size = Slice (sizes, last, end)  o = ConstantOfShape <value = float[1] {1.0}> (size)
    e = Equal (o, zero)  f = Where (e, zero, low)  a = Add (h, f)  y = Softmax (a)  z = MatMul (y, v) }"""
OF_SIZES_STORED = {"w": np.ones((8, 4), np.float32), "v": np.eye(4, dtype=np.float32), "low": np.float32(-100)}
OF_SIZES_STORED |= {"zero": np.float32(0), "half": np.array([2, 2]), "two": np.array([2, 2])}
OF_SIZES_STORED |= {"last": np.array([-1]), "end": np.array([np.iinfo(np.int64).max])}


@pytest.mark.parametrize(("rows", "wide"), [("4", True), ("N", False)])
def test_a_runtime_knows_sizes_that_inference_here_does_not(rows: str, wide: bool) -> None:
    """All follow from those of the inputs, by arithmetic that shape inference does not do."""
    given = parse(OF_SIZES.replace("ROWS", rows), OF_SIZES_STORED, opset=18)
    found = decisions(ampgraph.convert(given, "O2"))
    assert ("Where:f32" in found, "Equal:f32" in found) == (wide, wide)


OF_MANY = """g (float[4,8] x) => (float[4,4] z) { h = MatMul (x, w)  many = Mul (ones, ones)  t = Tile (number, many)
    e = Equal (t, zero)  f = Where (e, t, low)  r = Reshape (f, last)  a = Add (h, r)  y = Softmax (a)
    z = MatMul (y, v) }"""


def test_many_sizes_that_are_not_known_here_make_no_large_tensor() -> None:
    names = ("w", "v", "low", "zero", "last")
    stored = {name: OF_SIZES_STORED[name] for name in names}
    stored |= {"ones": np.ones(5, np.int64), "number": np.ones((1, 1, 1, 1, 1), np.float32)}
    found = decisions(ampgraph.convert(parse(OF_MANY, stored, opset=18), "O2", check="off"))
    assert "Where:f32" in found and "Equal:f32" in found


PLACES = """g (float[4,8] x) => (float[4,4] z) { h = MatMul (x, w)  p = Gemm (places, u, b)  n = Slice (p, first, rows)
    a = Add (h, n)  z = MatMul (a, v) OTHER }"""


def places(other: str = "", size: int = 8) -> ModelProto:
    rng = np.random.default_rng(0)
    shapes = {"w": (8, 4), "v": (4, 4), "places": (9, size), "u": (size, 4), "b": (4,)}
    stored = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return parse(PLACES.replace("OTHER", other), {**stored, "first": np.array([0]), "rows": np.array([4])}, opset=18)


@pytest.mark.parametrize("level", ["O1", "O2", "auto"])
def test_a_product_of_constants_is_folded_in_float32(level: str) -> None:
    """As exporters write what positions are projected to: nothing of it runs."""
    found = decisions(ampgraph.convert(places(), level))
    assert "Gemm:f32" in found and found.count("MatMul:f16") == 2
    assert "Gemm:f16" in decisions(ampgraph.convert(places(), "O3"))


def test_a_large_weight_is_not_stored_in_both_types_for_it() -> None:
    assert "Gemm:f32" in decisions(ampgraph.convert(places(size=(1 << 16) + 1), "O2"))
    shared = "  t = MatMul (y, u)"
    given = places(shared, (1 << 16) + 1)
    given.graph.input.append(onnx.helper.make_tensor_value_info("y", 1, [4, (1 << 16) + 1]))
    given.graph.output.append(onnx.helper.make_tensor_value_info("t", 1, [4, 4]))
    assert "Gemm:f16" in decisions(ampgraph.convert(given, "O2"))
