"""Where a Cast would break what ONNX Runtime fuses for CUDA of a product, what is behind it, and its softmax."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper

import ampgraph
from ampgraph.core.ranges import Range
from ampgraph.numerics.strict.session import run_strict
from needs import needs_runtime
from onnx_text import array, parse, proto
from planner.form_models import CENTRED, GROUPED, GROUPS, INVERSES, ROOT, WRITTEN_OUT, embeddings, gelu, model, rms
from planner.support import converted, decisions, dtype_of, kinds
from share import share

RNG = np.random.default_rng(0)
NUMBERS = {
    name: np.float32(number)
    for name, number in {
        "two": 2, "eps": 1e-5, "root": 2**0.5, "root2": 1.4142135, "one": 1, "half": 0.5, "three": 3,
        "cubic": 0.044715, "factor": 0.7978845608, "slope": 1.702, "scale": 2.5,
    }.items()
}  # fmt: skip


def normed(body: str, variance: float = 1.5, shape: tuple[int, ...] = (4, 1, 1)) -> ModelProto:
    """Convolutions beside a norm, or a scale and a shift of this shape."""
    text = f"g (float[1,3,8,8] x) => (float[1,4,B,C] y) {{ {body} }}"
    stored = {"w": RNG.standard_normal((4, 3, 3, 3)), "v": RNG.standard_normal((4, 4, 3, 3))}
    stored |= {"k": RNG.uniform(0.5, 2, shape), "k2": RNG.standard_normal(shape)}
    stored |= dict(zip("abcd", (RNG.uniform(0.5, 2, 4), np.zeros(4), np.zeros(4), np.full(4, variance)), strict=True))
    return parse(text, known={name: array.astype(np.float32) for name, array in stored.items()})


BLOCK = "p = Conv (x, w)  n = BatchNormalization (p, a, b, c, d)  r = Relu (n)  y = Conv (r, v)"


def test_a_batch_norm_goes_into_the_convolution_before_it() -> None:
    given = normed(BLOCK)
    assert decisions(converted(given, "O1")) == "Cast>f16 Conv:f16 BatchNormalization:f16 Relu:f16 Conv:f16 Cast>f32"
    # a shift in front is not known to the runtime
    result = converted(normed(AFFINE.replace("(s, k2)", "(k2, s)")), "O1", rewrite=["none"])
    assert "Mul:f16 Cast>f32 Add:f32" in decisions(result)
    # As exporters write frozen statistics, or tensors that are equal.
    body = BLOCK.replace("n = B", "e = Identity (d)  n = B").replace("c, d)", "c, e)")
    assert dtype_of(converted(normed(body.replace("(d)", "(a)")), "O1"), "BatchNormalization") == "f16"
    # explain names the fusion
    assert "ConvBNFusion" in str(ampgraph.explain(normed(BLOCK), "n", level="O1"))
    assert "ConvBNFusion" not in str(ampgraph.explain(normed(BLOCK), "n", level="O2"))


AFFINE = "p = Conv (x, w)  s = Mul (p, k)  n = Add (s, k2)  r = Relu (n)  y = Conv (r, v)"


@pytest.mark.parametrize(("shape", "kind"), [((4, 1, 1), "f16"), ((1, 4, 1, 1), "f16"), ((1, 4, 6, 6), "f32")])
def test_so_do_a_scale_and_a_shift_of_each_channel(shape: tuple[int, ...], kind: str) -> None:
    result = converted(normed(AFFINE, shape=shape), "O1", rewrite=["none"])
    assert dtype_of(result, "Mul") == dtype_of(result, "Add") == kind


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
    return parse(text, known={name: array.astype(np.float32) for name, array in stored.items()})


LAST = "h = MatMul (x, w)  s = Add (h, b)  y = Softmax (s)"


def test_norms_and_the_last_softmax() -> None:
    # between products the bias is low with its softmax
    found = decisions(converted(classifier(LAST.replace("y =", "p =") + "  y = MatMul (p, v)")))
    assert "f32" not in found.removesuffix("Cast>f32")
    # The runtime folds them in float32; low they would run in every inference.
    text = "g (float[2,6] x) => (float[2,6] y) { q = MatMul (b, v)  s = Add (q, b)  t = Mul (x, s)  y = MatMul (t, v) }"
    stored = {"b": np.ones((1, 6), np.float32), "v": np.eye(6, dtype=np.float32)}
    result = converted(parse(text, stored, opset=17))
    assert decisions(result) == "Cast>f16 MatMul:f32 Add:f32 Cast>f16 Mul:f16 MatMul:f16 Cast>f32"
    # Which the addition of a residual reads too.
    body = f"{CENTRED}  {ROOT}  n = Div (d, r)  s = Mul (n, g)  t = Add (s, g)".replace("(x", "(i")
    found = decisions(converted(model(f"i = Identity (x)  {body}  u = MatMul (t, w)  y = Add (u, i)")))
    assert found.startswith("Cast>f16 MatMul:f16 Identity:f16 Cast>f32 ReduceMean:f32")
    assert found.endswith("Div:f32 Cast>f16 Mul:f16 Add:f16 MatMul:f16 Add:f16 MatMul:f16 Cast>f32")
    # Casts around it are placed as where it is known: the runtime makes one low kernel of it.
    body = f"{CENTRED}  {ROOT}  n = Div (d, r)  s = Mul (n, g)  y = Add (s, g)"
    body = f"h = MatMul (f, w)  x = Reshape (h, to)  {body}  z = MatMul (y, w)"
    given = parse(
        f"g (float[A,8] f, int64[K] to) => (float[B,8] z) {{ {body} }}",
        {"w": np.eye(8, dtype=np.float32), "g": np.ones(8, np.float32), "two": np.float32(2), "eps": np.float32(1e-3)},
        opset=16,
    )
    found = decisions(converted(given))
    assert found.endswith("Div:f32 Cast>f16 Mul:f16 Add:f16 MatMul:f16 Cast>f32")


CUBE = """c = Pow (a, three)  k = Mul (c, cubic)  i = Add (a, k)  s = Mul (i, factor)  t = Tanh (s)  o = Add (t, one)
    h = Mul (a, half)  y = Mul (h, o)"""


@pytest.mark.parametrize("options", [{"fp32": ["a"]}, {"ranges": "c"}])
def test_a_cube_that_overflows_or_follows_float32_is_written_of_squares(options: dict[str, Any]) -> None:
    text = f"g (float[4,8] f) => (float[4,8] z) {{ x = MatMul (f, w)  a = Relu (x)  {CUBE}  z = MatMul (y, w) }}"
    model = parse(text, known=NUMBERS, w=(8, 8), opset=18)
    for node in model.graph.node:
        node.name = node.output[0]
    if "ranges" in options:
        ranges = ampgraph.calibrate(model, [{"f": np.ones((4, 8), np.float32)}])
        ranges.values["c"] = Range(-1e5, 1e5, 32, 0, 0, {16: 32})
        options = {"ranges": ranges}
    assert "Pow" not in kinds(ampgraph.convert(model, "O2", **options)) and "Pow" in kinds(converted(model, "O2"))


# A bias between a product and a GELU is one kernel with the GELU: float32 with it, and no part of the product.

FORMS = {
    "erf": "e = Div (x, root2)  t = Erf (e)  o = Add (t, one)  h = Mul (x, o)  y = Mul (h, half)",
    "tanh of squares": "c = Mul (x, cubic)  q = Mul (c, x)  s = Add (q, one)  k = Mul (x, factor)  i = Mul (k, s)"
    "  t = Tanh (i)  o = Add (t, one)  h = Mul (x, half)  y = Mul (h, o)",
    "operator": "y = Gelu (x)",
}


def biased(form: str, size: str = "B,S,", more: str = "z = MatMul (y, w)") -> ModelProto:
    """A GELU of a product with its bias, and a product behind it."""
    body = f"p = MatMul (f, w)  x = Add (p, b)  {FORMS[form]}  {more}"
    text = f"g (float[{size}16] f) => (float[{size}16] z) {{ {body} }}"
    return parse(text, known=NUMBERS, w=(16, 16), b=(16,), opset=20 if form == "operator" else 17)


@pytest.mark.parametrize("size", ["B,S,", "2,4,"])
@pytest.mark.parametrize("form", FORMS)
def test_a_bias_goes_with_its_gelu(form: str, size: str) -> None:
    """O1 has the GELU in float32: so is the sum in front of it, which is rounded once less."""
    assert decisions(converted(biased(form, size), "O1")).startswith("Cast>f16 MatMul:f16 Cast>f32 Add:f32")
    assert decisions(converted(biased(form, size), "O2")).startswith("Cast>f16 MatMul:f16 Add:f16")


@pytest.mark.parametrize("form", ["erf", "tanh of squares"])
def test_a_gelu_that_is_one_kernel_in_float32_alone_takes_its_bias_along(form: str) -> None:
    for level in ("O2", "auto"):
        made = converted(biased(form), level, dtype="bfloat16")
        assert decisions(made).startswith("Cast>bf16 MatMul:bf16 Cast>f32 Add:f32")
    assert decisions(converted(biased(form), "O3", dtype="bfloat16")).startswith("Cast>bf16 MatMul:bf16 Add:bf16")


def test_whose_a_bias_is() -> None:
    matrix, read = biased("erf", "4,"), biased("erf", more="r = Relu (x)  s = Add (r, y)  z = MatMul (s, w)")
    for given in (matrix, read):
        assert decisions(converted(given, "O1")).startswith("Cast>f16 MatMul:f16 Add:f16")
    other = converted(biased("erf"), "O1", target="tensorrt")
    assert decisions(other).startswith("Cast>f16 MatMul:f16 Add:f16")
    # As an exporter writes equal biases of two layers: one stored, the other an Identity of it.
    given = biased("erf")
    given.graph.node.insert(0, helper.make_node("Identity", ["b"], ["b2"]))
    next(node for node in given.graph.node if node.output[0] == "x").input[1] = "b2"
    assert "MatMul:f16 Cast>f32 Add:f32" in decisions(converted(given, "O1"))
    # it is as exact or more and converts again
    given = biased("erf")
    made, plain = (ampgraph.convert(given, "O1", target=target) for target in ("cuda", "tensorrt"))
    assert ampgraph.convert(made, "O1").SerializeToString() == made.SerializeToString() and "Erf" in kinds(made)
    feeds = [{"f": np.random.default_rng(n).standard_normal((2, 8, 16)).astype(np.float32)} for n in range(8)]
    right = [run_strict(given, feed)["z"] for feed in feeds]
    now, before = (
        sum(float(np.linalg.norm(run_strict(model, feed)["z"] - z)) for feed, z in zip(feeds, right, strict=True))
        for model in (made, plain)
    )
    assert now <= before
    # explain says so of bias
    said = ampgraph.explain(biased("erf"), "x", level="O1").slots[0].reason
    assert "Gelu" in said


# CUDA's ONNX Runtime matches no constants in bfloat16: a GELU stays float32 there, or becomes its operator.

WIDE_LAST = "h = Mul (x, o)  y = Mul (h, half)"
TANH = """c = Pow (x, three)  m = Mul (c, cubic)  i = Add (x, m)  s = Mul (i, factor)  t = Tanh (s)  o = Add (t, one)
    h = Mul (x, half)  y = Mul (h, o)"""


def by_tanh(opset: int = 18, body: str = TANH) -> ModelProto:
    graph = f"g (float[4,8] f) => (float[4,8] z) {{ x = MatMul (f, w)  {body}  z = MatMul (y, w) }}"
    return parse(graph, known=NUMBERS, w=np.eye(8, dtype=np.float32), opset=opset)


def by_erf(opset: int = 18) -> ModelProto:
    model = gelu(WIDE_LAST)
    model.opset_import[0].version, model.ir_version = opset, 9
    return model


@pytest.mark.parametrize("level", ["O2", "auto"])
@pytest.mark.parametrize("model", [by_erf, by_tanh])
def test_it_stays_float32_between_casts(model, level: str) -> None:
    found = decisions(converted(model(), level, dtype="bfloat16"))
    assert found.count("Cast>f32") == 2 and found.count("Cast>bf16") == 2  # with those of the borders
    assert "Erf:f32" in found or "Tanh:f32" in found
    said = ampgraph.explain(model(), "y", level=level, dtype="bfloat16").slots[0].reason
    assert "one kernel on cuda in float32" in said


@pytest.mark.parametrize("options", [{"level": "O1"}, {"level": "O1", "dtype": "bfloat16"}, {"dtype": "bfloat16"}])
def test_a_cube_that_stays_float32_is_written_of_squares(options: dict[str, Any]) -> None:
    """CUDA's ONNX Runtime knows that form between Casts; constants and result keep their names."""
    result = ampgraph.convert(by_tanh(), **options)
    onnx.checker.check_model(result, full_check=True)
    assert "Pow" not in kinds(result) and kinds(result).count("Mul") == 6
    assert [node.output[0] for node in result.graph.node if "half" in node.input or "y" in node.output][-1] == "y"
    assert ampgraph.convert(result, **options).SerializeToString() == result.SerializeToString()
    assert "Pow" in kinds(ampgraph.convert(by_tanh(), rewrite="no-squares", **options))
    assert "Pow" in kinds(ampgraph.convert(by_tanh(), target="tensorrt", **options))
    assert "of squares" in ampgraph.explain(by_tanh(), "m", **options).region


