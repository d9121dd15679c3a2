"""Every guard by a strict run: with it the result agrees with float32, without it it does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

import ampgraph
from ampgraph.numerics.metrics.compare import difference
from ampgraph.numerics.strict.session import run_strict
from onnx_text import parse
from planner.guard_cases import CASES, HOLDING, LOWEST, Case
from planner.support import LEVELS, converted, decisions, dtype_of, float32_and_low, topics
from planner.without import without

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def model_of_case(case: Case) -> Any:
    weights = {k: v for k, v in case.weights.items() if k in case.graph}
    return parse(case.graph, weights, opset=case.opset, domains=["local"] if "local." in case.graph else [])


def agree(case: Case, reference: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Why the two differ, or nothing."""
    for name, expected in reference.items():
        if case.exact and not np.array_equal(expected, result[name]):
            return f"{name} differs"
        if reason := difference(expected, result[name]).reason:
            return f"{name}: {reason}"
    return ""


def flatten(levels: str) -> list[Any]:
    return [
        pytest.param(case, level, dtype, id=f"{case.name}-{level}-{dtype}")
        for case in CASES
        for level in getattr(case, levels)
        for dtype in case.dtypes
    ]


@pytest.mark.parametrize(("case", "level", "dtype"), flatten("levels"))
def test_with_the_guard(case: Case, level: str, dtype: str) -> None:
    reference, result = float32_and_low(model_of_case(case), case.feeds, level, dtype=dtype)
    assert all(np.isfinite(array).all() for array in reference.values()), "the case itself is wrong"
    assert agree(case, reference, result) == ""


@pytest.mark.parametrize(("case", "level", "dtype"), flatten("without"))
def test_without_the_guard(case: Case, level: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(case.notes) <= topics(ampgraph.plan(model_of_case(case), level, dtype=dtype))
    without(monkeypatch, case.guard)
    reference, result = float32_and_low(model_of_case(case), case.feeds, level, dtype=dtype)
    assert agree(case, reference, result) != ""


def test_minus_infinity_is_left_alone() -> None:
    """A row that sees nothing becomes NaN, is found by IsNaN, and gives zeros."""
    model = parse(
        """g (float[4,8] q, float[4,8] v, bool[4,4] c) => (float[4,8] y) {
            k = Transpose <perm = [1, 0]> (q)  s = MatMul (q, k)  m = Where (c, zero, lowest)  a = Add (s, m)
            p = Softmax (a)  n = IsNaN (p)  z = Where (n, zero, p)  y = MatMul (z, v)
        }""",
        zero=np.float32(0),
        lowest=np.float32(-np.inf),
    )
    q = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
    feeds = {"q": q, "v": q + 1, "c": np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]], bool)}
    for level in LEVELS:
        for dtype in ("float16", "bfloat16"):
            reference, result = float32_and_low(model, feeds, level, dtype=dtype)
            assert not difference(reference["y"], result["y"]), (level, dtype)
            assert (result["y"][2] == 0).all(), (level, dtype)
    stored = {i.name: numpy_helper.to_array(i) for i in converted(model, "O3").graph.initializer}
    assert np.isneginf(stored["lowest"].astype(np.float32))


MASKED = """g (float[4,8] q, float[4,8] v, bool[4,4] c) => (float[4,8] y) {
    k = Transpose <perm = [1, 0]> (q)  s = MatMul (q, k)  m = Where (c, zero, lowest)  a = Add (s, m)
    p = Softmax (a)  y = MatMul (p, v)
}"""


def test_a_floored_mask_is_half_the_minimum_and_a_row_that_sees_nothing_is_uniform() -> None:
    model = parse(MASKED, zero=np.float32(0), lowest=np.float32(LOWEST))
    result = converted(model, "O2")
    stored = {i.name: numpy_helper.to_array(i) for i in result.graph.initializer}
    assert stored["lowest"] == np.float16(-65504 / 2)
    q = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
    y = run_strict(result, {"q": q, "v": q, "c": np.zeros((4, 4), bool)})["y"]
    np.testing.assert_allclose(y, np.broadcast_to(q.mean(0), (4, 8)), atol=1e-3)


