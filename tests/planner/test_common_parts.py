"""Norms behind products whose features are nearly alike, by strict runs: float32 at every level, O3 too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.core.plan import Note
from ampgraph.numerics.metrics.compare import difference
from ampgraph.numerics.strict.session import StrictSession
from needs import needs_runtime
from onnx_text import parse
from planner.without import without

F = np.float32
SIZE, HEADS = 32, 2
RANDOM = np.random.default_rng(5)
NORM = "LayerNormalization <epsilon = 1e-5>"
OUT = {  # (the operator with its operands in either order, how the norm is written)
    "norm": "u = Add (p, gb)  s = Add (u, r)  y = {norm} (s, one, one)",
    "sums turned round": "u = Add (gb, p)  s = Add (r, u)  y = {norm} (s, one, one)",
    "written out": """u = Add (p, gb)  s = Add (u, r)  m = ReduceMean <axes = [-1]> (s)  d = Sub (s, m)  q = Mul (d, d)
        v = ReduceMean <axes = [-1]> (q)  e = Add (v, eps)  f = Sqrt (e)  z = Div (d, f)  t = Mul (z, one)
        y = Add (t, one)""",
    "of a Gemm": """j = Reshape (o, flat)  p2 = Gemm (j, g, gb)  h = Shape (o)  p3 = Reshape (p2, h)  s = Add (p3, r)
        y = {norm} (s, one, one)""",
}
LEVELS = ("O2", "O3")
EXACT_NORM = needs_runtime("the float32 LayerNormalization of older ones loses what is small beside the mean")
GRAPHS = [*((name, past) for name in ("norm", "sums turned round") for past in (True, False)),
          ("written out", False), ("of a Gemm", False)]  # fmt: skip


def attention(out: str, weight: float = 1.0, spread: float = 0.0, *, past: bool = True) -> ModelProto:
    """A block of GPT-2 as ONNX Runtime fuses it, of weights that are alike but for a spread, with a mask."""
    kept = "o, now = com.microsoft.Attention <num_heads = 2, unidirectional = 1> (n, w, b, i, past)"
    body = kept if past else "o = com.microsoft.Attention <num_heads = 2, unidirectional = 1> (n, w, b, i)"
    inputs = f"float[1,S,{SIZE}] x1, float[1,S,{SIZE}] x2, float[1,T] mask"
    more = (", float[2,1,2,P,16] past", ", float[2,1,2,T,16] now") if past else ("", "")
    text = f"""g ({inputs}{more[0]}) => (float[1,S,{SIZE}] y{more[1]}) {{ r = Add (x1, x2)  n = {NORM} (r, one, one)
        i = Cast <to = 6> (mask)  {body}  p = MatMul (o, g)  {out.format(norm=NORM)} }}"""
    numbers = {"eps": F(1e-5), "flat": np.array([-1, SIZE])} if "flat" in text or "eps)" in text else {}
    made = np.full((SIZE, SIZE), weight, F) + RANDOM.standard_normal((SIZE, SIZE)).astype(F) * F(spread)
    stored = {"one": np.ones(SIZE, F), "w": np.ones((SIZE, 3 * SIZE), F), "b": np.ones(3 * SIZE, F), "g": made}
    return parse(text, {**stored, "gb": np.ones(SIZE, F), **numbers}, opset=17, domains=["com.microsoft"])


def feeds(past: bool) -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(1)
    given = {name: drawn.standard_normal((1, 6, SIZE)).astype(F) for name in ("x1", "x2")}
    given["mask"] = np.ones((1, 9 if past else 6), F)
    return {**given, "past": drawn.standard_normal((2, 1, 2, 3, 16)).astype(F)} if past else given


def wrong(source: ModelProto, level: str, past: bool, dtype: str = "float16") -> str:
    made = ampgraph.convert(source, level, dtype=dtype, check="off")
    found = [StrictSession(model).run(feeds(past)) for model in (source, made)]
    return next((d.reason for name in found[0] if (d := difference(found[0][name], found[1][name]))), "")


def said(source: ModelProto, level: str, **more: Any) -> list[Note]:
    return [note for note in ampgraph.plan(source, level=level, **more).notes if note.topic == "common"]


@EXACT_NORM
@pytest.mark.parametrize("out, past", GRAPHS)
def test_weights_that_are_all_ones(out: str, past: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    source = attention(OUT[out], past=past)
    assert [wrong(source, level, past) for level in LEVELS] == [""] * len(LEVELS)
    assert all("what its features have in common, infinitely" in said(source, level)[0].text for level in LEVELS)
    without(monkeypatch, "common")
    assert wrong(source, "O3", past) != ""


@EXACT_NORM
@pytest.mark.parametrize("level", ["O1", "O3"])
def test_weights_that_are_nearly_alike(level: str) -> None:
    """The product is float32 too: its own rounding is as large."""
    source = attention(OUT["norm"], spread=0.01)
    assert wrong(source, level, past=True) == ""
    assert {d.dtype for d in ampgraph.plan(source, level=level).decisions if d.kind == "MatMul"} == {"float32"}


def test_weights_of_one_sign_are_left_alone() -> None:
    """Uniform in 0 to 1: their mean is 1.7 times what is left."""
    source = attention(OUT["norm"], weight=0.5, spread=0.29)
    assert not said(source, "O2") and not said(source, "O3")
    assert said(attention(OUT["norm"], spread=0.1), "O2", dtype="bfloat16")
    assert not said(attention(OUT["norm"], spread=0.1), "O2", dtype="float16")


def test_rows_that_are_alike_are_no_common_part() -> None:
    """Only what all features of one place share is taken away."""
    source = attention(OUT["norm"])
    weight = np.tile(RANDOM.standard_normal(SIZE).astype(F), (SIZE, 1))
    source.graph.initializer[3].raw_data = weight.tobytes()
    assert source.graph.initializer[3].name == "g" and not said(source, "O3")