@pytest.mark.parametrize(
    "cube", ["q = Mul (x, x)  c = Mul (q, x)  m = Mul (c, cubic)", "c = Pow (x, three)  m = Mul (c, cubic)"]
)
@pytest.mark.parametrize("end", ["h = Mul (o, half)  y = Mul (x, h)", "h = Mul (x, o)  y = Mul (h, half)"])
def test_every_order_is_written_so(cube: str, end: str) -> None:
    given = by_tanh(body=f"{cube}  i = Add (x, m)  s = Mul (i, factor)  t = Tanh (s)  o = Add (t, one)  {end}")
    result = converted(given, "O1")
    assert kinds(result).count("Mul") == 6 and kinds(result).count("Add") == 2
    feeds = {"f": np.random.default_rng(3).standard_normal((4, 8)).astype(np.float32) * 3}
    plain = converted(given, "O1", rewrite="none")
    assert np.allclose(run_strict(result, feeds)["z"], run_strict(plain, feeds)["z"], rtol=2e-3, atol=1e-5)


def test_a_norm_whose_low_kernel_adds_another_epsilon_stays_float32() -> None:
    """At O3, where nothing else of it would; CUDA's kernel in float16 adds 1e-5 whatever the file stores."""

    def decided(epsilon: float, dtype: str = "float16", target: str = "cuda") -> tuple[str, str, str]:
        given = rms(INVERSES["Reciprocal"], epsilon)
        slot = ampgraph.explain(given, "n", level="O3", dtype=dtype, target=target).slots[0]
        return slot.dtype, slot.rule, slot.reason

    said = "the one kernel that cuda makes of RMSNormalization adds 1e-05 instead of an epsilon of 0.001 in float16"
    assert decided(1e-3) == ("float32", "kernel", said)
    for low in (decided(1e-5), decided(1.0009e-5), decided(1e-3, "bfloat16"), decided(1e-3, target="cpu")):
        assert low[0] != "float32"
    assert decided(1.0011e-5)[:2] == ("float32", "kernel")


