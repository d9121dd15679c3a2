"""Sizes that were guessed wrongly are learnt from what a run fails with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.numerics.inputs.samples import changes, load_samples
from ampgraph.numerics.strict.session import StrictSession
from needs import needs_runtime
from onnx_text import parse

HEIGHT = "g (float[N, 3, h, w] x) => (float[a, b, c] y) { p = Conv <strides = [8, 8]> (x, k)  y = Squeeze(p, axis) }"
NAMES = "g (float[batch, n, width] x, int64[batch, n, width] i) => (float[b, c, d] y) {{ {0} }}"


def shapes(text: str, weights: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    model = parse(text, opset=17, **weights)
    samples = load_samples(model, count=1).fitted(StrictSession(model).run)
    return {name: array.shape for name, array in next(iter(samples)).items()}


def test_a_height_of_which_nothing_may_be_left() -> None:
    found = shapes(HEIGHT, {"k": np.ones((2, 3, 8, 8), np.float32), "axis": np.array([2])})
    assert found["x"] == (1, 3, 8, 256)


PADDED = """g (float[b, n] x, float[b, m] s, int64 rate) => (float[b, t] y) {
  is = Equal(rate, sixteen)
  y = If (is) <then_branch = then () => (float[b, t] p) { w = Pad <mode = "reflect"> (x, wide)  p = Add(w, s) },
               else_branch = other () => (float[b, t] q) { q = Add(x, s) }> }"""


@needs_runtime("a reflected Pad wider than its input reads what lies beside it")
def test_a_failure_further_on_in_a_body_is_a_step_forward() -> None:
    """The padding wants more than is guessed, and the addition behind it another size beside it."""
    found = shapes(PADDED, {"sixteen": np.array(16000), "wide": np.array([0, 40, 0, 40])})
    assert found["x"][1] > 40 and found["s"][1] in (1, found["x"][1] + 80)


def test_a_number_that_the_model_asks_for_is_given() -> None:
    model = parse(PADDED, sixteen=np.array(16000), wide=np.array([0, 40, 0, 40]))
    assert [sample["rate"] for sample in load_samples(model, count=2)] == [16000, 16000]


def test_one_name_for_two_sizes() -> None:
    weights = {"w": np.ones((24, 4), np.float32), "table": np.ones((9, 4), np.float32), "one": np.array([2])}
    body = "a = MatMul(x, w)  g = Gather(table, i)  s = ReduceSum <keepdims = 0> (g, one)  y = Add(a, s)"
    found = shapes(NAMES.format(body), weights)
    assert found["x"] == (1, 16, 24) and found["i"] == (1, 16, 16)


def test_what_no_size_mends_is_said() -> None:
    with pytest.raises(AmpError, match="no generated input fits") as caught:
        shapes("g (float[N, m] x) => (float[a, b] y) { y = Gather <axis = 1> (x, far) }", {"far": np.array([5000])})
    assert caught.value.code == "AMP504" and "--dim" in caught.value.hint


def test_verbs_run_on_sizes_that_were_learnt() -> None:
    model = parse(HEIGHT, k=np.ones((2, 3, 8, 8), np.float32), axis=np.array([2]))
    assert ampgraph.calibrate(model, count=1).samples == 1
    assert ampgraph.verify(model, ampgraph.convert(model), samples=1).samples == 1


def test_numbers_of_a_message_come_before_others() -> None:
    message = "Status Message: /a/b.h:51 Dimension of input 2 must be 1 instead of 4. shape={1,288,4,16}"
    proposed = list(changes(message, {("x", 2): 128, ("x", 0): 1}))
    assert {("x", 2): 32} in proposed[:8] and all(("x", 2) in change for change in proposed[:8])


@pytest.mark.parametrize(("last", "size"), [("Softmax", (48, 240)), ("Relu", (256, 256))])
def test_a_reader_of_text_gets_a_line(last: str, size: tuple[int, int]) -> None:
    text = f"""g (float[N, 3, h, w] x) => (float[N, t, 26] y) {{
      c = Conv <strides = [8, 8]> (x, k)  p = ReduceMean <axes = [2], keepdims = 0> (c)
      q = Transpose <perm = [0, 2, 1]> (p)  l = MatMul (q, letters)  y = {last} (l) }}"""
    found = shapes(text, {"k": np.ones((8, 3, 8, 8), np.float32), "letters": np.ones((8, 26), np.float32)})
    assert found["x"] == (1, 3, *size)
