"""Gradients through the bodies of If, Loop and Scan, also one inside of another, against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ampgraph.core.errors import AmpError
from training.gradients import check, gradients, model_of, normal, with_gradients

IF = """g (float[A,3] x, float[3] w, float[3] v, bool c) => (float[A,3] y) {
  u = Mul (x, w)
  y = If (c) <
    then_branch = one () => (float[A,3] a) { s = Mul (u, v)  t = Tanh (s)  a = Add (t, x) },
    else_branch = two () => (float[A,3] d) { d = Sigmoid (u) }
  >
}"""


@pytest.mark.parametrize("taken", [True, False])
def test_if(taken):
    """Both branches read values from around; one of them what the other does not."""

    def function(x, w, v, c):
        return torch.tanh(x * w * v) + x if c else torch.sigmoid(x * w)

    arrays = {"x": normal(2, 3), "w": normal(3, seed=1), "v": normal(3, seed=2), "c": np.array(taken)}
    check(IF, arrays, function)


SCAN = """g (float[4] s, float[T,4] x, float[4,4] w) => (float[T,4] y, float[4] last) {
  last, y = Scan <num_scan_inputs = 1, body = step (float[4] h, float[4] r) => (float[4] n, float[4] o) {
    m = MatMul (h, w)  a = Add (m, r)  n = Tanh (a)  o = Mul (n, n)
  }> (s, x)
}"""
LOOP = """g (float[2] s, float[2,2] w) => (float[2] y, float[5,2] all)
<int64 trips = {5}, bool yes = {1}> {
  y, all = Loop (trips, yes, s) <body = step (int64 i, bool c, float[2] h) => (bool d, float[2] n, float[2] o) {
    d = Identity (c)  f = Cast <to = 1> (i)  m = MatMul (w, h)  a = Add (m, f)  n = Tanh (a)  o = Sin (a)
  }>
}"""


def scanned(s, x, w):
    steps = []
    for row in x:
        s = torch.tanh(s @ w + row)
        steps.append(s)
    return torch.stack(steps), s


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("output", ["y", "last"])
def test_scan(length, output):
    """States, rows, and a weight from around that all steps share."""
    arrays = {"s": normal(4), "x": normal(length, 4, seed=1), "w": normal(4, 4, seed=2)}
    text = SCAN if output == "y" else SCAN.replace("(float[T,4] y, float[4] last) {", "(float[4] last) {", 1)
    check(text, arrays, lambda *given: scanned(*given)[0] ** 2 if output == "y" else scanned(*given)[1])


@pytest.mark.parametrize("output", ["y", "all"])
def test_loop(output):
    """The number of the step is part of what it computes."""

    def function(s, w):
        found = []
        for number in range(5):
            found.append(torch.sin(w @ s + number))
            s = torch.tanh(w @ s + number)
        return s if output == "y" else torch.stack(found)

    text = LOOP if output == "y" else LOOP.replace("(float[2] y, float[5,2] all)", "(float[5,2] all)")
    check(text, {"s": normal(2), "w": normal(2, 2, seed=1)}, function)


def test_an_if_inside_of_a_loop():
    text = """g (float[3] s, float[3] w) => (float[3] y) <int64 trips = {4}, bool yes = {1}, int64 two = {2}> {
      y = Loop (trips, yes, s) <body = step (int64 i, bool c, float[3] h) => (bool d, float[3] n) {
        d = Identity (c)  early = Less (i, two)
        n = If (early) <
          then_branch = one () => (float[3] a) { a = Mul (h, w) },
          else_branch = other () => (float[3] e) { f = Tanh (h)  e = Add (f, w) }
        >
      }>
    }"""

    def function(s, w):
        for number in range(4):
            s = s * w if number < 2 else torch.tanh(s) + w
        return s

    check(text, {"s": normal(3), "w": normal(3, seed=1)}, function)


def test_a_loop_that_ends_by_what_it_computes():
    """The way back has as many steps as there were."""
    text = """g (float[] s, float[] w) => (float[] y) <int64 most = {100}, bool yes = {1}, float top = {50.0}> {
      y = Loop (most, yes, s) <body = step (int64 i, bool c, float[] h) => (bool d, float[] n) {
        n = Mul (h, w)  d = Less (n, top)
      }>
    }"""
    found = gradients(model_of(text), {"s": np.array(1.5, "f"), "w": np.array(2, "f")}, ["s", "w"], np.array(1, "f"))
    assert found == {"s": 64.0, "w": 1.5 * 6 * 2**5}


@pytest.mark.parametrize(
    ("inner", "told"),
    [
        ("q = RandomNormalLike (h)  n = Mul (h, q)", "other numbers on the way back"),
        ("n = Det (h)", "no gradient rule for Det"),
    ],
)
def test_bodies_that_are_refused(inner, told):
    text = "g (float[2] s, float[2,2] x) => (float[2] y) { y = Scan <num_scan_inputs = 1, body = step "
    text += f"(float[2] h, float[2] r) => (float[2] n) {{ {inner} }}> (s, x) }}"
    with pytest.raises(AmpError, match=f"AMP210.*{told}"):
        with_gradients(model_of(text), ["s"])


def test_a_scan_backwards_is_refused():
    with pytest.raises(AmpError, match="AMP210.*all directions forward"):
        with_gradients(
            model_of(SCAN.replace("num_scan_inputs = 1", "num_scan_inputs = 1, scan_input_directions = [1]")), ["s"]
        )
