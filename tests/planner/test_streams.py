"""Residual streams stay float32 where their norms do, and results are widened before the last arithmetic."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

import ampgraph
from ampgraph.api.steps import Job, run_job
from ampgraph.core.errors import AmpError
from ampgraph.core.recipe import Recipe
from ampgraph.numerics.strict.session import run_strict
from ampgraph.planner import alternatives, order
from ampgraph.rules import fusions
from hard_models import HARD_MODELS, measure
from onnx_text import parse
from planner.support import casts, converted, decisions, dtype_of, element_types
from planner.without import without

WIDTH = 64
NORM = "LayerNormalization (x{0}, scale, shift)"
WIDE = "cann"  # a target whose norms read float32


def stream(blocks: int, end: str = "", before: str = "", also: str = "", **more: Any) -> ModelProto:
    """Pre-norm blocks of one product each, as in a transformer; ``end`` reads the stream ``last``. ``also``: a further
    output."""
    lines = [before or "x0 = MatMul (input, w)"]
    for number in range(blocks):
        lines.append(f"n{number} = {NORM.format(number)}")
        lines.append(f"b{number} = MatMul (n{number}, w)  x{number + 1} = Add (x{number}, b{number})")
    lines.append(end or f"n = {NORM.format(blocks)}  y = MatMul (n, w)")
    outputs = ", ".join(f"float[8,{WIDTH}] {name}" for name in ("y", also) if name)
    graph = f"g (float[8,{WIDTH}] input) => ({outputs}) {{ {'  '.join(lines)} }}"
    rng = np.random.default_rng(3)
    weights = {
        "w": (rng.standard_normal((WIDTH, WIDTH)) / 8).astype(np.float32),
        "scale": np.ones(WIDTH, np.float32),
        "shift": np.zeros(WIDTH, np.float32),
        "ones": np.ones(8, np.float32),
    }
    return parse(graph, weights, **more)


def additions(model: ModelProto) -> list[str]:
    return [word.split(":")[1] for word in decisions(model).split() if word.startswith("Add:")]


@pytest.mark.slow
def test_a_stream_that_norms_read_in_float32_stays_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    model = stream(8)
    feeds = {"input": np.random.default_rng(5).standard_normal((8, WIDTH)).astype(np.float32)}
    held = converted(model, target=WIDE)
    assert additions(held) == ["f32"] * 8
    want = run_strict(model, feeds)["y"]
    without(monkeypatch, "stream")
    lowered = converted(model, target=WIDE)
    assert additions(lowered) == ["f16"] * 8
    assert casts(held) <= casts(lowered)
    errors = [np.linalg.norm(run_strict(m, feeds)["y"] - want) for m in (held, lowered)]
    assert errors[0] < 0.9 * errors[1]


def test_the_first_sum_of_two_low_values_stays_low_where_casts_are_taken_in() -> None:
    """TensorRT takes a Cast to float32 into the kernel behind it: no Cast tells that what begins a stream is handed on
    in float32, of twice the bytes. A stream that begins in float32 stays so."""
    model = root_mean_squares(4)
    low = converted(model, target="tensorrt")
    types = element_types(low)
    assert [types[f"x{n}"] for n in range(1, 5)] == [TensorProto.FLOAT16, *[TensorProto.FLOAT] * 3]
    assert decisions(converted(low, target="tensorrt")) == decisions(low)
    types = element_types(converted(model, target="tensorrt", fp32="op:Gather"))
    assert [types[f"x{n}"] for n in range(1, 5)] == [TensorProto.FLOAT] * 4


def test_what_ends_a_stream() -> None:
    plan = ampgraph.plan(stream(12), "O2", target=WIDE)
    (text,) = {d.why.text for d in plan.decisions if d.why.rule == "stream"}
    assert "12 additions to float16 adds up to 1.0 steps" in text
    # a short stream is left to its level
    assert additions(converted(stream(2), target=WIDE)) == ["f16"] * 2
    # Each addition before it would be rounded for the next one anyway.
    assert additions(converted(stream(4, end="y = MatMul (x4, w)"), target=WIDE)) == ["f16"] * 4
    # a first addition that nobody reads wide stays low
    before = "a = MatMul (input, w)  c = Tanh (a)  d = Sigmoid (a)  x0 = Add (c, d)"
    assert additions(converted(stream(4, before=before), target=WIDE)) == ["f16"] + ["f32"] * 4
    # what moves the stream to a norm goes with it
    end = (
        "s = Transpose <perm = [1, 0]> (x4)  n = LayerNormalization (s, ones, ones)  y = Transpose <perm = [1, 0]> (n)"
    )
    result = converted(stream(4, end=end), target=WIDE)
    assert additions(result) == ["f32"] * 4 and dtype_of(result, "Transpose") == "f32"
    # CUDA's LayerNormalization keeps float32 inside, so that nothing is widened for it; the CPU's does not.
    for level in ("O2", "auto"):
        assert additions(converted(stream(4), level)) == ["f16"] * 4
        assert additions(converted(stream(4), level, target="cpu")) == ["f32"] * 4
    # the users pattern wins
    assert additions(converted(stream(4), low=["op:Add"], target=WIDE)) == ["f16"] * 4


def after_three(end: str, also: str = "") -> ModelProto:
    """A stream of three additions, which ``end`` reads; a function is called ``loc.f``."""
    function = '<domain: "loc", opset_import: ["" : 17]> f (a) => (b) { b = Identity (a) }'
    return stream(3, end, also=also, functions=function, domains=["loc"])


NORMED = f"n = {NORM.format(3)}  y = MatMul (n, w)"
BESIDE = f"n = {NORM.format(3)}  m = MatMul (n, w)  t = Tanh (x3)  y = Mul (m, t)"
MOVED = "t = Transpose <perm = [0, 1]> (x3)  n = LayerNormalization (t, scale, shift)  y = MatMul (n, w)"
CALLED = "t = loc.f (x3)  n = LayerNormalization (t, scale, shift)  y = MatMul (n, w)"


@pytest.mark.parametrize(
    ("model", "options", "held"),
    [
        (after_three(NORMED), {}, True),
        (after_three(BESIDE), {}, False),
        (after_three(BESIDE), {"fp32": ["op:Tanh"]}, True),
        (after_three("t = Tanh (x3)  y = MatMul (t, w)"), {"fp32": ["op:Tanh"]}, False),
        (after_three(NORMED, also="x3"), {}, True),
        (after_three(NORMED, also="x3"), {"io": "low"}, False),
        (after_three(MOVED), {}, True),
        (after_three(MOVED), {"low": ["op:Transpose"]}, False),
        (after_three(CALLED), {}, False),
        (after_three(NORMED), {"level": "auto"}, True),
        (after_three(BESIDE), {"level": "auto"}, False),  # Tanh is left to the cut there
    ],
)
def test_who_may_read_a_stream(model: ModelProto, options: Any, held: bool) -> None:
    plan = ampgraph.plan(model, **{"level": "O2", "target": WIDE, **options})
    found = [d.kind for d in plan.decisions if d.why.rule == "stream"]
    assert found.count("Add") == 3 * held and bool(found) == held


TAIL = "g (float[4,8] x) => (float[4,8] y) { p = MatMul (x, w)  e = Exp (p)  s = Sigmoid (e)  y = Mul (s, a) }"
WEIGHTS = {"w": np.eye(8, dtype=np.float32), "a": np.linspace(1, 2, 8, dtype=np.float32)}


@pytest.mark.parametrize("level", ["O2", "auto"])
def test_a_result_is_widened_before_the_last_arithmetic(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse(TAIL, WEIGHTS)
    result = converted(model, level)
    assert decisions(result) == "Cast>f16 MatMul:f16 Cast>f32 Exp:f32 Sigmoid:f32 Mul:f32"
    rules = {d.kind: d.why.rule for d in ampgraph.plan(model, level).decisions}
    assert rules["Sigmoid"] == "epilogue"
    without(monkeypatch, "epilogue")
    assert casts(converted(model, level)) >= casts(result)


def test_what_is_not_widened_at_the_end() -> None:
    result = converted(parse(TAIL, WEIGHTS), io="low")
    assert decisions(result) == "MatMul:f16 Exp:f16 Sigmoid:f16 Mul:f16"
    # the ceiling of speed widens at the end
    result = converted(parse(TAIL, WEIGHTS), "O3")
    assert decisions(result) == "Cast>f16 MatMul:f16 Exp:f16 Sigmoid:f16 Mul:f16 Cast>f32"
    # arithmetic that a product reads is no epilogue
    text = "g (float[4,8] x) => (float[4,8] y) { p = MatMul (x, w)  s = Sigmoid (p)  y = MatMul (s, w) }"
    assert decisions(converted(parse(text, WEIGHTS))) == "Cast>f16 MatMul:f16 Sigmoid:f16 MatMul:f16 Cast>f32"
    # tanh(W h) bears the errors of one round, f h + g those that f has not forgotten; h + tanh(W h) those of all.
    text = """g (float[1,4] x, int64 n) => (float[1,4] y) {{ y = Loop (n, , x) <body = b (int64 i, bool c, float[1,4] h)
        => (bool d, float[1,4] k) {{ d = Identity (c)  m = MatMul (h, w)  {end} }}> }}"""
    gated = "f = Sigmoid (m)  t = Tanh (m)  o = Mul (f, h)  k = Add (o, t)"
    for end, rule in (("k = Tanh (m)", False), (gated, False), ("t = Tanh (m)  k = Add (t, h)", True)):
        model = parse(text.format(end=end), w=(4, 4))
        for level in ("O2", "auto"):
            plan = ampgraph.plan(model, level)
            assert any(d.why.rule == "recurrence" for d in plan.decisions) == rule
            assert [d.dtype for d in plan.decisions if d.kind == "MatMul"] == ["float16"]


# `--fp32-stream`: residual streams and the norms that read them stay float32, branches are low.

REASON = "--fp32-stream: in a residual stream of {0} additions"
POST = "  ".join(
    f"b{n} = MatMul (x{n}, w)  s{n} = Add (x{n}, b{n})  x{n + 1} = LayerNormalization (s{n}, scale, shift)"
    for n in range(4)
)


def wide(model: ModelProto, level: str = "O2", **options: Any) -> ModelProto:
    """Converted with the option; what the file says of itself is enough to convert it again to the same bytes."""
    result = ampgraph.convert(model, level, fp32_stream=True, **options)
    for said in (True, False):
        again = ampgraph.convert(result, level, fp32_stream=said, **options)
        assert again.SerializeToString(deterministic=True) == result.SerializeToString(deterministic=True)
    return result


@pytest.mark.parametrize("level", ("O1", "O2", "O3", "auto"))
def test_additions_and_norms_are_float32_and_products_low(level: str) -> None:
    found = decisions(wide(stream(3), level)).split()
    kinds = {kind: {word.split(":")[1] for word in found if word.startswith(f"{kind}:")} for kind in ("Add", "MatMul")}
    assert kinds == {"Add": {"f32"}, "MatMul": {"f16"}}
    assert [word for word in found if word.startswith("LayerNorm")][1:] == ["LayerNormalization:f32"] * 3
    assert "f16" in additions(ampgraph.convert(stream(3), "O2"))


def test_wide_streams() -> None:
    model = stream(0, before=f"x0 = MatMul (input, w)  {POST}", end="y = MatMul (x4, w)")
    assert additions(wide(model)) == ["f32"] * 4
    assert set(additions(ampgraph.convert(model, "O2"))) == {"f16"}
    # the reason counts the additions
    plan = ampgraph.plan(stream(4), "O2", fp32_stream=True)
    told = {d.kind: d.why.text for d in plan.decisions if d.why.rule == "fp32_stream"}
    assert told == dict.fromkeys(("Add", "LayerNormalization"), REASON.format(4))
    assert ampgraph.explain(stream(4), "x3", fp32_stream=True).slots[0].reason.endswith(REASON.format(4))
    # a stream that is moved to its norms
    moved = "r = Reshape (x2, shape)  n = LayerNormalization (r, scale, shift)  y = MatMul (n, w)"
    model = stream(2, end=moved)
    model.graph.initializer.append(numpy_helper.from_array(np.array([8, WIDTH]), "shape"))
    for level in ("O2", "O3"):
        assert "Reshape:f32" in decisions(wide(model, level))
    # sums of a branch are low
    block = "  ".join(
        f"n{n} = {NORM.format(n)}  a{n} = MatMul (n{n}, w)  m{n} = MatMul (n{n}, w)  "
        f"b{n} = Add (a{n}, m{n})  x{n + 1} = Add (x{n}, b{n})"
        for n in range(3)
    )
    model = stream(0, before=f"x0 = MatMul (input, w)  {block}", end=f"n = {NORM.format(3)}  y = MatMul (n, w)")
    assert additions(wide(model)) == ["f16", "f32"] * 3
    # a model without a stream says so
    plan = ampgraph.plan(stream(1, end="y = Softmax (x1)"), "O2", fp32_stream=True)
    assert [note.text for note in plan.notes if note.topic == "stream"] == [
        "--fp32-stream: no residual stream is there that norms read"
    ]
    # the pattern of a user wins
    model = ampgraph.convert(stream(3), "O2", fp32_stream=True, low="op:Add")
    assert additions(model) == ["f16"] * 3
    # a framework has no such rule
    with pytest.raises(AmpError) as raised:
        ampgraph.plan(stream(2), policy="pytorch", fp32_stream=True)
    assert raised.value.code == "AMP305" and "--policy pytorch" in (raised.value.hint or "")
    # a stream that products read as well
    block = "  ".join(f"b{n} = MatMul (x{n}, w)  x{n + 1} = Add (x{n}, b{n})" for n in range(3))
    model = stream(0, before=f"x0 = MatMul (input, w)  {block}", end=f"n = {NORM.format(3)}  y = MatMul (n, w)")
    assert additions(wide(model)) == ["f32"] * 3


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_the_stream_is_more_exact(dtype: str) -> None:
    model = stream(12)
    feeds = {"input": np.random.default_rng(5).standard_normal((8, WIDTH)).astype(np.float32)}
    want = run_strict(model, feeds)["y"]
    low = [ampgraph.convert(model, "O2", dtype=dtype, opset=21, fp32_stream=kept) for kept in (True, False)]
    errors = [np.linalg.norm(run_strict(one, feeds)["y"] - want) for one in low]
    assert errors[0] < 0.9 * errors[1]


@pytest.mark.slow
def test_the_check_names_it_where_it_lessens_an_error_near_the_tolerance(tmp_path: Path) -> None:
    with pytest.warns(ampgraph.PrecisionWarning) as warned:
        ampgraph.convert(stream(16), "O2", output=tmp_path / "low.onnx", tolerance=1.5e-3, check="auto", repair=True)
    (verdict,) = [one.message.verdict for one in warned if isinstance(one.message, ampgraph.PrecisionWarning)]
    assert verdict.doubtful and verdict.stream is not None and verdict.error is not None
    assert verdict.stream < 0.8 * verdict.error
    assert str(verdict).endswith(f", or with --fp32-stream (tried: error {verdict.stream:.2g})")


def root_mean_squares(blocks: int) -> ModelProto:
    """Pre-norm blocks behind an embedding, their norms in simple operators as torch writes them, with scales that both
    low types hold exactly."""
    lines = ["x0 = Gather (table, tokens)"]
    for n in range(blocks + 1):
        lines.append(f"q{n} = Pow (x{n}, two)  v{n} = ReduceMean <axes = [-1]> (q{n})  a{n} = Add (v{n}, eps)")
        lines.append(f"r{n} = Sqrt (a{n})  i{n} = Reciprocal (r{n})  d{n} = Mul (x{n}, i{n})  n{n} = Mul (d{n}, g)")
        if n < blocks:
            lines.append(f"b{n} = MatMul (n{n}, w{n})  x{n + 1} = Add (x{n}, b{n})")
    rng = np.random.default_rng(4)
    weights = {f"w{n}": (rng.standard_normal((WIDTH, WIDTH)) / 8).astype(np.float32) for n in range(blocks)}
    weights |= {"table": rng.standard_normal((32, WIDTH)).astype(np.float32), "g": np.full(WIDTH, 0.5, np.float32)}
    weights |= {"two": np.array(2, np.float32), "eps": np.array(1e-3, np.float32)}
    graph = f"g (int64[16] tokens) => (float[16,{WIDTH}] n{blocks}) {{ {'  '.join(lines)} }}"
    return parse(graph, weights)


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_a_norm_that_divides_is_as_exact_where_the_stream_is_alike(dtype: str) -> None:
    model, rng = root_mean_squares(12), np.random.default_rng(6)
    feeds = [{"tokens": rng.integers(0, 32, 16)} for _ in range(4)]
    want = [run_strict(model, feed)["n12"] for feed in feeds]

    def error(**options: Any) -> float:
        made = ampgraph.convert(model, "O2", dtype=dtype, **options)
        assert ("Div" in {node.op_type for node in made.graph.node}) == ("rewrite" not in options)
        off = [np.linalg.norm(run_strict(made, f)["n12"] - w) for f, w in zip(feeds, want, strict=True)]
        return float(np.median(off))

    streams = {"with": error(fp32_stream=True), "without": error(fp32_stream=True, rewrite="no-quotient")}
    assert streams["with"] <= 1.03 * streams["without"]
    assert streams["with"] < 0.9 * error(), "one kernel a norm reads a low stream"


def test_norms_beside_a_wide_stream() -> None:
    """bfloat16 from float32 data is none of CUDA's kernels: a Cast that others read as well is not taken along."""
    model = root_mean_squares(3)
    types = element_types(wide(model, dtype="bfloat16"))
    assert types["n0"] == types["n1"] == TensorProto.FLOAT
    assert element_types(wide(model))["n0"] == TensorProto.FLOAT16
    # a stream in operators that add and normalize
    block = "  ".join(
        f"b{n} = MatMul (x{n}, w)  x{n + 1} = com.microsoft.SkipLayerNormalization (x{n}, b{n}, scale, shift)"
        for n in range(3)
    )
    model = stream(0, before=f"x0 = MatMul (input, w)  {block}", end="y = MatMul (x3, w)")
    model.opset_import.add(domain="com.microsoft", version=1)
    plan = ampgraph.plan(wide(model), "O2")
    assert {d.dtype for d in plan.decisions if d.kind == "com.microsoft::SkipLayerNormalization"} == {"float32"}
    assert {d.kind for d in ampgraph.plan(model, "O2").decisions if d.dtype == "float16"} >= {
        "com.microsoft::SkipLayerNormalization"
    }
    # the file names one node of each norm
    made = wide(root_mean_squares(3))
    (said,) = [json.loads(item.value) for item in made.metadata_props if item.key == "ampgraph.fp32"]
    assert len(said) == 3 + 3, "additions, and the norms that read them"
    # What a Cast made of it in the result would hold the norm no more, were it converted again.
    lines = (
        "a = MatMul (x, w)  m = ReduceMean <axes = [-1]> (a)  d = Sub (a, m)  s = Pow (d, two)",
        "v = ReduceMean <axes = [-1]> (s)  e = Add (v, eps)  r = Sqrt (e)  n = Div (d, r)  p = Mul (n, g)",
        "q = Add (p, b)  z = Add (a, q)  y = MatMul (z, w)",
    )
    weights = {
        "two": np.array(2, np.float32),
        "g": np.full(WIDTH, 1.5, np.float32),
        "b": np.full(WIDTH, 0.1, np.float32),
    }
    weights["w"] = np.eye(WIDTH, dtype=np.float32)
    graph = f"g (float[8,{WIDTH}] x, float eps) => (float[8,{WIDTH}] y) {{ {'  '.join(lines)} }}"
    for dtype in ("float16", "bfloat16"):
        wide(parse(graph, weights, opset=17), dtype=dtype)