@pytest.mark.parametrize("lowest", [-1e4, -65504.0])
def test_a_mask_in_range_is_not_touched(lowest: float) -> None:
    result = converted(parse(MASKED, zero=np.float32(0), lowest=np.float32(lowest)), "O2")
    stored = {i.name: numpy_helper.to_array(i) for i in result.graph.initializer}
    assert stored["lowest"] == np.float16(lowest)


def test_a_mask_that_is_also_read_elsewhere_is_no_mask_to_floor() -> None:
    """Nothing is clamped where anything but Softmax could tell."""
    model = parse(
        """g (float[4,4] s, bool[4,4] c) => (float[4,4] p, float[4,4] m) {
            m = Where (c, zero, lowest)  a = Add (s, m)  p = Softmax (a)
        }""",
        zero=np.float32(0),
        lowest=np.float32(LOWEST),
    )
    feeds = {"s": np.ones((4, 4), np.float32), "c": np.eye(4, dtype=bool)}
    for level in LEVELS:
        reference, result = float32_and_low(model, feeds, level)
        assert (result["m"] == reference["m"]).all(), level


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("ReduceMean", "<axes = [2, 3]>"),
        ("GlobalAveragePool", ""),
        ("AveragePool", "<kernel_shape = [64, 64]>"),
    ],
)
def test_long_means(kind: str, attributes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A strict run does not model accumulators, so the decision is what can be seen."""
    model = parse(f"g (float[1,2,64,64] x) => (float[1,2,1,1] y) {{ r = Relu (x)  y = {kind} {attributes} (r) }}")
    assert dtype_of(converted(model, "O2"), kind) == "f32"
    assert dtype_of(converted(model, "O3"), kind) == "f16"
    without(monkeypatch, "long-sum")
    assert dtype_of(converted(model, "O2"), kind) == "f16"


def test_a_small_window_on_a_large_map_is_no_long_sum() -> None:
    model = parse(
        """g (float[1,2,64,64] x) => (float[1,2,32,32] y) {
            r = Relu (x)  y = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (r)
        }"""
    )
    assert dtype_of(converted(model, "O2"), "AveragePool") == "f16"


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.levels == HOLDING and "float16" in c.dtypes], ids=lambda c: c.name
)
def test_at_o3_an_accuracy_guard_warns_and_holds_nothing(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of_case(case)
    told = topics(ampgraph.plan(model, "O3"))
    assert any(topic.endswith("(not held)") for topic in told)
    guarded = decisions(converted(model, "O3"))
    without(monkeypatch, case.guard)
    assert decisions(converted(model, "O3")) == guarded


def test_a_stored_tensor_out_of_range_is_named_with_its_readers() -> None:
    model = parse(
        "g (float[1,4] x) => (float[1,4] y) { [scaled] m = Mul (x, table)  y = Sigmoid (m) }",
        table=np.array([1e5, 1, 1, 1], np.float32),
    )
    notes = [note for note in ampgraph.plan(model, "O3").notes if note.topic == "weight"]
    assert [note.where for note in notes] == ["table"]
    assert "1e+05" in notes[0].text and "scaled stays float32" in notes[0].text


def test_weights_that_flush_to_zero_are_named_with_their_share() -> None:
    """Worst first; one of which a hundredth flushes at most, or that nobody reads low, is not worth a word."""
    tiny = np.full((10, 100), 1e-9, np.float32)
    shares = {"none": 10, "some": 20, "much": 400, "most": 600}
    weights = {name: np.where(np.arange(1000).reshape(10, 100) < n, tiny, 1) for name, n in shares.items()}
    weights["zeros"] = np.where(np.arange(1000).reshape(10, 100) < 900, 0, 1).astype(np.float32)
    text = "g (float[1,10] x) => (%s) { %s }"
    outputs = ", ".join(f"float[1,100] y_{name}" for name in weights)
    nodes = " ".join(f"[{name}_node] y_{name} = MatMul (x, {name})" for name in weights)
    model = parse(text % (outputs, nodes), weights)
    notes = [(n.where, n.text) for n in ampgraph.plan(model).notes if n.topic == "weight"]
    assert notes == [
        ("most", "60 % of its elements would flush to zero in float16: most_node stays float32"),
        ("much", "40 % of its elements flush to zero in float16"),
        ("some", "2 % of its elements flush to zero in float16"),
    ]
    held = ampgraph.plan(model, fp32=["much_node"]).notes
    assert [n.where for n in held if n.topic == "weight"] == ["most", "some"]
    assert not [n for n in ampgraph.plan(model, dtype="bfloat16").notes if n.topic == "weight"]


def test_a_weight_out_of_range_is_named_with_its_share() -> None:
    for count, told in ((1, "0.1 %"), (250, "25 %")):
        weight = np.ones(1000, np.float32)
        weight[:count] = -3e5
        model = parse("g (float[1000] x) => (float[1000] y) { y = Mul (x, w) }", w=weight)
        (note,) = [n for n in ampgraph.plan(model, "O3").notes if n.topic == "weight"]
        assert f"reaches 3e+05, beyond float16 ({told} of its elements)" in note.text


def test_a_bounded_function_ends_what_its_input_began() -> None:
    """Cos is computed in float32; the products with it are not tied to that."""
    model = parse(
        """g (int64[1,128] p, float[128,8] x) => (float[128,8] y) {
            f = Cast <to = 1> (p)  r = Reshape (f, column)  a = Mul (r, freq)  c = Cos (a)
            h = MatMul (x, w)  m = Mul (h, c)  y = MatMul (m, w)
        }""",
        column=np.array([-1, 1]),
        freq=np.ones(8, np.float32),
        w=np.ones((8, 8), np.float32),
    )
    assert decisions(converted(model, "O2")) == (
        "Cast>f16 Cast>f32 Reshape:f32 Mul:f32 Cos:f32 Cast>f16 MatMul:f16 Mul:f16 MatMul:f16 Cast>f32"
    )


def test_activations_into_sin_are_no_positions() -> None:
    """A periodic activation takes Sin alone to float32, not the residual stream before it."""
    model = parse(
        """g (float[128,8] x) => (float[128,8] y) {
            h = MatMul (x, w)  r = Add (h, h)  m = Mul (r, alpha)  s = Sin (m)  y = MatMul (s, w)
        }""",
        alpha=np.float32(3),
        w=np.ones((8, 8), np.float32),
    )
    assert decisions(converted(model, "O2")) == (
        "Cast>f16 MatMul:f16 Add:f16 Mul:f16 Cast>f32 Sin:f32 Cast>f16 MatMul:f16 Cast>f32"
    )


@pytest.mark.parametrize(
    ("kind", "opset", "inputs"), [("Upsample", 9, "x, t"), ("Resize", 10, "x, t"), ("Resize", 11, "x, roi, t")]
)
def test_scales_are_computed_in_float32_at_every_opset(kind: str, opset: int, inputs: str) -> None:
    model = parse(
        f"""g (float[1,1,2,1000] x, int64[1] n) => (float[?,?,?,?] y) {{
            f = Cast <to = 1> (n)  q = Div (f, width)  t = Concat <axis = 0> (ones, q)  y = {kind} ({inputs})
        }}""",
        opset=opset,
        width=np.array([1000], np.float32),
        ones=np.ones(3, np.float32),
        roi=np.zeros(0, np.float32),
    )
    feeds = {"x": np.zeros((1, 1, 2, 1000), np.float32), "n": np.array([1234])}
    for level in LEVELS:
        for dtype in ("float16", "bfloat16"):
            assert run_strict(converted(model, level, dtype=dtype), feeds)["y"].shape == (1, 1, 2, 1234)
