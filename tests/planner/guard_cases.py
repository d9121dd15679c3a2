"""What each guard is for: a graph, inputs, and what removing the guard would break.

Every case is run twice by ``test_guards``: with its guard it must agree with float32, without it must not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

F = np.float32
LOWEST = float(np.finfo(np.float32).min)
ALL = ("O1", "O2", "O3", "auto")
HOLDING = ("O1", "O2", "auto")  # the levels at which accuracy guards hold


@dataclass(frozen=True)
class Case:
    """``guard`` does it, ``without`` it shows at these levels; ``notes`` are the topics that the plan reports.
    ``exact``: not one element may differ."""

    name: str
    guard: str
    graph: str
    feeds: Mapping[str, Any]
    weights: Mapping[str, Any] = field(default_factory=dict)
    levels: tuple[str, ...] = HOLDING
    without: tuple[str, ...] = ("O2",)
    notes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float16",)
    opset: int = 17
    exact: bool = False


def rows(*values: float) -> np.ndarray:
    return np.array([values], F)


Q = np.linspace(-1, 1, 32, dtype=F).reshape(4, 8)
VALUES = np.linspace(0, 1, 32, dtype=F).reshape(4, 8)
HIDDEN = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]], bool)  # the third row sees nothing
ATTENTION = "(float[4,8] q, float[4,8] v, bool[4,4] c) => (float[4,8] y)"
FEEDS = {"q": Q, "v": VALUES, "c": HIDDEN}
SCORES = "k = Transpose <perm = [1, 0]> (q)  s = MatMul (q, k)"
WEIGHT = "guard_weights"

MASKS = [
    Case(
        "a mask by Where",
        WEIGHT,
        f"g {ATTENTION} {{ {SCORES} m = Where (c, zero, lowest)  a = Add (s, m)  p = Softmax (a)  y = MatMul (p, v) }}",
        FEEDS,
        {"zero": F(0), "lowest": F(LOWEST)},
        ALL,
        ("O2", "O3"),
        ("mask",),
    ),
    Case(
        "a mask by Unsqueeze, Expand and Trilu",
        WEIGHT,
        f"""g {ATTENTION} {{ {SCORES} u = Unsqueeze (lowest, axis)  e = Expand (u, shape)
            t = Trilu <upper = 1> (e, one)  w = Where (c, t, lowest2)
            a = Add (s, w)  p = Softmax (a)  y = MatMul (p, v) }}""",
        FEEDS,
        {
            "lowest": np.full(4, LOWEST, F),
            "lowest2": F(LOWEST),
            "axis": np.array([0]),
            "shape": np.array([4, 4]),
            "one": np.array(1),
        },
        ALL,
        ("O2", "O3"),
        ("mask",),
    ),
    Case(
        "two masks added, from one constant",
        WEIGHT,
        f"""g {ATTENTION} {{ {SCORES} m = Where (c, zero, lowest)  n = Where (c, zero, lowest)  b = Add (m, n)
            d = Sub (s, forty)  a = Add (d, b)  p = Softmax (a)  y = MatMul (p, v) }}""",
        FEEDS,
        {"zero": F(0), "lowest": F(LOWEST / 4), "forty": F(40)},
        ALL,
        ("O2", "O3"),
        ("mask",),
    ),
    Case(
        "a mask by Mul is no mask to floor",
        WEIGHT,
        f"""g (float[4,8] q, float[4,8] v, float[4,4] f) => (float[4,8] y) {{ {SCORES} n = Sub (one, f)
            m = Mul (n, lowest)  a = Add (s, m)  p = Softmax (a)  y = MatMul (p, v) }}""",
        {"q": Q, "v": VALUES, "f": HIDDEN.astype(F)},
        {"one": F(1), "lowest": F(LOWEST)},
        ALL,
        ("O2", "O3"),
        ("weight",),
    ),
    Case(
        "a mask filled by ConstantOfShape",
        WEIGHT,
        f"""g {ATTENTION} {{ {SCORES} e = ConstantOfShape <value = float[1] {{-3e38}}> (shape)  m = Where (c, zero, e)
            a = Add (s, m)  p = Softmax (a)  y = MatMul (p, v) }}""",
        FEEDS,
        {"zero": F(0), "shape": np.array([4, 4])},
        ALL,
        ("O2", "O3"),
        ("weight",),
    ),
]

X4 = {"x": rows(0.0, 0.0, 1e-3, 2.0)}
EPS = [
    Case(
        f"eps before {name}",
        "_eps",
        f"g (float[1,4] x, float[1,4] v) => (float[1,4] y) {{ a = Add (v, eps)  {body} }}",
        {**X4, "v": rows(0, 0, 1e-9, 1)},
        {"eps": F(1e-12), "one": F(1), "minus": F(-0.5)},
        without=() if "Pow" in name else ("O2",),  # Pow has a guard of its own
        notes=("eps",),
    )
    for name, body in (
        ("Sqrt and Div", "r = Sqrt (a)  y = Div (x, r)"),
        ("Sqrt, Reciprocal and Mul", "r = Sqrt (a)  i = Reciprocal (r)  y = Mul (x, i)"),
        ("Sqrt, 1 / and Mul", "r = Sqrt (a)  i = Div (one, r)  y = Mul (x, i)"),
        ("Pow -0.5", "i = Pow (a, minus)  y = Mul (x, i)"),
        ("Div", "y = Div (x, a)"),
        ("Reciprocal", "i = Reciprocal (a)  y = Mul (x, i)"),
    )
]
EPS += [
    Case(
        "log(x + 1e-9)",
        "_eps",
        "g (float[1,4] x) => (float[1,4] y) { a = Add (x, eps)  y = Log (a) }",
        X4,
        {"eps": F(1e-9)},
        notes=("eps",),
    ),
    Case(
        "x / max(|x|, eps)",
        "_eps",
        "g (float[1,4] x) => (float[1,4] y) { n = Abs (x)  m = Max (n, eps)  y = Div (x, m) }",
        X4,
        {"eps": F(1e-12)},
        notes=("eps",),
    ),
    Case(
        "x / clip(|x|, eps)",
        "_eps",
        "g (float[1,4] x) => (float[1,4] y) { n = Abs (x)  m = Clip (n, eps)  y = Div (x, m) }",
        X4,
        {"eps": F(1e-12)},
        notes=("eps",),
    ),
    Case(
        "x / clip(|x|, eps), the bound an attribute",
        "_eps",
        "g (float[1,4] x) => (float[1,4] y) { n = Abs (x)  m = Clip <min = 1e-12> (n)  y = Div (x, m) }",
        X4,
        opset=10,
        notes=("eps",),
    ),
    Case(
        "l2 normalisation",
        "_eps",
        """g (float[1,4] x) => (float[1,4] y) { n = ReduceL2 <axes = [1]> (x)  m = Max (n, eps)  e = Expand (m, shape)
            y = Div (x, e) }""",
        {"x": np.zeros((1, 4), F)},
        {"eps": F(1e-12), "shape": np.array([1, 4])},
        without=(),  # sums of squares have a guard of their own
        notes=("eps",),
    ),
    Case(
        "x / (y + eps) with y = 0",
        "_eps",
        "g (float[1,4] x, float[1,4] v) => (float[1,4] y) { a = Add (v, eps)  b = Div (x, a)  y = Mul (b, small) }",
        {"x": rows(0.5, 1, 2, 3), "v": rows(0, 0, 0, 1)},
        {"eps": F(1e-6), "small": F(1e-4)},
        notes=("eps",),
    ),
]

SUMS = [
    Case(
        "Exp into ReduceSum without its maximum",
        "_exp_sum",
        "g (float[1,4] x) => (float[1,4] y) { e = Exp (x)  s = ReduceSum (e, axes)  y = Div (e, s) }",
        {"x": rows(12, 11, 1, 0)},
        {"axes": np.array([1])},
        notes=("exp-sum",),
    ),
    Case(
        "log-sum-exp",
        "_exp_sum",
        "g (float[1,4] x) => (float[1,1] y) { e = Exp (x)  s = ReduceSum (e, axes)  y = Log (s) }",
        {"x": rows(12, 11, 1, 0)},
        {"axes": np.array([1])},
        notes=("exp-sum",),
    ),
    Case(
        "70,000 ones",
        "_long_sum",
        "g (float[1,70000] x) => (float[1,1] y) { y = ReduceSum (x, axes) }",
        {"x": np.ones((1, 70000), F)},
        {"axes": np.array([1])},
        notes=("long-sum",),
    ),
    Case(
        "a count of 300, exactly",
        "_long_sum",
        "g (float[1,301] x) => (float[1,1] y) { y = ReduceSum (x, axes) }",
        {"x": np.ones((1, 301), F)},
        {"axes": np.array([1])},
        notes=("long-sum",),
        dtypes=("bfloat16",),
        exact=True,
    ),
    Case(
        "a square and its root",
        "_square",
        "g (float[1,4] x) => (float[1,4] y) { s = Pow (x, two)  y = Sqrt (s) }",
        {"x": rows(300, 400, 1, 2)},
        {"two": F(2)},
        notes=("pow",),
    ),
    Case(
        "a running count, exactly",
        "_prefix_sum",
        "g (float[1,5000] x) => (float[1,5000] y) { y = CumSum (x, axis) }",
        {"x": np.ones((1, 5000), F)},
        {"axis": np.array(1)},
        notes=("cumsum",),
        exact=True,
    ),
]

LARGE = {"x": rows(300, 400, 1, 2)}
SQUARES = [
    Case(
        f"a square by {name}",
        "_square",
        f"g (float[1,4] x) => (float[1,?] y) {{ {body} }}",
        LARGE,
        {"two": F(2), "small": F(1e-3), "axes": np.array([1])},
        opset=18,
        notes=("pow",),
    )
    for name, body in (
        ("Mul", "h = Relu (x)  s = Mul (h, h)  y = Mul (s, small)"),
        ("Pow", "h = Relu (x)  s = Pow (h, two)  y = Mul (s, small)"),
        ("two computations", "h = Add (x, x)  i = Add (x, x)  s = Mul (h, i)  y = Mul (s, small)"),
        ("Mul and a sum", "h = Relu (x)  s = Mul (h, h)  t = ReduceSum (s, axes)  y = Sqrt (t)"),
        ("ReduceSumSquare", "h = Relu (x)  s = ReduceSumSquare (h, axes)  y = Sqrt (s)"),
        ("Mul behind a wide clip", "h = Clip (x, small)  s = Mul (h, h)  y = Mul (s, small)"),
    )
]

POSITIONS = {"p": np.arange(8192, dtype=np.int64).reshape(1, 8192)}
FREQUENCIES = (1 / 10000 ** (np.arange(0, 8, 2) / 8)).astype(F)
ANGLES = [
    Case(
        "rotary angles by MatMul",
        "_positions",
        """g (int64[1,8192] p) => (float[1,8192,8] y) { i = Unsqueeze (p, one)  f = Cast <to = 1> (i)
            a = MatMul (freq, f)  t = Transpose <perm = [0, 2, 1]> (a)  d = Concat <axis = -1> (t, t)  y = Cos (d) }""",
        POSITIONS,
        {"one": np.array([1]), "freq": FREQUENCIES.reshape(1, 4, 1)},
        without=HOLDING,
        notes=("positions",),
        dtypes=("float16", "bfloat16"),
    ),
    Case(
        "sinusoidal angles by Mul",
        "_positions",
        """g (int64[1,8192] p) => (float[8192,4] y) { f = Cast <to = 1> (p)  r = Reshape (f, column)
            a = Mul (r, freq)  y = Sin (a) }""",
        POSITIONS,
        {"column": np.array([-1, 1]), "freq": FREQUENCIES.reshape(1, 4)},
        notes=("positions",),
        dtypes=("float16", "bfloat16"),
    ),
]

INDEX = "guard_indices"
BOTH = ("float16", "bfloat16")
INDICES = [
    Case(
        "half a length",
        INDEX,
        """g (int64[2] n) => (int64[2] y) {
            f = Cast <to = 1> (n)  h = Div (f, two)  d = Floor (h)  y = Cast <to = 7> (d) }""",
        {"n": np.array([8191, 4099])},
        {"two": F(2)},
        ALL,
        ("O2", "O3"),
        ("index",),
        BOTH,
        exact=True,
    ),
    Case(
        "scales of Resize",
        INDEX,
        """g (float[1,1,2,1000] x, int64[1] n) => (float[?] s) { f = Cast <to = 1> (n)  q = Div (f, width)
            t = Concat <axis = 0> (ones, q)  r = Resize <mode = "nearest"> (x, , t)  s = Reshape (r, flat) }""",
        {"x": np.arange(2000, dtype=F).reshape(1, 1, 2, 1000) % 7, "n": np.array([1234])},
        {"width": rows(1000)[0], "ones": rows(1, 1, 1)[0], "flat": np.array([-1])},
        ALL,
        ("O2", "O3"),
        ("index",),
        BOTH,
        exact=True,
    ),
    Case(
        "the end of a Range",
        INDEX,
        """g (int64 n) => (float[?] y) { f = Cast <to = 1> (n)  h = Mul (f, half)  y = Range (zero, h, one) }""",
        {"n": np.array(8190)},
        {"half": F(0.5), "zero": F(0), "one": F(1)},
        ALL,
        ("O2", "O3"),
        ("index",),
        BOTH,
        exact=True,
    ),
    Case(
        "one-hot by equality",
        INDEX,
        """g (int64[3] i) => (float[3,2] y) { f = Cast <to = 1> (i)  c = Unsqueeze (f, last)  e = Equal (c, ids)
            o = Cast <to = 1> (e)  y = MatMul (o, table) }""",
        {"i": np.array([4999, 4097, 300])},
        {
            "last": np.array([1]),
            "ids": np.arange(5000, dtype=F)[None],
            "table": (np.arange(10000, dtype=F) % 64).reshape(5000, 2),
        },
        ALL,
        ("O2", "O3"),
        ("index",),
        exact=True,
    ),
]

BORDERS = [
    Case(
        "half a length, in a branch",
        INDEX,
        """g (int64[2] n, bool c) => (int64[2] y) { f = Cast <to = 1> (n)  h = If (c) <
                then_branch = t () => (float[2] p) { p = Div (f, two) },
                else_branch = e () => (float[2] r) { r = Mul (f, two) }
            >  d = Floor (h)  y = Cast <to = 7> (d) }""",
        {"n": np.array([8191, 4099]), "c": np.array(True)},
        {"two": F(2)},
        ALL,
        ("O2", "O3"),
        ("index",),
        BOTH,
        exact=True,
    ),
    Case(
        "half a length, in functions",
        INDEX,
        """g (int64[2] n) => (int64[2] y) { f = Cast <to = 1> (n)  h = local.Half (f)  y = local.Down (h) }
        <domain: "local", opset_import: ["" : 17]>
        Half (a) => (b) { two = Constant <value = float {2.0}> ()  b = Div (a, two) }
        <domain: "local", opset_import: ["" : 17]>
        Down (a) => (b) { c = Floor (a)  b = Cast <to = 7> (c) }""",
        {"n": np.array([8191, 4099])},
        {},
        ALL,
        ("O2", "O3"),
        ("index",),
        BOTH,
        exact=True,
    ),
    Case(
        "a length halved by a loop",
        INDEX,
        """g (int64[2] n, int64 k, bool c) => (int64[2] y) { f = Cast <to = 1> (n)  h = Loop (k, c, f) <
                body = b (int64 i, bool on, float[2] s) => (bool more, float[2] t) {
                    more = Identity (on)  t = Div (s, two) }
            >  d = Floor (h)  y = Cast <to = 7> (d) }""",
        {"n": np.array([8191, 4099]), "k": np.array(1), "c": np.array(True)},
        {"two": F(2)},
        ALL,
        ("O2", "O3"),
        ("index",),
        BOTH,
        exact=True,
    ),
    Case(
        "one-hot by equality of ids from a branch",
        INDEX,
        """g (int64[3] i, bool k) => (float[3,2] y) { f = If (k) <
                then_branch = t () => (float[3] p) { p = Cast <to = 1> (i) },
                else_branch = e () => (float[3] r) { r = Cast <to = 1> (i) }
            >  c = Unsqueeze (f, last)  n = Equal (c, ids)  o = Cast <to = 1> (n)  y = MatMul (o, table) }""",
        {"i": np.array([4999, 4097, 300]), "k": np.array(True)},
        {
            "last": np.array([1]),
            "ids": np.arange(5000, dtype=F)[None],
            "table": (np.arange(10000, dtype=F) % 64).reshape(5000, 2),
        },
        ALL,
        ("O2", "O3"),
        ("index",),
        exact=True,
    ),
    Case(
        "angles from a branch",
        "_positions",
        """g (int64[1,8192] p, bool c) => (float[1,8192] y) { f = Cast <to = 1> (p)  h = If (c) <
                then_branch = t () => (float[1,8192] q) { q = Mul (f, slow) },
                else_branch = e () => (float[1,8192] r) { r = Identity (f) }
            >  y = Sin (h) }""",
        {**POSITIONS, "c": np.array(True)},
        {"slow": F(0.7)},
        notes=("positions",),
    ),
    Case(
        "a value beyond the range from a branch",
        WEIGHT,
        """g (float[1,4] x, bool c) => (float[1,4] y) { h = If (c) <
                then_branch = t () => (float[1,4] q) { q = Mul (x, w) },
                else_branch = e () => (float[1,4] r) { r = Identity (x) }
            >  y = Mul (h, small) }""",
        {"x": rows(1, 1, 1, 1), "c": np.array(True)},
        {"w": rows(1e5, 7e4, 1e6, 1), "small": F(1e-3)},
        ALL,
        ("O2", "O3"),
        ("weight",),
    ),
]

STORED = [
    Case(
        "a weight beyond the range",
        WEIGHT,
        "g (float[1,4] x) => (float[1,4] y) { m = Mul (x, w)  y = Mul (m, small) }",
        X4,
        {"w": rows(1e5, 7e4, 1e6, 1), "small": F(1e-3)},
        ALL,
        ("O2", "O3"),
        ("weight",),
    ),
    Case(
        "a weight that flushes to zero",
        WEIGHT,
        "g (float[1,4] x) => (float[1,4] y) { y = MatMul (x, w) }",
        {"x": rows(1e4, 2e4, 3e4, 4e4)},
        {"w": np.full((4, 4), 1e-8, F)},
        ALL,
        ("O1", "O2", "O3", "auto"),
        ("weight",),
    ),
    Case(
        "a fill beyond the range",
        WEIGHT,
        """g (float[1,4] x) => (float[1,4] y) { f = ConstantOfShape <value = float[1] {100000}> (shape)  m = Mul (x, f)
            y = Mul (m, small) }""",
        X4,
        {"shape": np.array([1, 4]), "small": F(1e-3)},
        ALL,
        ("O2", "O3"),
        ("weight",),
    ),
]

CASES = [*MASKS, *EPS, *SUMS, *SQUARES, *ANGLES, *INDICES, *BORDERS, *STORED]
