"""Casts of the file that do nothing go; no number changes, and converting again changes nothing."""

from __future__ import annotations

import re

import numpy as np
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.numerics.strict.session import run_strict
from onnx_text import parse
from planner.support import converted, kinds

W = np.eye(8, dtype=np.float32)
X = {"x": np.random.default_rng(3).normal(0, 1, (4, 8)).astype(np.float16).astype(np.float32)}
INT32, INT64, FLOAT, BOOL = 6, 7, 1, 9
FAR = np.array([1 << 40, 16])


def model(body: str) -> ModelProto:
    known = {"w": W, "two": np.array([2, 16], np.int32), "zeros": np.zeros((4, 8), np.float32)}
    known |= {"zero": np.array([0]), "last": np.array([1]), "eight": np.array([8])}
    used = {name: array for name, array in known.items() if name in re.findall(r"\w+", body) or name == "w"}
    return parse(f"g (float[4,8] x) => (float[a,b] y) {{ h = MatMul (x, w) {body} }}", used)


SAME = f"s = Shape (x) t = Cast <to = {INT64}> (s) r = Reshape (h, t) y = MatMul (r, w)"
STORED = f"t = Cast <to = {INT64}> (two) r = Reshape (h, t) y = Relu (r)"
BACK = f"""s = Shape (x) t = Cast <to = {INT32}> (s) q = Slice (t, zero, last)
    u = Cast <to = {INT64}> (q) k = Concat <axis = 0> (u, eight) r = Reshape (h, k) y = MatMul (r, w)"""
CASES = {
    "to its own type": (SAME, 1),
    "stored numbers": (STORED, 1),
    "two in a row": (SAME.replace("(s) r", f"(s) u = Cast <to = {INT64}> (t) r").replace("(h, t)", "(h, u)"), 2),
    "sizes there and back": (BACK, 2),
    "twice back": (
        BACK.replace("y =", "p =")
        + f" v = Cast <to = {INT64}> (q) n = Concat <axis = 0> (v, eight) y = Reshape (p, n)",
        3,
    ),
    "bool to bool": (f"g = Greater (h, zeros) m = Cast <to = {BOOL}> (g) z = Where (m, h, zeros) y = MatMul (z, w)", 1),
    "floats": (f"t = Cast <to = {FLOAT}> (h) y = MatMul (t, w)", 1),
}


@pytest.mark.parametrize(("body", "fewer"), CASES.values(), ids=CASES)
def test_they_go(body: str, fewer: int) -> None:
    given = model(body)
    result, kept = converted(given), converted(given, rewrite="no-cast")
    assert kinds(kept).count("Cast") - kinds(result).count("Cast") == fewer
    np.testing.assert_array_equal(run_strict(result, X)["y"], run_strict(kept, X)["y"])
    assert ampgraph.plan(given).rewrites[-1].name == "cast"


@pytest.mark.parametrize(
    "body",
    [
        f"t = Cast <to = {INT32}> (far) y = Add (t, t)",  # what is stored does not fit
        f"t = Cast <to = {INT32}> (n) v = Cast <to = {INT64}> (t) y = Abs (v)",  # nobody knows that it does
        f"s = Shape (h) t = Cast <to = {INT32}> (s) u = Add (t, t) v = Cast <to = {INT64}> (u) y = Abs (v)",  # computed
        f"s = Shape (h) t = Cast <to = {INT32}> (s) v = Cast <to = {INT64}> (t) y = Abs (v) z = Identity (t)",  # read
    ],
)
def test_what_changes_numbers_stays(body: str) -> None:
    kind = "int32" if "y = Add" in body else "int64"
    body += "" if "z =" in body else " z = Identity (i)"
    head = f"g (float[4,8] x, int64[2] n) => (float[4,8] a, {kind}[k] y, int32[m] z)"
    held = {"w": W, "far": FAR, "i": np.array([1], np.int32)}
    used = {name: array for name, array in held.items() if f"({name})" in body or name == "w"}
    given = parse(f"{head} {{ h = MatMul (x, w) a = Relu (h) {body} }}", used)
    assert not [one for one in ampgraph.plan(given).rewrites if one.name == "cast"]
    assert kinds(converted(given)).count("Cast") == kinds(given).count("Cast") + 2


def test_a_border_keeps_its_cast_and_a_model_without_low_nodes_its_bytes() -> None:
    body = f"s = Shape (x) n = Cast <to = {INT64}> (s) y = MatMul (x, w)"
    given = parse(f"g (float[4,8] x) => (int64[k] n, float[4,8] y) {{ {body} }}", {"w": W})
    assert kinds(converted(given)).count("Cast") == 3
    nothing = parse(f"g (int64[4] x) => (int64[4] y) {{ t = Cast <to = {INT64}> (x) y = Add (t, t) }}", {})
    assert ampgraph.convert(nothing).SerializeToString() == nothing.SerializeToString()