@pytest.mark.parametrize(("level", "dtype", "rule"), [("O1", "float32", "region"), ("O2", "float16", "cut")])
def test_a_region_whose_kernel_keeps_float32_inside_is_left_to_the_cut(level: str, dtype: str, rule: str) -> None:
    """A GroupNormalization between convolutions for TensorRT, where the level trusts such kernels."""
    body = GROUPS.partition("{")[2].replace("(f, split)", "(x, split)").replace("}", "y = Conv (o, k) }")
    text = f"g (float[1,8,6,6] f) => (float[1,8,6,6] y) {{ x = Conv (f, k) {body}"
    given = parse(text, {**GROUPED, "k": np.ones((8, 8, 1, 1), np.float32)})
    slot = ampgraph.explain(given, "o", level=level, target="tensorrt").slots[0]
    assert (slot.dtype, slot.rule) == (dtype, rule)


ELSEWHERE = [("O3", {}), ("O2", {"target": "tensorrt"}), ("O2", {"dtype": "float16"})]


@pytest.mark.parametrize(("level", "options"), ELSEWHERE)
@pytest.mark.parametrize("model", [by_erf, by_tanh])
def test_elsewhere_it_is_low(model, level: str, options: dict[str, Any]) -> None:
    found = decisions(converted(model(), level, **{"dtype": "bfloat16", **options}))
    assert "Erf:f32" not in found and "Tanh:f32" not in found


