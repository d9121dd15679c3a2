"""Cases of guards that go by what is computed: the model's inputs as they come, and sums of products that cancel."""

from __future__ import annotations

import numpy as np

from planner.guard_case import Case, F

NUMBERS = np.random.default_rng(7).standard_normal((8, 16)).astype(F)
SPREAD = np.linspace(0.5, 8, 16, dtype=F)
CENTRE = np.linspace(500, 1500, 16, dtype=F)
TABLE = {"x": CENTRE + SPREAD * NUMBERS}
SERIES = {"x": np.cumsum(NUMBERS, axis=1, dtype=F) + F(1000)}
SCALE = {
    "mu": CENTRE,
    "sd": SPREAD,
    "s": 1 / SPREAD,
    "t": -CENTRE / SPREAD,
    "va": SPREAD**2,
    "ones": np.ones(16, F),
    "none": np.zeros(16, F),
    "w": np.random.default_rng(8).standard_normal((16, 16)).astype(F) / F(4),
    "one": F(1),
    "eps": F(1e-6),
    "axis": np.array([1]),
    "first": np.array([0]),
    "second": np.array([1]),
    "last": np.array([15]),
    "end": np.array([16]),
}
IN_OUT = "(float[8,16] x) => (float[8,?] y)"

RAW = [
    Case(f"an input {name}", "raw", f"g {IN_OUT} {{ {body} }}", feeds, SCALE, notes=("raw",))
    for name, body, feeds in (
        ("less its mean, over its deviation", "d = Sub (x, mu)  z = Div (d, sd)  y = MatMul (z, w)", TABLE),
        ("scaled and shifted", "d = Mul (x, s)  z = Add (d, t)  y = MatMul (z, w)", TABLE),
        ("through BatchNormalization", "z = BatchNormalization (x, ones, none, mu, va)  y = MatMul (z, w)", TABLE),
        (
            "between its extremes",
            """l = ReduceMin <axes = [1]> (x)  h = ReduceMax <axes = [1]> (x)  d = Sub (x, l)  r = Sub (h, l)
            e = Add (r, eps)  z = Div (d, e)  y = MatMul (z, w)""",
            SERIES,
        ),
        ("less its last value", "l = Slice (x, last, end, axis)  d = Sub (x, l)  y = MatMul (d, w)", SERIES),
        (
            "as differences",
            """a = Slice (x, second, end, axis)  b = Slice (x, first, last, axis)  d = Sub (a, b)
            l = Slice (d, first, second, axis)  z = Concat <axis = 1> (d, l)  y = MatMul (z, w)""",
            SERIES,
        ),
        (
            "beyond the range, in a logarithm",
            "p = Add (x, one)  l = Log (p)  y = MatMul (l, w)",
            {"x": np.exp(NUMBERS * F(2) + F(11))},
        ),
        (
            "in a branch",
            """k = ReduceMax <keepdims = 0> (x)  c = Greater (k, one)  z = If (c) <
                then_branch = a () => (float[8,16] p) { d = Sub (x, mu)  p = Div (d, sd) },
                else_branch = b () => (float[8,16] q) { q = Div (x, sd) }
            >  y = MatMul (z, w)""",
            TABLE,
        ),
    )
]

RAW.append(
    Case(
        "an input in float64",
        "raw",
        """g (double[8,16] x) => (float[8,16] y) { f = Cast <to = 1> (x)  d = Sub (f, mu)  z = Div (d, sd)
            y = MatMul (z, w) }""",
        {"x": TABLE["x"].astype(np.float64)},
        SCALE,
        notes=("raw",),
    )
)

