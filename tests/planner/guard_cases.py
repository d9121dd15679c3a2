"""What each rule is for: a graph, inputs, and what switching the rule off would break.

Every case is run twice by ``test_guards``: with its rule it must agree with float32, without it must not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

F = np.float32
LOWEST = float(np.finfo(np.float32).min)
ALL = ("O1", "O2", "O3", "auto")
HOLDING = ("O1", "O2", "auto")  # the levels at which accuracy guards hold


@dataclass(frozen=True)
class Case:
    """``guard`` does it, ``without`` it shows at these levels; ``notes``: topics that the plan reports, its own if none
    are given. ``exact``: not one element may differ."""

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


Held = partial(Case, levels=ALL, without=("O2", "O3"))  # by a rule of validity
WEIGHT = "weight"
X4 = {"x": rows(0.0, 0.0, 1e-3, 2.0)}
POSITIONS = {"p": np.arange(8192, dtype=np.int64).reshape(1, 8192)}
BOTH = ("float16", "bfloat16")


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
    Case(f"an input {name}", "raw", f"g {IN_OUT} {{ {body} }}", feeds, SCALE)
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

SQUASH = Case(
    "the squares of a norm, which others read too",
    "pow",
    """g (float[4,8] x) => (float[4,8] y) {
        c = MatMul (x, w)  q = Pow (c, two)  n = ReduceSum <keepdims = 1> (q, second)  r = Sqrt (n)
        d = Div (c, r)  e = Add (n, one)  k = Div (n, e)  z = Mul (k, d)  y = MatMul (z, w) }""",
    {"x": np.random.default_rng(2).normal(0, 500, (4, 8)).astype(F)},
    {**SCALE, "w": np.eye(8, dtype=F), "two": F(2)},
)

RAW.append(
    Case(
        "an input in float64",
        "raw",
        """g (double[8,16] x) => (float[8,16] y) { f = Cast <to = 1> (x)  d = Sub (f, mu)  z = Div (d, sd)
            y = MatMul (z, w) }""",
        {"x": TABLE["x"].astype(np.float64)},
        SCALE,
    )
)

PIXELS = F(20005) + F(24645 * 4) * np.random.default_rng(9).standard_normal((1, 3, 8, 8)).astype(F)
SCALER = {"mu": F(20005), "sd": np.full((1, 3, 1, 1), 24645, F), "s": np.full((3, 1, 1), 1 / 24645, F), "b": F(0.5)}
KERNELS = {"w": np.random.default_rng(8).standard_normal((4, 3, 3, 3)).astype(F) / F(4)}

# The deviation takes into range what is beyond it: the Cast stands behind.
RAW += [
    Case(
        f"pictures of a sensor {name}",
        "raw",
        f"g (float[1,3,8,8] x) => (float[1,4,6,6] y) {{ d = Sub (x, mu)  {body}  y = Conv (z, w) }}",
        {"x": PIXELS},
        {**SCALER, **KERNELS},
    )
    for name, body in (
        ("over their deviation", "z = Div (d, sd)"),
        ("by its inverse, then shifted", "e = Mul (d, s)  z = Add (e, b)"),
        ("moved, then over it", "m = Transpose <perm = [0, 1, 3, 2]> (d)  z = Div (m, sd)"),
    )
]
RAW += [
    Case(
        f"pictures of 16 bits {name}",
        "raw",
        f"g (float[1,3,8,8] x) => (float[1,4,6,6] y) {{ {body}  y = Conv (z, w) }}",
        {"x": np.linspace(0, 65535, 192, dtype=F).reshape(1, 3, 8, 8)},
        {"k": F(1 / 65535), "half": F(32768), **KERNELS},
    )
    for name, body in (("by the inverse of the largest", "z = Mul (k, x)"), ("over half of it", "z = Div (x, half)"))
]
RAW.append(
    Case(
        "a column beyond the range, over its deviation",
        "raw",
        "g (float[8,16] x) => (float[8,16] y) { d = Sub (x, mu)  z = Div (d, sd)  y = MatMul (z, w) }",
        {"x": NUMBERS * F(60000) + F(50000)},
        {**SCALE, "mu": np.full(16, 50000, F), "sd": np.full(16, 60000, F)},
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
    Case(f"{name}", "cancelling", f"g {IN_OUT} {{ {body} }}", feeds, WINDOW)
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
    Case(f"angles of {name}", "positions", f"g {IN_OUT} {{ {body} }}", feeds, FREQUENCIES)
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

COVARIANCES = np.eye(16, dtype=F) + F(0.5)
DIFFERENCES.append(
    Case(
        "a number less a quadratic form",
        "cancelling",
        """g (float[8,16] x) => (float[8] y) { k = Sigmoid (x)  m = MatMul (k, inverse)  q = Mul (m, k)
            s = ReduceSum <keepdims = 0> (q, second)  y = Sub (prior, s) }""",
        {"x": NUMBERS * F(0.02) + F(2)},
        {"inverse": np.linalg.inv(COVARIANCES).astype(F) * F(64), "second": np.array([1]), "prior": F(88.6)},
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
    )
]
PRODUCTS += [
    Case(
        f"a divisive norm {name}",
        "pow",
        f"g {IN_OUT} {{ h = MatMul (x, w)  {body}  y = MatMul (z, w) }}",
        {"x": NUMBERS * F(300)},
        {"w": SCALE["w"], "gains": np.eye(16, dtype=F) + F(0.1), "ones": SCALE["ones"], "half": F(-0.5)},
    )
    for name, body in (
        ("over a root", "s = Mul (h, h)  c = MatMul (s, gains)  a = Add (c, ones)  r = Sqrt (a)  z = Div (h, r)"),
        ("by a power", "s = Mul (h, h)  c = MatMul (s, gains)  a = Add (c, ones)  r = Pow (a, half)  z = Mul (h, r)"),
    )
]
INDEX = "index"


INDICES = [
    Held(
        "half a length",
        INDEX,
        """g (int64[2] n) => (int64[2] y) {
            f = Cast <to = 1> (n)  h = Div (f, two)  d = Floor (h)  y = Cast <to = 7> (d) }""",
        {"n": np.array([8191, 4099])},
        {"two": F(2)},
        dtypes=BOTH,
        exact=True,
    ),
    Held(
        "scales of Resize",
        INDEX,
        """g (float[1,1,2,1000] x, int64[1] n) => (float[?] s) { f = Cast <to = 1> (n)  q = Div (f, width)
            t = Concat <axis = 0> (ones, q)  r = Resize <mode = "nearest"> (x, , t)  s = Reshape (r, flat) }""",
        {"x": np.arange(2000, dtype=F).reshape(1, 1, 2, 1000) % 7, "n": np.array([1234])},
        {"width": rows(1000)[0], "ones": rows(1, 1, 1)[0], "flat": np.array([-1])},
        dtypes=BOTH,
        exact=True,
    ),
    Held(
        "the end of a Range",
        INDEX,
        """g (int64 n) => (float[?] y) { f = Cast <to = 1> (n)  h = Mul (f, half)  y = Range (zero, h, one) }""",
        {"n": np.array(8190)},
        {"half": F(0.5), "zero": F(0), "one": F(1)},
        dtypes=BOTH,
        exact=True,
    ),
    Held(
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
        exact=True,
    ),
]

BORDERS = [
    Held(
        "half a length, in a branch",
        INDEX,
        """g (int64[2] n, bool c) => (int64[2] y) { f = Cast <to = 1> (n)  h = If (c) <
                then_branch = t () => (float[2] p) { p = Div (f, two) },
                else_branch = e () => (float[2] r) { r = Mul (f, two) }
            >  d = Floor (h)  y = Cast <to = 7> (d) }""",
        {"n": np.array([8191, 4099]), "c": np.array(True)},
        {"two": F(2)},
        dtypes=BOTH,
        exact=True,
    ),
    Held(
        "half a length, in functions",
        INDEX,
        """g (int64[2] n) => (int64[2] y) { f = Cast <to = 1> (n)  h = local.Half (f)  y = local.Down (h) }
        <domain: "local", opset_import: ["" : 17]>
        Half (a) => (b) { two = Constant <value = float {2.0}> ()  b = Div (a, two) }
        <domain: "local", opset_import: ["" : 17]>
        Down (a) => (b) { c = Floor (a)  b = Cast <to = 7> (c) }""",
        {"n": np.array([8191, 4099])},
        {},
        dtypes=BOTH,
        exact=True,
    ),
    Held(
        "a length halved by a loop",
        INDEX,
        """g (int64[2] n, int64 k, bool c) => (int64[2] y) { f = Cast <to = 1> (n)  h = Loop (k, c, f) <
                body = b (int64 i, bool on, float[2] s) => (bool more, float[2] t) {
                    more = Identity (on)  t = Div (s, two) }
            >  d = Floor (h)  y = Cast <to = 7> (d) }""",
        {"n": np.array([8191, 4099]), "k": np.array(1), "c": np.array(True)},
        {"two": F(2)},
        dtypes=BOTH,
        exact=True,
    ),
    Held(
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
        exact=True,
    ),
    Case(
        "angles from a branch",
        "positions",
        """g (int64[1,8192] p, bool c) => (float[1,8192] y) { f = Cast <to = 1> (p)  h = If (c) <
                then_branch = t () => (float[1,8192] q) { q = Mul (f, slow) },
                else_branch = e () => (float[1,8192] r) { r = Identity (f) }
            >  y = Sin (h) }""",
        {**POSITIONS, "c": np.array(True)},
        {"slow": F(0.7)},
    ),
    Held(
        "a value beyond the range from a branch",
        WEIGHT,
        """g (float[1,4] x, bool c) => (float[1,4] y) { h = If (c) <
                then_branch = t () => (float[1,4] q) { q = Mul (x, w) },
                else_branch = e () => (float[1,4] r) { r = Identity (x) }
            >  y = Mul (h, small) }""",
        {"x": rows(1, 1, 1, 1), "c": np.array(True)},
        {"w": rows(1e5, 7e4, 1e6, 1), "small": F(1e-3)},
    ),
]

STORED = [
    Held(
        "a weight beyond the range",
        WEIGHT,
        "g (float[1,4] x) => (float[1,4] y) { m = Mul (x, w)  y = Mul (m, small) }",
        X4,
        {"w": rows(1e5, 7e4, 1e6, 1), "small": F(1e-3)},
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
    Held(
        "a fill beyond the range",
        WEIGHT,
        """g (float[1,4] x) => (float[1,4] y) { f = ConstantOfShape <value = float[1] {100000}> (shape)  m = Mul (x, f)
            y = Mul (m, small) }""",
        X4,
        {"shape": np.array([1, 4]), "small": F(1e-3)},
    ),
    *(
        Held(
            f"a number of {number.dtype} beyond the range, made float32 in the file",
            WEIGHT,
            """g (float[1,4] x) => (float[1,4] y) { f = Cast <to = 1> (far)  m = Mul (x, f)  y = Mul (m, small) }""",
            X4,
            {"far": number, "small": F(1e-3)},
        )
        for number in (np.float64(100000), np.int64(100000))
    ),
]


Q = np.linspace(-1, 1, 32, dtype=F).reshape(4, 8)
VALUES = np.linspace(0, 1, 32, dtype=F).reshape(4, 8)
HIDDEN_ROWS = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]], bool)  # the third row sees nothing
ATTENTION = "(float[4,8] q, float[4,8] v, bool[4,4] c) => (float[4,8] y)"
FEEDS = {"q": Q, "v": VALUES, "c": HIDDEN_ROWS}
MASKED = "k = Transpose <perm = [1, 0]> (q)  s = MatMul (q, k)"

MASKS = [
    Held(
        "a mask by Where",
        WEIGHT,
        f"g {ATTENTION} {{ {MASKED} m = Where (c, zero, lowest)  a = Add (s, m)  p = Softmax (a)  y = MatMul (p, v) }}",
        FEEDS,
        {"zero": F(0), "lowest": F(LOWEST)},
        notes=("mask",),
    ),
    Held(
        "a mask by Unsqueeze, Expand and Trilu",
        WEIGHT,
        f"""g {ATTENTION} {{ {MASKED} u = Unsqueeze (lowest, axis)  e = Expand (u, shape)
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
        notes=("mask",),
    ),
    Held(
        "two masks added, from one constant",
        WEIGHT,
        f"""g {ATTENTION} {{ {MASKED} m = Where (c, zero, lowest)  n = Where (c, zero, lowest)  b = Add (m, n)
            d = Sub (s, forty)  a = Add (d, b)  p = Softmax (a)  y = MatMul (p, v) }}""",
        FEEDS,
        {"zero": F(0), "lowest": F(LOWEST / 4), "forty": F(40)},
        notes=("mask",),
    ),
    Held(
        "a mask by Mul is no mask to floor",
        WEIGHT,
        f"""g (float[4,8] q, float[4,8] v, float[4,4] f) => (float[4,8] y) {{ {MASKED} n = Sub (one, f)
            m = Mul (n, lowest)  a = Add (s, m)  p = Softmax (a)  y = MatMul (p, v) }}""",
        {"q": Q, "v": VALUES, "f": HIDDEN_ROWS.astype(F)},
        {"one": F(1), "lowest": F(LOWEST)},
    ),
    Held(
        "a mask filled by ConstantOfShape",
        WEIGHT,
        f"""g {ATTENTION} {{ {MASKED} e = ConstantOfShape <value = float[1] {{-3e38}}> (shape)  m = Where (c, zero, e)
            a = Add (s, m)  p = Softmax (a)  y = MatMul (p, v) }}""",
        FEEDS,
        {"zero": F(0), "shape": np.array([4, 4])},
        notes=("mask",),
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
    *(
        Case(name, "eps", f"g (float[1,4] x) => (float[1,4] y) {{ {body} }}", X4, {"eps": eps})
        for name, body, eps in (
            ("log(x + 1e-9)", "a = Add (x, eps)  y = Log (a)", F(1e-9)),
            ("x / max(|x|, eps)", "n = Abs (x)  m = Max (n, eps)  y = Div (x, m)", F(1e-12)),
            ("x / clip(|x|, eps)", "n = Abs (x)  m = Clip (n, eps)  y = Div (x, m)", F(1e-12)),
        )
    ),
    Case(
        "x / clip(|x|, eps), the bound an attribute",
        "eps",
        "g (float[1,4] x) => (float[1,4] y) { n = Abs (x)  m = Clip <min = 1e-12> (n)  y = Div (x, m) }",
        X4,
        opset=10,
    ),
    Case(
        "l2 normalisation",
        "eps",
        """g (float[1,4] x) => (float[1,4] y) { n = ReduceL2 <axes = [1]> (x)  m = Max (n, eps)  e = Expand (m, shape)
            y = Div (x, e) }""",
        {"x": np.zeros((1, 4), F)},
        {"eps": F(1e-12), "shape": np.array([1, 4])},
        without=(),  # sums of squares have a guard of their own
    ),
    Case(
        "x / (y + eps) with y = 0",
        "eps",
        "g (float[1,4] x, float[1,4] v) => (float[1,4] y) { a = Add (v, eps)  b = Div (x, a)  y = Mul (b, small) }",
        {"x": rows(0.5, 1, 2, 3), "v": rows(0, 0, 0, 1)},
        {"eps": F(1e-6), "small": F(1e-4)},
    ),
]

SUMS = [
    *(
        Case(
            name,
            "exp-sum",
            f"g (float[1,4] x) => (float[1,A] y) {{ e = Exp (x)  s = ReduceSum (e, axes)  {end} }}",
            {"x": rows(12, 11, 1, 0)},
            {"axes": np.array([1])},
        )
        for name, end in (
            ("Exp into ReduceSum without its maximum", "y = Div (e, s)"),
            ("log-sum-exp", "y = Log (s)"),
        )
    ),  # fmt: skip
    Case(
        "70,000 ones",
        "long-sum",
        "g (float[1,70000] x) => (float[1,1] y) { y = ReduceSum (x, axes) }",
        {"x": np.ones((1, 70000), F)},
        {"axes": np.array([1])},
    ),
    Case(
        "a count of 300, exactly",
        "long-sum",
        "g (float[1,301] x) => (float[1,1] y) { y = ReduceSum (x, axes) }",
        {"x": np.ones((1, 301), F)},
        {"axes": np.array([1])},
        dtypes=("bfloat16",),
        exact=True,
    ),
    Case(
        "a square and its root",
        "pow",
        "g (float[1,4] x) => (float[1,4] y) { s = Pow (x, two)  y = Sqrt (s) }",
        {"x": rows(300, 400, 1, 2)},
        {"two": F(2)},
    ),
    Case(
        "a running count, exactly",
        "cumsum",
        "g (float[1,5000] x) => (float[1,5000] y) { y = CumSum (x, axis) }",
        {"x": np.ones((1, 5000), F)},
        {"axis": np.array(1)},
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

ANGLE_FREQUENCIES = (1 / 10000 ** (np.arange(0, 8, 2) / 8)).astype(F)
ANGLES = [
    Case(
        "rotary angles by MatMul",
        "positions",
        """g (int64[1,8192] p) => (float[1,8192,8] y) { i = Unsqueeze (p, one)  f = Cast <to = 1> (i)
            a = MatMul (freq, f)  t = Transpose <perm = [0, 2, 1]> (a)  d = Concat <axis = -1> (t, t)  y = Cos (d) }""",
        POSITIONS,
        {"one": np.array([1]), "freq": ANGLE_FREQUENCIES.reshape(1, 4, 1)},
        without=HOLDING,
        dtypes=("float16", "bfloat16"),
    ),
    Case(
        "sinusoidal angles by Mul",
        "positions",
        """g (int64[1,8192] p) => (float[8192,4] y) { f = Cast <to = 1> (p)  r = Reshape (f, column)
            a = Mul (r, freq)  y = Sin (a) }""",
        POSITIONS,
        {"column": np.array([-1, 1]), "freq": ANGLE_FREQUENCIES.reshape(1, 4)},
        dtypes=("float16", "bfloat16"),
    ),
]

PROBABILITIES = [
    Case(name, "probability", f"g (float[1,4] x) => (float[1,4] y) {{ {body} }}", {"x": rows(*x)}, stored,
         dtypes=dtypes)
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
         dtypes=BOTH)
    for name, body in (
        ("a sum of a Loop", f"y = Loop (n, , x) <body = {ROUND}  t = Mul (s, small)  k = Add (h, t) }}>"),
        ("n + z (h - n)", f"y = Loop (n, , x) <body = {ROUND}  t = Sub (h, s)  u = Mul (t, z)  k = Add (u, s) }}>"),
        ("a sum of a Scan", """y, o = Scan <num_scan_inputs = 1, body = b (float[1,4] h, float[1] r)
            => (float[1,4] k, float[1] p) { s = Sigmoid (h)  t = Mul (s, small)  u = Add (t, r)  k = Sub (h, u)
            p = Identity (r) }> (x, rounds)"""),
    )
]  # fmt: skip

SIGNS = np.sign(np.random.default_rng(9).standard_normal((16, 16))).astype(F)
THRESHOLDS = [
    Case(
        f"what is multiplied is {name}",
        "threshold",
        f"g {IN_OUT} {{ h = MatMul (x, w)  {body}  y = MatMul (z, signs) }}",
        {"x": NUMBERS * F(1e-4) + F(1)},  # all near the threshold, as bright pixels on gray ones
        {
            "w": np.asarray(SCALE["w"]) - np.asarray(SCALE["w"]).mean(0),
            "signs": SIGNS,
            "tenth": F(0.1),
            "zero": F(0),
            "up": F(1),
            "down": F(-1),
        },
    )
    for name, body in (
        ("a sign, of zero as well", "s = Sign (h)  a = Add (s, tenth)  z = Sign (a)"),
        ("spikes", "c = Greater (h, zero)  z = Cast <to = 1> (c)"),
        ("one of two numbers", "n = Sub (h, zero)  c = GreaterOrEqual (n, zero)  z = Where (c, up, down)"),
    )
]

CASES = [
    SQUASH,
    *(*MASKS, *EPS, *PROBABILITIES, *RECURRENCES, *SUMS, *SQUARES, *ANGLES, *INDICES, *BORDERS, *STORED),
    *(*RAW, *DIFFERENCES, *FEATURES, *OFFSETS, *PRODUCTS, *THRESHOLDS),
]