def test_what_is_no_wide_kernel() -> None:
    model = by_erf()
    model.graph.output.append(helper.make_tensor_value_info("t", 1, [4, 8]))
    assert "Erf:bf16" in decisions(converted(model, dtype="bfloat16"))
    # what is fused as it is stays
    assert converted(by_tanh()).SerializeToString() == converted(by_tanh(), rewrite="none").SerializeToString()
    given = by_tanh(body=f"{POWER}  {ENDS[0]}")
    others: list[dict[str, Any]] = [{"target": "tensorrt"}, {"rewrite": "no-half"}]
    for options in others:
        assert any("o" in node.input and "h" in node.output for node in converted(given, **options).graph.node)
    assert ampgraph.explain(given, "h").region == "its region is written as x * y, halved first (half)"


@pytest.mark.parametrize(("model", "attribute"), [(by_erf, b"none"), (by_tanh, b"tanh")])
def test_at_its_opset_it_is_its_operator(model, attribute: bytes) -> None:
    given = model(20)
    result = converted(given, dtype="bfloat16")
    assert kinds(result) == ["Cast", "MatMul", "Gelu", "MatMul", "Cast"]
    written = next(node for node in result.graph.node if node.op_type == "Gelu")
    assert written.attribute[0].s == attribute
    assert ampgraph.convert(result, dtype="bfloat16").SerializeToString() == result.SerializeToString()
    assert "Gelu" not in kinds(converted(given, dtype="bfloat16", rewrite="no-gelu"))
    assert "Gelu" not in kinds(converted(given))  # float16 needs none


@pytest.mark.parametrize("model", [by_erf, by_tanh])
def test_an_opset_that_has_the_operator_is_found(model) -> None:
    result = ampgraph.convert(model(), dtype="bfloat16", opset="auto")
    assert result.opset_import[0].version == 20 and "Gelu" in kinds(result)
    others: list[dict[str, Any]] = [{"rewrite": "no-gelu", "dtype": "bfloat16"}, {}]
    for options in others:
        assert ampgraph.convert(model(), opset="auto", **options).opset_import[0].version == 18


@pytest.mark.parametrize("model", [by_erf, by_tanh])
@pytest.mark.parametrize("opset", [18, 20])
def test_it_is_no_less_right(model, opset: int) -> None:
    given, rng = model(opset), np.random.default_rng(1)
    made = [ampgraph.convert(given, dtype="bfloat16", target=target) for target in ("cuda", "tensorrt")]
    errors = np.zeros(2)
    for _ in range(24):
        feeds = {"f": rng.standard_normal((4, 8)).astype(np.float32)}
        expected = run_strict(given, feeds)["z"]
        errors += [float(np.linalg.norm(run_strict(one, feeds)["z"] - expected)) for one in made]
    assert errors[0] <= errors[1]


BOTH = "s = Mul (i, factor)  t = Tanh (s)  o = Add (t, one)"
POWER = f"c = Pow (x, three)  m = Mul (c, cubic)  i = Add (x, m)  {BOTH}"
PRODUCTS = f"q = Mul (x, x)  c = Mul (q, x)  m = Mul (c, cubic)  i = Add (x, m)  {BOTH}"
SQUARES = "a = Mul (x, cubic)  q = Mul (a, x)  i = Add (q, one)  f1 = Mul (x, factor)  s = Mul (f1, i)  t = Tanh (s)"
ENDS = ["h = Mul (o, half)  y = Mul (x, h)", "h = Mul (x, o)  y = Mul (half, h)"]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("cube", [POWER, PRODUCTS, f"{SQUARES}  o = Add (t, one)"])
def test_low_its_half_is_first(cube: str, end: str) -> None:
    """CUDA's ONNX Runtime knows the half beside the data, and a cube by Pow alone: no constant is computed anew."""
    given = by_tanh(body=f"{cube}  {end}")
    result = converted(given)
    made = {name: node for node in result.graph.node for name in node.output}
    outer = [made[name].op_type for name in made["y"].input]
    (inner,) = (made[name] for name in made["y"].input if made[name].op_type == "Mul")
    assert sorted(outer) == ["Add", "Mul"] and "half" in " ".join(inner.input)
    assert "Pow" in kinds(result) or kinds(result).count("Mul") == 6
    assert converted(result).SerializeToString() == result.SerializeToString()
    feeds = {"f": np.random.default_rng(3).standard_normal((4, 8)).astype(np.float32) * 3}
    plain = converted(given, rewrite="none")
    assert np.allclose(run_strict(result, feeds)["z"], run_strict(plain, feeds)["z"], rtol=4e-3, atol=1e-4)


