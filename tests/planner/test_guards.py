"""Every guard by a strict run: with it the result agrees with float32, without it it does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.core.plan import Plan, Why
from ampgraph.core.ranges import Ranges
from ampgraph.formats import adapters
from ampgraph.numerics.strict.session import run_strict
from ampgraph.oplists.traits import traits
from ampgraph.planner.facts.squares import Squares
from ampgraph.planner.rules.cancelling import TERMS
from ampgraph.planner.rules.rule import Findings
from near import difference
from onnx_text import parse
from planner.guard_cases import CASES, HIDDEN, HOLDING, IN_OUT, LOWEST, MOMENTS, POOL, SQUARED, Case
from planner.guard_cases import WINDOW as TABLES
from planner.support import LEVELS, converted, decisions, dtype_of, float32_and_low, topics
from planner.without import without

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def model_of_case(case: Case) -> Any:
    domains = ["local"] if "local." in case.graph else []
    return parse(case.graph, known=case.weights, opset=case.opset, domains=domains)


def agree(case: Case, reference: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Why the two differ, or nothing."""
    for name, expected in reference.items():
        if case.exact and not np.array_equal(expected, result[name]):
            return f"{name} differs"
        if reason := difference(expected, result[name]):
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
    assert set(case.notes or (case.guard,)) <= topics(ampgraph.plan(model_of_case(case), level, dtype=dtype))
    without(monkeypatch, case.guard)
    reference, result = float32_and_low(model_of_case(case), case.feeds, level, dtype=dtype)
    assert agree(case, reference, result) != ""


OTHER = "j = Relu (i)"
NOT_CANCELLING = {
    "the mean of another's squares": f"{MOMENTS}  {OTHER}  q = Mul (j, j)  e = AveragePool {POOL} (q)"
    f"  m = AveragePool {POOL} (i)  p = Mul (m, m)  y = Sub (e, p)",
    "a mean times a stored number": f"{MOMENTS}  q = Mul (i, i)  e = AveragePool {POOL} (q)  m = AveragePool {POOL} (i)"
    "  p = Mul (m, two)  y = Sub (e, p)",
    "squares that are not summed": f"{MOMENTS}  q = Mul (i, i)  m = ReduceMean <axes = [2]> (i)  p = Mul (m, m)"
    "  y = Sub (q, p)",
    "a square that is of no mean": f"{MOMENTS}  q = Mul (i, i)  e = ReduceMean <axes = [2]> (q)  y = Sub (e, q)",
    **{
        f"a mean times the value itself, {factors}": f"{MOMENTS}  q = Mul (i, i)  e = ReduceMean <axes = [2]> (q)"
        f"  m = ReduceMean <axes = [2]> (i)  p = Mul ({factors})  y = Sub (e, p)"
        for factors in ("m, i", "i, m")
    },
    "a product and another's squares": f"{HIDDEN}  {SQUARED.replace('(x, x)', '(h, h)')}  c = MatMul (x, codes)"
    "  y = Sub (n, c)",
    "a product and another's weighed squares": f"{HIDDEN}  s = Mul (h, h)  q = MatMul (s, precision)"
    "  c = MatMul (x, weighed)  y = Add (c, q)",
    "a product of what a function made": f"{SQUARED}  r = Relu (x)  c = MatMul (r, codes)  y = Sub (n, c)",
    "a function of a product": f"{SQUARED}  c = MatMul (x, codes)  e = Relu (c)  y = Sub (n, e)",
    "a product that is not added": f"{SQUARED}  u = Sub (n, norms)  c = MatMul (x, codes)  y = Mul (c, u)",
    "what is squared itself": f"{SQUARED}  y = Sub (x, n)",
    "squares alone": f"{HIDDEN}  {SQUARED}  u = Relu (h)  r = Mul (u, u)  k = ReduceSum <keepdims = 1> (r, axis)"
    "  y = Sub (n, k)",
    "a product alone": f"{HIDDEN}  c = MatMul (h, codes)  t = Mul (c, two)  y = Sub (t, c)",
    "a sum less a number": f"{HIDDEN}  k = Sigmoid (h)  m = MatMul (k, w)  q = Mul (m, k)"
    "  s = ReduceSum <keepdims = 1> (q, axis)  y = Sub (s, two)",
    "a form that is not summed": f"{HIDDEN}  k = Sigmoid (h)  m = MatMul (k, w)  q = Mul (m, k)  y = Sub (two, q)",
    "a number less squares of no product": f"{HIDDEN}  k = Sigmoid (h)  q = Mul (k, k)"
    "  s = ReduceSum <keepdims = 1> (q, axis)  y = Sub (two, s)",
}


