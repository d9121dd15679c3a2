"""Small float32 models with one fault each, that shows once they compute low."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from onnx import ModelProto

import ampgraph
import onnx_text

parse = partial(onnx_text.parse, opset=21)


def chain() -> ModelProto:
    """x * 300 * 300 / 90000: the second product leaves float16."""
    return parse("""g (float[2, 4] x) => (float[2, 4] y) <float s = {300}, float d = {90000}> {
        [first] a = Mul (x, s)
        [second] b = Mul (a, s)
        [third] c = Sqrt (b)
        [last] y = Mul (c, c)
    }""")


def difference() -> ModelProto:
    """Two infinities at once, whose difference is NaN: the products are to blame."""
    return parse("""g (float[2, 4] x) => (float[2, 4] y) <float s = {300}, float t = {301}> {
        [a] a = Mul (x, s)
        [b] b = Mul (a, s)
        [c] c = Mul (a, t)
        [minus] m = Sub (b, c)
        [last] y = Tanh (m)
    }""")


def vanishing() -> ModelProto:
    """x*x / (x*x) where x is 1e-5: zero by zero."""
    return parse("""g (float[2, 4] x) => (float[2, 4] y) {
        [square] a = Mul (x, x)
        [same] b = Neg (a)
        [ratio] c = Div (a, b)
        [last] y = Tanh (c)
    }""")


def cancelling() -> ModelProto:
    """1000 + x less its mean: what is left of x after the first sum is rounding."""
    return parse("""g (float[2, 64] x) => (float[2, 64] y) <float[1] k = {1000}, int64[1] axis = {1}> {
        [before] s = Tanh (x)
        [shift] a = Add (s, k)
        [mean] m = ReduceMean (a, axis)
        [centre] c = Sub (a, m)
        [after] y = Tanh (c)
    }""")


FUNCTION = """<domain: "own", opset_import: ["" : 21]>
squares (v) => (w) { [inner_square] p = Mul (v, v)  [inner_again] q = Mul (p, p)  [inner_root] w = Sqrt (q) }"""


def in_function() -> ModelProto:
    """A function called twice: v * v * v * v overflows in the second call."""
    return parse(
        """g (float[2, 4] x) => (float[2, 4] y) <float s = {20}> {
            [call_one] a = own.squares (x)
            [scale] b = Mul (a, s)
            [call_two] c = own.squares (b)
            [last] y = Sqrt (c)
        }""",
        functions=FUNCTION,
        domains=["own"],
    )


def in_branch() -> ModelProto:
    """An If whose taken branch overflows on a captured value."""
    return parse("""g (float[2, 4] x, bool c) => (float[2, 4] y) <float s = {300}> {
        [outer] a = Mul (x, s)
        [choose] b = If (c) <
            then_branch = t () => (float[2, 4] p) { [big] o = Mul (a, s)  [root] p = Sqrt (o) },
            else_branch = e () => (float[2, 4] r) { [small] r = Sqrt (a) }
        >
        [last] y = Neg (b)
    }""")


def feed(shape: tuple[int, ...] = (2, 4), scale: float = 1.0, **more: np.ndarray) -> dict[str, np.ndarray]:
    """Positive numbers around ``scale``."""
    x = np.random.default_rng(3).uniform(0.9, 1.1, shape) * scale
    return {"x": x.astype(np.float32), **more}


def low(model: ModelProto, **more: Any) -> ModelProto:
    """Everything low that may be."""
    return ampgraph.convert(model, "O3", **more)