# Between products that the target runs in float32 alone, a list makes nothing low: Casts are all it would add.

UNSERVED_BLOCK = (
    "c{0} = Conv (a{0}, w)  r{0} = Relu (c{0})  d{0} = Conv (r{0}, w)  s{0} = Add (d{0}, a{0})  a{1} = Relu (s{0})"
)


def network(blocks: int, end: str, opset: int = 18) -> ModelProto:
    """Convolutions with residuals, which have a bfloat16 kernel on CUDA from opset 22 on."""
    body = "  ".join(UNSERVED_BLOCK.format(number, number + 1) for number in range(blocks)).replace("(a0, w)", "(x, w)")
    text = f"g (float[1,8,9,9] x) => (float[A,B,C,D] y) {{ {body.replace('a0', 'x')}  {end} }}"
    stored = {"w": np.full((8, 8, 1, 1), 0.1, np.float32), "m": np.eye(9, dtype=np.float32)}
    return parse(text, known=stored, opset=opset)


@pytest.mark.parametrize("blocks", [1, 4])
def test_only_what_a_low_product_reads_is_low(blocks: int) -> None:
    result = decisions(converted(network(blocks, f"y = MatMul (a{blocks}, m)"), dtype="bfloat16"))
    assert result.endswith("MatMul:bf16 Cast>f32") and result.count("Cast") == 2
    assert "Conv:f32 Relu:f32 Conv:f32 Add:f32" in result


def test_between_products_without_low_kernels() -> None:
    given = network(2, "y = MatMul (a2, m)")
    assert ":f32" not in decisions(converted(given))
    assert ":f32" not in decisions(converted(network(2, "y = MatMul (a2, m)", 22), dtype="bfloat16"))
    # A product without a kernel beside one that has it decides nothing for both.
    given = network(1, "p = MatMul (a1, m)  t = Tanh (p)  q = MatMul (t, m)  e = Tanh (q)  y = Conv (e, w)")
    found = decisions(converted(given, dtype="bfloat16"))
    assert "MatMul:bf16 Tanh:bf16 MatMul:bf16" in found and "Relu:f32 Conv:f32" in found
    # the reason is told
    given = network(2, "y = MatMul (a2, m)")
    (slot,) = ampgraph.explain(given, "r0", dtype="bfloat16").slots
    assert slot.dtype == "float32" and "costs least in float32" in slot.reason


def on_the_cpu() -> ModelProto:
    text = "g (float[1,8,9,9] x) => (float[A,B,C,D] y) { c = Conv (x, w)  t = Atan (c)  y = Conv (t, w) }"
    return parse(text, w=np.full((8, 8, 1, 1), 0.1, np.float32), opset=18)


@pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"])
def test_what_the_cpu_alone_runs_in_float32_stays_so(level: str) -> None:
    """Low, the runtime would cast beside it, on the CPU."""
    given = on_the_cpu()
    assert decisions(converted(given, level)) == "Cast>f16 Conv:f16 Cast>f32 Atan:f32 Cast>f16 Conv:f16 Cast>f32"
    assert "Atan:f16" in decisions(ampgraph.convert(given, "O3", target="cann"))
    (slot,) = ampgraph.explain(given, "t", level=level).slots
    assert slot.reason == "CUDAExecutionProvider has no kernel for Atan-7, and the CPU's computes in float32"


# A norm written out that ONNX Runtime would fuse with the cast before it: what is written loads all the same.