@pytest.mark.parametrize("name", NOT_CANCELLING)
def test_what_takes_no_small_result_of_large_sums(name: str) -> None:
    model = parse(f"g (float[8,16] x) => (float y) {{ {NOT_CANCELLING[name]} }}", known=TABLES)
    assert "cancelling" not in topics(ampgraph.plan(model, "O2"))


@pytest.mark.parametrize("more", [TERMS - 4, TERMS - 3])
def test_a_squared_distance_is_seen_through_a_number_of_terms(more: int) -> None:
    """Behind the last Add are a Sub, a product, a sum and its squares: 4 operators, and the other Adds."""
    adds = "  ".join(f"v{n + 1} = Add (v{n}, norms)" for n in range(more))
    body = f"{SQUARED}  c = MatMul (x, codes)  v0 = Sub (n, c)  {adds}  y = Relu (v{more})"
    plan = ampgraph.plan(parse(f"g {IN_OUT} {{ {body} }}", known=TABLES), "O2")
    held = [decision for decision in plan.decisions if decision.why.rule == "cancelling"]
    assert [decision.kind for decision in held].count("Add") == TERMS - 4


def test_whole_numbers_that_add_up_exactly_stay_low() -> None:
    """Of a binarised network only what makes its first signs, and scales its sums, is float32."""
    rng = np.random.default_rng(0)
    known = {name: np.sign(rng.standard_normal((64, 64))).astype(np.float32) for name in "wv"}
    model = parse(
        """g (float[1,64] x) => (float[1,64] y) {
            h = MatMul (x, w)  s = Sign (h)  k = MatMul (s, v)  m = Mul (k, scale)  t = Sign (m)
            y = MatMul (t, w) }""",
        known={**known, "scale": rng.standard_normal(64).astype(np.float32)},
    )
    found = converted(model, "O2")
    assert [dtype_of(found, "MatMul", number) for number in range(3)] == ["f32", "f16", "f16"]
    assert [dtype_of(found, kind) for kind in ("Mul", "Sign")] == ["f32", "f32"]


@pytest.mark.parametrize(
    "body",
    [
        "s = Sign (h)  b = Abs (h)  r = Sqrt (b)  z = Mul (s, r)",  # which is zero where the sign turns
        "c = Greater (h, zero)  l = Mul (h, tenth)  z = Where (c, h, l)",
        "c = Greater (h, zero)  z = Where (c, h, zero)",
        "c = Greater (x, zero)  m = Where (c, zero, lowest)  a = Add (h, m)  z = Softmax (a)",
    ],
)
def test_what_does_not_jump_is_no_threshold(body: str) -> None:
    known = {"w": np.eye(8, dtype=np.float32), "zero": np.float32(0), "tenth": np.float32(0.1)}
    text = f"g (float[1,8] x) => (float[1,8] y) {{ h = MatMul (x, w)  {body}  y = MatMul (z, w) }}"
    assert "threshold" not in topics(ampgraph.plan(parse(text, known={**known, "lowest": np.float32(-1e4)})))


def test_of_two_findings_the_first_counts() -> None:
    first, later = Why("first", "found first"), Why("later", "found later")
    one, both_units = {1: first}, {1: later, 2: later}
    given = Findings(
        released=one, lowered=one, prefer_float32=one, byte_worth={1: 3, 2: 3}, floors={1: -1.0}, flushing={1: 0.1}
    )
    other = Findings(
        released=both_units, lowered=both_units, prefer_float32=both_units, byte_worth={1: 2, 2: 4},
        integer_valued=frozenset({2}), floors={1: -2.0, 2: -2.0}, flushing={1: 0.2, 2: 0.2},
    )  # fmt: skip
    both = given | other
    assert both.released == both.lowered == both.prefer_float32 == {1: first, 2: later}
    assert both.byte_worth == {1: 2, 2: 3} and both.integer_valued == {2}
    assert both.floors == {1: -1.0, 2: -2.0} and both.flushing == {1: 0.1, 2: 0.2}


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


