"""Decomposed norms, softmax and GELU: seen as one, at most two casts, the standard operator where it exists."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.core.dataflow import Dataflow
from ampgraph.core.matching import PatternSet
from ampgraph.formats import adapters
from ampgraph.oplists import pattern_files
from ampgraph.oplists.files import ListFile, data_folder, read_file
from ampgraph.oplists.pattern_files import BIAS, SHARED, conventions, patterns_of
from ampgraph.oplists.patterns import Region, bias_patterns, find_regions, fused_only_patterns, region_patterns
from near import difference
from onnx_text import parse
from planner.form_models import GROUPED, GROUPS, RMS
from planner.support import casts, converted, decisions, float32_and_low, kinds
from planner.without import without

F = np.float32

MEAN = "m = ReduceMean <axes = [-1]> (x)"
CENTRED = f"{MEAN}  d = Sub (x, m)"
AVERAGE = "v = ReduceMean <axes = [-1]> (q)"
ROOT = "a = Add (v, eps)  r = Sqrt (a)"
INVERSE = f"{ROOT}  i = Reciprocal (r)"
VARIANCE = f"{AVERAGE}  {ROOT}"
AFFINE = "z = Mul (n, g)  y = Add (z, b)"
NORMAL = f"n = Div (d, r)  {AFFINE}"
FACTOR = "s = Mul (i, g)  z = Mul (d, s)  y = Add (z, b)"
FOLDED = "s = Mul (i, g)  h = Mul (x, s)  k = Mul (m, s)  t = Sub (b, k)  y = Add (h, t)"
MOVED = "h = Mul (x, s)  j = Neg (m)  k = Mul (j, s)  t = Add (k, b)  y = Add (h, t)"
MOMENTS = f"{MEAN}  q = Mul (x, x)  e = ReduceMean <axes = [-1]> (q)  u = Mul (m, m)"

LAYER_NORMS = {
    "torch": f"{CENTRED}  q = Pow (d, two)  {VARIANCE}  {NORMAL}",
    "Mul(d, d)": f"{CENTRED}  q = Mul (d, d)  {VARIANCE}  {NORMAL}",
    "two Subs": f"{CENTRED}  e = Sub (x, m)  q = Pow (d, two)  {VARIANCE}  n = Div (e, r)  {AFFINE}",
    "Mul of two Subs": f"{CENTRED}  e = Sub (x, m)  q = Mul (d, e)  {VARIANCE}  {NORMAL}",
    "Reciprocal": f"{CENTRED}  q = Mul (d, d)  {VARIANCE}  i = Reciprocal (r)  n = Mul (d, i)  {AFFINE}",
    "1 / root": f"{CENTRED}  q = Mul (d, d)  {VARIANCE}  i = Div (one, r)  n = Mul (i, d)  {AFFINE}",
    "operands swapped": f"""{CENTRED}  q = Mul (d, d)  {AVERAGE}  a = Add (eps, v)
        r = Sqrt (a)  n = Div (d, r)  z = Mul (g, n)  y = Add (b, z)""",
    "identities": f"""i = Identity (x)  m = ReduceMean <axes = [-1]> (i)  d = Sub (i, m)  c = Cast <to = 1> (d)
        q = Pow (c, two)  {VARIANCE}  n = Div (c, r)  {AFFINE}""",
    "TensorFlow": f"{CENTRED}  q = Mul (d, d)  {AVERAGE}  {INVERSE}  {FOLDED}",
    "Keras: Reciprocal, the scale in the root": f"{CENTRED}  q = Mul (d, d)  {AVERAGE}  {INVERSE}  {FACTOR}",
    "ReduceSumSquare and Div": f"{CENTRED}  q = ReduceSumSquare <axes = [-1]> (d)"
    f"  v = Div (q, eight)  {ROOT}  {NORMAL}",
    "ReduceSumSquare and Mul": f"{CENTRED}  q = ReduceSumSquare <axes = [-1]> (d)"
    f"  v = Mul (q, eighth)  {ROOT}  {NORMAL}",
    "ReduceSum and Div": f"{CENTRED}  u = Pow (d, two)  q = ReduceSum (u, last)  v = Div (q, eight)  {ROOT}  {NORMAL}",
    "Keras 3": f"{CENTRED}  q = Mul (d, d)  {AVERAGE}  {INVERSE}  s = Mul (i, g)  {MOVED}",
    "Keras 3, without a bias": f"{CENTRED}  q = Mul (d, d)  {AVERAGE}  {INVERSE}  s = Mul (i, g)"
    "  h = Mul (x, s)  j = Neg (m)  k = Mul (j, s)  y = Add (h, k)",
    "Keras 3, without a scale": f"{CENTRED}  q = Mul (d, d)  {VARIANCE}  s = Reciprocal (r)  {MOVED}",
    "folded, without a bias": f"{CENTRED}  q = Mul (d, d)  {AVERAGE}  {INVERSE}  s = Mul (i, g)"
    "  h = Mul (x, s)  k = Mul (m, s)  y = Sub (h, k)",
    "E[x^2] - E[x]^2": f"{MOMENTS}  v = Sub (e, u)  {ROOT}  d = Sub (x, m)  {NORMAL}",
    "Flax": f"{MOMENTS}  l = Sub (e, u)  v = Max (l, zero)  {INVERSE}  d = Sub (x, m)  {FACTOR}",
    "Haiku": f"{MOMENTS}  v = Sub (e, u)  {INVERSE}  d = Sub (x, m)  {FACTOR}",
    "E[x^2] - E[x]^2, folded": f"{MOMENTS}  l = Sub (e, u)  v = Relu (l)  {INVERSE}  {FOLDED}",
    "a power of -0.5": f"{CENTRED}  q = Pow (d, two)  {AVERAGE}  a = Add (v, eps)"
    f"  i = Pow (a, minus_half)  n = Mul (d, i)  z = Mul (n, g)  y = Add (z, b)",
    "a power of -0.5, the scale in it": f"{CENTRED}  q = Mul (d, d)  {AVERAGE}  a = Add (v, eps)"
    f"  i = Pow (a, minus_half)  {FACTOR}",
    "a power of 0.5": f"{CENTRED}  q = Pow (d, two)  {AVERAGE}  a = Add (v, eps)  r = Pow (a, half)  {NORMAL}",
    "no less than zero by Clip": f"{MOMENTS}  l = Sub (e, u)  v = Clip (l, zero)  {INVERSE}  d = Sub (x, m)  {FACTOR}",
    "no less than zero, the operands swapped": f"{MOMENTS}  l = Sub (e, u)  v = Max (zero, l)  {INVERSE}"
    f"  d = Sub (x, m)  {FACTOR}",
    "without scale and bias": f"{CENTRED}  q = Mul (d, d)  {VARIANCE}  y = Div (d, r)",
    "with a scale alone": f"{CENTRED}  q = Mul (d, d)  {VARIANCE}  n = Div (d, r)  y = Mul (n, g)",
    "conversions to the same type": f"{MEAN}  c1 = CastLike (x, m)  d = Sub (c1, m)  q = Mul (d, d)"
    f"  {VARIANCE}  {NORMAL}",
    "a row as scale": f"{CENTRED}  q = Mul (d, d)  {VARIANCE}  {NORMAL}".replace("(n, g)", "(n, gr)").replace(
        "(z, b)", "(z, br)"
    ),
}
DEVIATION = "j = Mul (q1, eight)  v = Div (j, seven)  r = Sqrt (v)  a = Add (r, eps)"
STANDARD = {
    "torch.std": f"{CENTRED}  q = Mul (d, d)  q1 = ReduceMean <axes = [-1]> (q)  {DEVIATION}  n = Div (d, a)  {AFFINE}",
    "torch.std, scaled before": f"{CENTRED}  c = Mul (g, d)  m2 = ReduceMean <axes = [-1]> (x)  d2 = Sub (x, m2)"
    f"  q = Mul (d2, d2)  q1 = ReduceMean <axes = [-1]> (q)  {DEVIATION}  z = Div (c, a)  y = Add (z, b)",
    "torch.std, its size computed": f"""{CENTRED}  w1 = Shape (x)  w2 = Gather (w1, back)  w3 = Cast <to = 1> (w2)
        q = Mul (d, d)  q1 = ReduceMean <axes = [-1]> (q)  j = Mul (q1, w3)  w4 = Sub (w3, one)  v = Div (j, w4)
        r = Sqrt (v)  a = Add (r, eps)  n = Div (d, a)  z = Mul (n, g)  y = Add (z, b)""",
    "with a scale alone": f"{CENTRED}  q = Pow (d, two)  {AVERAGE}  r = Sqrt (v)"
    "  a = Add (r, eps)  n = Div (d, a)  y = Mul (n, g)",
    "numpy.std": f"{CENTRED}  q = Pow (d, two)  {AVERAGE}  r = Sqrt (v)  a = Add (r, eps)  y = Div (d, a)",
}
RMS_NORMS = {
    "Pow and Div": f"q = Pow (x, two)  {VARIANCE}  n = Div (x, r)  y = Mul (n, g)",
    "Mul and Div": f"q = Mul (x, x)  {VARIANCE}  n = Div (x, r)  y = Mul (g, n)",
    "Reciprocal": f"q = Pow (x, two)  {VARIANCE}  i = Reciprocal (r)  n = Mul (x, i)  y = Mul (n, g)",
    "1 / root": f"q = Pow (x, two)  {VARIANCE}  i = Div (one, r)  n = Mul (x, i)  y = Mul (g, n)",
    "a power of -0.5": f"q = Pow (x, two)  {AVERAGE}  a = Add (v, eps)"
    "  i = Pow (a, minus_half)  n = Mul (x, i)  y = Mul (n, g)",
    "without a scale": f"q = Mul (x, x)  {VARIANCE}  y = Div (x, r)",
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
    "tf.math.l2_normalize": """q = Mul (x, x)  s = ReduceSum (q, last)  c = Max (s, eps)  r = Sqrt (c)
        i = Reciprocal (r)  y = Mul (x, i)""",
    "ReduceSumSquare": "s = ReduceSumSquare <axes = [-1]> (x)  c = Add (s, eps)  r = Sqrt (c)  y = Div (x, r)",
    "a root": "q = Pow (x, two)  s = ReduceSum (q, last)  r = Sqrt (s)  y = Div (x, r)",
    "a root kept from zero": """q = Pow (x, two)  s = ReduceSum (q, last)  r = Sqrt (s)  c = Clip (r, eps)
        y = Div (x, c)""",
}
ERF = "i = Div (x, root2)  e = Erf (i)  p = Add (e, one)"
TANH = "c = Pow (x, three)  k = Mul (c, cubic)  j = Add (x, k)  i = Mul (j, factor)  e = Tanh (i)  p = Add (e, one)"
FORMS = {
    "LayerNormalization": LAYER_NORMS,
    "MeanVarianceNormalization": STANDARD,
    "RMSNormalization": RMS_NORMS,
    "LpNormalization": L2,
    "Softmax": {
        "softmax": """t = ReduceMax <axes = [-1]> (x)  d = Sub (x, t)  e = Exp (d)  s = ReduceSum (e, last)
            y = Div (e, s)""",
    },
    "Gelu": {
        "(x (1 + erf)) 0.5": f"{ERF}  h = Mul (x, p)  y = Mul (h, half)",
        "(0.5 x) (1 + erf)": f"{ERF}  h = Mul (half, x)  y = Mul (h, p)",
        "x (0.5 (1 + erf))": f"{ERF}  h = Mul (half, p)  y = Mul (x, h)",
        "x (1 / root 2)": "i = Mul (x, inverse2)  e = Erf (i)  p = Add (one, e)  h = Mul (p, x)  y = Mul (half, h)",
        "tanh, (0.5 x) (...)": f"{TANH}  h = Mul (x, half)  y = Mul (h, p)",
        "tanh, 0.5 (x (...))": f"{TANH}  h = Mul (x, p)  y = Mul (h, half)",
        "tanh, x (0.5 (...))": f"{TANH}  h = Mul (p, half)  y = Mul (x, h)",
        "tanh, x x x": """u = Mul (x, x)  c = Mul (u, x)  k = Mul (cubic, c)  j = Add (x, k)  i = Mul (j, factor)
            e = Tanh (i)  p = Add (e, one)  h = Mul (half, x)  y = Mul (h, p)""",
        "tanh, (f x) (1 + c x x)": "u = Mul (x, x)  k = Mul (u, cubic)  l = Add (k, one)  j = Mul (x, factor)"
        "  i = Mul (j, l)  e = Tanh (i)  p = Add (e, one)  h = Mul (half, x)  y = Mul (h, p)",
        "tanh, (f x) (1 + (c x) x)": "u = Mul (x, cubic)  k = Mul (u, x)  l = Add (k, one)  j = Mul (x, factor)"
        "  i = Mul (j, l)  e = Tanh (i)  p = Add (e, one)  h = Mul (p, half)  y = Mul (x, h)",
        "a sigmoid": "i = Mul (x, slope)  s = Sigmoid (i)  y = Mul (x, s)",
    },
}
SINCE = {"LayerNormalization": 17, "RMSNormalization": 23}


def is_written(kind: Any, body: Any) -> bool:
    """Whether a norm has the one row as scale that the standard operator has to be given."""
    return kind in SINCE and body.count(", g)") + body.count("(g, ") == 1


EACH = [pytest.param(kind, body, id=f"{kind}: {name}") for kind, forms in FORMS.items() for name, body in forms.items()]
each_form = pytest.mark.parametrize(("kind", "body"), EACH)
each_norm = pytest.mark.parametrize(("kind", "body"), [one for one in EACH if is_written(*one.values)])
FUSED = ("torch", "two Subs", "identities")
"""LayerNormalizations that ONNX Runtime would fuse with the cast before them, and refuse."""

WEIGHTS: dict[str, Any] = {
    **{name: F(value) for name, value in (("eps", 1e-5), ("two", 2), ("one", 1), ("three", 3), ("half", 0.5))},
    **{"root2": F(np.sqrt(2)), "inverse2": F(np.sqrt(0.5)), "cubic": F(0.044715)},
    **{"factor": F(np.sqrt(2 / np.pi)), "last": np.array([-1]), "w": np.eye(8, dtype=F) * 2},
    **{"g": np.linspace(0.5, 1.5, 8, dtype=F), "b": np.linspace(-1, 1, 8, dtype=F)},
    **{"eight": F(8), "eighth": F(0.125), "seven": F(7), "zero": F(0), "minus_half": F(-0.5), "slope": F(1.702)},
    **{"back": np.array(-1), "back_flat": np.array([-1]), "shape": np.array([4, 8])},
    **{"gr": np.linspace(0.5, 1.5, 8, dtype=F).reshape(1, 8), "br": np.linspace(-1, 1, 8, dtype=F).reshape(1, 8)},
}


def at(body: str, opset: int) -> str:
    """From opset 18 the axes of a mean are an input."""
    if opset < 18:
        return body
    for op in ("ReduceMean", "ReduceMax", "ReduceSumSquare"):
        for name in "xqdi":
            body = body.replace(f"{op} <axes = [-1]> ({name})", f"{op} ({name}, last)")
    return body


def between(body: str, opset: int = 16, **more: np.ndarray) -> ModelProto:
    """A region between two products, where its input and output are low."""
    text = f"g (float[4,8] f) => (float[4,8] o) {{ x = MatMul (f, w)  {at(body, opset)}  o = MatMul (y, w) }}"
    return parse(text, known={**WEIGHTS, **more}, opset=opset)


def alone(body: str, opset: int = 16) -> ModelProto:
    """A region from a float32 input to a float32 output, with a product beside it."""
    text = f"g (float[4,8] x) => (float[4,8] y, float[4,8] o) {{ {at(body, opset)}  o = MatMul (x, w) }}"
    return parse(text, known=WEIGHTS, opset=opset)


def regions(model: ModelProto) -> list[Region]:
    graph, _ = adapters.load(model)
    return list(find_regions(graph.dataflow("float16")))


def rows(scale: float = 1.0) -> np.ndarray:
    """Rows far from zero, and rows whose squares leave the range; the product before doubles them."""
    values = np.linspace(-1, 1, 32, dtype=F).reshape(4, 8)
    return (values * np.array([[300], [2], [2], [0.5]], F) + np.array([[0], [200], [-100], [2]], F)) * F(scale)


@each_form
def test_every_form_is_one_region(kind: str, body: str) -> None:
    model = between(body)
    found = regions(model)
    assert {region.kind for region in found} == {kind}
    beside = 2 + 3 * body.count("Shape")
    assert len(found[0].ops) == len(model.graph.node) - beside, "all its nodes, each once"
    # All casts are the product's; those of the file that do nothing go.
    model = alone(body)
    assert casts(converted(model, "auto", rewrite="no-cast")) == 2 + casts(model)
    if kind.endswith("Normalization"):
        assert casts(converted(model, "O2", rewrite="no-cast")) == 2 + casts(model)


@pytest.mark.share(2)
@each_form
@pytest.mark.parametrize("level", ["O2", "auto"])
@pytest.mark.parametrize("target", ["cuda", "cpu"])
def test_a_region_costs_at_most_two_casts(kind: str, body: str, level: str, target: str) -> None:
    model = between(body)
    result = converted(model, level, target=target)
    assert casts(result) <= 2 + casts(model) + 2
    inside = [word.split(":")[1] for word in decisions(result).split() if ":" in word and "MatMul" not in word]
    scaled_low = target == "cuda" and inside[-1] == "f16" and "Div:f32 Cast>f16 Mul:f16" in decisions(result)
    assert len(set(inside)) == 1 or scaled_low, "a region has one type, but for the scale of a norm that CUDA fuses"
    reference, low = float32_and_low(model, {"f": rows() / 2}, level, target=target)
    assert not difference(reference["o"], low["o"])


@each_norm
@pytest.mark.parametrize("level", ["O2", "O3", "auto"])
def test_a_norm_is_written_as_the_standard_operator(kind: str, body: str, level: str) -> None:
    model = between(body, SINCE[kind])
    result = converted(model, level)
    assert decisions(result) == f"Cast>f16 MatMul:f16 {kind}:f16 MatMul:f16 Cast>f32"


@each_norm
@pytest.mark.parametrize("level", ["O2", "auto"])
def test_the_standard_operator_computes_the_same(kind: str, body: str, level: str) -> None:
    """With squares beyond the range of float16 inside."""
    model = between(body, SINCE[kind])
    reference, low = float32_and_low(model, {"f": rows() / 2}, level)
    assert not difference(reference["o"], low["o"])


@pytest.mark.parametrize("level", ["O3", "auto"])
def test_a_norm_of_a_norm_and_one_without_bias(level: str) -> None:
    """The second one reads what the first one was replaced by."""
    again = re.sub(r"\bx\b", "u", re.sub(r"\b([mdqvarnz])\b", r"\1\1", TORCH))
    body = f"{TORCH.replace('y =', 'u =')}  {again}"
    assert kinds(converted(between(body, 17), level)).count("LayerNormalization") == 2
    reference, low = float32_and_low(between(body, 17), {"f": rows()}, level)
    assert not difference(reference["o"], low["o"])
    # The Add behind it stays an Add.
    assert decisions(converted(between(BIASED, 23), level)) == (
        "Cast>f16 MatMul:f16 RMSNormalization:f16 Add:f16 MatMul:f16 Cast>f32"
    )


@each_norm
@pytest.mark.parametrize(("level", "target"), [("O1", "cuda"), ("O2", "cann")])
def test_norms_that_stay_float32_are_rewritten_where_they_would_not_load_alone(
    kind: str, body: str, level: str, target: str
) -> None:
    """TensorRT's kernels promise no float32 inside, so that O2 keeps float32 data there."""
    result = decisions(converted(between(body, SINCE[kind]), level, target=target))
    if body in [LAYER_NORMS[name] for name in FUSED]:
        assert result == f"Cast>f16 MatMul:f16 Cast>f32 {kind}:f32 Cast>f16 MatMul:f16 Cast>f32"
    else:
        assert kind not in result