ROOTED = "p = Pow(s, two) v = ReduceMean<axes = [-1]>(p) a = Add(v, eps) q = Sqrt(a) d = Div(s, q)"
OPEN_NORM = f"m = ReduceMean<axes = [-1]>(n) s = Sub(n, m) {ROOTED} g = Mul(d, w) b = Add(g, c)"
OPEN_FORMS = {
    "layer norm": OPEN_NORM,
    "RMS norm": f"s = Identity(n) {ROOTED} b = Mul(d, w)",
    "gelu": "i = Div(n, root) e = Erf(i) o = Add(e, one) h = Mul(n, o) b = Mul(h, half)",
    "gelu by tanh": "p = Pow(n, three) s = Mul(p, cubic) a = Add(n, s) f = Mul(a, factor) t = Tanh(f) o = Add(t, one) "
    "h = Mul(n, half) b = Mul(h, o)",
    "gelu by a sigmoid": "i = Mul(n, slope) e = Sigmoid(i) b = Mul(n, e)",
    "attention": "t = Transpose<perm = [1, 0]>(n) s = MatMul(n, t) u = Div(s, scale) p = Softmax<axis = -1>(u) "
    "b = MatMul(p, n)",
}
HEADS = {
    "as it is": "h = MatMul(x, k) r = Relu(h) n = Identity(r)",
    "behind a Cast that does nothing": "h = MatMul(x, k) r = Relu(h) n = Cast<to = 1>(r)",
    "of a Reshape": "h = MatMul(x, k) n = Reshape(h, to)",
    "product": "n = MatMul(x, k)",
    "bias": "z = MatMul(x, k) n = Add(z, c)",
    "skip": "z = MatMul(x, k) n = Add(z, x)",
    "more": "z = MatMul(x, k) n = Relu(z)",
}
PLACES = ("stored", "overridable", "required", "computed", "folded", "vector")
LEVELS = ("O1", "O2", "O3", "auto")
TOLERANCE = 2e-2


def names(body: str) -> list[str]:
    return [name for name in NUMBERS if re.search(rf"\b{name}\b", body)]


def open_model(body: str, head: str, opset: int, where: str, number: str) -> ModelProto:
    """The form behind a head, with one number in another place; all others are stored."""
    stored: dict[str, object] = {**NUMBERS}
    given, before = [], ""
    if where in ("overridable", "required"):
        given = [f"float {number}"]
    if where in ("computed", "folded"):
        before = f"{number} = Mul(half_{number}, twice)"
        stored |= {f"half_{number}": np.float32(NUMBERS[number] / 2), "twice": np.float32(2)}
    if where == "computed":
        given, _ = [f"float half_{number}"], stored.pop(f"half_{number}")
    if where == "vector":
        stored[number] = np.full(8, NUMBERS[number], np.float32)
    if before or where == "required":
        del stored[number]
    if opset >= 18:
        body, stored["axes"] = body.replace("<axes = [-1]>(n)", "(n, axes)"), np.array([-1])
        body = body.replace("<axes = [-1]>(p)", "(p, axes)")
    inputs = ", ".join(["float[4, 8] x", *given])
    text = f"g ({inputs}) => (float[4, 8] y) {{ {before} {head} {body} y = MatMul(b, k) }}"
    stored |= {"to": np.array([4, 8]), "k": array((8, 8), "k"), "w": 1 + array((8,), "w"), "c": array((8,), "c")}
    return parse(text, known=stored, opset=opset)


def norm(head: str, opset: int) -> ModelProto:
    """The norm behind a head, all of its numbers stored."""
    return open_model(OPEN_NORM, HEADS[head], opset, "stored", "eps")


BFLOAT16_MUL = needs_runtime("older ones have no bfloat16 Mul on the CPU, which the kernel table has")
WAYS = [
    *((17, "float16", level) for level in ("O1", "O2", "auto")),
    (13, "bfloat16", "O3"),
    pytest.param(17, "bfloat16", "O3", marks=BFLOAT16_MUL),
]


@pytest.mark.parametrize("opset, dtype, level", WAYS)
@pytest.mark.parametrize("head", list(HEADS)[:3])
def test_it_loads(head: str, opset: int, dtype: str, level: str) -> None:
    made = ampgraph.convert(norm(head, opset), level, dtype=dtype, target="cpu", check="off")
    ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])


OVERRIDDEN = [("eps",), ("two",), ("w",), ("two", "eps", "w", "c")]


def overridable(names: tuple[str, ...], opset: int) -> ModelProto:
    """The norm alone, some of whose numbers and weights are inputs that need not be given."""
    return open_norm(names, opset, "float[4, 8] n", "")


def open_norm(names: tuple[str, ...], opset: int, given: str, before: str) -> ModelProto:
    """The norm behind ``before``, some of whose numbers and weights are inputs that need not be given."""
    text = f"g ({given}) => (float[4, 8] b) {{ {before} {OPEN_NORM} }}"
    made = parse(text, known={**NUMBERS, "matrix": (8, 8)}, w=(8,), c=(8,), opset=opset)
    shapes = {tensor.name: list(tensor.dims) for tensor in made.graph.initializer}
    made.graph.input.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in names)
    return made


@pytest.mark.parametrize("opset, dtype, level", [(17, "float16", "O2"), (17, "float16", "O3"), (15, "bfloat16", "O3")])
@pytest.mark.parametrize("names", OVERRIDDEN, ids="-".join)
def test_numbers_that_a_caller_may_override_are_fused_too(
    names: tuple[str, ...], opset: int, dtype: str, level: str
) -> None:
    made = ampgraph.convert(overridable(names, opset), level, dtype=dtype, target="cpu", check="off")
    ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    assert [value.name for value in made.graph.input] == ["n", *names]