def test_masks_are_floored_where_only_softmax_reads_them() -> None:
    model = parse(MASKED, zero=np.float32(0), lowest=np.float32(LOWEST))
    result = converted(model, "O2")
    stored = {i.name: numpy_helper.to_array(i) for i in result.graph.initializer}
    assert stored["lowest"] == np.float16(-65504 / 2)
    q = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
    y = run_strict(result, {"q": q, "v": q, "c": np.zeros((4, 4), bool)})["y"]
    np.testing.assert_allclose(y, np.broadcast_to(q.mean(0), (4, 8)), atol=1e-3)
    # Nothing is clamped where anything but Softmax could tell.
    model = parse(
        """g (float[4,4] s, bool[4,4] c) => (float[4,4] p, float[4,4] m) {
            m = Where (c, zero, lowest)  a = Add (s, m)  p = Softmax (a)
        }""",
        zero=np.float32(0),
        lowest=np.float32(LOWEST),
    )
    feeds = {"s": np.ones((4, 4), np.float32), "c": np.eye(4, dtype=bool)}
    for level in LEVELS:
        reference, low = float32_and_low(model, feeds, level)
        assert (low["m"] == reference["m"]).all(), level


@pytest.mark.parametrize("lowest", [-1e4, -65504.0])
def test_a_mask_in_range_is_not_touched(lowest: float) -> None:
    result = converted(parse(MASKED, zero=np.float32(0), lowest=np.float32(lowest)), "O2")
    stored = {i.name: numpy_helper.to_array(i) for i in result.graph.initializer}
    assert stored["lowest"] == np.float16(lowest)


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


def test_weights_beyond_or_below_the_range_are_named() -> None:
    model = parse(
        "g (float[1,4] x) => (float[1,4] y) { [scaled] m = Mul (x, table)  y = Sigmoid (m) }",
        table=np.array([1e5, 1, 1, 1], np.float32),
    )
    notes = [note for note in ampgraph.plan(model, "O3").notes if note.topic == "weight"]
    assert [note.where for note in notes] == ["table"]
    assert "1e+05" in notes[0].text and "scaled stays float32" in notes[0].text
    # a weight out of range is named with its share
    for count, told in ((1, "0.1 %"), (250, "25 %")):
        weight = np.ones(1000, np.float32)
        weight[:count] = -3e5
        model = parse("g (float[1000] x) => (float[1000] y) { y = Mul (x, w) }", w=weight)
        (note,) = [n for n in ampgraph.plan(model, "O3").notes if n.topic == "weight"]
        assert f"reaches 3e+05, beyond float16 ({told} of its elements)" in note.text
    # Worst first; one of which a hundredth flushes at most, or that nobody reads low, is not worth a word.
    tiny = np.full((10, 100), 1e-9, np.float32)
    shares = {"none": 10, "some": 20, "much": 400, "most": 600}
    weights = {name: np.where(np.arange(1000).reshape(10, 100) < n, tiny, 1) for name, n in shares.items()}
    weights["zeros"] = np.where(np.arange(1000).reshape(10, 100) < 900, 0, 1).astype(np.float32)
    text = "g (float[1,10] x) => (%s) { %s }"
    outputs = ", ".join(f"float[1,100] y_{name}" for name in weights)
    nodes = " ".join(f"[{name}_node] y_{name} = MatMul (x, {name})" for name in weights)
    model = parse(text % (outputs, nodes), weights)
    assert [(n.where, n.text) for n in ampgraph.plan(model).notes if n.topic == "weight"] == [
        ("most", "would become zero in float16 (60 % of its elements): most_node stays float32"),
        ("much", "40 % of its elements become zero in float16, and it is stored so: a check counts the error"),
        ("some", "2 % of its elements become zero in float16, and it is stored so: a check counts the error"),
    ]
    held = ampgraph.plan(model, fp32=["much_node"]).notes
    assert [n.where for n in held if n.topic == "weight"] == ["most", "some"]
    assert not [n for n in ampgraph.plan(model, dtype="bfloat16").notes if n.topic == "weight"]


def test_what_is_periodic_is_float32_alone() -> None:
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
    # A periodic activation takes Sin alone to float32, not the residual stream before it.
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


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (
            "g (float[1,1,8,8] x) => (float[1,1,4,4] y) { y = MaxPool <kernel_shape = [5, 5]> (x) }",
            "MaxPool-12 does not admit bfloat16 for T; opset 22 does",
        ),
        (
            "g (float[5,1,8] x) => (float[5,1,1,8] y) { y = LSTM <hidden_size = 8> (x, w, r) }",
            "LSTM-14 does not admit bfloat16 for T; opset 22 does, but CUDAExecutionProvider has no kernel for it",
        ),
    ],
)
def test_an_opset_is_named_only_where_the_target_has_a_kernel_of_it(graph: str, said: str) -> None:
    stored = dict.fromkeys(("w", "r"), np.full((1, 32, 8), 0.1, np.float32))
    plan = ampgraph.plan(parse(graph, known=stored), "O3", dtype="bfloat16", target="cuda")
    assert [one.why.text for one in plan.decisions if said in one.why.text], [one.why for one in plan.decisions]