CODES = np.random.default_rng(10).standard_normal((32, 16)).astype(F)
NEAR = {"x": CODES[:8] + NUMBERS * F(0.02)}
FAR = {"x": NUMBERS * F(0.5) + F(30)}
WINDOW = {
    "box": np.full((1, 1, 4), 0.25, F),
    "codes": CODES.T.copy(),
    "norms": (CODES**2).sum(axis=1)[None],
    "minus": F(-2),
    "two": F(2),
    "w": SCALE["w"],
    "w1": np.ones((13, 4), F) * np.linspace(-1, 1, 13, dtype=F)[:, None],
    "flip": np.eye(16, dtype=F)[::-1].copy(),
    "wide": np.array([8, 1, 16]),
    "flat": np.array([8, 13]),
    "axis": np.array([1]),
    "first": np.array([0]),
    "eps": F(1e-5),
    "score": np.zeros((16, 1), F) + F(0.01),
    "precision": np.linspace(0.5, 2, 16, dtype=F)[:, None] * np.ones((1, 32), F),
    "weighed": np.linspace(0.5, 2, 16, dtype=F)[:, None] * CODES.T * F(-2),
    "centres": (np.linspace(0.5, 2, 16, dtype=F) * CODES**2).sum(axis=1)[None],
}
HIDDEN = "h = MatMul (x, flip)"
BEHIND = "f = Reshape (v, flat)  y = MatMul (f, w1)"
POOL = "<kernel_shape = [4]>"
MOMENTS = f"{HIDDEN}  i = Reshape (h, wide)"
SQUARED = "s = Mul (x, x)  n = ReduceSum <keepdims = 1> (s, axis)"
DIFFERENCES = [
    Case(f"{name}", "cancelling", f"g {IN_OUT} {{ {body} }}", feeds, WINDOW, notes=("cancelling",))
    for name, body, feeds in (
        (
            "a variance by pools",
            f"{MOMENTS}  m = AveragePool {POOL} (i)  q = Mul (i, i)  e = AveragePool {POOL} (q)  p = Mul (m, m)"
            f"  v = Sub (e, p)  {BEHIND}",
            FAR,
        ),
        (
            "a variance by a window",
            f"{MOMENTS}  m = Conv (i, box)  q = Pow (i, two)  e = Conv (q, box)  p = Pow (m, two)"
            f"  v = Sub (e, p)  {BEHIND}",
            FAR,
        ),
        (
            "a covariance",
            f"""{MOMENTS}  j0 = MatMul (x, flip)  j1 = Relu (j0)  j = Reshape (j1, wide)  m = AveragePool {POOL} (i)
            k = AveragePool {POOL} (j)  q = Mul (i, j)  e = AveragePool {POOL} (q)  p = Mul (m, k)
            v = Sub (e, p)  {BEHIND}""",
            FAR,
        ),
        (
            "a weighted variance",
            f"""{HIDDEN}  c = MatMul (h, score)  a = Softmax <axis = 0> (c)  b = Mul (a, h)  q = Mul (h, h)
            r = Mul (a, q)  m = ReduceSum <keepdims = 1> (b, first)  e = ReduceSum <keepdims = 1> (r, first)
            p = Mul (m, m)
            v = Sub (e, p)  u = Add (v, eps)  o = Sqrt (u)  t = Mul (o, h)  y = MatMul (t, w)""",
            FAR,
        ),
        (
            "distances to a table",
            f"{SQUARED}  c = MatMul (x, codes)  t = Mul (c, two)  d = Sub (n, t)  v = Add (d, norms)"
            "  y = ReduceMin <axes = [1]> (v)",
            NEAR,
        ),
        (
            "distances to a table of a doubled input",
            f"{SQUARED}  t = Mul (two, x)  c = MatMul (t, codes)  d = Sub (n, c)  v = Add (d, norms)"
            "  y = ReduceMin <axes = [1]> (v)",
            NEAR,
        ),
        (
            "distances with a weight for each feature",
            "s = Mul (x, x)  q = MatMul (s, precision)  c = MatMul (x, weighed)  d = Add (centres, c)  v = Add (d, q)"
            "  y = ReduceMin <axes = [1]> (v)",
            NEAR,
        ),
        (
            "distances between rows",
            f"""{SQUARED}  xt = Transpose <perm = [1, 0]> (x)  c = MatMul (x, xt)  t = Mul (c, minus)
            nt = Transpose <perm = [1, 0]> (n)  d = Add (n, t)  y = Add (d, nt)""",
            FAR,
        ),
    )
]

FREQUENCIES = {
    "f": np.random.default_rng(11).standard_normal((16, 16)).astype(F) * F(10),
    "b": np.linspace(0, 3, 16, dtype=F),
    "turn": F(2 * np.pi),
    "steps": np.geomspace(1, 1e-3, 16, dtype=F)[None],
    "quarter": F(0.25),
    "first": np.array([0]),
    "second": np.array([1]),
    "axis": np.array([1]),
    "w": SCALE["w"],
}
FEATURES = [
    Case(f"angles of {name}", "positions", f"g {IN_OUT} {{ {body} }}", feeds, FREQUENCIES, notes=("positions",))
    for name, body, feeds in (
        (
            "an input's projection",
            "p = MatMul (x, f)  a = Mul (p, turn)  s = Sin (a)  y = MatMul (s, w)",
            {"x": NUMBERS},
        ),
        (
            "a projection with its bias",
            "p = MatMul (x, f)  q = Add (p, b)  s = Sin (q)  y = MatMul (s, w)",
            {"x": NUMBERS},
        ),
        (
            "a time",
            "t = Slice (x, first, second, axis)  a = MatMul (t, steps)  s = Cos (a)  y = MatMul (s, w)",
            {"x": np.abs(NUMBERS) * F(500)},
        ),
        (
            "a logarithm",
            """t = Slice (x, first, second, axis)  l = Log (t)  q = Mul (l, quarter)  r = Mul (b, turn)
            u = Unsqueeze (r, first)  a = MatMul (q, u)  e = Mul (a, turn)  s = Cos (e)  y = MatMul (s, w)""",
            {"x": np.exp(NUMBERS * F(3))},
        ),
    )
]