@each_norm
@pytest.mark.parametrize("level", ["O3", "auto"])
def test_no_standard_operator_before_its_opset(kind: str, body: str, level: str) -> None:
    assert kind not in kinds(converted(between(body, SINCE[kind] - 1), level))


BIASED = RMS_NORMS["Pow and Div"].replace("y = Mul (n, g)", "o1 = Mul (n, g)  y = Add (o1, b)")
TORCH = LAYER_NORMS["torch"]
ALIKE = {
    "a mean over another axis": TORCH.replace("<axes = [-1]> (x)", "<axes = [0]> (x)"),
    "a variance over another axis": TORCH.replace("<axes = [-1]> (q)", "<axes = [0]> (q)"),
    "both over another axis": TORCH.replace("[-1]", "[0]"),
    "two axes": TORCH.replace("[-1]", "[0, 1]"),
    "a negative eps": TORCH.replace("eps", "minus"),
    "the root read elsewhere": TORCH.replace("z = Mul", "u = Add (n, r)  z = Mul").replace("(n, g)", "(u, g)"),
    "the centred data read elsewhere": TORCH + "  x1 = Relu (d)  y1 = Add (y, x1)",
    "a bias of another length": TORCH.replace("(z, b)", "(z, one)"),
    "a scale that is one number": TORCH.replace("(n, g)", "(n, half)"),
    "a cube": TORCH.replace("two", "three"),
    "another numerator": TORCH.replace("Div (d, r)", "Div (x, r)"),
    "the root as numerator": TORCH.replace("Div (d, r)", "Div (r, d)"),
    "a Mul that is no square": TORCH.replace("Pow (d, two)", "Mul (d, x)"),
    "a mean of something else": TORCH.replace("[-1]> (x)", "[-1]> (f)"),
    "TensorFlow's with another mean": LAYER_NORMS["TensorFlow"].replace("k = Mul (m, s)", "k = Mul (v, s)"),
}


