"""A mask of -10,000 that is added in float16: rows that it hides whole are right, or the plan says they are not."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, numpy_helper

import ampgraph
from ampgraph.numerics.metrics.agreement import apart
from ampgraph.numerics.strict.session import StrictSession, SwitchedSession, run_strict
from onnx_text import parse
from planner.form_models import attention
from planner.support import decisions

F = np.float32
SCORES = "k = Transpose<perm = [1, 0]>(x) s = MatMul(x, k) z = Mul(s, third)"
REST = "p = Softmax(a) y = MatMul(p, x)"
INPUT = "n = Sub(one, seen) m = Mul(n, far)"
CAUSALLY = "t = Mul(z, causal) u = Sub(one, causal) v = Mul(u, far) b = Add(t, v)"
FORMS = {
    "added": f"{SCORES} {INPUT} a = Add(z, m) {REST}",
    "taken away": f"{SCORES} n = Sub(one, seen) m = Mul(n, size) a = Sub(z, m) {REST}",
    "of both": f"{SCORES} {INPUT} {CAUSALLY} a = Add(b, m) {REST}",
    "chosen": f"{SCORES} c = Cast<to = 9>(seen) a = Where(c, z, far) {REST}",
    "stored": f"{SCORES} a = Add(z, stored) {REST}",
    "stored, and hides rows": f"{SCORES} a = Add(z, hiding) {REST}",
}
WRONG = {"of both": [0, *[1] * 7], "stored, and hides rows": [1] * 8}
"""Forms that no rewrite mends, with what is seen: `of both`, the first row sees nothing but what is hidden."""
CAUSAL = np.tril(np.ones((8, 8), F))


def model(body: str) -> ModelProto:
    stored = {"one": F(1), "third": F(0.35), "far": F(-10000), "size": F(10000), "causal": CAUSAL,
              "stored": (1 - CAUSAL) * F(-10000), "hiding": (1 - CAUSAL * (np.arange(8) > 0)) * F(-10000)}  # fmt: skip
    used = {name: value for name, value in stored.items() if name in body}
    return parse(f"g (float[8, 8] x, float[1, 8] seen) => (float[8, 8] y) {{ {body} }}", used)


def error(source: ModelProto, level: str, seen: list[int]) -> float:
    feeds = {"x": np.random.default_rng(0).standard_normal((8, 8)).astype(F) * 2, "seen": np.array([seen], F)}
    made = ampgraph.convert(source, level, check="off")
    return apart(StrictSession(source).run(feeds)["y"], StrictSession(made).run(feeds)["y"]).error


def said(source: ModelProto, level: str) -> bool:
    return any("lose their scores" in note.text for note in ampgraph.plan(source, level=level).notes)


@pytest.mark.parametrize("level", ["O2", "O3"])
@pytest.mark.parametrize("form", WRONG)
def test_what_is_wrong_is_said(form: str, level: str) -> None:
    source = model(FORMS[form])
    assert error(source, level, WRONG[form]) > 0.01
    assert said(source, level)


@pytest.mark.parametrize(
    "form, level", [("added", "O1"), ("added", "O3"), ("taken away", "O2"), ("chosen", "O3"), ("stored", "O3")]
)
def test_what_is_right_is_not_said(form: str, level: str) -> None:
    source = model(FORMS[form])
    assert error(source, level, [0] * 8) < 1e-2
    assert not said(source, level)


def test_what_is_said_of_masks() -> None:
    assert error(model(FORMS["added"]), "O3", [1, 1, 1, 0, 0, 0, 0, 0]) < 1e-2
    # it is said and can be switched off
    plan = ampgraph.plan(floor_model(FLOOR_FORMS["of an input"]), "O2")
    assert ["-32752" in note.text and "a row that it hides whole" in note.text for note in plan.notes] == [True]
    found = decisions(ampgraph.convert(floor_model(FLOOR_FORMS["of an input"]), "O2", rewrite="no-floor", check="off"))
    assert "Mul:f32" in found and "Softmax:f32" in found
    # Whose fusion fails on a low number that makes a mask.
    made = ampgraph.convert(attention(LOWEST), "O2", check="off", rewrite="no-order")
    assert "Mul:f32" in decisions(made) and "Softmax:f32" not in decisions(made)


# Numbers like -3.4e38 that zeros and ones multiply to a mask: half the low minimum, as in a stored mask.

LOWEST = float(np.finfo(F).min)
FLOORED = "k = Transpose <perm = [1, 0]> (x)  s = MatMul (x, k)"
ENDS = "p = Softmax <axis = -1> (a)  y = MatMul (p, x)"
FLOOR_FORMS = {
    "of an input": "c = Cast <to = 1> (seen)  n = Sub (one, c)  m = Mul (n, lowest)  a = Add (s, m)",
    "with a bias": "c = Cast <to = 1> (seen)  n = Sub (one, c)  m = Mul (n, lowest)  b = Add (bias, m)  a = Add (s, b)",
    "of a comparison": """g = Greater (seen, hidden)  u = Not (g)  c = Cast <to = 1> (u)  m = Mul (lowest, c)
        a = Add (s, m)""",
    "filled": """f = ConstantOfShape <value = float[1] {-3.4028235e38}> (sizes)  t = Trilu <upper = 1> (f, next)
        c = Cast <to = 1> (seen)  n = Sub (one, c)  m = Mul (t, n)  a = Add (s, m)""",
    "filled, alone": """m = ConstantOfShape <value = float[1] {-3.4028235e38}> (sizes)  t = Trilu <upper = 1> (m, next)
        a = Add (s, t)""",
    "shrunk with the scores": """c = Cast <to = 1> (seen)  n = Sub (one, c)  m = Mul (n, lowest)  b = Add (s, m)
        a = Div (b, four)""",
    "of stored numbers": """t = Trilu <upper = 1> (all, next)  m1 = Mul (t, later)  m2 = Slice (m1, zero, eight, axis)
        a = Add (s, m2)""",
}
LEFT = {
    "shrunk to nothing": """c = Cast <to = 1> (seen)  n = Sub (one, c)  m = Mul (n, lowest)  b = Add (s, m)
        a = Mul (b, tiny)""",
    "of parts": "c = Softmax <axis = -1> (seen_float)  n = Sub (one, c)  m = Mul (n, lowest)  a = Add (s, m)",
    "of given floats": "n = Sub (one, seen_float)  m = Mul (n, lowest)  a = Add (s, m)",
    "of scores": "n = Sub (one, s)  m = Mul (n, lowest)  a = Add (s, m)",
    "of differences": """c = Cast <to = 1> (seen)  n = Sub (places, c)  m = Mul (n, lowest)  a = Add (s, m)""",
    "less one": "c = Cast <to = 1> (seen)  n = Sub (c, one)  m = Mul (n, lowest)  a = Add (s, m)",
    "three times": "c = Cast <to = 1> (seen)  n = Mul (c, three)  m = Mul (n, lowest)  a = Add (s, m)",
    "of filled parts": """f = ConstantOfShape <value = float[1] {0.001}> (sizes)  m = Mul (f, lowest)
        a = Add (s, m)""",
    "over a sum": "c = Cast <to = 1> (seen)  n = Sub (one, c)  m = Mul (n, lowest)  a1 = Mul (s, m)  a = Add (s, a1)",
}


def floor_model(body: str) -> ModelProto:
    stored = {"one": F(1), "lowest": F(LOWEST), "bias": F(np.eye(8)), "hidden": np.array(0), "next": np.array(1),
              "all": np.full((8, 9), LOWEST, F), "later": F(np.tri(8, 9, 1)), "zero": np.array([0]),
              "eight": np.array([8]), "four": F(4), "tiny": F(2.0**-12), "three": F(3), "places": F(np.arange(8)),
              "axis": np.array([1]),
              "sizes": np.array([8, 8])}  # fmt: skip
    used = {name: value for name, value in stored.items() if re.search(rf"\b{name}\b", body)}
    text = f"float[8, 8] x, int64[1, 8] seen, float[1, 8] seen_float) => (float[8, 8] y) {{ {FLOORED} {body} {ENDS} }}"
    return parse(f"g ({text}", used, opset=17)


def feeds(seen: list[int]) -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((8, 8)).astype(F)
    return {"x": x, "seen": np.array([seen]), "seen_float": np.array([seen], F)}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("form", FLOOR_FORMS)
def test_it_becomes_half_the_low_minimum(form: str, dtype: str) -> None:
    source = floor_model(FLOOR_FORMS[form])
    made = ampgraph.convert(source, "O2", dtype=dtype, check="off")
    assert not {"Softmax:f32", "Add:f32"} & set(decisions(made).split())
    stored = [numpy_helper.to_array(one) for one in made.graph.initializer if one.name.startswith(("lowest", "all"))]
    stored += [
        numpy_helper.to_array(node.attribute[0].t) for node in made.graph.node if node.op_type == "ConstantOfShape"
    ]
    low = -32752.0 if dtype == "float16" else LOWEST
    assert stored and all(low <= array.astype(F).min() < low / 2.1 for array in stored)
    run, given = StrictSession(made), feeds([1, 1, 0, 0, 1, 0, 0, 0])
    error = apart(StrictSession(source).run(given)["y"], run.run(given)["y"]).error
    assert error < (5e-3 if dtype == "float16" else 3e-2)
    assert np.isfinite(run.run(feeds([0] * 8))["y"]).all()
    assert ampgraph.convert(made, "O2", dtype=dtype, check="off") == made


@pytest.mark.parametrize("form", FLOOR_FORMS)
def test_what_hides_is_no_error(form: str) -> None:
    source, given = floor_model(FLOOR_FORMS[form]), feeds([1, 1, 0, 0, 1, 0, 0, 0])
    low = ampgraph.convert(source, "O2", check="off")
    session, expected = SwitchedSession(source, low), StrictSession(source).run(given)["y"]
    for units in ([], *([unit] for unit in range(len(session.units))), range(len(session.units))):
        assert apart(expected, session.run(given, units)["y"]).error < 4e-3


@pytest.mark.parametrize("form", LEFT)
def test_what_is_left_alone(form: str) -> None:
    made = ampgraph.convert(floor_model(LEFT[form]), "O2", check="off")
    assert "Mul:f32" in decisions(made)
    stored = {tensor.name: tensor for tensor in made.graph.initializer}
    assert numpy_helper.to_array(stored["lowest"]).min() == LOWEST


@pytest.mark.parametrize("stored", ["low", "keep"])
def test_a_stored_mask_that_hides_a_whole_row(stored: str) -> None:
    """However weights are stored: -inf in a whole row is NaN behind the Softmax."""
    mask = np.triu(np.full((8, 8), LOWEST, F), 0)
    given = parse("g (float[8,8] x) => (float[8,8] y) { s = MatMul (x, w)  a = Add (s, m)  y = Softmax (a) }",
                  w=(8, 8), m=mask)  # fmt: skip
    feeds = {"x": np.ones((8, 8), F)}
    made = ampgraph.convert(given, "O3", store_weights=stored, check="off")
    wanted, found = (run_strict(one, feeds)["y"] for one in (given, made))
    np.testing.assert_allclose(found[1:], wanted[1:], atol=1e-2)
    assert np.isfinite(found).all()


# Masks of -10,000 less their largest number in each row: hidden rows keep their scores, and nothing else changes.

SHIFTED = "k = Transpose <perm = [1, 0]> (x)  s = MatMul (x, k)"
MASK = "c = Cast <to = 1> (seen)  n = Sub (one, c)  m = Mul (n, far)"
SHIFT_FORMS = {
    "added": f"{SHIFTED}  {MASK}  a = Add (s, m)  {ENDS}",
    "taken away": f"{SHIFTED}  c = Cast <to = 1> (seen)  n = Sub (one, c)  m = Mul (n, size1)  a = Sub (s, m)  {ENDS}",
    "by an Unsqueeze": f"{SHIFTED}  {MASK}  u = Unsqueeze (m, zero)  u1 = Squeeze (u, zero)  a = Add (u1, s)  {ENDS}",
    "of two layers": f"""{SHIFTED}  {MASK}  a1 = Add (s, m)  p1 = Softmax <axis = -1> (a1)  x1 = MatMul (p1, x)
        s1 = MatMul (x1, k)  a = Add (s1, m)  {ENDS}""",
    "beside another": f"{SHIFTED}  {MASK}  b = Add (s, near)  d = Dropout (b)  a = Add (d, m)  {ENDS}",
    "read in a branch": f"""{SHIFTED}  {MASK}  p = If (true) <
        then_branch = t () => (float[8, 8] a1) {{ b1 = Add (s, m)  a1 = Softmax <axis = -1> (b1) }},
        else_branch = e () => (float[8, 8] a2) {{ a2 = Identity (s) }}>  y = MatMul (p, x)""",
}
SHIFT_LEFT = {
    "read elsewhere": f"{SHIFTED}  {MASK}  a = Add (s, m)  {ENDS.replace('y =', 'o =')}  y = Add (o, m)",
    "over another axis": f"{SHIFTED}  {MASK}  a = Add (s, m)  p = Softmax <axis = 0> (a)  y = MatMul (p, x)",
    "of scores": f"{SHIFTED}  c = Cast <to = 9> (seen)  m = Where (c, s, far)  a = Add (m, near)  {ENDS}",
    "of constants": f"{SHIFTED}  n = Sub (one, row)  m = Mul (n, far)  a = Add (s, m)  {ENDS}",
    "and of minus infinity": f"""{SHIFTED}  {MASK}  d = Cast <to = 9> (seen)  w = Where (d, m, low)  a = Add (s, w)
        {ENDS}""",
    "without rows": f"{SHIFTED}  c0 = Cast <to = 1> (size)  m = Mul (c0, far)  a = Add (s, m)  {ENDS}",
}


def shift_model(body: str, opset: int = 17) -> ModelProto:
    stored = {"one": F(1), "far": F(-10000), "near": F(0.5), "zero": np.array([0]), "true": np.array(True),
              "row": np.array([1, 1, 1, 0, 0, 0, 0, 0], F), "low": F(-np.inf), "size": np.array(3),
              "size1": F(10000)}  # fmt: skip
    used = {
        name: value for name, value in stored.items() if f"{name})" in body or f"({name}" in body or f" {name}," in body
    }
    return parse(f"g (float[8, 8] x, int64[1, 8] seen) => (float[8, 8] y) {{ {body} }}", used, opset=opset)


def shift_error(source: ModelProto, made: ModelProto, seen: list[int]) -> float:
    feeds = {"x": np.random.default_rng(0).standard_normal((8, 8)).astype(F), "seen": np.array([seen])}
    return apart(StrictSession(source).run(feeds)["y"], StrictSession(made).run(feeds)["y"]).error


def kinds(made: ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in made.graph.node)


@pytest.mark.parametrize("form", SHIFT_FORMS)
def test_rows_that_are_hidden_whole_keep_their_scores(form: str) -> None:
    source = shift_model(SHIFT_FORMS[form])
    made = ampgraph.convert(source, "O3", check="off")
    assert kinds(made)["ReduceMin" if form == "taken away" else "ReduceMax"] == 1
    assert shift_error(source, made, [0] * 8) < 5e-3 and shift_error(source, made, [1, 1, 0, 0, 0, 0, 0, 0]) < 5e-3
    assert shift_error(source, ampgraph.convert(source, "O3", check="off", rewrite="no-mask"), [0] * 8) > 0.02
    assert ampgraph.convert(made, "O3", check="off") == made


@pytest.mark.parametrize(
    "opset, dtype, target", [(17, "float16", "cpu"), (18, "float16", "cuda"), (13, "bfloat16", "cuda")]
)
def test_it_loads(opset: int, dtype: str, target: str) -> None:
    made = ampgraph.convert(
        shift_model(SHIFT_FORMS["added"].replace("-1>", "1>"), opset), "O2", dtype=dtype, target=target, check="off"
    )
    assert kinds(made)["ReduceMax"] == 1
    if target == "cpu" or dtype == "float16":
        ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("form", SHIFT_LEFT)
def test_what_is_left_alone_of_shift(form: str) -> None:
    made = ampgraph.convert(shift_model(SHIFT_LEFT[form]), "O3", check="off")
    assert not kinds(made)["ReduceMax"] and kinds(made)["MatMul"]


@pytest.mark.parametrize("level", ["O0", "O1"])
def test_a_mask_that_is_added_in_float32_stays(level: str) -> None:
    assert not kinds(ampgraph.convert(shift_model(SHIFT_FORMS["added"]), level, check="off"))["ReduceMax"]


@pytest.mark.parametrize("target, count", [("cuda", 0), ("tensorrt", 1)])
def test_where_the_runtime_fuses_attention_behind_a_norm_it_finds_the_mask_as_it_was(target: str, count: int) -> None:
    body = SHIFT_FORMS["added"].replace("y = MatMul (p, x)", "o = MatMul (p, x)  y = LayerNormalization (o, row)")
    made = ampgraph.convert(shift_model(body), "O2", target=target, check="off")
    assert kinds(made)["ReduceMax"] == count


@pytest.mark.filterwarnings("error")
def test_numbers_near_the_end_of_float32_are_compared_without_a_warning():
    made = "c = Cast <to = 1> (seen)  n = Sub (one, c)  m = Mul (n, far)  a = Sub (s, m)"
    stored = {"one": F(1), "far": np.array([1e4] * 7 + [3e38], F)}
    source = parse(f"g (float[8, 8] x, int64[1, 8] seen) => (float[8, 8] y) {{ {SHIFTED}  {made}  {ENDS} }}", stored)
    assert kinds(ampgraph.convert(source, check="off"))["ReduceMax"] == 0