# Squares, however they are written, and those that are known to stay in range.

F = np.float32
WEIGHTS = {
    **{"two": F(2), "three": F(3), "hundred": F(100), "thousand": F(1000), "all": np.array([1])},
    "none": np.array([0]),
    **{"w": np.eye(8, dtype=F)},
}


def model_of(body: str, opset: int = 18) -> ModelProto:
    text = f"g (float[2,8] f) => (float[2,8] o) {{ x = MatMul (f, w)  {body}  m = Sub (x, y)  o = MatMul (m, w) }}"
    return parse(text, known=WEIGHTS, opset=opset)


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("y = Mul (x, x)", 1),
        ("y = Pow (x, two)", 1),
        ("i = Identity (x)  y = Mul (x, i)", 1),
        ("d = Sub (f, x)  e = Sub (f, x)  y = Mul (d, e)", 1),
        ("y = ReduceSumSquare (x, all)", 1),
        ("y = ReduceL2 (x, all)", 1),
        ("d = ReduceMax (f, all)  e = ReduceMax (f, all)  y = Mul (d, e)", 1),
        ("d = ReduceMax (f, all)  e = ReduceMax (f, none)  y = Mul (d, e)", 0),
        ("d = ReduceMax (f, all)  e = ReduceMax <keepdims = 0> (f, all)  y = Mul (d, e)", 0),
        ("d = Sub (f, x)  e = Sub (x, f)  y = Mul (d, e)", 0),
        ("h = MatMul (x, w)  q = Mul (h, x)  y = ReduceSum (q, all)", 1),
        ("h = MatMul (x, w)  y = Mul (x, h)", 0),
        ("h = MatMul (f, w)  q = Mul (h, x)  y = ReduceSum (q, all)", 0),
        ("y = Pow (x, three)", 0),
        ("y = Mul (x, f)", 0),
        ("y = Mul (x, hundred)", 0),
    ],
)
def test_what_is_a_square(body: str, count: int) -> None:
    flow = adapters.load(model_of(body))[0].dataflow("float16")
    assert len(Squares(flow, traits()).of_op) == count


@pytest.mark.parametrize(
    "body",
    [
        "h = Sigmoid (x)  y = Mul (h, h)",
        "h = Softmax (x)  y = Pow (h, two)",
        "h = Tanh (x)  s = Mul (h, h)  t = Transpose (s)  u = Transpose (t)  y = Mul (u, u)",
        "h = Tanh (x)  s = Add (h, hundred)  y = Mul (s, s)",
        "h = Tanh (x)  y = ReduceSumSquare (h, all)",
    ],
)
def test_a_square_of_what_is_bounded_is_low(body: str) -> None:
    squares = {"Mul:f32", "Pow:f32", "ReduceSumSquare:f32"}
    assert squares.isdisjoint(decisions(converted(model_of(body))).split())


@pytest.mark.parametrize(
    "body",
    [
        "y = Mul (x, x)",
        "h = Tanh (x)  s = Mul (h, thousand)  y = Mul (s, s)",
        "h = Tanh (x)  i = Add (h, x)  y = Mul (i, i)",
    ],
)
def test_a_square_of_what_is_not_is_float32(body: str) -> None:
    assert dtype_of(converted(model_of(body)), "Mul", body.count("Mul") - 1) == "f32"


@pytest.mark.parametrize(("largest", "dtype"), [(1.0, "f16"), (100.0, "f16"), (200.0, "f32"), (1e-5, "f32")])
def test_a_measured_range_decides(largest: float, dtype: str) -> None:
    """With a margin of two; squares that vanish stay float32 as those that overflow."""
    model = model_of("y = Mul (x, x)")
    data = [{"f": np.linspace(-largest, largest, 16, dtype=F).reshape(2, 8)}]
    assert dtype_of(ampgraph.convert(model, data=data), "Mul") == dtype


# Powers before a logarithm or below a quotient: float32 begins at the product that they come from.