@pytest.mark.parametrize("body", ALIKE.values(), ids=ALIKE.keys())
@pytest.mark.parametrize("level", ["O3", "auto"])
def test_what_only_looks_like_a_norm_is_left_alone(body: str, level: str) -> None:
    body = body.replace("y = Add", "y0 = Add").replace("Add (y, x1)", "Add (y0, x1)") if "y1" in body else body
    body = body.replace("y1 =", "y =")
    model = between(body, 17, minus=np.array(-1e-5, np.float32))
    result = converted(model, level)
    assert "LayerNormalization" not in kinds(result)
    assert [k for k in kinds(result) if k != "Cast"] == [k for k in kinds(model) if k != "Cast"]


def rules_with_bias(bias: float) -> list[str]:
    """The rules that decide of a product and of its sum with a bias of 8 equal numbers at O1."""
    text = "g (float[4,8] f) => (float[4,8] o) { x = MatMul (f, w)  y = Add (x, b)  o = Relu (y) }"
    model = parse(text, known={"w": np.eye(8, dtype=F), "b": np.full(8, bias, F)})
    return [ampgraph.explain(model, node, "O1").slots[0].rule for node in "xy"]


def test_a_bias_that_the_low_type_holds_is_tied_to_its_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one leaves its product low."""
    assert rules_with_bias(65504) == ["region", "region"] and rules_with_bias(65536) == ["list", "weight"]
    # one that is too long is none
    monkeypatch.setattr("ampgraph.planner.regions.LONGEST_BIAS", 8)
    assert rules_with_bias(1) == ["region", "region"]
    monkeypatch.setattr("ampgraph.planner.regions.LONGEST_BIAS", 7)
    assert rules_with_bias(1) == ["list", "list"]


@pytest.mark.parametrize("asked", [True, False])
def test_a_norm_that_reads_a_float32_stream_is_float32(asked: bool) -> None:
    """With --fp32-stream, where it is no kernel of two types: the additions of the stream read the norm's data too."""
    body = f"""x1 = Add (f, x0)  {RMS.replace("(x,", "(x1,")}  i = Reciprocal (r)  n = Mul (x1, i)  y = Mul (n, g)
        t = MatMul (y, w)  u = Add (x1, t)  c = Add (u, t)  z = MatMul (c, w)"""
    text = f"g (float[4,8] f) => (float[4,8] z) {{ x0 = MatMul (f, w)  {body} }}"
    stored = {"two": F(2), "eps": F(1e-5), "w": np.eye(8, dtype=F), "g": np.linspace(0.5, 2, 8, dtype=F)}
    model = parse(text, known=stored, opset=16)
    slot = ampgraph.explain(model, "y", "O2", dtype="bfloat16", fp32_stream=asked).slots[0]
    said = "in a float32 stream: RMSNormalization reads data that others add to, and is no kernel of two types"
    assert ((slot.rule, slot.reason, slot.dtype) == ("fp32_stream", said, "float32")) is asked


