"""A Clip of an old opset has no float16 kernel on CUDA: it is written as Max and Min where it would be low."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.numerics.strict.session import run_strict
from onnx_text import parse
from planner.support import casts, converted, decisions, kinds

W = np.eye(8, dtype=np.float32)
ATTRIBUTES = {
    "both": "<min = -0.5, max = 6.0>",
    "lower": "<min = 0.0>",
    "upper": "<max = 1.5>",
    "unbound": "<min = 0.25, max = 3.4028234e38>",
}
X = {"x": np.random.default_rng(3).normal(0, 4, (4, 8)).astype(np.float16).astype(np.float32)}


def attributes(bounds: str, opset: int = 9) -> ModelProto:
    text = f"g (float[4,8] x) => (float[4,8] y) {{ a = MatMul (x, w)  c = Clip {bounds} (a)  y = MatMul (c, w) }}"
    return parse(text, {"w": W}, opset=opset)


def operands(lower: float = -0.5, upper: float = 6.0) -> ModelProto:
    text = "g (float[4,8] x) => (float[4,8] y) { a = MatMul (x, w)  c = Clip (a, lo, hi)  y = MatMul (c, w) }"
    return parse(text, {"w": W, "lo": np.float32(lower), "hi": np.float32(upper)}, opset=11)


@pytest.mark.parametrize("model", [*map(attributes, ATTRIBUTES.values()), operands()], ids=[*ATTRIBUTES, "operands"])
@pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"])
def test_the_same_numbers_without_a_cast(model: ModelProto, level: str) -> None:
    result = converted(model, level)
    assert "Clip" not in kinds(result) and casts(result) == 2, decisions(result)
    np.testing.assert_array_equal(run_strict(result, X)["y"], run_strict(model, X)["y"])  # all of it is exact


def test_clips() -> None:
    assert "Min" not in kinds(converted(attributes(ATTRIBUTES["lower"])))
    unbound = kinds(converted(attributes(ATTRIBUTES["unbound"])))
    assert "Min" not in unbound and unbound.count("Constant") == 1, "what is no bound leaves no constant"
    assert "Max" not in kinds(converted(attributes(ATTRIBUTES["upper"])))
    # bounds that are computed stay
    text = """g (float[4,8] x, float hi) => (float[4,8] y) {
        a = MatMul (x, w)  c = Clip (a, lo, hi)  y = MatMul (c, w) }"""
    model = parse(text, {"w": W, "lo": np.float32(0)}, opset=11)
    assert "Clip" in kinds(converted(model))
    # a float32 clip stays
    text = """g (float[4,8] x) => (float[4,8] y, float[4,8] z) {
        a = MatMul (x, w)  y = Relu (a)  z = Clip <min = 0.0> (x) }"""
    assert kinds(converted(parse(text, {"w": W}, opset=9), "O2")).count("Clip") == 1


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (attributes(ATTRIBUTES["both"], 7), {}),  # Max of opset 7 spreads nothing
        (attributes(ATTRIBUTES["both"]), {"target": "tensorrt"}),
        (attributes(ATTRIBUTES["both"]), {"dtype": "bfloat16"}),
        (attributes(ATTRIBUTES["both"]), {"fp32": ["op:Clip"]}),
        (attributes("<min = -1e6, max = 1e6>"), {}),  # beyond the low type
        (attributes("<min = 2.0, max = 1.0>"), {}),  # which wins is the runtime's choice
        (operands(2, 1), {}),
    ],
)
def test_it_stays_where_nothing_is_gained(model: ModelProto, options: dict[str, Any]) -> None:
    assert "Clip" in kinds(ampgraph.convert(model, "O2", **options))


def test_a_clip_in_a_branch_and_the_plan_as_a_file() -> None:
    text = """g (float[4,8] x, bool c) => (float[4,8] y) { a = MatMul (x, w)
        b = If (c) <then_branch = t () => (float[4,8] p) { q = MatMul (a, w)  p = Clip <min = 0.0, max = 6.0> (q) },
            else_branch = e () => (float[4,8] r) { r = Relu (a) }>
        y = MatMul (b, w) }"""
    model = parse(text, {"w": W}, opset=9)
    plan = ampgraph.plan(model, "O2")
    assert [rewrite.writes for rewrite in plan.rewrites] == ["Max and Min"]
    again = ampgraph.Plan.from_json(plan.to_json())
    result = ampgraph.convert(model, "O2")
    assert ampgraph.convert(model, plan=again).SerializeToString() == result.SerializeToString()
    feeds = {**X, "c": np.array(True)}
    np.testing.assert_array_equal(run_strict(result, feeds)["y"], run_strict(model, feeds)["y"])
