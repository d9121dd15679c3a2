"""Decomposed norms, softmax and GELU: seen as one, at most two casts, the standard operator where it exists."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from ampgraph.formats import adapters
from ampgraph.numerics.metrics.compare import difference
from ampgraph.oplists.patterns import Region, find_regions
from onnx_text import parse
from planner.support import casts, converted, decisions, float32_and_low, kinds

MEAN = "m = ReduceMean <axes = [-1]> (x)"
VARIANCE = "v = ReduceMean <axes = [-1]> (q)  a = Add (v, eps)  r = Sqrt (a)"
AFFINE = "z = Mul (n, g)  y = Add (z, b)"
SQUARE = "v = ReduceMean <axes = [-1]> (q)  a = Add (v, eps)  r = Sqrt (a)"

LAYER_NORMS = {
    "torch": f"{MEAN}  d = Sub (x, m)  q = Pow (d, two)  {VARIANCE}  n = Div (d, r)  {AFFINE}",
    "Mul(d, d)": f"{MEAN}  d = Sub (x, m)  q = Mul (d, d)  {VARIANCE}  n = Div (d, r)  {AFFINE}",
    "two Subs": f"{MEAN}  d = Sub (x, m)  e = Sub (x, m)  q = Pow (d, two)  {VARIANCE}  n = Div (e, r)  {AFFINE}",
    "Mul of two Subs": f"{MEAN}  d = Sub (x, m)  e = Sub (x, m)  q = Mul (d, e)  {VARIANCE}  n = Div (d, r)  {AFFINE}",
    "Reciprocal": f"{MEAN}  d = Sub (x, m)  q = Mul (d, d)  {VARIANCE}  i = Reciprocal (r)  n = Mul (d, i)  {AFFINE}",
    "1 / root": f"{MEAN}  d = Sub (x, m)  q = Mul (d, d)  {VARIANCE}  i = Div (one, r)  n = Mul (i, d)  {AFFINE}",
    "operands swapped": f"""{MEAN}  d = Sub (x, m)  q = Mul (d, d)  v = ReduceMean <axes = [-1]> (q)  a = Add (eps, v)
        r = Sqrt (a)  n = Div (d, r)  z = Mul (g, n)  y = Add (b, z)""",
    "identities": f"""i = Identity (x)  m = ReduceMean <axes = [-1]> (i)  d = Sub (i, m)  c = Cast <to = 1> (d)
        q = Pow (c, two)  {VARIANCE}  n = Div (c, r)  {AFFINE}""",
    "TensorFlow": f"""{MEAN}  d = Sub (x, m)  q = Mul (d, d)  {VARIANCE}  i = Reciprocal (r)  s = Mul (i, g)
        h = Mul (x, s)  k = Mul (m, s)  t = Sub (b, k)  y = Add (h, t)""",
}
RMS_NORMS = {
    "Pow and Div": f"q = Pow (x, two)  {SQUARE}  n = Div (x, r)  y = Mul (n, g)",
    "Mul and Div": f"q = Mul (x, x)  {SQUARE}  n = Div (x, r)  y = Mul (g, n)",
    "Reciprocal": f"q = Pow (x, two)  {SQUARE}  i = Reciprocal (r)  n = Mul (x, i)  y = Mul (n, g)",
    "1 / root": f"q = Pow (x, two)  {SQUARE}  i = Div (one, r)  n = Mul (x, i)  y = Mul (g, n)",
}
SOFTMAX = {
    "softmax": """t = ReduceMax <axes = [-1]> (x)  d = Sub (x, t)  e = Exp (d)  s = ReduceSum (e, last)
        y = Div (e, s)""",
}
ERF = "i = Div (x, root2)  e = Erf (i)  p = Add (e, one)"
TANH = "c = Pow (x, three)  k = Mul (c, cubic)  j = Add (x, k)  i = Mul (j, factor)  e = Tanh (i)  p = Add (e, one)"
GELUS = {
    "(x (1 + erf)) 0.5": f"{ERF}  h = Mul (x, p)  y = Mul (h, half)",
    "(0.5 x) (1 + erf)": f"{ERF}  h = Mul (half, x)  y = Mul (h, p)",
    "x (0.5 (1 + erf))": f"{ERF}  h = Mul (half, p)  y = Mul (x, h)",
    "x (1 / root 2)": "i = Mul (x, inverse2)  e = Erf (i)  p = Add (one, e)  h = Mul (p, x)  y = Mul (half, h)",
    "tanh, (0.5 x) (...)": f"{TANH}  h = Mul (x, half)  y = Mul (h, p)",
    "tanh, 0.5 (x (...))": f"{TANH}  h = Mul (x, p)  y = Mul (h, half)",
    "tanh, x (0.5 (...))": f"{TANH}  h = Mul (p, half)  y = Mul (x, h)",
    "tanh, x x x": """u = Mul (x, x)  c = Mul (u, x)  k = Mul (cubic, c)  j = Add (x, k)  i = Mul (j, factor)
        e = Tanh (i)  p = Add (e, one)  h = Mul (half, x)  y = Mul (h, p)""",
    "tanh, x (1 + c x x)": """u = Mul (x, x)  k = Mul (cubic, u)  l = Add (k, one)  j = Mul (x, l)  i = Mul (j, factor)
        e = Tanh (i)  p = Add (e, one)  h = Mul (half, x)  y = Mul (h, p)""",
}
FORMS = [
    *(("LayerNormalization", name, body) for name, body in LAYER_NORMS.items()),
    *(("RMSNormalization", name, body) for name, body in RMS_NORMS.items()),
    *(("Softmax", name, body) for name, body in SOFTMAX.items()),
    *(("Gelu", name, body) for name, body in GELUS.items()),
]
each_form = pytest.mark.parametrize(("kind", "body"), [pytest.param(k, b, id=f"{k}: {n}") for k, n, b in FORMS])
NORMS = [pytest.param(k, b, id=f"{k}: {n}") for k, n, b in FORMS if k.endswith("Normalization")]
FUSED = ("torch", "two Subs", "identities")
"""LayerNormalizations that ONNX Runtime would fuse with the cast before them, and refuse."""
each_norm = pytest.mark.parametrize(("kind", "body"), NORMS)
SINCE = {"LayerNormalization": 17, "RMSNormalization": 23}

WEIGHTS: dict[str, Any] = {
    **{name: np.float32(value) for name, value in (("eps", 1e-5), ("two", 2), ("one", 1), ("three", 3), ("half", 0.5))},
    **{"root2": np.float32(np.sqrt(2)), "inverse2": np.float32(np.sqrt(0.5)), "cubic": np.float32(0.044715)},
    **{"factor": np.float32(np.sqrt(2 / np.pi)), "last": np.array([-1]), "w": np.eye(8, dtype=np.float32) * 2},
    **{"g": np.linspace(0.5, 1.5, 8, dtype=np.float32), "b": np.linspace(-1, 1, 8, dtype=np.float32)},
}


def at(body: str, opset: int) -> str:
    """From opset 18 the axes of a mean are an input."""
    if opset < 18:
        return body
    for op in ("ReduceMean", "ReduceMax"):
        for name in "xqdi":
            body = body.replace(f"{op} <axes = [-1]> ({name})", f"{op} ({name}, last)")
    return body


def between(body: str, opset: int = 16, more: Mapping[str, np.ndarray] | None = None) -> ModelProto:
    """A region between two products, where its input and output are low."""
    text = f"g (float[4,8] f) => (float[4,8] o) {{ x = MatMul (f, w)  {at(body, opset)}  o = MatMul (y, w) }}"
    return parse(text, used(text, more), opset=opset)


def alone(body: str, opset: int = 16) -> ModelProto:
    """A region from a float32 input to a float32 output, with a product beside it."""
    text = f"g (float[4,8] x) => (float[4,8] y, float[4,8] o) {{ {at(body, opset)}  o = MatMul (x, w) }}"
    return parse(text, used(text), opset=opset)


def used(text: str, more: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
    words = set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())
    return {name: array for name, array in {**WEIGHTS, **(more or {})}.items() if name in words}


def regions(model: ModelProto) -> list[Region]:
    graph, _ = adapters.load(model)
    return list(find_regions(graph.dataflow("float16")))


def data() -> np.ndarray:
    """Rows whose squares leave the float16 range, beside small ones."""
    values = np.linspace(-2, 2, 32, dtype=np.float32).reshape(4, 8)
    return values * np.array([[200], [1], [0.01], [3]], np.float32)


@each_form
def test_every_form_is_one_region(kind: str, body: str) -> None:
    model = between(body)
    found = regions(model)
    assert [region.kind for region in found] == [kind]
    assert len(found[0].ops) == len(model.graph.node) - 2, "all its nodes, each once"
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
    reference, low = float32_and_low(model, {"f": data() / 2}, level, target=target)
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
    reference, low = float32_and_low(model, {"f": data() / 2}, level)
    assert not difference(reference["o"], low["o"])


@pytest.mark.parametrize("level", ["O3", "auto"])
def test_a_norm_of_a_norm_and_one_without_bias(level: str) -> None:
    """The second one reads what the first one was replaced by."""
    again = re.sub(r"\bx\b", "u", re.sub(r"\b([mdqvarnz])\b", r"\1\1", TORCH))
    body = f"{TORCH.replace('y =', 'u =')}  {again}"
    assert kinds(converted(between(body, 17), level)).count("LayerNormalization") == 2
    reference, low = float32_and_low(between(body, 17), {"f": data()}, level)
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
    model = between(body, 17, {"minus": np.array(-1e-5, np.float32)})
    result = converted(model, level)
    assert "LayerNormalization" not in kinds(result)
    assert [k for k in kinds(result) if k != "Cast"] == [k for k in kinds(model) if k != "Cast"]


def test_a_bias_joins_its_product() -> None:
    """At O1 an Add is float32, but not the one that a product's kernel does on the way."""
    text = "g (float[4,8] f) => (float[4,8] o) { x = MatMul (f, w)  h = Add (x, b)  r = Add (h, h)  o = MatMul (r, w) }"
    assert decisions(converted(parse(text, used(text)), "O1")) == (
        "Cast>f16 MatMul:f16 Add:f16 Cast>f32 Add:f32 Cast>f16 MatMul:f16 Cast>f32"
    )