def test_a_bias_joins_its_product() -> None:
    """At O1 an Add is float32, but not the one that a product's kernel does on the way."""
    text = "g (float[4,8] f) => (float[4,8] o) { x = MatMul (f, w)  h = Add (x, b)  r = Add (h, f)  o = MatMul (r, w) }"
    assert decisions(converted(parse(text, known=WEIGHTS), "O1")) == (
        "Cast>f16 MatMul:f16 Add:f16 Cast>f32 Add:f32 Cast>f16 MatMul:f16 Cast>f32"
    )


TOP = "t = ReduceMax <axes = [-1]> (x)  d = Sub (x, t)  e = Exp (d)"
LOG_SOFTMAX = {
    "the sum's logarithm": f"{TOP}  s = ReduceSum (e, last)  l = Log (s)  y = Sub (d, l)",
    "with the maximum": f"{TOP}  s = ReduceSum (e, last)  l = Log (s)  u = Add (l, t)  y = Sub (x, u)",
    "ReduceLogSum": f"{TOP}  l = ReduceLogSum <axes = [-1]> (e)  y = Sub (d, l)",
    "ReduceLogSumExp": "l = ReduceLogSumExp <axes = [-1]> (x)  y = Sub (x, l)",
}


@pytest.mark.parametrize("body", LOG_SOFTMAX.values(), ids=LOG_SOFTMAX.keys())
@pytest.mark.parametrize("level", ["O2", "auto"])
def test_a_log_softmax_is_no_region_but_right(body: str, level: str) -> None:
    """It may be a loss: what adds up exponentials stays float32, with all that reads it."""
    model = between(body)
    assert not regions(model)
    reference, low = float32_and_low(model, {"f": rows(0.1) / 2}, level)
    assert not difference(reference["o"], low["o"])