SIZE, HALF = 64, 33
TURNS = 2 * np.pi * np.outer(np.arange(SIZE), np.arange(HALF)) / SIZE
WINDOW = np.hanning(SIZE + 1)[:SIZE, None]
FACTORS = 2 * np.pi * np.outer(np.arange(8), np.arange(8)) / 8
SPECTRUM_WEIGHTS: dict[str, Any] = {
    "c": (WINDOW * np.cos(TURNS)).astype(F),
    "s": (WINDOW * np.sin(TURNS)).astype(F),
    "kc": (WINDOW * np.cos(TURNS)).T.reshape(HALF, 1, SIZE).astype(F),
    "ks": (WINDOW * np.sin(TURNS)).T.reshape(HALF, 1, SIZE).astype(F),
    "eps": F(1e-10),
    "two": F(2),
    "half": F(0.5),
    "less": F(-0.35),
    "scale": F(1 / SIZE),
    "mel": np.kron(np.eye(11), np.ones((3, 1))).astype(F),
    "row": np.array([1]),
    "last": np.array([-1]),
    "start": np.array([0]),
    "end": np.array([30]),
    "square": np.eye(HALF, dtype=F) + F(0.01),
    "fold": np.array([8, 8]),
    "f": np.cos(FACTORS).astype(F),
    "g": np.sin(FACTORS).astype(F),
    "low": np.full((8, 8), 0.5, F),
    "hidden": np.eye(SIZE, dtype=F),
}
TONE = (0.3 * np.sin(2 * np.pi * 7 * np.arange(SIZE) / SIZE)).astype(F).reshape(1, SIZE)
RE_IM = "re = MatMul (x, c)  im = MatMul (x, s)"
POWER = f"{RE_IM}  a = Mul (re, re)  b = Mul (im, im)  p = Add (a, b)"
LOG = "q = Add (p, eps)  y = Log (q)"

PATHS = {
    "MatMul, Mul and Add": f"{POWER}  {LOG}",
    "Pow": f"{RE_IM}  a = Pow (re, two)  b = Pow (im, two)  p = Add (a, b)  {LOG}",
    "Conv": f"""w = Unsqueeze (x, row)  re = Conv (w, kc)  im = Conv (w, ks)  a = Mul (re, re)  b = Mul (im, im)
        p = Add (a, b)  {LOG}""",
    "the same twice": f"""re = MatMul (x, c)  im = MatMul (x, s)  ie = Identity (re)  a = Mul (re, ie)  b = Mul (im, im)
        p = Add (a, b)  {LOG}""",
    "a maximum": f"{POWER}  q = Max (p, eps)  y = Log (q)",
    "a clip": f"{POWER}  q = Clip (p, eps)  y = Log (q)",
    "no floor": f"{POWER}  y = Log (p)",
    "a root": f"{POWER}  r = Sqrt (p)  q = Add (r, eps)  y = Log (q)",
    "a root and its square": f"{POWER}  r = Sqrt (p)  t = Pow (r, two)  q = Max (t, eps)  y = Log (q)",
    "mel bands": f"{POWER}  m = MatMul (p, mel)  q = Add (m, eps)  y = Log (q)",
    "mel bands of amplitudes": f"{POWER}  r = Sqrt (p)  m = MatMul (r, mel)  q = Clip (m, eps)  y = Log (q)",
    "a transpose, a slice, a scale": f"""{POWER}  t = Transpose <perm = [1, 0]> (p)  d = Slice (t, start, end, start)
        m = Mul (d, scale)  q = Add (m, eps)  y = Log (q)""",
    "ReduceSumSquare of pairs": f"""{RE_IM}  u = Unsqueeze (re, last)  v = Unsqueeze (im, last)
        w = Concat <axis = -1> (u, v)  p = ReduceSumSquare <axes = [-1], keepdims = 0> (w)  {LOG}""",
    "ReduceL2 of pairs": f"""{RE_IM}  u = Unsqueeze (re, last)  v = Unsqueeze (im, last)
        w = Concat <axis = -1> (u, v)  p = ReduceL2 <axes = [-1], keepdims = 0> (w)  {LOG}""",
    "a mean over places": f"{POWER}  m = ReduceMean <axes = [0]> (p)  q = Add (m, eps)  y = Log (q)",
    "the input less its mean": f"""m = ReduceMean <axes = [-1]> (x0)  x = Sub (x0, m)  {POWER}  {LOG}""",
    "the input over its maximum": f"""h = Abs (x0)  m = ReduceMax <axes = [-1]> (h)  x = Div (x0, m)  {POWER}  {LOG}""",
}
BORDERS = {
    "a branch": f"""{RE_IM}  p = If (k) <
            then_branch = t () => (float[1,33] p1) {{ a = Mul (re, re)  b = Mul (im, im)  p1 = Add (a, b) }},
            else_branch = e () => (float[1,33] p2) {{ p2 = Mul (re, re) }}
        >  {LOG}""",
    "a logarithm in a branch": f"""{POWER}  y = If (k) <
            then_branch = t () => (float[1,33] y1) {{ q = Add (p, eps)  y1 = Log (q) }},
            else_branch = e () => (float[1,33] y2) {{ y2 = Identity (p) }}
        >""",
    "a loop": f"""zero = Mul (x, x)  z = MatMul (zero, c)  n0 = Sub (z, z)  p = Loop (times, k, n0) <
            body = l (int64 i, bool on, float[1,33] before) => (bool more, float[1,33] after) {{
                more = Identity (on)  {RE_IM}  a = Mul (re, re)  b = Mul (im, im)  d = Add (a, b)
                after = Add (before, d) }}
        >  {LOG}""",
}
MODEL = "g (float[1,64] {x}, bool k, int64 times) => (float[?] y) {{ {body} }}"


