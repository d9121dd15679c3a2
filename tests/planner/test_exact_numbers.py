"""A number of known sizes is stored as the runtime makes it, and where that is not sure it stays computed."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.numerics.strict.session import run_strict
from onnx_text import parse

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