def test_a_scale_of_two_dimensions_is_squeezed_for_the_standard_operator() -> None:
    found = decisions(converted(between(LAYER_NORMS["a row as scale"], 17), "auto"))
    assert found == "Cast>f16 MatMul:f16 Squeeze:f16 Squeeze:f16 LayerNormalization:f16 MatMul:f16 Cast>f32"


POOLED = """g (float[4,8,8] f) => (float[4,8,8] o) {{ x = MatMul (f, w)  m = GlobalAveragePool (x)  d = Sub (x, m)
    q = Mul (d, d)  v = GlobalAveragePool (q)  {INVERSE}  {FOLDED}  o = MatMul (y, w) }}"""
BATCHED = {
    "reshaped": f"""{CENTRED}  q = Mul (d, d)  v = ReduceMean <axes = [-1]> (q)  ms = Reshape (m, back_flat)
        vs = Reshape (v, back_flat)""",
    "squeezed": f"""{CENTRED}  q = ReduceSumSquare <axes = [-1]> (d)  v = Div (q, eight)  ms = Squeeze (m, last)
        vs = Squeeze (v, last)""",
    "moments": f"{MOMENTS}  v = Sub (e, u)  ms = Squeeze (m, last)  vs = Squeeze (v, last)",
    "without dimensions": f"""{CENTRED}  ms = ReduceMean <axes = [-1], keepdims = 0> (x)  q = Mul (d, d)
        vs = ReduceMean <axes = [-1], keepdims = 0> (q)""",
}