def test_an_epsilon_stays_an_input_that_counts() -> None:
    """A norm is written as its operator only where its numbers are constants; a scale may be an input."""
    given = [open_norm(names, 17, "float[4, 8] x", "n = MatMul (x, matrix)") for names in (("eps",), ("w",))]
    made = [ampgraph.convert(one, "O3", target="cpu", check="off") for one in given]
    assert ["LayerNormalization" in kinds(one) for one in made] == [False, True]
    # a norm with open numbers is not written as its operator
    made = proto(ampgraph.convert(BROKEN_ELSEWHERE["another power"], "O3", target="cpu", check="off"))
    assert "LayerNormalization" not in kinds(made)


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_a_scale_that_is_an_input_loads(level: str) -> None:
    given = overridable(("w", "c"), 17)
    del given.graph.initializer[:]
    given.graph.initializer.extend(overridable((), 17).graph.initializer[:2])
    assert [tensor.name for tensor in given.graph.initializer] == ["two", "eps"]
    made = ampgraph.convert(given, level, target="cpu", check="off")
    ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])


def test_what_it_reads_is_float32_and_says_why() -> None:
    def explained(node: str, given: ModelProto, **options: Any) -> Any:
        return ampgraph.explain(given, node, level="O2", target="cpu", **options)

    given = norm("as it is", 17)
    found = explained("r", given, rewrite="none")
    assert found.precision == "float32" and "ONNX Runtime would take the cast" in found.slots[0].reason
    assert explained("h", given, rewrite="none").precision == "float16"
    # a form that is left alone costs nothing
    square = open_model(OPEN_NORM.replace("Pow(s, two)", "Mul(s, s)"), HEADS["as it is"], 17, "stored", "eps")
    assert explained("r", square).precision == "float16"
    # older opsets have an operator of two types
    assert explained("r", norm("as it is", 13), rewrite="none").precision == "float16"


@pytest.mark.parametrize("head", ["product", "bias"])
def test_behind_a_product_the_norm_is_written_as_its_operator(head: str) -> None:
    made = ampgraph.convert(norm(head, 17), "O2", target="cpu", check="off")
    assert kinds(made).count("LayerNormalization") == 1 and "Pow" not in kinds(made)
    ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    decisions = ampgraph.plan(norm(head, 17), level="O2", target="cpu").decisions
    assert {d.kind: d.dtype for d in decisions if d.kind in ("MatMul", "LayerNormalization")} == {
        "MatMul": "float16",
        "LayerNormalization": "float32",
    }


# What a runtime cannot load is not written for it.

BEFORE = {
    "graph input": "t = Transpose<perm = [1, 0, 2]>(x) m = MatMul(t, w) y = Relu(m)",
    "float32 value": "e = Exp(x) t = Transpose<perm = [1, 0, 2]>(e) m = MatMul(t, w) y = Relu(m)",
    "in place": "t = Transpose<perm = [1, 0, 2]>(x) i = Identity(t) m = MatMul(i, w) y = Relu(m)",
    "second operand": "t = Transpose<perm = [1, 0, 2]>(x) m = MatMul(w, t) y = Relu(m)",
}


def kernel_model(body: str):
    return parse(f"g (float[8, 8, 8] x) => (float[8, 8, 8] y) {{ {body} }}", w=(8, 8))


@pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"])
@pytest.mark.parametrize("body", BEFORE.values(), ids=list(BEFORE))
def test_a_transpose_before_a_product_is_float32_on_a_cpu(body, level):
    """A low one kills ONNX Runtime 1.31 as it opens a session, with its default optimisations."""
    found = ampgraph.explain(kernel_model(body), "t", level=level, target="cpu")
    assert found.precision == "float32" and "dies as it loads" in found.slots[0].reason
    assert ampgraph.explain(kernel_model(body), "m", level=level, target="cpu").precision == "float16"


def test_what_a_runtime_loads_is_low():
    body = "t = Transpose<perm = [1, 0, 2]>(x) r = Relu(t) m = MatMul(r, w) y = Relu(m)"
    assert ampgraph.explain(kernel_model(body), "t", level="O2", target="cpu").precision == "float16"
    assert ampgraph.explain(kernel_model(BEFORE["graph input"]), "t", level="O2").precision == "float16"
    # embeddings before no fused attention are low
    given = embeddings(attention=False)
    assert ampgraph.explain(given, "e", level="O3", dtype="bfloat16").precision == "bfloat16"
    assert ampgraph.explain(embeddings(), "two", level="O3", dtype="bfloat16").precision == "bfloat16"
    # From 4 bits no provider of the wheel makes float16.
    given = parse("g (float4e2m1[3, 4] x, float[1] like) => (float[3, 4] y) { y = CastLike (x, like) }", opset=25)
    found = ampgraph.explain(given, "y", level="O3")
    assert found.precision == "float32" and "no provider has a Cast" in found.slots[0].reason
    other = parse("g (int8[3, 4] x, float[1] like) => (float[3, 4] y) { y = CastLike (x, like) }", opset=25)
    assert ampgraph.explain(other, "y", level="O3").precision == "float16"


@pytest.mark.parametrize("level", ["O2", "O3", "auto"])
@pytest.mark.parametrize("given", [embeddings(), embeddings(WRITTEN_OUT)], ids=["operator", "written out"])
def test_embeddings_that_would_be_fused_into_what_takes_no_bfloat16(given, level):
    """The last sum stays float32, whatever the norm behind it; float16 has a kernel, other targets have no fusion."""
    found = ampgraph.explain(given, "e", level=level, dtype="bfloat16")
    assert found.precision == "float32" and "makes one operator of" in found.slots[0].reason
    low = [ampgraph.Recipe.of(level="O3"), ampgraph.Recipe.of(level="O3", dtype="bfloat16", target="tensorrt")]
    assert all(ampgraph.explain(given, "e", recipe=recipe).precision != "float32" for recipe in low)


