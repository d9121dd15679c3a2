"""Residual streams stay float32 where their norms do, and results are widened before the last arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.numerics.strict.session import run_strict
from onnx_text import parse
from planner.support import casts, converted, decisions, dtype_of
from planner.without import without

WIDTH = 64
NORM = "LayerNormalization (x{0}, scale, shift)"
WIDE = "cann"  # a target whose norms read float32


def stream(blocks: int, end: str = "", before: str = "") -> ModelProto:
    """Pre-norm blocks of one product each, as in a transformer; ``end`` reads the stream ``last``."""
    lines = [before or "x0 = MatMul (input, w)"]
    for number in range(blocks):
        lines.append(f"n{number} = {NORM.format(number)}")
        lines.append(f"b{number} = MatMul (n{number}, w)  x{number + 1} = Add (x{number}, b{number})")
    lines.append(end or f"n = {NORM.format(blocks)}  y = MatMul (n, w)")
    graph = f"g (float[8,{WIDTH}] input) => (float[8,{WIDTH}] y) {{ {'  '.join(lines)} }}"
    rng = np.random.default_rng(3)
    weights = {
        "w": (rng.standard_normal((WIDTH, WIDTH)) / 8).astype(np.float32),
        "scale": np.ones(WIDTH, np.float32),
        "shift": np.zeros(WIDTH, np.float32),
        "ones": np.ones(8, np.float32),
    }
    return parse(graph, weights)


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


def test_the_reason_names_the_additions_and_what_they_add_up_to() -> None:
    plan = ampgraph.plan(stream(12), "O2", target=WIDE)
    (text,) = {d.why.text for d in plan.decisions if d.why.rule == "stream"}
    assert "12 additions to float16 adds up to 1.0 steps" in text


def test_a_short_stream_is_left_to_its_level() -> None:
    assert additions(converted(stream(2), target=WIDE)) == ["f16"] * 2


def test_a_stream_that_a_product_reads_is_left_to_its_level() -> None:
    """Each addition before it would be rounded for the next one anyway."""
    assert additions(converted(stream(4, end="y = MatMul (x4, w)"), target=WIDE)) == ["f16"] * 4


def test_a_first_addition_that_nobody_reads_wide_stays_low() -> None:
    before = "a = MatMul (input, w)  c = Tanh (a)  d = Sigmoid (a)  x0 = Add (c, d)"
    assert additions(converted(stream(4, before=before), target=WIDE)) == ["f16"] + ["f32"] * 4


def test_what_moves_the_stream_to_a_norm_goes_with_it() -> None:
    end = (
        "s = Transpose <perm = [1, 0]> (x4)  n = LayerNormalization (s, ones, ones)  y = Transpose <perm = [1, 0]> (n)"
    )
    result = converted(stream(4, end=end), target=WIDE)
    assert additions(result) == ["f32"] * 4 and dtype_of(result, "Transpose") == "f32"


def test_norms_that_go_low_take_the_stream_with_them() -> None:
    """CUDA's LayerNormalization keeps float32 inside, so that nothing is widened for it; the CPU's does not."""
    for level in ("O2", "auto"):
        assert additions(converted(stream(4), level)) == ["f16"] * 4
        assert additions(converted(stream(4), level, target="cpu")) == ["f32"] * 4


def test_the_users_pattern_wins() -> None:
    assert additions(converted(stream(4), low=["op:Add"], target=WIDE)) == ["f16"] * 4


TAIL = "g (float[4,8] x) => (float[4,8] y) { p = MatMul (x, w)  e = Exp (p)  s = Sigmoid (e)  y = Mul (s, a) }"
WEIGHTS = {"w": np.eye(8, dtype=np.float32), "a": np.linspace(1, 2, 8, dtype=np.float32)}


@pytest.mark.parametrize("level", ["O2", "auto"])
def test_a_result_is_widened_before_the_last_arithmetic(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse(TAIL, WEIGHTS)
    result = converted(model, level)
    assert decisions(result) == "Cast>f16 MatMul:f16 Cast>f32 Exp:f32 Sigmoid:f32 Mul:f32"
    rules = {d.kind: d.why.rule for d in ampgraph.plan(model, level).decisions}
    assert rules["Sigmoid"] == "tail"
    without(monkeypatch, "tail")
    assert casts(converted(model, level)) >= casts(result)


def test_a_result_that_was_asked_for_low_is_not_widened() -> None:
    result = converted(parse(TAIL, WEIGHTS), io="low")
    assert decisions(result) == "MatMul:f16 Exp:f16 Sigmoid:f16 Mul:f16"


def test_the_ceiling_of_speed_widens_at_the_end() -> None:
    result = converted(parse(TAIL, WEIGHTS), "O3")
    assert decisions(result) == "Cast>f16 MatMul:f16 Exp:f16 Sigmoid:f16 Mul:f16 Cast>f32"


def test_arithmetic_that_a_product_reads_is_no_tail() -> None:
    text = "g (float[4,8] x) => (float[4,8] y) { p = MatMul (x, w)  s = Sigmoid (p)  y = MatMul (s, w) }"
    assert decisions(converted(parse(text, WEIGHTS))) == "Cast>f16 MatMul:f16 Sigmoid:f16 MatMul:f16 Cast>f32"


def test_a_state_that_is_made_anew_in_every_round_is_not_held() -> None:
    """tanh(W h) bears the errors of one round, f h + g those that f has not forgotten; h + tanh(W h) those of all."""
    text = """g (float[1,4] x, int64 n) => (float[1,4] y) {{ y = Loop (n, , x) <body = b (int64 i, bool c, float[1,4] h)
        => (bool d, float[1,4] k) {{ d = Identity (c)  m = MatMul (h, w)  {end} }}> }}"""
    gated = "f = Sigmoid (m)  t = Tanh (m)  o = Mul (f, h)  k = Add (o, t)"
    for end, rule in (("k = Tanh (m)", False), (gated, False), ("t = Tanh (m)  k = Add (t, h)", True)):
        model = parse(text.format(end=end), w=(4, 4))
        for level in ("O2", "auto"):
            plan = ampgraph.plan(model, level)
            assert any(d.why.rule == "recurrence" for d in plan.decisions) == rule
            assert [d.dtype for d in plan.decisions if d.kind == "MatMul"] == ["float16"]
