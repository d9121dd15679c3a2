"""What rules hold at their limits, and what they leave alone just beside: operators by hand, and numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import ampgraph
from ampgraph.core.plan import Decision
from onnx_text import parse
from planner.support import topics

TABLES: dict[str, Any] = {
    "w": np.eye(16, dtype=np.float32),
    "axis": np.array([1]),
    "first": np.array([0]),
    "ahead": np.array(1),
    "k": (4, 3, 1, 1),
    "same": np.array([8, 16]),
    **{f"w{size}": np.ones((16, size), np.float32) for size in (256, 257, 2048, 2049)},
}


def held_by(rule: str, body: str, dtype: str) -> Iterable[Decision]:
    """What a rule holds of a product ``h`` and ``body``, in which ``#2.5`` is a stored number: a decision for each
    operator."""
    numbers = {f"n{place}": text for place, text in enumerate(dict.fromkeys(re.findall(r"#([-\d.e]+)", body)))}
    for name, text in numbers.items():
        body = re.sub(rf"#{re.escape(text)}(?![-\d.e])", name, body)
    stored = {name: np.float32(text) for name, text in numbers.items()}
    model = parse(f"g (float[8,16] x) => (float y) {{ h = MatMul (x, w)  {body} }}", known=TABLES | stored, opset=18)
    plan = ampgraph.plan(model, "O2", dtype=dtype)
    return {item.index: item for item in plan.decisions if item.why.rule == rule and item.index > 0}.values()


QUOTIENT = "d = Abs (h)  a = Add (d, EPS)  y = Div (h, a)"
ROOT = "d = Abs (h)  a = Add (d, EPS)  r = Sqrt (a)  y = Mul (r, h)"
SOFTMAX = "e = Exp (h)  s = ReduceSum <keepdims = 1> (e, axis)  y = Div (e, s)"
SUM = "l = MatMul (h, wSIZE)  y = ReduceSum <keepdims = 1> (l, axis)"
WEIGHED = "q = Mul (h, h)  p = MatMul (q, w)  b = BETWEEN  r = Pow (b, POWER)  y = Div (h, r)"
LOG = "p = Sigmoid (h)  a = FLOOR  y = Log (a)"
MOMENTS = (
    "c = MatMul (h, w)  a = KIND (c)  b = Mul (a, h)  q = Mul (h, h)  r = Mul (a, q)"
    "  m = ReduceSum <keepdims = 1> (b, axis)  e = ReduceSum <keepdims = 1> (r, axis)  p = Mul (m, m)  y = Sub (e, p)"
)
# A bounded function is known to be within two.
LIMITS = [
    ("eps", "float16", QUOTIENT.replace("EPS", "#9.9e-4"), "Add Div"),
    ("eps", "float16", QUOTIENT.replace("EPS", "#1e-3"), ""),
    ("eps", "bfloat16", QUOTIENT.replace("EPS", "#9.9e-4"), ""),
    ("eps", "bfloat16", QUOTIENT.replace("EPS", "#1e-39"), "Add Div"),
    ("eps", "float16", QUOTIENT.replace("EPS", "#0"), ""),
    ("eps", "float16", "d = Abs (h)  a = Add (d, #1e-5)  y = Div (a, h)", ""),  # above, not below
    ("eps", "float16", "d = Abs (h)  a = Add (d, #1e-5)  r = Reshape (a, same)  y = Div (h, r)", "Add Reshape Div"),
    ("eps", "float16", "d = Abs (h)  a = Add (d, #1e-5)  y = MatMul (a, w)", ""),
    ("eps", "float16", ROOT.replace("EPS", "#6e-5"), "Add Sqrt"),
    ("eps", "float16", ROOT.replace("EPS", "#6.2e-5"), ""),
    ("exp-sum", "float16", SOFTMAX, "Exp ReduceSum Div"),
    ("exp-sum", "bfloat16", SOFTMAX, ""),
    ("exp-sum", "float16", "e = Exp (h)  y = Mul (e, h)", ""),
    ("long-sum", "float16", SUM.replace("SIZE", "2049"), "ReduceSum"),
    ("long-sum", "float16", SUM.replace("SIZE", "2048"), ""),
    ("long-sum", "bfloat16", SUM.replace("SIZE", "257"), "ReduceSum"),
    ("long-sum", "bfloat16", SUM.replace("SIZE", "256"), ""),
    ("pow", "float16", "y = Pow (h, #1.01)", "Pow"),
    ("pow", "float16", "y = Pow (h, #1)", ""),
    ("pow", "float16", "y = Pow (h, #0)", ""),
    ("pow", "float16", "y = Pow (h, #-0.01)", "Pow"),
    ("pow", "bfloat16", "y = Pow (h, #3)", ""),
    ("pow", "float16", "t = Tanh (h)  c = Mul (t, #127.9)  y = Mul (c, c)", ""),
    ("pow", "float16", "t = Tanh (h)  c = Mul (t, #128)  y = Mul (c, c)", "Mul"),
    ("pow", "float16", "t = Tanh (h)  c = Mul (t, #31.9)  y = ReduceSumSquare (c, axis)", ""),  # 16 squares
    ("pow", "float16", "t = Tanh (h)  c = Mul (t, #32)  y = ReduceSumSquare (c, axis)", "ReduceSumSquare"),
    ("pow", "float16", "t = Tanh (h)  c = Mul (t, #0.5)  y = ReduceProd <keepdims = 1> (c, axis)", ""),
    ("pow", "float16", "t = Tanh (h)  c = Mul (t, #0.51)  y = ReduceProd <keepdims = 1> (c, axis)", "ReduceProd"),
    ("pow", "float16", WEIGHED.replace("BETWEEN", "Add (p, #1)").replace("POWER", "#0.5"), "Mul MatMul Add Pow"),
    ("pow", "float16", WEIGHED.replace("BETWEEN", "Add (p, #1)").replace("POWER", "#0.25"), "Mul"),
    (
        "pow",
        "float16",
        WEIGHED.replace("BETWEEN", "Add (p, #1)").replace("Pow (b, POWER)", "Sqrt (b)"),
        "Mul MatMul Add Sqrt",
    ),
    ("pow", "float16", "q = Mul (h, h)  t = Transpose (h)  p = MatMul (q, t)  y = Sqrt (p)", "Mul"),  # not by weights
    ("pow", "float16", "q = Mul (h, h)  p = Mul (q, #2)  y = Sqrt (p)", "Mul"),  # no product
    ("pow", "float16", WEIGHED.replace("BETWEEN", "Mul (p, h)").replace("POWER", "#0.5"), "Mul"),
    ("pow", "float16", WEIGHED.replace("BETWEEN", "Relu (p)").replace("POWER", "#0.5"), "Mul"),
    ("probability", "float16", LOG.replace("FLOOR", "Add (p, #6.15e-5)"), "Sigmoid Add Log"),
    ("probability", "float16", LOG.replace("FLOOR", "Add (p, #6.25e-5)"), ""),
    ("probability", "float16", LOG.replace("FLOOR", "Clip (p, #6.15e-5, #1)"), "Sigmoid Clip Log"),
    ("probability", "float16", LOG.replace("FLOOR", "Clip (p, #6.25e-5, #1)"), ""),
    ("probability", "float16", LOG.replace("FLOOR", "Mul (p, h)"), ""),
    ("probability", "float16", "a = Relu (h)  y = Log (a)", ""),
    ("probability", "bfloat16", LOG.replace("FLOOR", "Add (p, #1e-7)"), ""),
    ("probability", "bfloat16", LOG.replace("FLOOR", "Sub (#1, p)"), "Sigmoid Sub"),  # of Log there is no kernel
    ("cancelling", "float16", MOMENTS.replace("KIND", "Softmax"), "Softmax Mul Mul ReduceSum ReduceSum Sub"),
    ("cancelling", "float16", MOMENTS.replace("KIND", "Sigmoid"), "Mul Mul ReduceSum ReduceSum Sub"),
    ("threshold", "float16", "s = Sign (h)  y = MatMul (s, w)", "Sign"),
    ("threshold", "float16", "y = Sign (h)", ""),
    ("threshold", "float16", "s = Sign (h)  e = Exp (s)  y = MatMul (e, w)", ""),
    ("threshold", "float16", "c = Greater (h, #0.5)  s = Where (c, #1, #0)  y = MatMul (s, w)", "Greater"),
    ("threshold", "float16", "c = Greater (h, #0.5)  s = Where (c, h, #0)  y = MatMul (s, w)", ""),
    ("threshold", "float16", "s = Sign (w)  y = MatMul (h, s)", ""),  # of a stored tensor
    ("threshold", "float16", "s = Sign (h)  m = Mul (s, #2)  y = MatMul (m, w)", "Sign"),
    ("threshold", "float16", "s = Sign (h)  m = Mul (s, h)  y = MatMul (m, w)", ""),
]


@pytest.mark.parametrize(("rule", "dtype", "body", "kinds"), LIMITS)
def test_what_a_rule_holds(rule: str, dtype: str, body: str, kinds: str) -> None:
    assert " ".join(decision.kind for decision in held_by(rule, body, dtype)) == kinds


EARLY = "float16 early (x**2 above 255.9)"
REASONS = [
    ("eps", QUOTIENT.replace("EPS", "#1e-5"), "eps 1e-05 is lost in float16 (smallest normal 6.1e-05) before Div"),
    ("exp-sum", SOFTMAX, "Exp overflows float16 above 11.09 and its sum has no upper bound"),
    ("long-sum", SUM.replace("SIZE", "2049"), "ReduceSum adds 2,049 elements; float16 counts to 2,048"),
    (
        "cumsum",
        "y = CumSum (h, ahead)",
        "CumSum is exact up to 2,048 in float16, and every later element inherits the error",
    ),
    ("pow", "y = Pow (h, #-0.5)", f"Pow with exponent -0.5 leaves {EARLY}"),
    ("pow", "y = Pow (h, h)", f"Pow with an unknown exponent leaves {EARLY}"),
    ("pow", "y = Mul (h, h)", f"Mul squares: the result leaves {EARLY}"),
    ("pow", "y = ReduceSumSquare (h, axis)", f"ReduceSumSquare adds up squares: they leave {EARLY}"),
    ("pow", "y = ReduceProd (h, axis)", "ReduceProd multiplies many elements: the result leaves float16 early"),
    (
        "probability",
        "p = Softmax (h)  y = Log (p)",
        "Log magnifies small probabilities: float16 has few digits for them, or none",
    ),
    (
        "cancelling",
        MOMENTS.replace("KIND", "Softmax"),
        "Sub takes a small result of large sums of products, which float16 would round",
    ),
    ("positions", "s = Sin (h)  y = MatMul (s, w)", "angles of Sin lose their period in float16"),
    (
        "threshold",
        "s = Sign (h)  y = MatMul (s, w)",
        "a product multiplies what a threshold makes of it: a rounding near that turns all of it",
    ),
]


@pytest.mark.parametrize(("rule", "body", "said"), REASONS)
def test_why_a_rule_holds(rule: str, body: str, said: str) -> None:
    assert {decision.why.text for decision in held_by(rule, body, "float16")} == {said}


KEPT_SO = "of its elements become zero in float16, and it is stored so: a check counts the error"
STAYS = ": /0:MatMul stays float32"
STORED = [
    ((10, 20), 65504.0, 1, ""),
    ((10, 20), 65536.0, 1, f"reaches 6.554e+04, beyond float16 (0.5 % of its elements){STAYS}"),
    ((400, 300), 1e5, 1, f"reaches 1e+05, beyond float16 (less than 0.001 % of its elements){STAYS}"),
    ((10, 20), 1e-9, 2, ""),
    ((10, 20), 1e-9, 3, f"1.5 % {KEPT_SO}"),
    ((10, 20), 1e-9, 100, f"50 % {KEPT_SO}"),
    ((10, 20), 1e-9, 101, f"would become zero in float16 (50.5 % of its elements){STAYS}"),
    ((10, 20), 0.0, 101, ""),
]


@pytest.mark.parametrize(("shape", "number", "count", "said"), STORED)
def test_what_is_said_of_a_stored_tensor(shape: tuple[int, int], number: float, count: int, said: str) -> None:
    """Ones, but for ``count`` elements."""
    stored = np.ones(shape, np.float32)
    stored.reshape(-1)[:count] = number
    plan = ampgraph.plan(parse(f"g (float[8,{shape[0]}] x) => (float y) {{ y = MatMul (x, w) }}", w=stored), "O2")
    assert [note.text for note in plan.notes if note.topic == "weight"] == [said] * bool(said)


@pytest.mark.parametrize(("number", "held"), [(1e5, True), (1e-9, True), (2.0, False)])
def test_an_input_with_a_default_is_looked_at_like_a_stored_tensor(number: float, held: bool) -> None:
    """It would be infinite, or zero, behind the Cast."""
    text = "g (float[8,4] x, float[4,4] w) => (float[8,4] y) { y = MatMul (x, w) }"
    plan = ampgraph.plan(parse(text, w=np.full((4, 4), number, np.float32)), "O2", freeze_weights=False)
    assert {item.dtype for item in plan.decisions if item.kind == "MatMul"} == {"float32" if held else "float16"}
    assert {item.why.rule for item in plan.decisions if item.kind == "MatMul"} == {"weight" if held else "list"}


POOLED, ROWS = "a = Conv (x, k)  y = GlobalAveragePool (a)", "a = MatMul (x, w)  y = KIND (a, first)"
OPEN = [
    ("webgpu", "float16", "N,3,H,W", POOLED, "adds up in float16, and of how many"),
    ("webgpu", "float16", "N,3,8,8", POOLED, ""),
    ("cpu-arm64", "float16", "N,3,8,W", POOLED, "adds up in float16, and of how many"),
    ("cuda", "float16", "N,3,H,W", POOLED, "adds 16,384 elements; float16 counts to 2,048"),
    ("cuda", "float16", "N,16", ROWS.replace("KIND", "ReduceMean"), "adds up in float16, and of how many"),
    ("cuda", "float16", "8,16", ROWS.replace("KIND", "ReduceMean"), ""),
    ("cuda", "bfloat16", "N,16", ROWS.replace("KIND", "ReduceMean"), ""),
    ("cuda", "float16", "N,16", ROWS.replace("KIND", "ReduceSum"), ""),
]


@pytest.mark.parametrize(("target", "dtype", "shape", "body", "said"), OPEN)
def test_a_sum_of_an_open_number(target: str, dtype: str, shape: str, body: str, said: str) -> None:
    """It is float32 where the target adds up in the low type; elsewhere where a guess is more than it counts."""
    model = parse(f"g (float[{shape}] x) => (float y) {{ {body} }}", known=TABLES, opset=18)
    plan = ampgraph.plan(model, "O2", dtype=dtype, target=target)
    found = {item.why.text for item in plan.decisions if item.why.rule == "long-sum"}
    assert len(found) == bool(said) and all(said in text for text in found), found


@pytest.mark.parametrize(("target", "kind", "mean", "held"), [
    ("cuda", "ReduceMean", 300.0, True), ("cuda", "ReduceMean", 200.0, False), ("openvino", "ReduceMean", 300.0, False),
    ("webgpu", "ReduceMean", 300.0, True), ("cuda", "ReduceMax", 300.0, False),
])  # fmt: skip
def test_a_mean_whose_sum_was_measured_to_overflow(target: str, kind: str, mean: float, held: bool) -> None:
    """128 times 300, twice over, passes float16, though the mean does not."""
    text = f"g (float[128,16] x) => (float[1,16] y) {{ a = MatMul (x, w)  y = {kind} <axes = [0]> (a) }}"
    model = parse(text, w=np.eye(16, dtype=np.float32))
    plan = ampgraph.plan(model, "O2", target=target, data=[{"x": np.full((128, 16), mean, np.float32)}])
    texts = {item.why.text for item in plan.decisions if item.why.rule == "long-sum"}
    assert texts == ({f"{kind} adds up in float16, and its sum reaches {128 * mean:.4g}"} if held else set())


CONV = "g (float[1,CHANNELS,8,8] x) => (float y) { y = Conv <kernel_shape = [3, 3]> (x, w) }"


@pytest.mark.parametrize(("target", "channels", "told"), [("webgpu", 6, 1), ("webgpu", 8, 0), ("cuda", 6, 0)])
def test_a_convolution_that_a_target_computes_wrongly_is_told(target: str, channels: int, told: int) -> None:
    model = parse(CONV.replace("CHANNELS", str(channels)), w=(4, channels, 3, 3))
    plan = ampgraph.plan(model, "O2", target=target)
    found = [note.text for note in plan.notes if note.topic == "fault"]
    assert len(found) == told
    assert all(text.startswith("webgpu computes it wrongly, in float32 too: a kernel larger") for text in found)


def test_a_convolution_of_open_sizes_is_not_said_to_be_wrong() -> None:
    model = parse(CONV.replace("CHANNELS", "6").replace("x)", "x, float[4,C,3,3] w)"))
    assert "fault" not in topics(ampgraph.plan(model, "O2", target="webgpu"))