def spectrum_model_of(body: str, domains: tuple[str, ...] = ()) -> ModelProto:
    text = body if body.startswith("g ") else MODEL.format(x="x0" if "x0" in body else "x", body=body)
    rank = "?,?,?" if "Conv (" in text else "?,?"
    return parse(text.replace("float[?] y", f"float[{rank}] y"), domains=domains, known=SPECTRUM_WEIGHTS)


def feeds(model: ModelProto) -> dict[str, Any]:
    return {i.name: array for i, array in zip(model.graph.input, (TONE, np.array(True), np.array(2)), strict=False)}


FUNCTIONS = """g (float[1,64] x) => (float[?,?] y) { re = MatMul (x, c)  im = MatMul (x, s)  p = local.Power (re, im)
    y = local.Level (p) }
<domain: "local", opset_import: ["" : 17]>
Power (re, im) => (p) { a = Mul (re, re)  b = Mul (im, im)  p = Add (a, b) }
<domain: "local", opset_import: ["" : 17]>
Level (p) => (y) { eps = Constant <value = float {1e-10}> ()  q = Add (p, eps)  y = Log (q) }"""

ALL = [pytest.param(spectrum_model_of(body), id=name) for name, body in {**PATHS, **BORDERS}.items()]
ALL.append(pytest.param(spectrum_model_of(FUNCTIONS, ("local",)), id="functions"))


@pytest.mark.parametrize("level", ["O1", "O2", "auto"])
@pytest.mark.parametrize("model", ALL)
def test_a_spectrum_before_a_logarithm_is_right(model: ModelProto, level: str) -> None:
    reference, low = float32_and_low(model, feeds(model), level)
    assert not difference(reference["y"], low["y"])


