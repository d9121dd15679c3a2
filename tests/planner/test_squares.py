"""Squares, however they are written, and those that are known to stay in range."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.formats import adapters
from ampgraph.oplists.traits import traits
from ampgraph.planner.facts.squares import Squares
from onnx_text import parse
from planner.support import converted, decisions, dtype_of

F = np.float32
WEIGHTS = {
    **{"two": F(2), "three": F(3), "hundred": F(100), "minus": F(-100), "thousand": F(1000), "all": np.array([1])},
    "none": np.array([0]),
    **{"w": np.eye(8, dtype=F), "g": np.linspace(0.5, 1, 8, dtype=F), "huge": np.full(8, 1e4, F)},
}


def model_of(body: str, opset: int = 18) -> ModelProto:
    text = f"g (float[2,8] f) => (float[2,8] o) {{ x = MatMul (f, w)  {body}  m = Sub (x, y)  o = MatMul (m, w) }}"
    words = set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())
    return parse(text, {name: array for name, array in WEIGHTS.items() if name in words}, opset=opset)


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("y = Mul (x, x)", 1),
        ("y = Pow (x, two)", 1),
        ("i = Identity (x)  y = Mul (x, i)", 1),
        ("d = Sub (f, x)  e = Sub (f, x)  y = Mul (d, e)", 1),
        ("y = ReduceSumSquare (x, all)", 1),
        ("y = ReduceL2 (x, all)", 1),
        ("d = ReduceMax (f, all)  e = ReduceMax (f, all)  y = Mul (d, e)", 1),
        ("d = ReduceMax (f, all)  e = ReduceMax (f, none)  y = Mul (d, e)", 0),
        ("d = ReduceMax (f, all)  e = ReduceMax <keepdims = 0> (f, all)  y = Mul (d, e)", 0),
        ("d = Sub (f, x)  e = Sub (x, f)  y = Mul (d, e)", 0),
        ("h = MatMul (x, w)  q = Mul (h, x)  y = ReduceSum (q, all)", 1),
        ("h = MatMul (x, w)  y = Mul (x, h)", 0),
        ("h = MatMul (f, w)  q = Mul (h, x)  y = ReduceSum (q, all)", 0),
        ("y = Pow (x, three)", 0),
        ("y = Mul (x, f)", 0),
        ("y = Mul (x, hundred)", 0),
    ],
)
def test_what_is_a_square(body: str, count: int) -> None:
    flow = adapters.load(model_of(body))[0].dataflow("float16")
    assert len(Squares(flow, traits()).of_op) == count


@pytest.mark.parametrize(
    "body",
    [
        "h = Sigmoid (x)  y = Mul (h, h)",
        "h = Softmax (x)  y = Pow (h, two)",
        "h = Tanh (x)  s = Mul (h, h)  y = Mul (s, s)",
        "h = Clip (x, minus, hundred)  r = Relu (h)  t = Transpose (r)  u = Transpose (t)  y = Mul (u, u)",
        "h = Tanh (x)  s = Add (h, hundred)  y = Mul (s, s)",
        "h = Tanh (x)  y = ReduceSumSquare (h, all)",
        "h = LayerNormalization (x, g)  y = Mul (h, h)",
    ],
)
def test_a_square_of_what_is_bounded_is_low(body: str) -> None:
    squares = {"Mul:f32", "Pow:f32", "ReduceSumSquare:f32"}
    assert squares.isdisjoint(decisions(converted(model_of(body))).split())


@pytest.mark.parametrize(
    "body",
    [
        "y = Mul (x, x)",
        "h = Clip (x, minus, thousand)  y = Mul (h, h)",
        "h = Clip (x, minus)  y = Mul (h, h)",
        "h = Tanh (x)  s = Mul (h, thousand)  y = Mul (s, s)",
        "h = LayerNormalization (x, huge)  y = Mul (h, h)",
        "h = Tanh (x)  i = Add (h, x)  y = Mul (i, i)",
    ],
)
def test_a_square_of_what_is_not_is_float32(body: str) -> None:
    assert dtype_of(converted(model_of(body)), "Mul", body.count("Mul") - 1) == "f32"


@pytest.mark.parametrize(("largest", "dtype"), [(1.0, "f16"), (100.0, "f16"), (200.0, "f32"), (1e-5, "f32")])
def test_a_measured_range_decides(largest: float, dtype: str) -> None:
    """With a margin of two; squares that vanish stay float32 as those that overflow."""
    model = model_of("y = Mul (x, x)")
    data = [{"f": np.linspace(-largest, largest, 16, dtype=F).reshape(2, 8)}]
    assert dtype_of(ampgraph.convert(model, data=data), "Mul") == dtype
