"""Constants behind a convolution go into its weights and its bias, by rewrites that have a name and a class."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.core.plan import Plan
from ampgraph.numerics.strict.session import run_strict
from ampgraph.oplists.rewrites import chosen, classes
from onnx_text import parse
from planner.support import converted, decisions, kinds

RANDOM = np.random.default_rng(5)
W = RANDOM.normal(0, 0.3, (6, 3, 3, 3)).astype(np.float32)
B = RANDOM.normal(0, 1, (1, 6, 1, 1)).astype(np.float32)
X = {"x": RANDOM.normal(0, 1, (2, 3, 8, 8)).astype(np.float32)}
CHAIN = "c = Conv (x, w)  a = Add (c, b)  m = Mul (s, a)  d = Add (m, t)  z = Relu (d)"
LAST = RANDOM.normal(0, 0.3, (2, 6, 1, 1)).astype(np.float32)


def model(body: str = CHAIN, **more: Any) -> ModelProto:
    """With a convolution behind it, so that all of it is low."""
    text = f"{body}  y = Conv (z, last)"
    known = {"w": W, "b": B, "s": np.float32(0.71), "t": np.float32(0.4), "last": LAST, **more}
    used = {name: array for name, array in known.items() if re.search(rf"[(,] ?{name}[,)]", text)}
    return parse(f"g (float[2,3,8,8] x) => (float[2,c,h,v] y) {{ {text} }}", used)


def held(result: ModelProto) -> list[np.ndarray]:
    return [numpy_helper.to_array(tensor) for tensor in result.graph.initializer]


def test_what_is_added_becomes_the_bias() -> None:
    result = converted(model())
    assert kinds(result) == ["Cast", "Conv", "Mul", "Add", "Relu", "Conv", "Cast"], decisions(result)
    assert any(np.array_equal(array, B.reshape(-1).astype(np.float16)) for array in held(result))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["none"], ["Conv", "Add", "Mul", "Add", "Relu", "Conv"]),
        (["no-bias"], ["Conv", "Add", "Mul", "Add", "Relu", "Conv"]),
        (["exact"], ["Conv", "Mul", "Add", "Relu", "Conv"]),
        (["all"], ["Conv", "Relu", "Conv"]),
        (["none", "bias"], ["Conv", "Mul", "Add", "Relu", "Conv"]),
    ],
)
def test_words_choose(words: list[str], expected: list[str]) -> None:
    result = converted(model(), rewrite=words)
    assert [kind for kind in kinds(result) if kind != "Cast"] == expected
    np.testing.assert_allclose(run_strict(result, X)["y"], run_strict(model(), X)["y"], rtol=2e-2, atol=2e-2)


def test_all_of_it_rounds_less() -> None:
    exact, whole = (converted(model(), rewrite=word) for word in ("none", "all"))
    want = run_strict(model(), X)["y"]
    errors = [float(np.sqrt(np.mean(np.square(run_strict(one, X)["y"] - want)))) for one in (exact, whole)]
    assert errors[1] < errors[0]


POWER = "c = Conv (x, w)  m = Mul (c, s)  z = Relu (m)"


@pytest.mark.parametrize(
    ("factor", "folded"), [(0.5, True), (-4.0, True), (0.7, False), (2.0**-12, False), (2.0**18, False), (0.0, False)]
)
def test_a_power_of_two_goes_into_the_weights(factor: float, folded: bool) -> None:
    """But where the weights would lose digits, or leave the range."""
    given = model(POWER, s=np.float32(factor))
    result = converted(given)
    assert ("Mul" not in kinds(result)) is folded
    if folded:
        assert any(np.array_equal(array, (W * factor).astype(np.float16)) for array in held(result))


@pytest.mark.parametrize(
    ("body", "folds"),
    [
        ("c = Conv (x, w)  a = Sub (c, b)  z = Relu (a)", True),
        ("c = Conv (x, w)  a = Sub (b, c)  z = Relu (a)", False),
        ("c = Conv (x, w)  a = Add (t, c)  z = Relu (a)", True),
        ("c = Conv (x, w)  a = Add (c, b)  r = Relu (a)  z = Add (r, c)", False),  # c is read twice
        ("c = Conv (x, w)  a = Add (c, wide)  z = Relu (a)", False),  # a number to each place, not to each channel
        ("c = Conv (x, w, b1)  a = Add (c, b)  z = Relu (a)", False),  # a sum of constants: class all
        ("i = Identity (b)  j = Identity (w)  c = Conv (x, j)  a = Add (c, i)  z = Relu (a)", True),
        ("c = ConvTranspose <group = 3> (x, v)  a = Add (c, b)  z = Relu (a)", True),
    ],
)
def test_what_becomes_a_bias(body: str, folds: bool) -> None:
    more = {"wide": np.ones((1, 6, 6, 6), np.float32), "b1": np.ones(6, np.float32), "v": W.reshape(3, 2, 9, 3)}
    given = model(body, **more)
    result = converted(given)
    assert (("Add" in kinds(result)) or ("Sub" in kinds(result))) is not folds
    if folds:
        assert "Identity" not in kinds(result) or "j" in body
        np.testing.assert_allclose(run_strict(result, X)["y"], run_strict(given, X)["y"], rtol=2e-2, atol=2e-2)


def test_what_stays_float32_stays_as_it_is() -> None:
    given = model("c = Conv (x, w)  a = Add (c, b)  z = Relu (a)")
    for held, low in (("value:c", ""), ("value:a", ""), ("", "value:a")):
        assert "Add" in kinds(ampgraph.convert(given, fp32=[held] if held else [], low=[low] if low else []))
    large = model("c = Conv (x, w)  a = Add (c, b)  z = Relu (a)", b=B * 1e6)
    assert "Add" in kinds(converted(large)), "a bias beyond float16 does not take its product along"


def test_a_branch_and_the_plan_as_a_file() -> None:
    text = """g (float[2,3,8,8] x, bool q) => (float[2,c,h,v] y) {
        z = If (q) <then_branch = t () => (float[2,6,6,6] p) { u = Conv (x, w)  p = Add (u, b) },
                    else_branch = e () => (float[2,6,6,6] r) { r = Conv (x, w) }>
        y = Conv (z, last) }"""
    given = parse(text, {"w": W, "b": B, "last": LAST})
    plan = ampgraph.plan(given)
    assert [(one.writes, one.name) for one in plan.rewrites] == [("Conv", "bias")]
    result = ampgraph.convert(given)
    assert (
        ampgraph.convert(given, plan=Plan.from_json(plan.to_json())).SerializeToString() == result.SerializeToString()
    )
    feeds = {**X, "q": np.array(True)}
    np.testing.assert_allclose(run_strict(result, feeds)["y"], run_strict(given, feeds)["y"], rtol=1e-2, atol=1e-2)


def test_a_plan_that_folds_something_else_is_refused() -> None:
    plan = ampgraph.plan(model())
    text = plan.to_json().replace('"nodes":[0,1]', '"nodes":[0,2]')
    assert text != plan.to_json()
    with pytest.raises(AmpError) as raised:
        ampgraph.convert(model(), plan=Plan.from_json(text))
    assert raised.value.code == "AMP402"


def test_explain_names_the_rewrite() -> None:
    assert "Conv (bias)" in str(ampgraph.explain(model(), "a").region)


def test_words() -> None:
    exact = {name for name, cls in classes().items() if cls == "exact"}
    assert chosen(()) == exact < chosen(("all",)) == set(classes()) and not chosen(("none",))
    assert chosen(("all", "no-norm")) == set(classes()) - {"norm"} and chosen(("none", "clip")) == {"clip"}
    for word in ("nrom", "no-nothing", "Exact"):
        with pytest.raises(AmpError) as raised:
            ampgraph.convert(model(), rewrite=word)
        assert raised.value.code == "AMP301" and raised.value.hint
