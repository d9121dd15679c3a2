"""Cases of guards that go by the place: indices and lengths, borders of bodies, what is stored."""

from __future__ import annotations

import numpy as np

from planner.guard_case import ALL, BOTH, POSITIONS, WEIGHT, X4, Case, F, rows

INDEX = "index"


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
        "positions",
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
    *(
        Case(
            f"a number of {number.dtype} beyond the range, made float32 in the file",
            WEIGHT,
            """g (float[1,4] x) => (float[1,4] y) { f = Cast <to = 1> (far)  m = Mul (x, f)  y = Mul (m, small) }""",
            X4,
            {"far": number, "small": F(1e-3)},
            ALL,
            ("O2", "O3"),
            ("weight",),
        )
        for number in (np.float64(100000), np.int64(100000))
    ),
]
