"""At O1 a number that scales what a product reads or makes is low: CUDA's ONNX Runtime takes it into the product."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.numerics.strict.session import run_strict
from onnx_text import parse
from planner.support import converted, decisions, dtype_of

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


def test_other_levels_decide_as_before() -> None:
    assert "f32" not in decisions(converted(scores(BEHIND, 0.125061), "O2")).split("Cast>f32")[0]
    assert dtype_of(converted(scores(BEHIND, 0.125061), "auto"), "MatMul") == "f16"


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
    return parse(text, {name: value for name, value in stored.items() if re.search(rf"\b{name}\b", text)}, opset=17)


@pytest.mark.parametrize("body", COMPUTED.values(), ids=COMPUTED)
def test_a_number_that_follows_from_the_file_is_known(body: str) -> None:
    made = ampgraph.convert(computed(body), "O1")
    assert decisions(made).endswith("MatMul:f16 Div:f16 Cast>f32 Softmax:f32 Cast>f16 MatMul:f16 Cast>f32")
    assert ampgraph.convert(made, "O1") == made


@pytest.mark.parametrize("body", OPEN.values(), ids=OPEN)
def test_what_is_not_known_stays_float32(body: str) -> None:
    assert "MatMul:f16 Cast>f32 Div:f32" in decisions(ampgraph.convert(computed(body), "O1", check="off"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("level", ["O1", "O2", "auto"])
@pytest.mark.parametrize("number", [8.0, 30.0])
def test_the_last_product_takes_its_number_too(number: float, level: str, dtype: str) -> None:
    """Logits are widened behind it: in front of it a kernel more would scale them."""
    text = "g (float[4,8] x) => (float[4,4] y) { q = MatMul (x, w)  s = Div (q, c)  y = Tanh (s) }"
    given = parse(text, w=np.ones((8, 4), np.float32), c=np.float32(number), opset=17)
    assert dtype_of(converted(given, level, dtype=dtype), "Div") != "f32"
    assert dtype_of(converted(given, level, dtype=dtype), "Tanh") == "f32"
    assert dtype_of(converted(given, level, dtype=dtype, target="tensorrt"), "Div") == "f32"


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
    stored |= {"d": rng.standard_normal(WIDTH).astype(np.float32)} if "d)" in body else {}
    return parse(text, {**stored, **({"r": np.array([16, WIDTH])} if "r)" in body else {})})


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
