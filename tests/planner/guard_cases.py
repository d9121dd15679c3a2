"""What each guard is for: a graph, inputs, and what removing the guard would break.

Every case is run twice by ``test_guards``: with its guard it must agree with float32, without it must not.
"""

from __future__ import annotations

import numpy as np

from planner.guard_case import ALL, BOTH, HOLDING, LOWEST, POSITIONS, WEIGHT, X4, Case, F, rows
from planner.guard_cases_numbers import DIFFERENCES, FEATURES, OFFSETS, PRODUCTS, RAW, SMALL
from planner.guard_cases_places import BORDERS, INDICES, STORED

Q = np.linspace(-1, 1, 32, dtype=F).reshape(4, 8)
VALUES = np.linspace(0, 1, 32, dtype=F).reshape(4, 8)
HIDDEN = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]], bool)  # the third row sees nothing
ATTENTION = "(float[4,8] q, float[4,8] v, bool[4,4] c) => (float[4,8] y)"
FEEDS = {"q": Q, "v": VALUES, "c": HIDDEN}
SCORES = "k = Transpose <perm = [1, 0]> (q)  s = MatMul (q, k)"

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
        ("mask",),
    ),
]

EPS = [
    Case(
        f"eps before {name}",
        "eps",
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
        "eps",
        "g (float[1,4] x) => (float[1,4] y) { a = Add (x, eps)  y = Log (a) }",
        X4,
        {"eps": F(1e-9)},
        notes=("eps",),
    ),
    Case(
        "x / max(|x|, eps)",
        "eps",
        "g (float[1,4] x) => (float[1,4] y) { n = Abs (x)  m = Max (n, eps)  y = Div (x, m) }",
        X4,
        {"eps": F(1e-12)},
        notes=("eps",),
    ),
    Case(
        "x / clip(|x|, eps)",
        "eps",
        "g (float[1,4] x) => (float[1,4] y) { n = Abs (x)  m = Clip (n, eps)  y = Div (x, m) }",
        X4,
        {"eps": F(1e-12)},
        notes=("eps",),
    ),
    Case(
        "x / clip(|x|, eps), the bound an attribute",
        "eps",
        "g (float[1,4] x) => (float[1,4] y) { n = Abs (x)  m = Clip <min = 1e-12> (n)  y = Div (x, m) }",
        X4,
        opset=10,
        notes=("eps",),
    ),
    Case(
        "l2 normalisation",
        "eps",
        """g (float[1,4] x) => (float[1,4] y) { n = ReduceL2 <axes = [1]> (x)  m = Max (n, eps)  e = Expand (m, shape)
            y = Div (x, e) }""",
        {"x": np.zeros((1, 4), F)},
        {"eps": F(1e-12), "shape": np.array([1, 4])},
        without=(),  # sums of squares have a guard of their own
        notes=("eps",),
    ),
    Case(
        "x / (y + eps) with y = 0",
        "eps",
        "g (float[1,4] x, float[1,4] v) => (float[1,4] y) { a = Add (v, eps)  b = Div (x, a)  y = Mul (b, small) }",
        {"x": rows(0.5, 1, 2, 3), "v": rows(0, 0, 0, 1)},
        {"eps": F(1e-6), "small": F(1e-4)},
        notes=("eps",),
    ),
]

SUMS = [
    Case(
        "Exp into ReduceSum without its maximum",
        "exp-sum",
        "g (float[1,4] x) => (float[1,4] y) { e = Exp (x)  s = ReduceSum (e, axes)  y = Div (e, s) }",
        {"x": rows(12, 11, 1, 0)},
        {"axes": np.array([1])},
        notes=("exp-sum",),
    ),
    Case(
        "log-sum-exp",
        "exp-sum",
        "g (float[1,4] x) => (float[1,1] y) { e = Exp (x)  s = ReduceSum (e, axes)  y = Log (s) }",
        {"x": rows(12, 11, 1, 0)},
        {"axes": np.array([1])},
        notes=("exp-sum",),
    ),
    Case(
        "70,000 ones",
        "long-sum",
        "g (float[1,70000] x) => (float[1,1] y) { y = ReduceSum (x, axes) }",
        {"x": np.ones((1, 70000), F)},
        {"axes": np.array([1])},
        notes=("long-sum",),
    ),
    Case(
        "a count of 300, exactly",
        "long-sum",
        "g (float[1,301] x) => (float[1,1] y) { y = ReduceSum (x, axes) }",
        {"x": np.ones((1, 301), F)},
        {"axes": np.array([1])},
        notes=("long-sum",),
        dtypes=("bfloat16",),
        exact=True,
    ),
    Case(
        "a square and its root",
        "pow",
        "g (float[1,4] x) => (float[1,4] y) { s = Pow (x, two)  y = Sqrt (s) }",
        {"x": rows(300, 400, 1, 2)},
        {"two": F(2)},
        notes=("pow",),
    ),
    Case(
        "a running count, exactly",
        "cumsum",
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
        "pow",
        f"g (float[1,4] x) => (float[1,?] y) {{ {body} }}",
        LARGE,
        {"two": F(2), "small": F(1e-3), "axes": np.array([1]), "matrix": np.eye(4, dtype=F), "row": np.ones((1, 4), F)},
        opset=18,
        notes=("pow",),
    )
    for name, body in (
        (
            "a matrix, as in Mahalanobis",
            "h = MatMul (x, matrix)  s = Mul (h, x)  t = ReduceSum (s, axes)  r = Sqrt (t)  y = MatMul (r, row)",
        ),
        ("Mul", "h = Relu (x)  s = Mul (h, h)  y = Mul (s, small)"),
        ("Pow", "h = Relu (x)  s = Pow (h, two)  y = Mul (s, small)"),
        ("two computations", "h = Add (x, x)  i = Add (x, x)  s = Mul (h, i)  y = Mul (s, small)"),
        ("Mul and a sum", "h = Relu (x)  s = Mul (h, h)  t = ReduceSum (s, axes)  y = Sqrt (t)"),
        ("ReduceSumSquare", "h = Relu (x)  s = ReduceSumSquare (h, axes)  y = Sqrt (s)"),
        ("Mul behind a wide clip", "h = Clip (x, small)  s = Mul (h, h)  y = Mul (s, small)"),
    )
]