def pooled() -> ModelProto:
    """A norm over the last of three dimensions, as a pool."""
    text = POOLED.format(INVERSE=INVERSE, FOLDED=FOLDED)
    return parse(text, known=WEIGHTS)


def batched(name: str) -> ModelProto:
    """The rows of a transposed batch, normalised as Keras does."""
    body = f"{BATCHED[name]}  t = Transpose <perm = [1, 0]> (x)  n = BatchNormalization (t, ones, zeros, ms, vs)"
    return between(f"{body}  y = Transpose <perm = [1, 0]> (n)", ones=np.ones(4, F), zeros=np.zeros(4, F))


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


# Every text of op_lists/patterns is needed: without it a form is no region, and a norm no longer right by itself.

TEXT_NORM = """main(x: f32[64,128])
  parameter w: f32[128,128]
  parameter g: f32[128]
  l = Load(w, state)
  s = Load(g, state)
  a: f32[64,128] = MatMul(x, l, false, false)
  {body}
  b: f32[64,128] = MatMul(n, l, false, false)
  return b
"""
TEXT_ROOT = "v: f32[64,1] = ReduceMean(q, [1], true)\n  e: f32[64,1] = Add(v, f32[]=1e-5)\n  r: f32[64,1] = Rsqrt(e)"
OVER = "n: f32[64,128] = Mul({0}, r)"
CENTRED = "m: f32[64,1] = ReduceMean(a, [1], true)\n  d: f32[64,128] = Sub(a, m)\n  q: f32[64,128] = Square(d)"
MINDIR = {
    "RMSNormalization": f"q: f32[64,128] = Square(a)\n  {TEXT_ROOT}\n  {OVER.format('a')}",
    "LayerNormalization": f"{CENTRED}\n  {TEXT_ROOT}\n  {OVER.format('d')}",
    "LayerNormalization, the scale in the root": f"{CENTRED}\n  {TEXT_ROOT}\n  f: f32[64,128] = Mul(r, s)"
    "\n  n: f32[64,128] = Mul(d, f)",
    "LpNormalization": f"q: f32[64,128] = Square(a)\n  {TEXT_ROOT}\n  {OVER.format('a')}".replace(
        "ReduceMean", "ReduceSum"
    ),
}


