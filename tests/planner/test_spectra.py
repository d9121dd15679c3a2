"""Powers before a logarithm or below a quotient: float32 begins at the product that they come from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.numerics.metrics.compare import difference
from onnx_text import parse
from planner.support import converted, decisions, dtype_of, float32_and_low, topics
from planner.without import without

SIZE, HALF = 64, 33
F = np.float32
TURNS = 2 * np.pi * np.outer(np.arange(SIZE), np.arange(HALF)) / SIZE
WINDOW = np.hanning(SIZE + 1)[:SIZE, None]
FACTORS = 2 * np.pi * np.outer(np.arange(8), np.arange(8)) / 8
WEIGHTS: dict[str, Any] = {
    "c": (WINDOW * np.cos(TURNS)).astype(F),
    "s": (WINDOW * np.sin(TURNS)).astype(F),
    "kc": (WINDOW * np.cos(TURNS)).T.reshape(HALF, 1, SIZE).astype(F),
    "ks": (WINDOW * np.sin(TURNS)).T.reshape(HALF, 1, SIZE).astype(F),
    "eps": F(1e-10),
    "one": F(1),
    "two": F(2),
    "half": F(0.5),
    "less": F(-0.35),
    "scale": F(1 / SIZE),
    "mel": np.kron(np.eye(11), np.ones((3, 1))).astype(F),
    "row": np.array([1]),
    "last": np.array([-1]),
    "start": np.array([0]),
    "end": np.array([30]),
    "square": np.eye(HALF, dtype=F) + F(0.01),
    "fold": np.array([8, 8]),
    "f": np.cos(FACTORS).astype(F),
    "g": np.sin(FACTORS).astype(F),
    "low": np.full((8, 8), 0.5, F),
    "hidden": np.eye(SIZE, dtype=F),
}
TONE = (0.3 * np.sin(2 * np.pi * 7 * np.arange(SIZE) / SIZE)).astype(F).reshape(1, SIZE)
RE_IM = "re = MatMul (x, c)  im = MatMul (x, s)"
POWER = f"{RE_IM}  a = Mul (re, re)  b = Mul (im, im)  p = Add (a, b)"
LOG = "q = Add (p, eps)  y = Log (q)"

PATHS = {
    "MatMul, Mul and Add": f"{POWER}  {LOG}",
    "Pow": f"{RE_IM}  a = Pow (re, two)  b = Pow (im, two)  p = Add (a, b)  {LOG}",
    "Conv": f"""w = Unsqueeze (x, row)  re = Conv (w, kc)  im = Conv (w, ks)  a = Mul (re, re)  b = Mul (im, im)
        p = Add (a, b)  {LOG}""",
    "the same twice": f"""re = MatMul (x, c)  im = MatMul (x, s)  ie = Identity (re)  a = Mul (re, ie)  b = Mul (im, im)
        p = Add (a, b)  {LOG}""",
    "a maximum": f"{POWER}  q = Max (p, eps)  y = Log (q)",
    "a clip": f"{POWER}  q = Clip (p, eps)  y = Log (q)",
    "no floor": f"{POWER}  y = Log (p)",
    "a root": f"{POWER}  r = Sqrt (p)  q = Add (r, eps)  y = Log (q)",
    "a root and its square": f"{POWER}  r = Sqrt (p)  t = Pow (r, two)  q = Max (t, eps)  y = Log (q)",
    "mel bands": f"{POWER}  m = MatMul (p, mel)  q = Add (m, eps)  y = Log (q)",
    "mel bands of amplitudes": f"{POWER}  r = Sqrt (p)  m = MatMul (r, mel)  q = Clip (m, eps)  y = Log (q)",
    "a transpose, a slice, a scale": f"""{POWER}  t = Transpose <perm = [1, 0]> (p)  d = Slice (t, start, end, start)
        m = Mul (d, scale)  q = Add (m, eps)  y = Log (q)""",
    "ReduceSumSquare of pairs": f"""{RE_IM}  u = Unsqueeze (re, last)  v = Unsqueeze (im, last)
        w = Concat <axis = -1> (u, v)  p = ReduceSumSquare <axes = [-1], keepdims = 0> (w)  {LOG}""",
    "ReduceL2 of pairs": f"""{RE_IM}  u = Unsqueeze (re, last)  v = Unsqueeze (im, last)
        w = Concat <axis = -1> (u, v)  p = ReduceL2 <axes = [-1], keepdims = 0> (w)  {LOG}""",
    "a mean over places": f"{POWER}  m = ReduceMean <axes = [0]> (p)  q = Add (m, eps)  y = Log (q)",
    "the input less its mean": f"""m = ReduceMean <axes = [-1]> (x0)  x = Sub (x0, m)  {POWER}  {LOG}""",
    "the input over its maximum": f"""h = Abs (x0)  m = ReduceMax <axes = [-1]> (h)  x = Div (x0, m)  {POWER}  {LOG}""",
}
BORDERS = {
    "a branch": f"""{RE_IM}  p = If (k) <
            then_branch = t () => (float[1,33] p1) {{ a = Mul (re, re)  b = Mul (im, im)  p1 = Add (a, b) }},
            else_branch = e () => (float[1,33] p2) {{ p2 = Mul (re, re) }}
        >  {LOG}""",
    "a logarithm in a branch": f"""{POWER}  y = If (k) <
            then_branch = t () => (float[1,33] y1) {{ q = Add (p, eps)  y1 = Log (q) }},
            else_branch = e () => (float[1,33] y2) {{ y2 = Identity (p) }}
        >""",
    "a loop": f"""zero = Mul (x, x)  z = MatMul (zero, c)  n0 = Sub (z, z)  p = Loop (times, k, n0) <
            body = l (int64 i, bool on, float[1,33] before) => (bool more, float[1,33] after) {{
                more = Identity (on)  {RE_IM}  a = Mul (re, re)  b = Mul (im, im)  d = Add (a, b)
                after = Add (before, d) }}
        >  {LOG}""",
}
MODEL = "g (float[1,64] {x}, bool k, int64 times) => (float[?] y) {{ {body} }}"


def model_of(body: str, domains: tuple[str, ...] = ()) -> ModelProto:
    text = body if body.startswith("g ") else MODEL.format(x="x0" if "x0" in body else "x", body=body)
    words = set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())
    rank = "?,?,?" if "Conv (" in text else "?,?"
    return parse(text.replace("float[?] y", f"float[{rank}] y"), domains=domains, **_used(words))


def _used(words: set[str]) -> dict[str, Any]:
    return {name: array for name, array in WEIGHTS.items() if name in words}


def feeds(model: ModelProto) -> dict[str, Any]:
    return {i.name: array for i, array in zip(model.graph.input, (TONE, np.array(True), np.array(2)), strict=False)}


FUNCTIONS = """g (float[1,64] x) => (float[?,?] y) { re = MatMul (x, c)  im = MatMul (x, s)  p = local.Power (re, im)
    y = local.Level (p) }
