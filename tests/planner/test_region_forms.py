"""More ways in which exporters write norms, softmax and GELU: each is one region, and right where values are large."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

from ampgraph.numerics.metrics.compare import difference
from onnx_text import parse
from planner.support import casts, converted, decisions, float32_and_low
from planner.test_regions import WEIGHTS, between, regions

pytestmark = pytest.mark.slow  # a grid: many small cases

F = np.float32

M = "m = ReduceMean <axes = [-1]> (x)"
D = f"{M}  d = Sub (x, m)"
ROOT = "a = Add (v, eps)  r = Sqrt (a)"
INVERSE = f"{ROOT}  i = Reciprocal (r)"
NORMAL = "n = Div (d, r)  z = Mul (n, g)  y = Add (z, b)"
FACTOR = "s = Mul (i, g)  z = Mul (d, s)  y = Add (z, b)"
FOLDED = "s = Mul (i, g)  h = Mul (x, s)  k = Mul (m, s)  t = Sub (b, k)  y = Add (h, t)"
MOVED = "h = Mul (x, s)  j = Neg (m)  k = Mul (j, s)  t = Add (k, b)  y = Add (h, t)"
MOMENTS = f"{M}  q = Mul (x, x)  e = ReduceMean <axes = [-1]> (q)  u = Mul (m, m)"

LAYER = {
    "Keras: Reciprocal, the scale in the root": f"{D}  q = Mul (d, d)"
    f"  v = ReduceMean <axes = [-1]> (q)  {INVERSE}  {FACTOR}",
    "ReduceSumSquare and Div": f"{D}  q = ReduceSumSquare <axes = [-1]> (d)  v = Div (q, eight)  {ROOT}  {NORMAL}",
    "ReduceSumSquare and Mul": f"{D}  q = ReduceSumSquare <axes = [-1]> (d)  v = Mul (q, eighth)  {ROOT}  {NORMAL}",
    "ReduceSum and Div": f"{D}  u = Pow (d, two)  q = ReduceSum (u, last)  v = Div (q, eight)  {ROOT}  {NORMAL}",
    "tf.nn.moments": f"{D}  q = Mul (d, d)  v = ReduceMean <axes = [-1]> (q)  {INVERSE}  {FOLDED}",
    "Keras 3": f"{D}  q = Mul (d, d)  v = ReduceMean <axes = [-1]> (q)  {INVERSE}  s = Mul (i, g)  {MOVED}",
    "Keras 3, without a bias": f"{D}  q = Mul (d, d)  v = ReduceMean <axes = [-1]> (q)  {INVERSE}  s = Mul (i, g)"
    "  h = Mul (x, s)  j = Neg (m)  k = Mul (j, s)  y = Add (h, k)",
    "Keras 3, without a scale": f"{D}  q = Mul (d, d)  v = ReduceMean <axes = [-1]> (q)  {ROOT}  s = Reciprocal (r)"
    f"  {MOVED}",
    "folded, without a bias": f"{D}  q = Mul (d, d)  v = ReduceMean <axes = [-1]> (q)  {INVERSE}  s = Mul (i, g)"
    "  h = Mul (x, s)  k = Mul (m, s)  y = Sub (h, k)",
    "E[x^2] - E[x]^2": f"{MOMENTS}  v = Sub (e, u)  {ROOT}  d = Sub (x, m)  {NORMAL}",
    "Flax": f"{MOMENTS}  l = Sub (e, u)  v = Max (l, zero)  {INVERSE}  d = Sub (x, m)  {FACTOR}",
    "Haiku": f"{MOMENTS}  v = Sub (e, u)  {INVERSE}  d = Sub (x, m)  {FACTOR}",
    "E[x^2] - E[x]^2, folded": f"{MOMENTS}  l = Sub (e, u)  v = Relu (l)  {INVERSE}  {FOLDED}",
    "a power of -0.5": f"{D}  q = Pow (d, two)  v = ReduceMean <axes = [-1]> (q)  a = Add (v, eps)"
    f"  i = Pow (a, minus_half)  n = Mul (d, i)  z = Mul (n, g)  y = Add (z, b)",
    "a power of -0.5, the scale in it": f"{D}  q = Mul (d, d)  v = ReduceMean <axes = [-1]> (q)  a = Add (v, eps)"
    f"  i = Pow (a, minus_half)  {FACTOR}",
    "a power of 0.5": f"{D}  q = Pow (d, two)  v = ReduceMean <axes = [-1]> (q)  a = Add (v, eps)"
    f"  r = Pow (a, half)  {NORMAL}",
    "no less than zero by Clip": f"{MOMENTS}  l = Sub (e, u)  v = Clip (l, zero)  {INVERSE}  d = Sub (x, m)  {FACTOR}",
    "no less than zero, the operands swapped": f"{MOMENTS}  l = Sub (e, u)  v = Max (zero, l)  {INVERSE}"
    f"  d = Sub (x, m)  {FACTOR}",
    "without scale and bias": f"{D}  q = Mul (d, d)  v = ReduceMean <axes = [-1]> (q)  {ROOT}  y = Div (d, r)",
    "with a scale alone": f"{D}  q = Mul (d, d)  v = ReduceMean <axes = [-1]> (q)  {ROOT}  n = Div (d, r)"
    "  y = Mul (n, g)",
    "conversions to the same type": f"{M}  c1 = CastLike (x, m)  d = Sub (c1, m)  q = Mul (d, d)"
    f"  v = ReduceMean <axes = [-1]> (q)  {ROOT}  {NORMAL}",
    "a row as scale": f"{D}  q = Mul (d, d)  v = ReduceMean <axes = [-1]> (q)  {ROOT}  {NORMAL}".replace(
        "(n, g)", "(n, gr)"
    ).replace("(z, b)", "(z, br)"),
}
DEVIATION = "j = Mul (q1, eight)  v = Div (j, seven)  r = Sqrt (v)  a = Add (r, eps)"
STANDARD = {
    "torch.std": f"{D}  q = Mul (d, d)  q1 = ReduceMean <axes = [-1]> (q)  {DEVIATION}  n = Div (d, a)  z = Mul (n, g)"
    "  y = Add (z, b)",
    "torch.std, scaled before": f"{D}  c = Mul (g, d)  m2 = ReduceMean <axes = [-1]> (x)  d2 = Sub (x, m2)"
    f"  q = Mul (d2, d2)  q1 = ReduceMean <axes = [-1]> (q)  {DEVIATION}  z = Div (c, a)  y = Add (z, b)",
    "torch.std, its size computed": f"""{D}  w1 = Shape (x)  w2 = Gather (w1, back)  w3 = Cast <to = 1> (w2)
        q = Mul (d, d)  q1 = ReduceMean <axes = [-1]> (q)  j = Mul (q1, w3)  w4 = Sub (w3, one)  v = Div (j, w4)
        r = Sqrt (v)  a = Add (r, eps)  n = Div (d, a)  z = Mul (n, g)  y = Add (z, b)""",
    "with a scale alone": f"{D}  q = Pow (d, two)  v = ReduceMean <axes = [-1]> (q)  r = Sqrt (v)"
    "  a = Add (r, eps)  n = Div (d, a)  y = Mul (n, g)",
    "numpy.std": f"{D}  q = Pow (d, two)  v = ReduceMean <axes = [-1]> (q)  r = Sqrt (v)"
    "  a = Add (r, eps)  y = Div (d, a)",
}
MEAN_SQUARE = "q = Mul (x, x)  v = ReduceMean <axes = [-1]> (q)"
RMS = {
    "a power of -0.5": "q = Pow (x, two)  v = ReduceMean <axes = [-1]> (q)  a = Add (v, eps)"
    "  i = Pow (a, minus_half)  n = Mul (x, i)  y = Mul (n, g)",
    "without a scale": f"{MEAN_SQUARE}  {ROOT}  y = Div (x, r)",
    "the scale in the root": f"{MEAN_SQUARE}  {INVERSE}  s = Mul (i, g)  y = Mul (x, s)",
    "1 / root, the scale in it": f"{MEAN_SQUARE}  {ROOT}  i = Div (one, r)  s = Mul (g, i)  y = Mul (x, s)",
    "ReduceSumSquare and Div": f"q = ReduceSumSquare <axes = [-1]> (x)  v = Div (q, eight)  {ROOT}"
    "  n = Div (x, r)  y = Mul (n, g)",
    "ReduceSum and Mul": f"u = Mul (x, x)  q = ReduceSum (u, last)  v = Mul (q, eighth)  {INVERSE}"
    "  n = Mul (x, i)  y = Mul (n, g)",
}
NORM = "n = ReduceL2 <axes = [-1]> (x)"
L2 = {
    "a power of -0.5": "s = ReduceSumSquare <axes = [-1]> (x)  c = Max (s, eps)  i = Pow (c, minus_half)"
    "  y = Mul (x, i)",
    "F.normalize": f"{NORM}  c = Clip (n, eps)  e = Expand (c, shape)  y = Div (x, e)",
    "over ReduceL2": f"{NORM}  y = Div (x, n)",
    "a maximum": f"{NORM}  c = Max (n, eps)  y = Div (x, c)",
    "an eps, inverted": f"{NORM}  c = Add (n, eps)  i = Reciprocal (c)  y = Mul (x, i)",
    "tf.math.l2_normalize": """q = Mul (x, x)  s = ReduceSum (q, last)  c = Max (s, eps)  r = Sqrt (c)
        i = Reciprocal (r)  y = Mul (x, i)""",
    "ReduceSumSquare": "s = ReduceSumSquare <axes = [-1]> (x)  c = Add (s, eps)  r = Sqrt (c)  y = Div (x, r)",
    "a root": "q = Pow (x, two)  s = ReduceSum (q, last)  r = Sqrt (s)  y = Div (x, r)",
    "a root kept from zero": """q = Pow (x, two)  s = ReduceSum (q, last)  r = Sqrt (s)  c = Clip (r, eps)
        y = Div (x, c)""",
}
DOT = "p = Mul (x, other)  t = ReduceSum (p, last)"
NORMS = "n = ReduceL2 <axes = [-1]> (x)  o1 = ReduceL2 <axes = [-1]> (other)  k = Mul (n, o1)"
COSINE = {
    "norms": f"{DOT}  {NORMS}  y = Div (t, k)",
    "norms kept from zero": f"{DOT}  {NORMS}  c = Max (k, eps)  y = Div (t, c)",
    "one root": f"""{DOT}  q = Mul (x, x)  s = ReduceSum (q, last)  q1 = Mul (other, other)  s1 = ReduceSum (q1, last)
        k = Mul (s, s1)  c = Clip (k, eps)  r = Sqrt (c)  y = Div (t, r)""",
}
TOP = "t = ReduceMax <axes = [-1]> (x)  d = Sub (x, t)  e = Exp (d)"
LOG_SOFTMAX = {
    "the sum's logarithm": f"{TOP}  s = ReduceSum (e, last)  l = Log (s)  y = Sub (d, l)",
    "with the maximum": f"{TOP}  s = ReduceSum (e, last)  l = Log (s)  u = Add (l, t)  y = Sub (x, u)",
    "ReduceLogSum": f"{TOP}  l = ReduceLogSum <axes = [-1]> (e)  y = Sub (d, l)",
    "ReduceLogSumExp": "l = ReduceLogSumExp <axes = [-1]> (x)  y = Sub (x, l)",
}
SOFTMAX = {"an inverse": f"{TOP}  s = ReduceSum (e, last)  i = Reciprocal (s)  y = Mul (e, i)"}
TANH = "e = Tanh (i)  p = Add (e, one)  h = Mul (half, x)  y = Mul (h, p)"
GELU = {
    "tanh, (f x) (1 + c x x)": f"u = Mul (x, x)  k = Mul (u, cubic)  l = Add (k, one)  j = Mul (x, factor)"
    f"  i = Mul (j, l)  {TANH}",
    "tanh, x (f (1 + c x x))": f"u = Pow (x, two)  k = Mul (u, cubic)  l = Add (k, one)  j = Mul (l, factor)"
    f"  i = Mul (x, j)  {TANH}",
    "tanh, x (1 + (c x) x)": f"u = Mul (x, cubic)  k = Mul (u, x)  l = Add (k, one)  j = Mul (x, l)"
    f"  i = Mul (j, factor)  {TANH}",
    "a sigmoid": "i = Mul (x, slope)  s = Sigmoid (i)  y = Mul (x, s)",
    "tanh, x (f + c f x x)": """u = Mul (x, x)  k = Mul (u, both)  l = Add (k, factor)  i = Mul (x, l)  e = Tanh (i)
        p = Add (e, one)  h = Mul (half, x)  y = Mul (h, p)""",
}
FORMS = {
    "LayerNormalization": LAYER,
    "MeanVarianceNormalization": STANDARD,
    "RMSNormalization": RMS,
    "LpNormalization": {**L2, **{f"cosine, {name}": body for name, body in COSINE.items()}},
    "Softmax": SOFTMAX,
    "Gelu": GELU,
}
MORE = {
    **{
        "eight": F(8),
        "eighth": F(0.125),
        "seven": F(7),
        "zero": F(0),
        "minus_half": F(-0.5),
        "back": np.array(-1),
        "back_flat": np.array([-1]),
        "slope": F(1.702),
        "both": F(0.0356774),
    },
    **{"shape": np.array([4, 8]), "other": np.linspace(-300, 200, 32, dtype=F).reshape(4, 8)},
    **{"gr": WEIGHTS["g"].reshape(1, 8), "br": WEIGHTS["b"].reshape(1, 8), "wide": np.ones((1, 8), F)},
}
each_form = pytest.mark.parametrize(
    ("kind", "body"),
    [pytest.param(kind, b, id=f"{kind}: {n}") for kind, forms in FORMS.items() for n, b in forms.items()],
)


def body_of(kind: str, body: str) -> str:
    """A cosine has one column; the product behind needs eight."""
    return body.replace("y =", "y1 =") + "  y = Mul (y1, wide)" if body in COSINE.values() else body


def rows(scale: float = 1.0) -> np.ndarray:
    """Rows far from zero, and rows whose squares leave the range; the product before doubles them."""
    values = np.linspace(-1, 1, 32, dtype=F).reshape(4, 8)
    return (values * np.array([[300], [2], [2], [0.5]], F) + np.array([[0], [200], [-100], [2]], F)) * F(scale)


@each_form
def test_every_form_is_one_region(kind: str, body: str) -> None:
    model = between(body_of(kind, body), more=MORE)
    found = regions(model)
    assert {region.kind for region in found} == {kind}
    assert len({frozenset(op.id for op in region.ops) for region in found}) == 1, "from either norm of a cosine"
    assert len(found[0].ops) == len(model.graph.node) - 2 - (body in COSINE.values()) - 3 * body.count("Shape"), (
        "all its nodes, each once"
    )


@each_form
@pytest.mark.parametrize("level", ["O2", "auto"])
def test_a_region_has_one_type_and_is_right(kind: str, body: str, level: str) -> None:
    model = between(body_of(kind, body), more=MORE)
    result = converted(model, level)
    inner = [word for word in decisions(result).split() if ":" in word and "MatMul" not in word]
    inside = {word.split(":")[1] for word in (inner[:-1] if body in COSINE.values() else inner)}
    assert len(inside) == 1
    if kind.endswith("Normalization"):
        assert inside == {"f32"}
        assert casts(result) == 4
    reference, low = float32_and_low(model, {"f": rows() / 2}, level)
    assert not difference(reference["o"], low["o"])


@pytest.mark.parametrize("body", LOG_SOFTMAX.values(), ids=LOG_SOFTMAX.keys())
@pytest.mark.parametrize("level", ["O2", "auto"])
def test_a_log_softmax_is_no_region_but_right(body: str, level: str) -> None:
    """It may be a loss: what adds up exponentials stays float32, with all that reads it."""
    model = between(body, more=MORE)
    assert not regions(model)
    reference, low = float32_and_low(model, {"f": rows(0.1) / 2}, level)
    assert not difference(reference["o"], low["o"])


WITHOUT_PARAMETERS = ("a row as scale", "without scale and bias", "Keras 3, without a scale")


@pytest.mark.parametrize("name", [name for name in LAYER if name not in WITHOUT_PARAMETERS])
@pytest.mark.parametrize("level", ["O3", "auto"])
def test_a_layer_norm_is_written_as_the_standard_operator(name: str, level: str) -> None:
    result = converted(between(LAYER[name], 17, MORE), level)
    assert decisions(result) == "Cast>f16 MatMul:f16 LayerNormalization:f16 MatMul:f16 Cast>f32"


def test_a_scale_of_two_dimensions_is_squeezed_for_the_standard_operator() -> None:
    found = decisions(converted(between(LAYER["a row as scale"], 17, MORE), "auto"))
    assert found == "Cast>f16 MatMul:f16 Squeeze:f16 Squeeze:f16 LayerNormalization:f16 MatMul:f16 Cast>f32"


POOLED = """g (float[4,8,8] f) => (float[4,8,8] o) {{ x = MatMul (f, w)  m = GlobalAveragePool (x)  d = Sub (x, m)
    q = Mul (d, d)  v = GlobalAveragePool (q)  {INVERSE}  {FOLDED}  o = MatMul (y, w) }}"""
BATCHED = {
    "reshaped": f"""{D}  q = Mul (d, d)  v = ReduceMean <axes = [-1]> (q)  ms = Reshape (m, back_flat)
        vs = Reshape (v, back_flat)""",
    "squeezed": f"""{D}  q = ReduceSumSquare <axes = [-1]> (d)  v = Div (q, eight)  ms = Squeeze (m, last)
        vs = Squeeze (v, last)""",
    "moments": f"{MOMENTS}  v = Sub (e, u)  ms = Squeeze (m, last)  vs = Squeeze (v, last)",
    "without dimensions": f"""{D}  ms = ReduceMean <axes = [-1], keepdims = 0> (x)  q = Mul (d, d)
        vs = ReduceMean <axes = [-1], keepdims = 0> (q)""",
}


def pooled() -> ModelProto:
    """A norm over the last of three dimensions, as a pool."""
    text = POOLED.format(INVERSE=INVERSE, FOLDED=FOLDED)
    weights = {name: WEIGHTS[name] for name in ("w", "eps")}
    return parse(text, **weights, g=WEIGHTS["g"], b=WEIGHTS["b"])


def batched(name: str) -> ModelProto:
    """The rows of a transposed batch, normalised as Keras does."""
    body = f"{BATCHED[name]}  t = Transpose <perm = [1, 0]> (x)  n = BatchNormalization (t, ones, zeros, ms, vs)"
    return between(
        f"{body}  y = Transpose <perm = [1, 0]> (n)", more={**MORE, "ones": np.ones(4, F), "zeros": np.zeros(4, F)}
    )


def test_a_mean_may_be_a_global_pool() -> None:
    model = pooled()
    assert [region.kind for region in regions(model)] == ["LayerNormalization"]
    words = [w for w in decisions(converted(model, "O2")).split() if ":" in w and "MatMul" not in w]
    assert {w.split(":")[1] for w in words} == {"f32"}
    assert casts(converted(model, "O2")) == 4


@pytest.mark.parametrize("name", BATCHED)
def test_batch_normalization_with_computed_statistics(name: str) -> None:
    model = batched(name)
    assert [region.kind for region in regions(model)] == ["BatchNormalization"]
    reference, low = float32_and_low(model, {"f": rows() / 2}, "O2")
    assert not difference(reference["o"], low["o"])
