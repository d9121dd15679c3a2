"""Masks of numbers that no low type holds, before a Softmax."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper

import ampgraph
from ampgraph.numerics.metrics.agreement import compare_outputs
from ampgraph.numerics.strict.session import StrictSession, SwitchedSession, run_strict
from onnx_text import parse
from planner.form_models import attention
from planner.support import decisions

F = np.float32


def test_what_is_said_of_masks() -> None:
    # it is said and can be switched off
    plan = ampgraph.plan(floor_model(FLOOR_FORMS["of an input"]), "O2")
    assert ["-32752" in note.text and "a row that is masked as a whole" in note.text for note in plan.notes] == [True]
    found = decisions(ampgraph.convert(floor_model(FLOOR_FORMS["of an input"]), "O2", rewrite="no-floor", check="off"))
    assert "Mul:f32" in found and "Softmax:f32" in found
    # Whose fusion fails on a low number that makes a mask.
    made = ampgraph.convert(attention(LOWEST), "O2", check="off")
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
    text = f"float[8, 8] x, int64[1, 8] seen, float[1, 8] seen_float) => (float[8, 8] y) {{ {FLOORED} {body} {ENDS} }}"
    return parse(f"g ({text}", known=stored)


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
    error = compare_outputs(StrictSession(source).run(given)["y"], run.run(given)["y"]).error
    assert error < (5e-3 if dtype == "float16" else 3e-2)
    assert np.isfinite(run.run(feeds([0] * 8))["y"]).all()
    assert ampgraph.convert(made, "O2", dtype=dtype, check="off") == made


@pytest.mark.parametrize("form", FLOOR_FORMS)
def test_what_hides_is_no_error(form: str) -> None:
    source, given = floor_model(FLOOR_FORMS[form]), feeds([1, 1, 0, 0, 1, 0, 0, 0])
    low = ampgraph.convert(source, "O2", check="off")
    session, expected = SwitchedSession(source, low), StrictSession(source).run(given)["y"]
    for units in ([], *([unit] for unit in range(len(session.units))), range(len(session.units))):
        assert compare_outputs(expected, session.run(given, units)["y"]).error < 4e-3


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