<domain: "local", opset_import: ["" : 17]>
Power (re, im) => (p) { a = Mul (re, re)  b = Mul (im, im)  p = Add (a, b) }
<domain: "local", opset_import: ["" : 17]>
Level (p) => (y) { eps = Constant <value = float {1e-10}> ()  q = Add (p, eps)  y = Log (q) }"""

ALL = [pytest.param(model_of(body), id=name) for name, body in {**PATHS, **BORDERS}.items()]
ALL.append(pytest.param(model_of(FUNCTIONS, ("local",)), id="functions"))


@pytest.mark.parametrize("level", ["O1", "O2", "auto"])
@pytest.mark.parametrize("model", ALL)
def test_a_spectrum_before_a_logarithm_is_right(model: ModelProto, level: str) -> None:
    reference, low = float32_and_low(model, feeds(model), level)
    assert not difference(reference["y"], low["y"])


@pytest.mark.parametrize("model", ALL)
def test_without_the_guard_its_floor_is_that_of_the_low_type(
    model: ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "spectrum" in topics(ampgraph.plan(model, "O2"))
    assert "spectrum (not held)" in topics(ampgraph.plan(model, "O3"))
    without(monkeypatch, "spectrum")
    reference, low = float32_and_low(model, feeds(model), "O2")
    assert difference(reference["y"], low["y"])


def test_the_reason_names_the_logarithm_and_the_floor() -> None:
    (note,) = [n for n in ampgraph.plan(model_of(PATHS["mel bands"]), "O2").notes if n.topic == "spectrum"]
    assert (
        note.text == "Log magnifies small powers, with a floor of 1e-10 under them: float16 rounds large ones by more"
    )


def test_both_stages_of_a_transform_are_float32() -> None:
    """Two products, one after the other: the first bears the input's rounding."""
    model = model_of(
        f"""x1 = Reshape (x, fold)  u = MatMul (f, x1)  v = MatMul (g, x1)  t = Mul (u, low)  w = Mul (v, low)
        a1 = MatMul (t, f)  b1 = MatMul (w, g)  re = Sub (a1, b1)  p = Mul (re, re)  {LOG}"""
    )
    assert [dtype_of(converted(model), "MatMul", n) for n in range(4)] == ["f32"] * 4


DIVIDED = {
    "a quotient": "y = Div (re, r)",
    "a reciprocal": "i = Reciprocal (r)  y = Mul (re, i)",
    "a negative power": "i = Pow (q, less)  y = Mul (re, i)",
}


@pytest.mark.parametrize("end", DIVIDED.values(), ids=DIVIDED.keys())
def test_what_is_divided_by_powers_is_right(end: str) -> None:
    model = model_of(f"{POWER}  q = Add (p, eps)  r = Sqrt (q)  {end}")
    assert [dtype_of(converted(model), "MatMul", n) for n in range(2)] == ["f32"] * 2


@pytest.mark.parametrize(
    "body",
    [
        f"{POWER}  q = Add (p, one)  y = Log (q)",
        f"{POWER}  y = Sqrt (p)",
        f"{RE_IM}  n = ReduceL2 <axes = [-1]> (re)  q = Max (n, eps)  d = Div (re, q)  y = Add (d, im)",
        f"{POWER}  h = Sigmoid (p)  y = Log (h)",
        f"{POWER}  m = MatMul (p, square)  h = Relu (m)  n = MatMul (h, square)  q = Clip (n, eps)  y = Log (q)",
    ],
    ids=["log(1 + p)", "amplitudes", "a norm of many", "a sigmoid", "a network on powers"],
)
@pytest.mark.parametrize("level", ["O1", "O2", "auto"])
def test_what_magnifies_nothing_leaves_its_products_low(body: str, level: str) -> None:
    model = model_of(body)
    result = converted(model, level)
    assert "MatMul:f32" not in decisions(result)


@pytest.mark.slow
def test_behind_a_network_one_product_is_float32() -> None:
    """Its input was rounded before."""
    model = model_of(
        f"h = MatMul (x0, hidden)  r = Relu (h)  i = MatMul (r, hidden)  x = MatMul (i, hidden)  p1 = MatMul (x, c) "
        f"p = Mul (p1, p1)  {LOG}"
    )
    assert [dtype_of(converted(model), "MatMul", n) for n in range(4)] == ["f16", "f16", "f16", "f32"]