# The report says what another level would save, where that is cheap to know.


def said(model: ModelProto, **fields: Any) -> list[str]:
    summary = run_job(Job(model, Recipe.of(**fields), report=True, dry_run=True)).summary
    assert summary is not None
    return [note["text"] for note in summary.notes if note["topic"] in ("level", "stream")]


def test_what_auto_would_save(monkeypatch: pytest.MonkeyPatch) -> None:
    model = HARD_MODELS["bytes"].build()
    given, at_o2, at_auto = (
        measure.casts(m) for m in (model, ampgraph.convert(model, "O2"), ampgraph.convert(model, "auto"))
    )
    assert at_o2 - at_auto == 1
    assert said(model) == [
        f"optional, may be faster: --level auto takes {at_o2 - given - 1} Casts instead of {at_o2 - given}"
    ]
    assert not said(model, level="auto") and not said(model, policy="pytorch")
    monkeypatch.setattr(alternatives, "MOST", 10)
    assert not said(model)
    # nothing is said or planned where only borders are cast
    monkeypatch.setattr(alternatives, "decide", None)
    assert not said(stream(3))


@pytest.mark.slow
def test_what_the_stream_would_cost() -> None:
    """A Cast for each of 12 additions and one behind them, as CUDA runs it (16 instead of 3); a ViT's is dearer."""
    model = HARD_MODELS["llama"].build()
    text = "--fp32-stream keeps 12 additions of the residual stream in float32, for 13 more Casts, slower"
    assert said(model) == [f"optional, where the error is too large: {text}"]
    assert not said(model, fp32_stream=True) and not said(HARD_MODELS["vit"].build())


def test_alternatives_share_what_the_plan_has_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patterns, pairs of kernels and the rules' looks are those of one planning run; only decisions are made anew."""
    counts = Counter[str]()

    def counted(module: ModuleType, name: str) -> None:
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args: counts.update([name]) or real(*args))

    for module, name in ((fusions, "find_regions"), (order, "look_at_all")):
        counted(module, name)
    counted(alternatives, "decide")
    assert said(HARD_MODELS["bytes"].build())
    assert counts == {"find_regions": 1, "look_at_all": 1, "decide": 2}
