"""Arithmetic on constants alone stays float32 where ONNX Runtime folds it in float32 and not in the low type."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

import ampgraph
from ampgraph.formats.onnx import shapes
from ampgraph.numerics.strict.session import run_strict
from ampgraph.planner import assemble
from ampgraph.report.summary import rewrite_groups
from onnx_text import parse
from planner.support import converted, decisions, dtype_of, float32_and_low, kinds

MASK = """g (float[4,8] x) => (float[4,4] z) { h = MatMul (x, w)
    e = Equal (m, zero)  f = Where (e, zero, low)  u = Unsqueeze (f, axes)  r = Reshape (u, to)
    a = Add (h, r)  y = Softmax (a)  z = MatMul (y, v) }"""


def model() -> ModelProto:
    rng = np.random.default_rng(0)
    stored = {"w": rng.standard_normal((8, 4)), "v": np.eye(4), "m": np.tril(np.ones((4, 4)))}
    stored |= {"zero": np.zeros(()), "low": np.full((), -100)}
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


def test_what_the_runtime_folds() -> None:
    """Moves: the stored tensor is rounded in the file."""
    text = "g (float[4,8] x) => (float[4,4] y) { t = Transpose (w)  y = MatMul (x, t) }"
    given = parse(text, w=np.ones((4, 8), np.float32), opset=18)
    assert decisions(ampgraph.convert(given, "O2")) == "Cast>f16 Transpose:f16 MatMul:f16 Cast>f32"
    # many sizes that are not known here make no large tensor
    stored = {**OF_SIZES_STORED, "ones": np.ones(5, np.int64), "number": np.ones((1, 1, 1, 1, 1), np.float32)}
    found = decisions(ampgraph.convert(parse(OF_MANY, known=stored, opset=18), "O2", check="off"))
    assert "Where:f32" in found and "Equal:f32" in found
    # a product of constants runs no more
    assert "Gemm:f32" in decisions(ampgraph.convert(places(size=(1 << 16) + 1), "O2"))


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
OF_SIZES_STORED = {**SCALED_STORED, "low": np.float32(-100), "zero": np.float32(0)}
OF_SIZES_STORED |= {"half": np.array([2, 2]), "two": np.array([2, 2])}


@pytest.mark.parametrize(("rows", "wide"), [("4", True), ("N", False)])
def test_a_runtime_knows_sizes_that_inference_here_does_not(rows: str, wide: bool) -> None:
    """All follow from those of the inputs, by arithmetic that shape inference does not do."""
    given = parse(OF_SIZES.replace("ROWS", rows), known=OF_SIZES_STORED, opset=18)
    found = decisions(ampgraph.convert(given, "O2"))
    assert ("Where:f32" in found, "Equal:f32" in found) == (wide, wide)


OF_MANY = """g (float[4,8] x) => (float[4,4] z) { h = MatMul (x, w)  many = Mul (ones, ones)  t = Tile (number, many)
    e = Equal (t, zero)  f = Where (e, t, low)  r = Reshape (f, last)  a = Add (h, r)  y = Softmax (a)
    z = MatMul (y, v) }"""


PLACES = """g (float[4,8] x) => (float[4,4] z) { h = MatMul (x, w)  p = Gemm (places, u, b)  n = Slice (p, first, rows)
    a = Add (h, n)  z = MatMul (a, v) OTHER }"""


def places(other: str = "", size: int = 8) -> ModelProto:
    rng = np.random.default_rng(0)
    shapes = {"w": (8, 4), "v": (4, 4), "places": (9, size), "u": (size, 4), "b": (4,)}
    stored = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return parse(PLACES.replace("OTHER", other), {**stored, "first": np.array([0]), "rows": np.array([4])}, opset=18)


@pytest.mark.parametrize("level", ["O1", "O2", "auto"])
def test_constants_at_each_level(level: str) -> None:
    """As exporters write what positions are projected to: nothing of it runs."""
    found = decisions(ampgraph.convert(places(), level))
    assert "Gemm:f32" in found and found.count("MatMul:f16") == 2
    assert "Gemm:f16" in decisions(ampgraph.convert(places(), "O3"))
    # it is the same to the bit
    thirds = {**SCALED_STORED, "w": np.ones((8, 3), np.float32)}  # 1 / sqrt(3) is rounded; no weight takes that
    for given in (parse(SCALED, SCALED_STORED), parse(SCALED, thirds), parse(ROTATED, ROTATED_STORED)):
        width = given.graph.input[0].type.tensor_type.shape.dim[1].dim_value or 3
        feed = {"x": np.random.default_rng(0).standard_normal((2, width, 8)).astype(np.float32)}
        made = (ampgraph.convert(given, level, rewrite=rewrite) for rewrite in ("number", "no-number"))
        first, second = (run_strict(model, feed)["z"] for model in made)
        assert np.array_equal(first, second)


# A number of known sizes is stored as the runtime makes it, and where that is not sure it stays computed.

HEAD = "g (float[N,3,8] x) => (float[N,3,8] z) { q = Relu (x)  sizes = Shape (q)  "
TAIL = "  count = Cast <to = 1> (size)  y = Div (q, count)  z = MatMul (y, w) }"
PICKED = "one = Gather (sizes, two)  "
STORED = {"w": np.eye(8, dtype=np.float32), "two": np.int64(2), "row": np.array([0]), "end": np.array([3])}
FORMS: dict[str, tuple[str, dict[str, np.ndarray | np.int64]]] = {
    "steps without axes": (
        'part = Slice (sizes, row, end, "", steps)  size = Gather (part, first)',
        {"steps": np.array([2]), "first": np.int64(1)},
    ),
    "from an open size on": (
        "n = Gather (sizes, row)  s = Slice (sizes, n, end)  size = ReduceMax <keepdims = 0> (s)",
        {},
    ),
    "by a bool": (PICKED + "b = Cast <to = 9> (one)  size = Cast <to = 7> (b)", {}),
    "by a byte": (PICKED + "m = Mul (one, k)  b = Cast <to = 2> (m)  size = Cast <to = 7> (b)", {"k": np.int64(33)}),
    "by float32": (
        PICKED + "s = Add (one, k)  f = Cast <to = 1> (s)  i = Cast <to = 7> (f)  size = Sub (i, k)",
        {"k": np.int64(2**30 + 1)},
    ),
    "by float16": (
        PICKED + "s = Add (one, k)  h = Cast <to = 10> (s)  i = Cast <to = 7> (h)  size = Sub (i, n)",
        {"k": np.int64(4089), "n": np.int64(4090)},
    ),
    "beyond float64": (PICKED + "s = Add (one, k)  size = Sub (s, k)", {"k": np.int64(2**60)}),
    "by the remainder": (PICKED + "m = Mod (one, k)  size = Add (m, k)", {"k": np.int64(3)}),
}


def _model(form: str) -> ModelProto:
    body, stored = FORMS[form]
    return parse(HEAD + body + TAIL, {**STORED, **stored}, opset=17)


@pytest.mark.parametrize("form", FORMS)
def test_it_is_what_the_runtime_makes(form: str) -> None:
    given, feed = _model(form), {"x": np.random.default_rng(0).random((2, 3, 8), np.float32)}
    made = (ampgraph.convert(given, "O1", rewrite=rewrite, check="off") for rewrite in ("number", "no-number"))
    first, second = (run_strict(model, feed)["z"] for model in made)
    assert np.isfinite(second).all() and np.array_equal(first, second)


# Numbers that follow from known sizes, in shapes of which others are open, are stored.

ROTATED = """g (float[N,S,8] x) => (float[N,S,8] z) {
    q = MatMul (x, w)  sizes = Shape (q)  size = Gather (sizes, place)  half = Div (size, two)  whole = Mul (half, two)
    row = Unsqueeze (half, zero)  end = Unsqueeze (whole, zero)  a = Slice (q, zero, row, last)
    b = Slice (q, row, end, last)  n = Neg (b)  c = Concat <axis = -1> (n, a)  z = MatMul (c, w) }"""
ROTATED_STORED = {"w": (8, 8), "place": np.int64(2), "two": np.int64(2), "zero": np.array([0]), "last": np.array([-1])}


def test_a_scale_of_a_known_size_is_stored() -> None:
    given = parse(SCALED, SCALED_STORED, opset=17)
    found = converted(given)
    assert not {"Shape", "Slice", "Sqrt", "Div"} & set(kinds(found))
    low = ["Cast", "MatMul", "MatMul", "Transpose", "Mul", "MatMul", "Softmax", "MatMul", "Cast"]
    assert [kind for kind in kinds(found) if kind != "Constant"] == low
    kept = kinds(ampgraph.convert(given, rewrite="no-number"))
    assert {"Shape", "Slice", "Sqrt", "Div"} <= set(kept)
    # As torch's dynamo exporter writes a size.
    text = SCALED.replace("sizes = Shape (q)  size = Slice (sizes, last, end)", "size = Shape <start = 2, end = 3> (q)")
    assert "Shape" not in kinds(converted(parse(text, SCALED_STORED, opset=17)))
    # whole numbers are stored once for all that read them
    given = parse(ROTATED, ROTATED_STORED, opset=17)
    found = converted(given)
    low = ["Cast", "MatMul", "Slice", "Slice", "Neg", "Concat", "MatMul", "Cast"]
    assert [kind for kind in kinds(found) if kind != "Constant"] == low
    # what is named or given out stays
    given = parse(SCALED, SCALED_STORED)
    assert "Sqrt" in kinds(ampgraph.convert(given, fp32=["op:Sqrt"]))
    given.graph.output.append(onnx.helper.make_tensor_value_info("scale", onnx.TensorProto.FLOAT, [1]))
    assert "Sqrt" in kinds(ampgraph.convert(given))


@pytest.mark.parametrize("sizes", ["[2,4,8]", "[N,4,K]"])
def test_what_is_known_whole_or_open_stays(sizes: str) -> None:
    given = parse(SCALED.replace("[N,4,8]", sizes, 1).replace("q = MatMul (x, w)", "q = Relu (x)"), SCALED_STORED)
    assert "Shape" in kinds(ampgraph.convert(given))


def test_numbers_are_named() -> None:
    given = parse(SCALED, SCALED_STORED)
    (found,) = rewrite_groups(ampgraph.plan(given))
    assert str(found) == "1 constant expression folded (number)"
    assert ampgraph.explain(given, "root").region == "its region is written as one Constant (number)"
    assert not ampgraph.plan(given, "O0").rewrites
    # other levels decide as before
    assert "f32" not in decisions(converted(scores(BEHIND, 0.125061), "O2")).split("Cast>f32")[0]
    assert dtype_of(converted(scores(BEHIND, 0.125061), "auto"), "MatMul") == "f16"


# A number follows from what the file says of its values only where that can be so.

BODY = "q = Relu (x)  r = Abs (q)  sizes = Shape ({read})  size = Gather (sizes, two)  count = Cast <to = 1> (size)"
TEXT = f"g (float[N,3,8] x) => (float[N,3,8] z) {{ {BODY}  y = Div (q, count)  z = MatMul (y, w) }}"


def false_model(read: str) -> ModelProto:
    return parse(TEXT.replace("{read}", read), {"w": np.eye(8, dtype=np.float32), "two": np.int64(2)}, opset=17)


def _is_right(given: ModelProto) -> bool:
    feed = {"x": np.random.default_rng(0).random((2, 3, 8), np.float32)}
    found = run_strict(ampgraph.convert(given, "O1", check="off"), feed)["z"]
    return np.allclose(found, run_strict(given, feed)["z"], rtol=1e-2)


def _said(name: str, *sizes: str | int) -> object:
    return helper.make_tensor_value_info(name, 1, sizes)


@pytest.mark.parametrize("read", ["q", "r"])
def test_what_is_said_of_an_output_is_not_believed(read: str) -> None:
    given = false_model(read)
    given.graph.output.append(_said("q", "N", 3, 16))
    assert _is_right(given)
    true = false_model(read)
    true.graph.output.append(_said("q", "N", 3, 8))
    assert "Shape" not in kinds(ampgraph.convert(true, "O1"))


def test_what_cannot_be_is_not_believed_in_a_long_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "MOST_NODES", 2)
    given = false_model("q")
    given.graph.value_info.append(_said("q", "N", 3, 16))
    assert _is_right(given)
    assert "Shape" not in kinds(ampgraph.convert(false_model("q"), "O1"))


# A constant factor beside a product is rounded together with what the product stores: no tensor is scaled by it.

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


def factor_model(body: str, **more: Any) -> ModelProto:
    known = {"w": W, "b": B, "s": S, "v": V, "one": np.array([1]), **more}
    return parse(f"g (float[16,64] x) => (float[16,64] y) {{ {body}  y = MatMul (t, v) }}", known=known)


def scaled_by(given: ModelProto, dtype: str) -> float:
    """By how much the result is too large or too small as a whole."""
    want, found = (y["y"].astype(np.float64) for y in float32_and_low(given, X, "O3", dtype=dtype))
    return abs(float((found * want).sum() / (want * want).sum()) - 1)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_nothing_is_scaled(body: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = 2.0**-11 if dtype == "float16" else 2.0**-8
    given = factor_model(body, s=np.float32(1 + 0.9 * step))
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
    given = factor_model(body.replace("x2", "w") if "x2" not in body else f"x2 = MatMul (w, w)  {body}")
    for name, array in stored(given).items():
        before = next(numpy_helper.to_array(t) for t in given.graph.initializer if t.name == name)
        np.testing.assert_array_equal(array, before.astype(np.float16))


def test_several_factors_and_readers() -> None:
    body = "a = Relu (x)  p = Mul (a, s)  c = MatMul (p, w)  r = Mul (c, s2)  t = Relu (r)"
    large = np.where(W > 0.4, np.float32(65503), W)
    held = stored(factor_model(body, w=large, s2=np.float32(0.9996)))
    low = {name: float(held[name]) for name in ("s", "s2")}
    factor = float(S) / low["s"] * float(np.float32(0.9996)) / low["s2"]
    assert np.isfinite(held["w"]).all()
    small = W <= 0.4
    np.testing.assert_array_equal(held["w"][small], (W.astype(np.float64) * factor).astype(np.float16)[small])
    # As attention scales queries and keys by the root of one number, which others may read as well.
    body = "a = MatMul (x, w)  q = Mul (a, s)  c = MatMul (x, v)  k = Mul (c, s)  u = Add (q, k)  t = Add (u, s)"
    held = stored(factor_model(body))
    factor = float(S) / float(held["s"])
    np.testing.assert_array_equal(held["w"], (W.astype(np.float64) * factor).astype(np.float16))
    # what several read is given where it moves far
    near = np.float32(0.451801)  # 0.94 times 2^-12 of it are lost
    body = "a = MatMul (x, w)  q = Mul (a, s)  c = MatMul (x, v)  k = Mul (c, s)  t = Add (q, k)"
    np.testing.assert_array_equal(stored(factor_model(body, s=near))["w"], W.astype(np.float16))
    alone = stored(factor_model(BODIES["behind a product"], s=near))
    assert not np.array_equal(alone["w"], W.astype(np.float16))
    # low numbers stay what they are
    held = stored(factor_model(BODIES["behind a product"], w=W.astype(np.float16).astype(np.float32)))
    np.testing.assert_array_equal(held["w"], W.astype(np.float16))
    exact = stored(factor_model(BODIES["behind a product"], s=np.float32(1.5)))
    np.testing.assert_array_equal(exact["w"], W.astype(np.float16))


def test_bytes_on_disk_are_those_in_memory(tmp_path: Any) -> None:
    given = factor_model(BODIES["with a bias"])
    ampgraph.convert(given, output=tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == ampgraph.convert(given).SerializeToString()


# At O1 a number that scales what a product reads or makes is low: CUDA's ONNX Runtime takes it into the product.

BEFORE = "s = Mul (k, c)  t = MatMul (q, s)  p = Softmax (t)"
BEHIND = "t = MatMul (q, k)  s = Mul (t, c)  p = Softmax (s)"
DIVIDED = "t = MatMul (q, k)  s = Div (t, c)  p = Softmax (s)"


def scores(body: str, number: float, opset: int = 17) -> ModelProto:
    text = f"g (float[4,8] x) => (float[4,A] y) {{ q = MatMul (x, w)  k = MatMul (x, w2)  {body}  y = MatMul (p, w3) }}"
    rng = np.random.default_rng(0)
    stored = {
        "w": rng.standard_normal((8, 4)),
        "w2": rng.standard_normal((8, 4)),
        "w3": np.eye(4),
        "c": np.array(number),
    }
    return parse(text, {name: array.astype(np.float32) for name, array in stored.items()}, opset=opset)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("body", "number", "kind"),
    [(BEFORE, 0.125, "Mul"), (BEHIND, 0.35355339, "Mul"), (DIVIDED, 8.0, "Div"), (DIVIDED, 5.6568542, "Div")],
)
def test_it_is_low_beside_a_product(body: str, number: float, kind: str, dtype: str) -> None:
    result = converted(scores(body, number), "O1", dtype=dtype)
    assert dtype_of(result, kind) != "f32" and dtype_of(result, "Softmax") == "f32"
    assert "MatMulScaleFusion" in ampgraph.explain(scores(body, number), "s", level="O1", dtype=dtype).slots[0].reason


OTHERS = {
    "rounded by much": (BEHIND, 0.125061, {}),
    "shrinks by much": (BEHIND, 1e-3, {}),
    "grows": (BEHIND, 4.0, {}),
    "divides what is stored": ("t = MatMul (q, k)  s = Div (c, t)  p = Softmax (s)", 8.0, {}),
    "read elsewhere too": ("t = MatMul (q, k)  s = Mul (t, c)  u = Add (s, t)  p = Softmax (u)", 0.125, {}),
    "no product": ("u = Tanh (q)  s = Mul (u, c)  p = Softmax (s)", 0.125, {}),
    "another target": (BEHIND, 0.125, {"target": "tensorrt"}),
    "named": (BEHIND, 0.125, {"fp32": ["op:Mul"]}),
}


@pytest.mark.parametrize(("body", "number", "options"), OTHERS.values(), ids=OTHERS)
def test_others_stay_float32(body: str, number: float, options: dict[str, Any]) -> None:
    found = decisions(ampgraph.convert(scores(body, number), "O1", **options))
    assert "Mul:f32" in found or "Div:f32" in found


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("body", [BEFORE, BEHIND])
def test_a_power_of_two_changes_no_number(body: str, dtype: str) -> None:
    given = scores(body, 0.125)
    feeds = {"x": np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)}
    one, other = (run_strict(ampgraph.convert(given, "O1", dtype=dtype, target=t), feeds) for t in ("cuda", "tensorrt"))
    assert np.array_equal(one["y"], other["y"])


SIZE = "sizes = Shape (q)  size = Gather (sizes, last)  count = Cast <to = 1> (size)"
COMPUTED = {
    "the root of a size": f"{SIZE}  c = Sqrt (count)",
    "by a slice": """sizes = Shape (q)  size = Slice (sizes, last1, end)  count = Cast <to = 1> (size)
        root = Sqrt (count)  c1 = Div (one, root)  c = Reciprocal (c1)""",
    "of stored numbers": """none = Constant <value = int64[0] {}> ()  o = ConstantOfShape (none)  r = Pow (four, half)
        c = Add (o, r)""",
    "by products": f"""{SIZE}  u = Unsqueeze (count, zero)  d = Sub (u, one)  f = Add (d, one)  g = Mul (f, half)
        c = Identity (g)""",
}
OPEN = {
    "of an open size": "sizes = Shape (x)  size = Gather (sizes, first)  d = Cast <to = 1> (size)  c = Sqrt (d)",
    "of a table": "c = Gather (table, first)",
    "cut off": f"{SIZE}  h = Mul (count, third)  i = Cast <to = 7> (h)  c = Cast <to = 1> (i)",
    "no number": f"{SIZE}  n = Sub (count, five)  c = Sqrt (n)",
    "of an input": "c = ReduceMax <keepdims = 0> (x)",
}


def computed(body: str) -> ModelProto:
    numbers = {"one": 1, "four": 4, "half": 0.5, "five": 5, "third": 0.4}
    stored: dict[str, Any] = {name: np.float32(number) for name, number in numbers.items()}
    stored |= {"last": np.array(-1), "first": np.array(0), "last1": np.array([-1]), "end": np.array([2**62])}
    stored |= {"zero": np.array([0]), "table": np.full((2, 4), 2, np.float32)}
    rng = np.random.default_rng(0)
    stored |= {name: rng.standard_normal((8, 4)).astype(np.float32) for name in ("w", "w2")}
    text = f"""g (float[N,4,8] x) => (float[N,4,A] y) {{ q = MatMul (x, w)  k1 = MatMul (x, w2)
        k = Transpose <perm = [0, 2, 1]> (k1)  {body}  t = MatMul (q, k)  s = Div (t, c)  p = Softmax (s)
        y = MatMul (p, k1) }}"""
    return parse(text, known=stored)


@pytest.mark.parametrize("body", COMPUTED.values(), ids=COMPUTED)
def test_a_number_that_follows_from_the_file_is_known(body: str) -> None:
    made = ampgraph.convert(computed(body), "O1")
    assert decisions(made).endswith("MatMul:f16 Div:f16 Cast>f32 Softmax:f32 Cast>f16 MatMul:f16 Cast>f32")
    assert ampgraph.convert(made, "O1") == made


@pytest.mark.parametrize("body", OPEN.values(), ids=OPEN)
def test_what_is_not_known_stays_float32(body: str) -> None:
    assert "MatMul:f16 Cast>f32 Div:f32" in decisions(ampgraph.convert(computed(body), "O1", check="off"))


GIVEN_BACK = {
    "two sides by one number": "q = MatMul (x, w)  k = MatMul (x, w2)  a = Mul (q, c)  l = Mul (k, c)",
    "with a bias, moved": """o = MatMul (x, w)  i = Add (o, d)  q = Reshape (i, r)  k = MatMul (x, w2)  a = Mul (q, c)
        l = Mul (k, c)""",
}
WIDTH = 32


def two_sided(body: str, low: bool = False, seed: int = 0) -> ModelProto:
    text = f"""g (float[16,{WIDTH}] x) => (float[16,16] y) {{ {body}
        b = Transpose <perm = [1, 0]> (l)  t = MatMul (a, b)  p = Softmax (t)  y = MatMul (p, w3) }}"""
    rng = np.random.default_rng(seed)
    stored = {name: (rng.standard_normal((WIDTH, WIDTH)) / 5).astype(np.float32) for name in ("w", "w2")}
    if low:
        stored = {name: array.astype(np.float16).astype(np.float32) for name, array in stored.items()}
    stored |= {"w3": np.eye(16, dtype=np.float32), "c": np.array(0.537285, np.float32)}
    stored |= {"d": rng.standard_normal(WIDTH).astype(np.float32), "r": np.array([16, WIDTH])}
    return parse(text, known=stored)


@pytest.mark.slow
@pytest.mark.parametrize("body", GIVEN_BACK.values(), ids=GIVEN_BACK)
def test_what_rounding_takes_is_given_to_stored_operands(body: str) -> None:
    """Rounded by itself the number would move by 2^-12 and more: the weights and the bias are rounded with it."""
    assert "Mul:f32" not in decisions(converted(two_sided(body), "O1"))
    assert "Mul:f32" in decisions(converted(two_sided(body, low=True), "O1"))  # low numbers stay what they are
    errors = {"cuda": 0.0, "tensorrt": 0.0}
    for seed in range(16):
        given = two_sided(body, seed=seed)
        feed = {"x": np.random.default_rng(seed).standard_normal((16, WIDTH)).astype(np.float32)}
        for target in errors:
            made = run_strict(ampgraph.convert(given, "O1", target=target), feed)["y"]
            errors[target] += float(np.linalg.norm(made - run_strict(given, feed)["y"]))
    assert errors["cuda"] <= 1.05 * errors["tensorrt"]  # as many roundings, others


# The weights of a convolution's channel keep their sum: an even part of a picture is not shifted.


def test_an_even_picture_is_not_shifted(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(5)
    known = {"w": random.normal(0, 0.1, (16, 16, 3, 3)).astype(np.float32)}
    text = "g (float[1,16,32,32] x) => (float[1,16,30,30] y) { y = Conv (x, w) }"
    feeds = {"x": random.integers(120, 136, (1, 16, 32, 32)).astype(np.float32)}

    def shift() -> float:
        want, found = (y["y"].astype(np.float64) for y in float32_and_low(parse(text, known), feeds, "O2"))
        return float(np.linalg.norm((found - want).mean((0, 2, 3))) / np.linalg.norm(want.mean((0, 2, 3))))

    together = shift()
    monkeypatch.setattr(assemble, "rounded_together", lambda *given: [])
    assert shift() > 3 * together


def test_low_weights_and_shared_ones_are_not_rounded_together() -> None:
    w = np.random.default_rng(6).normal(0, 0.1, (4, 4, 3, 3)).astype(np.float32)
    one = "g (float[1,4,8,8] x) => (float[1,4,6,6] y) { y = Conv (x, w) }"
    two = "g (float[1,4,8,8] x) => (float[1,4,4,4] y) { h = Conv (x, w)  y = Conv (h, w) }"
    cases = [(one, w, 1), (one, w.astype(np.float16).astype(np.float32), 0), (two, w, 0)]
    for text, weights, count in cases:
        assert len(ampgraph.plan(parse(text, {"w": weights})).together or []) == count