# What stands for the numbers of a form: what is written opens as users open it.


def outcome(given: ModelProto) -> np.ndarray:
    """What a plain run gives, opened with all that the runtime does by default."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(given.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds: dict[str, np.ndarray] = {"x": array((4, 8), "x") * 3, "ok": np.array(True), "given": array((8,), "given")}
    for name, number in NUMBERS.items():
        feeds |= {name: np.asarray(number), f"half_{name}": np.asarray(number / 2, np.float32)}
    return session.run(None, {one.name: feeds[one.name] for one in session.get_inputs()})[0]


def agrees(given: ModelProto, level: str, dtype: str) -> None:
    expected = outcome(given)
    found = outcome(proto(ampgraph.convert(given, level, dtype=dtype, target="cpu", check="off")))
    assert np.sqrt(((expected - found) ** 2).mean()) <= TOLERANCE * np.sqrt((expected**2).mean())


CELLS = [
    (form, head, opset, where, number, level)
    for form, head, opset, where, level in product(OPEN_FORMS, list(HEADS)[3:], (11, 13, 17, 18, 20), PLACES, LEVELS)
    for number in names(OPEN_FORMS[form])
    if not (where == "vector" and form not in ("layer norm", "RMS norm"))
]


@pytest.mark.parametrize("number", ["two", "eps"])
@pytest.mark.parametrize("where", PLACES[2:])
def test_whatever_stands_for_a_number_of_a_norm_it_opens(where: str, number: str) -> None:
    agrees(open_model(OPEN_NORM, HEADS["more"], 17, where, number), "O2", "float16")


def placed(body: str, opset: int = 17, given: str = "", functions: str = "", **stored: object) -> ModelProto:
    """A model of a text in which the norm's numbers and weights are stored, where it has them."""
    text = f"g (float[4, 8] x{given}) => (float[4, 8] y) {{ {body} }}"
    every: dict[str, object] = {"k": (8, 8), "w": (8,), "c": (8,), "two": np.float32(2), "eps": np.float32(1e-5)}
    every |= {"axes": np.array([-1])} | stored
    every = {name: v for name, v in every.items() if f"float {name}" not in given}
    return parse(text, known=every, opset=opset, domains=["f"] if functions else [], functions=functions)


OPEN_HEAD, TAIL = HEADS["product"], "y = MatMul(b, k)"
NEW = OPEN_NORM.replace("<axes = [-1]>(n)", "(n, last)").replace("<axes = [-1]>(p)", "(p, last)")
SCALED = OPEN_NORM.replace("w)", "s2)")
CALLED = f'<domain: "f", opset_import: ["": 17]> norm (n, two, eps, w, c) => (b) {{ {OPEN_NORM} }}'
BROKEN_ELSEWHERE = {
    "its axes are computed": placed(f"last = Neg(ones) {OPEN_HEAD} {NEW} {TAIL}", 18, ones=np.array([1])),
    "its scale is computed": placed(f"s2 = Abs(given) {OPEN_HEAD} {SCALED} {TAIL}", given=", float[8] given"),
    "its bias is computed": placed(f"c2 = Add(c, c) {OPEN_HEAD} {OPEN_NORM.replace('(g, c)', '(g, c2)')} {TAIL}"),
    "in a function": placed(f"{OPEN_HEAD} b = f.norm(n, two, eps, w, c) {TAIL}", functions=CALLED),
    "in a function, its eps given": placed(
        f"{OPEN_HEAD} b = f.norm(n, two, eps, w, c) {TAIL}", given=", float eps", functions=CALLED
    ),
    "in a branch, its eps given": placed(
        f"{OPEN_HEAD} y = If(ok) <then_branch = t () => (float[4, 8] a1) {{ {OPEN_NORM} a1 = MatMul(b, k) }}, "
        "else_branch = e () => (float[4, 8] a2) { a2 = MatMul(n, k) }>", given=", float eps, bool ok",
    ),
    "another power": placed(f"{OPEN_HEAD} {OPEN_NORM} {TAIL}", two=np.float32(3)),
    "no eps at all": placed(f"{OPEN_HEAD} {OPEN_NORM} {TAIL}", eps=np.float32(0)),
}  # fmt: skip


@pytest.mark.parametrize("given", BROKEN_ELSEWHERE.values(), ids=list(BROKEN_ELSEWHERE))
def test_a_norm_elsewhere_opens(given: ModelProto) -> None:
    for level in ("O1", "O2"):
        agrees(given, level, "float16")


def test_a_grid_of_forms_numbers_and_places() -> None:
    for form, head, opset, where, number, level in share(CELLS, 500):
        try:
            agrees(open_model(OPEN_FORMS[form], HEADS[head], opset, where, number), level, "float16")
        except Exception as error:
            raise AssertionError((form, head, opset, where, number, level)) from error