@cache
def flows(kind: str) -> Sequence[Dataflow]:
    """The forms of a region in all the ways that the tests know."""
    from formats.mindir.parse import graph_of
    from formats.mindir.parse import parse as parse_mindir

    found = [between(body) for body in FORMS.get(kind, {}).values()]
    if kind == "BatchNormalization":
        found += [batched(name) for name in BATCHED]
    if kind == "LayerNormalization":
        found.append(pooled())
    if kind == "GroupNormalization":
        found.append(parse(GROUPS, GROUPED))
    if kind == BIAS:
        text = "g (float[4,8] f) => (float[4,8] o) { x = MatMul (f, w)  o = Add (x, b) }"
        found.append(parse(text, known=WEIGHTS))
        found.append(parse(text.replace("=> (", "=> (float[4,8] x, "), known=WEIGHTS))
    given = [adapters.load(model)[0].dataflow("float16") for model in found]
    bodies = [body for name, body in MINDIR.items() if name.split(",")[0] == kind]
    return [*given, *(graph_of(parse_mindir(TEXT_NORM.format(body=body))).dataflow("float16") for body in bodies)]


def seen(patterns: PatternSet, flow: Dataflow, kind: str) -> object:
    """The regions of one kind, with their operators."""
    products = {"Product": ["MatMul"]} if kind == BIAS else {}
    return [(match.pattern.kind, sorted(op.id for op in match.ops)) for match in patterns.find(flow, products)]


