"""Where a Cast would break what ONNX Runtime fuses for CUDA of a product, what is behind it, and its softmax."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.numerics.strict.session import run_strict
from onnx_text import parse
from planner.form_models import CENTRED, ROOT, model
from planner.support import converted, decisions, dtype_of, float32_and_low

RNG = np.random.default_rng(0)


def normed(body: str, opset: int = 17, variance: float = 1.5) -> ModelProto:
    text = f"g (float[1,3,8,8] x) => (float[1,4,B,C] y) {{ {body} }}"
    stored = {"w": RNG.standard_normal((4, 3, 3, 3)), "v": RNG.standard_normal((4, 4, 3, 3))}
    stored |= dict(zip("abcd", (RNG.uniform(0.5, 2, 4), np.zeros(4), np.zeros(4), np.full(4, variance)), strict=True))
    used = {name: np.asarray(array, np.float32) for name, array in stored.items() if f", {name}" in text}
    return parse(text, used, opset=opset)


BLOCK = "p = Conv (x, w)  n = BatchNormalization (p, a, b, c, d)  r = Relu (n)  y = Conv (r, v)"


def test_a_batch_norm_goes_into_the_convolution_before_it() -> None:
    given = normed(BLOCK)
    assert decisions(converted(given, "O1")) == "Cast>f16 Conv:f16 BatchNormalization:f16 Relu:f16 Conv:f16 Cast>f32"


AFFINE = "p = Conv (x, w)  s = Mul (p, k)  n = Add (s, k2)  r = Relu (n)  y = Conv (r, v)"


def affine(body: str, shape: tuple[int, ...]) -> ModelProto:
    stored = {"k": RNG.uniform(0.5, 2, shape), "k2": RNG.standard_normal(shape)}
    stored |= {"w": RNG.standard_normal((4, 3, 3, 3)), "v": RNG.standard_normal((4, 4, 3, 3))}
    text = f"g (float[1,3,8,8] x) => (float[1,4,B,C] y) {{ {body} }}"
    return parse(text, {name: array.astype(np.float32) for name, array in stored.items()}, opset=17)


@pytest.mark.parametrize(("shape", "kind"), [((4, 1, 1), "f16"), ((1, 4, 1, 1), "f16"), ((1, 4, 6, 6), "f32")])
def test_so_do_a_scale_and_a_shift_of_each_channel(shape: tuple[int, ...], kind: str) -> None:
    result = converted(affine(AFFINE, shape), "O1", rewrite=["none"])
    assert dtype_of(result, "Mul") == dtype_of(result, "Add") == kind


def test_a_shift_in_front_is_not_known_to_the_runtime() -> None:
    result = converted(affine(AFFINE.replace("(s, k2)", "(k2, s)"), (4, 1, 1)), "O1", rewrite=["none"])
    assert "Mul:f16 Cast>f32 Add:f32" in decisions(result)


def test_what_is_computed_of_stored_numbers_counts_as_stored() -> None:
    """As exporters write frozen statistics, or tensors that are equal."""
    body = BLOCK.replace("n = B", "e = Identity (d)  n = B").replace("c, d)", "c, e)")
    assert dtype_of(converted(normed(body.replace("(d)", "(a)")), "O1"), "BatchNormalization") == "f16"


def test_explain_names_the_fusion() -> None:
    assert "ConvBNFusion" in str(ampgraph.explain(normed(BLOCK), "n", level="O1"))
    assert "ConvBNFusion" not in str(ampgraph.explain(normed(BLOCK), "n", level="O2"))


OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "read elsewhere too": (BLOCK.replace("Relu (n)", "Add (n, p)"), {}),
    "no product": (BLOCK.replace("Conv (x, w)", "Tanh (q)").replace("p =", "q = Conv (x, w)  p =", 1), {}),
    "another target": (BLOCK, {"target": "cann"}),
    "named": (BLOCK, {"fp32": ["op:BatchNormalization"]}),
    "beyond the range": (BLOCK, {}),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_batch_norms_stay_float32(case: str) -> None:
    body, options = OTHERS[case]
    given = normed(body, variance=1e8 if case == "beyond the range" else 1.5)
    assert dtype_of(ampgraph.convert(given, "O1", **options), "BatchNormalization") == "f32"


def classifier(body: str) -> ModelProto:
    text = f"g (float[2,50,8] x) => (float[2,50,A] y) {{ {body} }}"
    stored = {"w": RNG.standard_normal((8, 6)), "b": RNG.standard_normal(6), "v": RNG.standard_normal((6, 6))}
    used = {name: np.asarray(array, np.float32) for name, array in stored.items() if name + ")" in text}
    return parse(text, used, opset=17)


LAST = "h = MatMul (x, w)  s = Add (h, b)  y = Softmax (s)"


def test_identities_between_are_seen_through() -> None:
    given = classifier(LAST.replace("Softmax (s)", "Softmax (t)").replace("y =", "t = Identity (s)  y ="))
    assert "MatMul:f16 Cast>f32 Add:f32" in decisions(converted(given))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("level", ["O1", "O2", "auto"])
def test_what_the_last_softmax_reads_is_added_in_its_type(level: str, dtype: str) -> None:
    result = converted(classifier(LAST), level, dtype=dtype)
    low = "f16" if dtype == "float16" else "bf16"
    assert decisions(result) == f"Cast>{low} MatMul:{low} Cast>f32 Add:f32 Softmax:f32"


def test_one_rounding_less() -> None:
    feeds = {"x": RNG.standard_normal((2, 50, 8)).astype(np.float32)}
    given = classifier(LAST)
    before = ampgraph.convert(given, "O2", target="cann")
    assert dtype_of(before, "Add") == "f16"
    wide, low = float32_and_low(given, feeds)
    assert np.abs(low["y"] - wide["y"]).mean() <= np.abs(run_strict(before, feeds)["y"] - wide["y"]).mean()


def test_between_products_the_bias_is_low_with_its_softmax() -> None:
    found = decisions(converted(classifier(LAST.replace("y =", "p =") + "  y = MatMul (p, v)")))
    assert "f32" not in found.removesuffix("Cast>f32")


def test_products_of_constants_alone_stay_float32() -> None:
    """The runtime folds them in float32; low they would run in every inference."""
    text = "g (float[2,6] x) => (float[2,6] y) { q = MatMul (b, v)  s = Add (q, b)  t = Mul (x, s)  y = MatMul (t, v) }"
    stored = {"b": np.ones((1, 6), np.float32), "v": np.eye(6, dtype=np.float32)}
    result = converted(parse(text, stored, opset=17))
    assert decisions(result) == "Cast>f16 MatMul:f32 Add:f32 Cast>f16 Mul:f16 MatMul:f16 Cast>f32"


def test_an_identity_in_front_of_a_norm_does_not_hide_it() -> None:
    """Which the addition of a residual reads too."""
    body = f"{CENTRED}  {ROOT}  n = Div (d, r)  s = Mul (n, g)  t = Add (s, g)".replace("(x", "(i")
    found = decisions(converted(model(f"i = Identity (x)  {body}  u = MatMul (t, w)  y = Add (u, i)")))
    assert found.startswith("Cast>f16 MatMul:f16 Identity:f16 Cast>f32 ReduceMean:f32")
    assert found.endswith("Div:f32 Cast>f16 Mul:f16 Add:f16 MatMul:f16 Add:f16 MatMul:f16 Cast>f32")


def test_a_norm_over_the_last_axis_is_known_where_no_rank_is() -> None:
    """Casts around it are placed as where it is known: the runtime makes one low kernel of it."""
    body = f"{CENTRED}  {ROOT}  n = Div (d, r)  s = Mul (n, g)  y = Add (s, g)"
    body = f"h = MatMul (f, w)  x = Reshape (h, to)  {body}  z = MatMul (y, w)"
    given = parse(
        f"g (float[A,8] f, int64[K] to) => (float[B,8] z) {{ {body} }}",
        {"w": np.eye(8, dtype=np.float32), "g": np.ones(8, np.float32), "two": np.float32(2), "eps": np.float32(1e-3)},
        opset=16,
    )
    found = decisions(converted(given))
    assert found.endswith("Div:f32 Cast>f16 Mul:f16 Add:f16 MatMul:f16 Cast>f32")