@pytest.mark.parametrize("model", ALL)
def test_without_the_guard_its_floor_is_that_of_the_low_type(
    model: ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "spectrum" in topics(ampgraph.plan(model, "O2"))
    assert "spectrum (not held)" in topics(ampgraph.plan(model, "O3"))
    without(monkeypatch, "spectrum")
    reference, low = float32_and_low(model, feeds(model), "O2")
    assert difference(reference["y"], low["y"])


@pytest.mark.slow
def test_spectra_are_float32_from_their_products_on() -> None:
    (note,) = [n for n in ampgraph.plan(spectrum_model_of(PATHS["mel bands"]), "O2").notes if n.topic == "spectrum"]
    assert note.text == "Log magnifies small powers: float16 rounds large ones by as much"
    # Two products, one after the other: the first bears the input's rounding.
    model = spectrum_model_of(
        f"""x1 = Reshape (x, fold)  u = MatMul (f, x1)  v = MatMul (g, x1)  t = Mul (u, low)  w = Mul (v, low)
        a1 = MatMul (t, f)  b1 = MatMul (w, g)  re = Sub (a1, b1)  p = Mul (re, re)  {LOG}"""
    )
    assert [dtype_of(converted(model), "MatMul", n) for n in range(4)] == ["f32"] * 4
    # Its input was rounded before.
    model = spectrum_model_of(
        f"h = MatMul (x0, hidden)  r = Relu (h)  i = MatMul (r, hidden)  x = MatMul (i, hidden)  p1 = MatMul (x, c) "
        f"p = Mul (p1, p1)  {LOG}"
    )
    assert [dtype_of(converted(model), "MatMul", n) for n in range(4)] == ["f16", "f16", "f16", "f32"]
    # a small window on a large map is no long sum
    model = parse(
        """g (float[1,2,64,64] x) => (float[1,2,32,32] y) {
            r = Relu (x)  y = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (r)
        }"""
    )
    assert dtype_of(converted(model, "O2"), "AveragePool") == "f16"


DIVIDED = {
    "a quotient": "y = Div (re, r)",
    "a reciprocal": "i = Reciprocal (r)  y = Mul (re, i)",
    "a negative power": "i = Pow (q, less)  y = Mul (re, i)",
}


@pytest.mark.parametrize("end", DIVIDED.values(), ids=DIVIDED.keys())
def test_what_is_divided_by_powers_is_right(end: str) -> None:
    model = spectrum_model_of(f"{POWER}  q = Add (p, eps)  r = Sqrt (q)  {end}")
    assert [dtype_of(converted(model), "MatMul", n) for n in range(2)] == ["f32"] * 2


def test_without_the_guard_compressed_spectra_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """As speech enhancement compresses them; what a tone leaves of other frequencies counts."""
    model = spectrum_model_of(f"{POWER}  q = Add (p, eps)  {DIVIDED['a negative power']}")
    reference, low = float32_and_low(model, feeds(model), "O2")
    assert not difference(reference["y"], low["y"])
    without(monkeypatch, "spectrum")
    reference, low = float32_and_low(model, feeds(model), "O2")
    assert difference(reference["y"], low["y"])


@pytest.mark.parametrize(
    "body",
    [
        f"{POWER}  y = Sqrt (p)",
        f"{RE_IM}  n = ReduceL2 <axes = [-1]> (re)  q = Max (n, eps)  d = Div (re, q)  y = Add (d, im)",
        f"{POWER}  h = Sigmoid (p)  y = Log (h)",
        f"{POWER}  m = MatMul (p, square)  h = Relu (m)  n = MatMul (h, square)  q = Clip (n, eps)  y = Log (q)",
    ],
    ids=["amplitudes", "a norm of many", "a sigmoid", "a network on powers"],
)
@pytest.mark.parametrize("level", ["O1", "O2", "auto"])
def test_what_magnifies_nothing_leaves_its_products_low(body: str, level: str) -> None:
    model = spectrum_model_of(body)
    result = converted(model, level)
    assert "MatMul:f32" not in decisions(result)


# Measured ranges: what passes the limit stays float32 and says why; what no range names stays low.

EYE = np.eye(4, dtype=np.float32)
ONES = np.ones((2, 4), np.float32)


def planned(model: ModelProto, data: Any, level: str = "O2", **options: Any) -> Plan:
    return ampgraph.plan(model, level, data=data, rewrite="no-exponent", **options)


def range_converted(model: ModelProto, data: Any, level: str = "O2", **options: Any) -> ModelProto:
    return ampgraph.convert(model, level, data=data, rewrite="no-exponent", **options)


def why(plan: Plan, index: int) -> tuple[str, str, str]:
    """What was decided of a node of the main graph: type, rule, reason."""
    found = next(d for d in plan.decisions if (d.scope, d.index) == ("", index))
    return found.dtype, found.why.rule, found.why.text


CHAIN = """g (float[2, 4] x) => (float[2, 4] y) {
    a = MatMul(x, w)  b = MatMul(a, big)  c = MatMul(b, small)  d = MatMul(c, w)  y = MatMul(d, w) }"""


def chain(first: str = "a = MatMul(x, w)") -> ModelProto:
    """Products of which the second reaches 40,000 times its input."""
    return parse(CHAIN.replace("a = MatMul(x, w)", first), w=EYE, big=EYE * 40000, small=EYE / 40000)


def test_the_makers_and_readers_of_what_passes_stay_float32_and_no_other_product() -> None:
    model = chain()
    assert decisions(ampgraph.convert(model)).count("MatMul:f16") == 5
    for data, kept in (([{"x": ONES}], 3), ([{"x": ONES / 2}], 5), ([{"x": ONES / 2}, {"x": ONES * 2}], 3)):
        assert decisions(range_converted(model, data)).count("MatMul:f16") == kept
    got = run_strict(range_converted(model, [{"x": ONES * 2}]), {"x": ONES * 2})["y"]
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
    assert decisions(range_converted(model, data, range_margin=1)).count("MatMul:f16") == 5
    assert decisions(range_converted(model, data, range_margin=1e5)).count("MatMul:f16") == 0
    assert decisions(range_converted(model, data, dtype="bfloat16", opset=18)).count("MatMul:bf16") == 5
    assert "margin 1.7" in why(planned(model, data, range_margin=1.7), 1)[2]
    for margin in (0, -1, float("nan"), float("inf")):
        with pytest.raises(AmpError, match="AMP311"):
            planned(model, data, range_margin=margin)


@pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"])
def test_ranges_hold_at_every_level(level: str) -> None:
    model, data = chain(), [{"x": ONES * 2}]
    result = range_converted(model, data, level)
    assert decisions(result).count("MatMul:f16") == 3
    assert np.isfinite(run_strict(result, data[0])["y"]).all()


def test_ranges_that_were_measured_before_give_the_same_plan() -> None:
    model, data = chain(), [{"x": ONES}]
    ranges = ampgraph.calibrate(model, data)
    again = ampgraph.Ranges.from_json(ranges.to_json())
    assert planned(model, data).to_json() == ampgraph.plan(model, ranges=again, rewrite="no-exponent").to_json()
    with pytest.raises(AmpError, match="another model"):
        ampgraph.plan(chain("a = MatMul(x, big)"), ranges=ranges)
    with pytest.raises(AmpError, match="AMP311"):
        ampgraph.plan(model, data=data, ranges=ranges)
    with pytest.raises(AmpError, match="AMP404"):
        ampgraph.convert(model, plan=ampgraph.plan(model), data=data)


def test_converting_again_or_with_empty_ranges_changes_nothing() -> None:
    model, data = chain(), [{"x": ONES}]
    once = range_converted(model, data)
    twice = range_converted(once, data)
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
    got = run_strict(range_converted(model, [{"x": ONES * 2}]), {"x": ONES * 2})
    assert (got["y"] == 2).all() and (got["z"] == 80000).all()
    # values that mostly vanish are named
    model = parse("g (float[2, 4] x) => (float[2, 4] y) { a = MatMul(x, w)  y = MatMul(a, w) }", w=EYE)
    plan = planned(model, [{"x": ONES * np.float32(1e-9)}])
    assert {(n.where, n.text) for n in plan.notes if n.topic == "vanishing"} >= {
        ("a", "100 % of its elements become zero in float16")
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
RANGE_WEIGHTS = {"w": EYE, "one": np.float32(1), "low": np.float32(-3.4e38)}
FEEDS = {"q": np.ones((1, 4, 4), np.float32), "m": np.array([[1, 1, 1, 0]], np.float32)}


@pytest.mark.parametrize("low", [-3.4e38, -1e9, -60000.0])
def test_what_a_mask_adds_to_scores_is_no_hazard(low: float) -> None:
    model = parse(MASK, {**RANGE_WEIGHTS, "low": np.float32(low)})
    result = range_converted(model, [FEEDS])
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
    assert dtype_of(range_converted(model, [feeds]), "Where") == "f16"
    # scores that are themselves too large are a hazard
    model = parse(MASK, {**RANGE_WEIGHTS, "w": EYE * 70000, "low": np.float32(-1e4)})
    for sign in (1, -1):  # minus infinity in every score of a row is NaN
        data = [{**FEEDS, "q": FEEDS["q"] * sign}]
        model.graph.initializer[0].CopyFrom(parse(MASK, w=EYE * 40000).graph.initializer[0])
        plan = planned(model, data)
        assert why(plan, 0)[:2] == ("float32", "range"), sign
        assert why(plan, 4)[0] == "float32"
    # a mask that is also an output is a hazard
    model = parse(MASK.replace("(float[1, 4, 4] y)", "(float[1, 4, 4] y, float[1, 4, 4] a)"), RANGE_WEIGHTS)
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
    result = range_converted(parse(text, weights), [{"x": ONES}])
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
    result = range_converted(model, data)
    assert (run_strict(result, data[0])["z"] == 300).all()
    assert dtype_of(result, "MatMul", 0) == "f16" == dtype_of(result, "MatMul", 1)


# -- shares -----------------------------------------------------------------------------------------------------------