SCORES = "(float[40,16] x, int64[1,40] m) => (float[40,16] y)"
AWAY = {"x": np.tile(NUMBERS, (5, 1)), "m": np.array([[1000] + 39 * [1]])}
OFFSETS = [
    Case(
        f"scores with {name}",
        "positions",
        f"g {SCORES} {{ q = MatMul (x, w)  t = Transpose <perm = [1, 0]> (x)  s = MatMul (q, t)  {body} }}",
        AWAY,
        {"axis": np.array(1), "slope": F(0.75), "w": SCALE["w"], "far": np.arange(40, dtype=F)[None] + F(1000)},
        notes=("positions",),
    )
    for name, body in (
        (
            "counted positions",
            """c = CumSum (m, axis)  f = Cast <to = 1> (c)  p = Mul (f, slope)  a = Add (s, p)  b = Softmax (a)
            y = MatMul (b, x)""",
        ),
        ("stored positions", "k = Cast <to = 1> (m)  a = Add (s, far)  b = Softmax (a)  y = MatMul (b, x)"),
    )
]

SMALL = [
    Case(
        f"a factor of a millionth {name}",
        "tiny",
        f"g {IN_OUT} {{ h = MatMul (x, w)  {body}  y = MatMul (z, w) }}",
        {"x": NUMBERS},
        {"w": SCALE["w"], "millionth": F(1e-6), "million": F(1e6), "thousandth": F(1e-3), "thousand": F(1e3)},
        notes=notes,
    )
    for name, body, notes in (
        ("undone by a product", "s = Mul (h, millionth)  r = Relu (s)  z = Mul (r, million)", ("tiny", "weight")),
        ("undone by a quotient", "s = Mul (millionth, h)  r = LeakyRelu (s)  z = Div (r, millionth)", ("tiny",)),
        (
            "in two steps",
            """a = Mul (h, thousandth)  t = Transpose <perm = [1, 0]> (a)  b = Div (t, thousand)  r = Relu (b)
            c = Mul (r, thousand)  d = Mul (c, thousand)  z = Transpose <perm = [1, 0]> (d)""",
            ("tiny",),
        ),
    )
]

TWINS = {"x": NUMBERS, "z": NUMBERS + F(0.1) * np.random.default_rng(12).standard_normal((8, 16)).astype(F)}
DIFFERENCES += [
    Case(
        f"one less a cosine {name}",
        "cancelling",
        f"""g (float[8,16] x, float[8,16] z) => (float[8,?] y) {{ a = MatMul (x, w)  b = MatMul (z, w)  p = Mul (a, b)
            d = ReduceSum <keepdims = 1> (p, second)  {body}  y = MatMul (u, row) }}""",
        TWINS,
        {**SCALE, "row": np.array([[1, 2, 3, 4]], F)},
        notes=("cancelling", *notes),
    )
    for name, body, notes in (
        (
            "over norms",
            """n = ReduceL2 <axes = [1]> (a)  m = ReduceL2 <axes = [1]> (b)  k = Mul (n, m)  e = Max (k, eps)
            c = Div (d, e)  u = Sub (one, c)""",
            (),
        ),
        (
            "over the root, negated",
            """q = Mul (a, a)  r = Mul (b, b)  n = ReduceSum <keepdims = 1> (q, second)
            m = ReduceSum <keepdims = 1> (r, second)  k = Mul (n, m)  e = Max (k, eps)  f = Sqrt (e)  c = Div (d, f)
            u = Sub (c, one)""",
            (),
        ),
    )
]

COVARIANCES = np.eye(16, dtype=F) + F(0.5)
DIFFERENCES.append(
    Case(
        "a number less a quadratic form",
        "cancelling",
        """g (float[8,16] x) => (float[8] y) { k = Sigmoid (x)  m = MatMul (k, inverse)  q = Mul (m, k)
            s = ReduceSum <keepdims = 0> (q, second)  y = Sub (prior, s) }""",
        {"x": NUMBERS * F(0.02) + F(2)},
        {"inverse": np.linalg.inv(COVARIANCES).astype(F) * F(64), "second": np.array([1]), "prior": F(88.6)},
        notes=("cancelling",),
    )
)
PRODUCTS = [
    Case(
        "a product of all elements",
        "pow",
        "g (float[8,16] x) => (float[8,16] y) { h = MatMul (x, w)  p = ReduceProd <axes = [1]> (h)  l = Log (p)"
        "  s = Mul (h, l)  y = MatMul (s, w) }",
        {"x": np.abs(NUMBERS) * F(8)},
        {"w": np.abs(np.asarray(SCALE["w"]))},
        notes=("pow",),
    )
]
PRODUCTS += [
    Case(
        f"a divisive norm {name}",
        "pow",
        f"g {IN_OUT} {{ h = MatMul (x, w)  {body}  y = MatMul (z, w) }}",
        {"x": NUMBERS * F(300)},
        {"w": SCALE["w"], "gains": np.eye(16, dtype=F) + F(0.1), "ones": SCALE["ones"], "half": F(-0.5)},
        notes=("pow",),
    )
    for name, body in (
        ("over a root", "s = Mul (h, h)  c = MatMul (s, gains)  a = Add (c, ones)  r = Sqrt (a)  z = Div (h, r)"),
        ("by a power", "s = Mul (h, h)  c = MatMul (s, gains)  a = Add (c, ones)  r = Pow (a, half)  z = Mul (h, r)"),
    )
]
