"""A bias between a product and a GELU is one kernel with the GELU: float32 with it, and no part of the product."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, helper

import ampgraph
from ampgraph.numerics.strict.session import run_strict
from onnx_text import parse
from planner.support import converted, decisions, kinds

NUMBERS = {"one": 1, "half": 0.5, "root2": 1.4142135, "cubic": 0.044715, "factor": 0.7978845608}
FORMS = {
    "erf": "e = Div (x, root2)  t = Erf (e)  o = Add (t, one)  h = Mul (x, o)  y = Mul (h, half)",
    "tanh of squares": "c = Mul (x, cubic)  q = Mul (c, x)  s = Add (q, one)  k = Mul (x, factor)  i = Mul (k, s)"
    "  t = Tanh (i)  o = Add (t, one)  h = Mul (x, half)  y = Mul (h, o)",
    "operator": "y = Gelu (x)",
}


def biased(form: str, size: str = "B,S,", more: str = "z = MatMul (y, w)") -> ModelProto:
    """A GELU of a product with its bias, and a product behind it."""
    stored = {n: np.float32(v) for n, v in NUMBERS.items() if n in FORMS[form]}
    body = f"p = MatMul (f, w)  x = Add (p, b)  {FORMS[form]}  {more}"
    text = f"g (float[{size}16] f) => (float[{size}16] z) {{ {body} }}"
    return parse(text, {"w": (16, 16), "b": (16,), **stored}, opset=20 if form == "operator" else 17)


@pytest.mark.parametrize("size", ["B,S,", "2,4,"])
@pytest.mark.parametrize("form", FORMS)
def test_a_bias_goes_with_its_gelu(form: str, size: str) -> None:
    """O1 has the GELU in float32: so is the sum in front of it, which is rounded once less."""
    assert decisions(converted(biased(form, size), "O1")).startswith("Cast>f16 MatMul:f16 Cast>f32 Add:f32")
    assert decisions(converted(biased(form, size), "O2")).startswith("Cast>f16 MatMul:f16 Add:f16")


@pytest.mark.parametrize("form", ["erf", "tanh of squares"])
def test_a_gelu_that_is_one_kernel_in_float32_alone_takes_its_bias_along(form: str) -> None:
    for level in ("O2", "auto"):
        made = converted(biased(form), level, dtype="bfloat16")
        assert decisions(made).startswith("Cast>bf16 MatMul:bf16 Cast>f32 Add:f32")
    assert decisions(converted(biased(form), "O3", dtype="bfloat16")).startswith("Cast>bf16 MatMul:bf16 Add:bf16")


def test_a_bias_that_others_read_or_a_matrix_takes_is_its_products() -> None:
    matrix, read = biased("erf", "4,"), biased("erf", more="r = Relu (x)  s = Add (r, y)  z = MatMul (s, w)")
    for given in (matrix, read):
        assert decisions(converted(given, "O1")).startswith("Cast>f16 MatMul:f16 Add:f16")
    other = converted(biased("erf"), "O1", target="tensorrt")
    assert decisions(other).startswith("Cast>f16 MatMul:f16 Add:f16")


def test_a_bias_that_is_handed_on_is_the_same() -> None:
    """As an exporter writes equal biases of two layers: one stored, the other an Identity of it."""
    given = biased("erf")
    given.graph.node.insert(0, helper.make_node("Identity", ["b"], ["b2"]))
    next(node for node in given.graph.node if node.output[0] == "x").input[1] = "b2"
    assert "MatMul:f16 Cast>f32 Add:f32" in decisions(converted(given, "O1"))


def test_it_is_as_exact_or_more_and_converts_again() -> None:
    given = biased("erf")
    made, plain = (ampgraph.convert(given, "O1", target=target) for target in ("cuda", "tensorrt"))
    assert ampgraph.convert(made, "O1").SerializeToString() == made.SerializeToString() and "Erf" in kinds(made)
    feeds = [{"f": np.random.default_rng(n).standard_normal((2, 8, 16)).astype(np.float32)} for n in range(8)]
    right = [run_strict(given, feed)["z"] for feed in feeds]
    now, before = (
        sum(float(np.linalg.norm(run_strict(model, feed)["z"] - z)) for feed, z in zip(feeds, right, strict=True))
        for model in (made, plain)
    )
    assert now <= before


def test_explain_says_so() -> None:
    said = ampgraph.explain(biased("erf"), "x", level="O1").slots[0].reason
    assert "Gelu" in said
