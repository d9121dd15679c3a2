"""A mask of -10,000 that is added in float16: rows that it hides whole are right, or the plan says they are not."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.numerics.metrics.agreement import apart
from ampgraph.numerics.strict.session import StrictSession
from onnx_text import parse

F = np.float32
SCORES = "k = Transpose<perm = [1, 0]>(x) s = MatMul(x, k) z = Mul(s, third)"
REST = "p = Softmax(a) y = MatMul(p, x)"
INPUT = "n = Sub(one, seen) m = Mul(n, far)"
CAUSALLY = "t = Mul(z, causal) u = Sub(one, causal) v = Mul(u, far) b = Add(t, v)"
FORMS = {
    "added": f"{SCORES} {INPUT} a = Add(z, m) {REST}",
    "taken away": f"{SCORES} n = Sub(one, seen) m = Mul(n, size) a = Sub(z, m) {REST}",
    "of both": f"{SCORES} {INPUT} {CAUSALLY} a = Add(b, m) {REST}",
    "chosen": f"{SCORES} c = Cast<to = 9>(seen) a = Where(c, z, far) {REST}",
    "stored": f"{SCORES} a = Add(z, stored) {REST}",
    "stored, and hides rows": f"{SCORES} a = Add(z, hiding) {REST}",
}
WRONG = {"of both": [0, *[1] * 7], "stored, and hides rows": [1] * 8}
"""Forms that no rewrite mends, with what is seen: `of both`, the first row sees nothing but what is hidden."""
CAUSAL = np.tril(np.ones((8, 8), F))


def model(body: str) -> ModelProto:
    stored = {"one": F(1), "third": F(0.35), "far": F(-10000), "size": F(10000), "causal": CAUSAL,
              "stored": (1 - CAUSAL) * F(-10000), "hiding": (1 - CAUSAL * (np.arange(8) > 0)) * F(-10000)}  # fmt: skip
    used = {name: value for name, value in stored.items() if name in body}
    return parse(f"g (float[8, 8] x, float[1, 8] seen) => (float[8, 8] y) {{ {body} }}", used)


def error(source: ModelProto, level: str, seen: list[int]) -> float:
    feeds = {"x": np.random.default_rng(0).standard_normal((8, 8)).astype(F) * 2, "seen": np.array([seen], F)}
    made = ampgraph.convert(source, level, check="off")
    return apart(StrictSession(source).run(feeds)["y"], StrictSession(made).run(feeds)["y"]).error


def said(source: ModelProto, level: str) -> bool:
    return any("lose their scores" in note.text for note in ampgraph.plan(source, level=level).notes)


@pytest.mark.parametrize("level", ["O2", "O3"])
@pytest.mark.parametrize("form", WRONG)
def test_what_is_wrong_is_said(form: str, level: str) -> None:
    source = model(FORMS[form])
    assert error(source, level, WRONG[form]) > 0.01
    assert said(source, level)


@pytest.mark.parametrize(
    "form, level", [("added", "O1"), ("added", "O3"), ("taken away", "O2"), ("chosen", "O3"), ("stored", "O3")]
)
def test_what_is_right_is_not_said(form: str, level: str) -> None:
    source = model(FORMS[form])
    assert error(source, level, [0] * 8) < 1e-2
    assert not said(source, level)


def test_a_row_of_which_something_is_seen_is_right() -> None:
    assert error(model(FORMS["added"]), "O3", [1, 1, 1, 0, 0, 0, 0, 0]) < 1e-2
