"""Measured ranges: what passes the limit stays float32 and says why; what no range names stays low."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.core.plan import Plan
from ampgraph.core.ranges import Ranges
from ampgraph.numerics.strict.session import run_strict
from onnx_text import parse
from planner.support import decisions, dtype_of, topics

EYE = np.eye(4, dtype=np.float32)
ONES = np.ones((2, 4), np.float32)


def planned(model: ModelProto, data: Any, level: str = "O2", **options: Any) -> Plan:
    return ampgraph.plan(model, level, data=data, **options)


def converted(model: ModelProto, data: Any, level: str = "O2", **options: Any) -> ModelProto:
    return ampgraph.convert(model, level, data=data, **options)


def why(plan: Plan, index: int) -> tuple[str, str, str]:
    """What was decided of a node of the main graph: type, rule, reason."""
    found = next(d for d in plan.decisions if (d.scope, d.index) == ("", index))
    return found.dtype, found.why.rule, found.why.text


CHAIN = """g (float[2, 4] x) => (float[2, 4] y) {
    a = MatMul(x, w)  b = MatMul(a, big)  c = MatMul(b, small)  d = MatMul(c, w)  y = MatMul(d, w) }"""


def chain() -> ModelProto:
    """Products of which the second reaches 40,000 times its input."""
    return parse(CHAIN, w=EYE, big=EYE * 40000, small=EYE / 40000)


def test_the_makers_and_readers_of_what_passes_stay_float32_and_no_other_product() -> None:
    model = chain()
    assert decisions(ampgraph.convert(model)).count("MatMul:f16") == 5
    for data, kept in (([{"x": ONES}], 3), ([{"x": ONES / 2}], 5), ([{"x": ONES / 2}, {"x": ONES * 2}], 3)):
        assert decisions(converted(model, data)).count("MatMul:f16") == kept
    got = run_strict(converted(model, [{"x": ONES * 2}]), {"x": ONES * 2})["y"]
    assert np.allclose(got, 2, rtol=1e-3)
    assert not np.isfinite(run_strict(ampgraph.convert(model), {"x": ONES * 2})["y"]).any()


def test_the_reason_names_the_value_and_the_number() -> None:
    plan = planned(chain(), [{"x": ONES}])
    assert why(plan, 1) == ("float32", "range", "'b' reaches 4e+04 (limit 3.275e+04 with margin 2)")
    assert why(plan, 2)[:2] == ("float32", "range") and why(plan, 3)[0] == "float16"
    samples = [note.text for note in plan.notes if note.topic == "samples"]
    assert samples == ["1 sample from the iterable"]
    assert [note.where for note in plan.notes if note.topic == "range"] == ["b"]
    # the margin is a setting
    model, data = chain(), [{"x": ONES}]
    assert decisions(converted(model, data, range_margin=1)).count("MatMul:f16") == 5
    assert decisions(converted(model, data, range_margin=1e5)).count("MatMul:f16") == 0
    assert decisions(converted(model, data, dtype="bfloat16", opset=18)).count("MatMul:bf16") == 5
    assert "margin 1.7" in why(planned(model, data, range_margin=1.7), 1)[2]
    for margin in (0, -1, float("nan"), float("inf")):
        with pytest.raises(AmpError, match="AMP311"):
            planned(model, data, range_margin=margin)


@pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"])
def test_ranges_hold_at_every_level(level: str) -> None:
    model, data = chain(), [{"x": ONES * 2}]
    result = converted(model, data, level)
    assert decisions(result).count("MatMul:f16") == 3
    assert np.isfinite(run_strict(result, data[0])["y"]).all()


def test_ranges_that_were_measured_before_give_the_same_plan() -> None:
    model, data = chain(), [{"x": ONES}]
    ranges = ampgraph.calibrate(model, data)
    again = ampgraph.Ranges.from_json(ranges.to_json())
    assert planned(model, data).to_json() == ampgraph.plan(model, ranges=again).to_json()
    with pytest.raises(AmpError, match="another model"):
        ampgraph.plan(parse(CHAIN.replace("a = MatMul(x, w)", "a = MatMul(w, w)")), ranges=ranges)
    with pytest.raises(AmpError, match="AMP311"):
        ampgraph.plan(model, data=data, ranges=ranges)
    with pytest.raises(AmpError, match="AMP404"):
        ampgraph.convert(model, plan=ampgraph.plan(model), data=data)


def test_converting_again_or_with_empty_ranges_changes_nothing() -> None:
    model, data = chain(), [{"x": ONES}]
    once = converted(model, data)
    twice = converted(once, data)
    assert twice.SerializeToString(deterministic=True) == once.SerializeToString(deterministic=True)
    # ranges that name nothing change nothing
    model = chain()
    digest = ampgraph.calibrate(model, [{"x": ONES}]).digest
    empty = ampgraph.convert(model, ranges=Ranges(digest))
    plain = ampgraph.convert(model)
    assert empty.SerializeToString(deterministic=True) == plain.SerializeToString(deterministic=True)


# -- precedence -------------------------------------------------------------------------------------------------------


def test_ranges_and_patterns() -> None:
    plan = planned(chain(), [{"x": ONES}], low=["op:MatMul"])
    assert why(plan, 1)[:2] == ("float16", "user")
    (warning,) = [note for note in plan.notes if note.topic == "overflow"]
    assert warning.where == "b" and "but is low" in warning.text
    # a function called twice is held where its values pass
    text = """g (float[2, 4] x) => (float[2, 4] y, float[2, 4] z) {
        u = Mul(x, many)  y = own.f(x, w)  z = own.f(u, w) }
        <domain: "own", opset_import: ["" : 17]> f (a, w) => (c) { b = MatMul(a, w)  c = MatMul(b, w) }"""
    model = parse(text, w=EYE, many=np.float32(40000), domains=["own"])
    plan = planned(model, [{"x": ONES}])
    assert {d.scope: d.dtype for d in plan.decisions if d.scope} == {
        next(d.scope for d in plan.decisions if d.scope): "float16",
        next(d.scope for d in reversed(plan.decisions) if d.scope): "float32",
    }
    got = run_strict(converted(model, [{"x": ONES * 2}]), {"x": ONES * 2})
    assert (got["y"] == 2).all() and (got["z"] == 80000).all()
    # values that mostly vanish are named
    model = parse("g (float[2, 4] x) => (float[2, 4] y) { a = MatMul(x, w)  y = MatMul(a, w) }", w=EYE)
    plan = planned(model, [{"x": ONES * np.float32(1e-9)}])
    assert {(n.where, n.text) for n in plan.notes if n.topic == "vanishing"} >= {
        ("a", "100 % of its elements flush to zero in float16")
    }
    assert "vanishing" not in topics(planned(model, [{"x": ONES}]))


def test_ranges_before_guards_and_lists() -> None:
    model = parse(
        "g (float[2, 4] x) => (float[2, 4] y) { a = MatMul(x, w)  b = Mul(a, huge)  y = MatMul(b, w) }",
        w=EYE,
        huge=np.float32(1e6),
    )
    plan = planned(model, [{"x": ONES}])
    assert why(plan, 1)[:2] == ("float32", "weight")
    assert why(plan, 2)[:2] == ("float32", "range")
    # a range is stronger than an accuracy guard and than the list
    model = parse(
        "g (float[2, 4] x) => (float[2, 4] y) { a = MatMul(x, w)  e = Pow(a, two)  r = Relu(e)  y = MatMul(r, w) }",
        w=EYE * 300,
        two=np.float32(2),
    )
    without, plan = ampgraph.plan(model), planned(model, [{"x": ONES}])
    assert why(without, 1)[0] == "float32" and why(without, 1)[1] != "range"
    assert [why(plan, k)[:2] for k in (1, 2, 3)] == [("float32", "range")] * 3
    assert why(plan, 0)[0] == "float16"


# -- what is no hazard ------------------------------------------------------------------------------------------------

MASK = """g (float[1, 4, 4] q, float[1, 4] m) => (float[1, 4, 4] y) {
    s = MatMul(q, w)  h = Sub(one, m)  f = Mul(h, low)  a = Add(s, f)  p = Softmax(a)  y = MatMul(p, w) }"""
WEIGHTS = {"w": EYE, "one": np.float32(1), "low": np.float32(-3.4e38)}
FEEDS = {"q": np.ones((1, 4, 4), np.float32), "m": np.array([[1, 1, 1, 0]], np.float32)}


@pytest.mark.parametrize("low", [-3.4e38, -1e9, -60000.0])
def test_what_a_mask_adds_to_scores_is_no_hazard(low: float) -> None:
    model = parse(MASK, {**WEIGHTS, "low": np.float32(low)})
    result = converted(model, [FEEDS])
    assert decisions(result).count("MatMul:f16") == 2
    assert "range" not in topics(planned(model, [FEEDS]))
    want, got = run_strict(model, FEEDS)["y"], run_strict(result, FEEDS)["y"]
    assert np.allclose(got, want, atol=1e-3)


def test_masks_beside_ranges() -> None:
    text = """g (float[1, 4, 4] q, bool[1, 4] m) => (float[1, 4, 4] y) {
        s = MatMul(q, w)  a = Where(m, s, low)  p = Softmax(a)  y = MatMul(p, w) }"""
    model = parse(text, w=EYE, low=np.float32(-3.4e38))
    feeds = {"q": FEEDS["q"], "m": FEEDS["m"] > 0}
    assert "range" not in topics(planned(model, [feeds]))
    assert dtype_of(converted(model, [feeds]), "Where") == "f16"
    # scores that are themselves too large are a hazard
    model = parse(MASK, {**WEIGHTS, "w": EYE * 70000, "low": np.float32(-1e4)})
    for sign in (1, -1):  # minus infinity in every score of a row is NaN
        data = [{**FEEDS, "q": FEEDS["q"] * sign}]
        model.graph.initializer[0].CopyFrom(parse(MASK, w=EYE * 40000).graph.initializer[0])
        plan = planned(model, data)
        assert why(plan, 0)[:2] == ("float32", "range"), sign
        assert why(plan, 4)[0] == "float32"
    # a mask that is also an output is a hazard
    model = parse(MASK.replace("(float[1, 4, 4] y)", "(float[1, 4, 4] y, float[1, 4, 4] a)"), WEIGHTS)
    assert "range" in topics(planned(model, [FEEDS]))


# -- regions, biases, bodies, functions -------------------------------------------------------------------------------


def test_what_ranges_hold() -> None:
    text = "g (float[2, 4] x) => (float[2, 4] y) { p = MatMul(x, w)  s = Add(p, b)  r = Tanh(s)  y = MatMul(r, w) }"
    model = parse(text, w=EYE * 20000, b=np.full(4, 30000, np.float32))
    plan = planned(model, [{"x": ONES}])
    assert why(plan, 0)[0] == "float16" and why(plan, 1)[:2] == ("float32", "range")
    assert why(plan, 3)[0] == "float16"
    # a norm whose squares pass is float32 whole
    text = """g (float[2, 4] x) => (float[2, 4] y) {
        a = MatMul(x, w)  q = Pow(a, two)  m = ReduceMean <axes = [-1]> (q)  e = Add(m, eps)  r = Sqrt(e)
        n = Div(a, r)  y = MatMul(n, w) }"""
    weights = {"w": EYE * 1500, "two": np.float32(2), "eps": np.float32(1e-5)}
    result = converted(parse(text, weights), [{"x": ONES}])
    assert decisions(result).count("MatMul:f16") == 2
    assert np.isfinite(run_strict(result, {"x": ONES})["y"]).all()
    # what a branch gives is held
    text = """g (float[2, 4] x, bool c) => (float[2, 4] z) {
        a = MatMul(x, w)
        y = If (c) <then_branch = t () => (float[2, 4] u) { u = MatMul(a, w) },
                    else_branch = e () => (float[2, 4] v) { v = Identity(a) }>
        s = Tanh(y)  z = MatMul(s, w) }"""
    model = parse(text, w=EYE * 300)
    data = [{"x": ONES, "c": np.array(flag)} for flag in (True, False)]
    result = converted(model, data)
    assert (run_strict(result, data[0])["z"] == 300).all()
    assert dtype_of(result, "MatMul", 0) == "f16" == dtype_of(result, "MatMul", 1)


# -- shares -----------------------------------------------------------------------------------------------------------