FREQUENCIES = (1 / 10000 ** (np.arange(0, 8, 2) / 8)).astype(F)
ANGLES = [
    Case(
        "rotary angles by MatMul",
        "positions",
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
        "positions",
        """g (int64[1,8192] p) => (float[8192,4] y) { f = Cast <to = 1> (p)  r = Reshape (f, column)
            a = Mul (r, freq)  y = Sin (a) }""",
        POSITIONS,
        {"column": np.array([-1, 1]), "freq": FREQUENCIES.reshape(1, 4)},
        notes=("positions",),
        dtypes=("float16", "bfloat16"),
    ),
]

PROBABILITIES = [
    Case(name, "probability", f"g (float[1,4] x) => (float[1,4] y) {{ {body} }}", {"x": rows(*x)}, stored,
         notes=("probability",), dtypes=dtypes)
    for name, body, x, stored, dtypes in (
        ("log(softmax(x))", "p = Softmax (x)  y = Log (p)", (0, -9, -20, -25), {}, ("float16",)),
        ("log(softmax(x)), moved", "p = Softmax (x)  t = Reshape (p, row)  y = Log (t)", (0, -9, -20, -25),
         {"row": np.array([1, 4])}, ("float16",)),
        ("log(p + 1e-12)", "p = Softmax (x)  a = Add (p, eps)  y = Log (a)", (0, -9, -20, -25), {"eps": F(1e-12)},
         ("float16",)),
        ("log(1 - sigmoid(x))", "p = Sigmoid (x)  l = Sub (one, p)  y = Log (l)", (0, 3, 9, 12), {"one": F(1)}, BOTH),
        ("a clip, and 1 - p", "p = Sigmoid (x)  c = Clip (p, low, high)  l = Sub (one, c)  y = Log (l)", (0, 3, 9, 12),
         {"one": F(1), "low": F(1e-7), "high": F(1 - 1e-7)}, BOTH),
    )
]  # fmt: skip

ROUND = "b (int64 i, bool c, float[1,4] h) => (bool d, float[1,4] k) { d = Identity (c)  s = Sigmoid (h)"
RECURRENCES = [
    Case(name, "recurrence", f"g (float[1,4] x) => (float[1,4] y) {{ {body} }}",
         {"x": rows(100, 80, 50, 40)},
         {"n": np.array(1000), "small": F(0.01), "z": F(0.9996), "rounds": np.zeros((1000, 1), F)},
         notes=("recurrence",), dtypes=BOTH)
    for name, body in (
        ("a sum of a Loop", f"y = Loop (n, , x) <body = {ROUND}  t = Mul (s, small)  k = Add (h, t) }}>"),
        ("n + z (h - n)", f"y = Loop (n, , x) <body = {ROUND}  t = Sub (h, s)  u = Mul (t, z)  k = Add (u, s) }}>"),
        ("a sum of a Scan", """y, o = Scan <num_scan_inputs = 1, body = b (float[1,4] h, float[1] r)
            => (float[1,4] k, float[1] p) { s = Sigmoid (h)  t = Mul (s, small)  u = Add (t, r)  k = Sub (h, u)
            p = Identity (r) }> (x, rounds)"""),
    )
]  # fmt: skip

CASES = [
    *(*MASKS, *EPS, *PROBABILITIES, *RECURRENCES, *SUMS, *SQUARES, *ANGLES, *INDICES, *BORDERS, *STORED),
    *(*RAW, *DIFFERENCES, *FEATURES, *OFFSETS, *PRODUCTS, *SMALL),
]