@cache
def seen_by_all(kind: str) -> Sequence[object]:
    joined = fused_only_patterns(frozenset((kind,)))
    shipped = bias_patterns() if kind == BIAS else joined if joined.patterns else region_patterns()
    own = PatternSet([pattern for pattern in shipped.patterns if pattern.kind == kind], shipped.conventions)
    return [seen(own, flow, kind) for flow in flows(kind)]


def files() -> Iterator[ListFile]:
    return (read_file(path) for path in sorted((data_folder() / "patterns").glob("*.toml")))


def texts(file: ListFile) -> Iterator[tuple[str, str, int]]:
    """Section, name and place of every text of a file."""
    for section in ("variants", "functions"):
        for name, held in file.data.get(section, {}).items():
            yield from ((section, name, place) for place in range(1 if isinstance(held, str) else len(held)))
    for section in ("anchors", "ends", "private"):
        yield from ((section, name, 0) for name in file.data.get(section, ()))


def dropped(file: ListFile, section: str, name: str, place: int) -> ListFile:
    data = copy.deepcopy(dict(file.data))
    if section == "variants":
        del data[section][name]
    elif section == "functions":
        del data[section][name][place]
    else:
        data[section] = [other for other in data[section] if other != name]
    return dataclasses.replace(file, data=data)


CELLS = [
    pytest.param(file, section, name, place, id=f"{file.name}: {section}: {name} {place}")
    for file in files()
    for section, name, place in texts(file)
]


@pytest.mark.share(3)
@pytest.mark.parametrize(("file", "section", "name", "place"), CELLS)
def test_without_a_text_some_form_is_no_region(
    file: ListFile, section: str, name: str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    less = dropped(file, section, name, place)
    if file.name.endswith(SHARED):
        monkeypatch.setattr(pattern_files, "_shared_file", lambda: less)
        regions = [other for other in files() if not other.name.endswith(SHARED)]
    else:
        regions = [less]
    assert any(is_missed(region) for region in regions)


def is_missed(file: ListFile) -> bool:
    """Whether the patterns of a file do not find, or not whole, what those of the shipped file find."""
    kind: str = file.data["region"]
    try:
        own = PatternSet(list(patterns_of(file)), conventions())
    except Exception as error:  # a variant that nothing is left of
        return "AmpError" in type(error).__name__
    return any(seen(own, flow, kind) != whole for flow, whole in zip(flows(kind), seen_by_all(kind), strict=True))


OTHER_RULES = ("pow", "cancelling", "eps", "long-sum")  # what would hold parts of a norm that is no region


@pytest.mark.share(2)
@pytest.mark.parametrize(("kind", "body"), [one for one in EACH if "Normalization: " in str(one.id)])
def test_a_norm_is_right_by_its_text_alone(kind: str, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows far from zero, and rows whose squares leave the range: with no guard but the region's, and without it."""
    large = 200 if body.count("ReduceL2") == 1 else 1  # a root leaves the range where its elements nearly do
    model, data = between(body), {"f": rows(large) / 2}
    without(monkeypatch, *OTHER_RULES)
    reference, low = float32_and_low(model, data)
    assert not difference(reference["o"], low["o"])
    monkeypatch.setattr("ampgraph.rules.fusions.regions", lambda flow: [])
    reference, low = float32_and_low(model, data)
    assert difference(reference["o"], low["o"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "each"), [("MatMul (x, w)", "Identity (v{})"), ("Gather (w, i)", "Add (v{}, g)")], ids=["casts", "sums"]
)
def test_long_chains_need_no_stack(first: str, each: str) -> None:
    steps = "\n".join(f"v{n + 1} = {each.format(n)}" for n in range(1100))
    text = f"""g (float[4, 4] x, int64[4] i) => (float[4, 4] y) {{
        g = Gather (w, i)  v0 = {first} {steps} n = LayerNormalization (v1100, s)  y = MatMul (n, w)
        r, m = com.microsoft.Attention <num_heads = 1> (n, u, t) }}"""
    model = parse(text, w=(4, 4), s=(4,), u=(4, 12), t=(12,), domains=["com.microsoft"])
    assert ampgraph.plan(model, "O2", dtype="bfloat16").casts
