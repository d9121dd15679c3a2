"""Regions are written in the form that CUDA's ONNX Runtime fuses: as exact or more, named, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, helper, numpy_helper

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.core.plan import Plan
from ampgraph.numerics.strict.session import run_strict
from ampgraph.oplists.rewrites import choose_rewrites, rewrite_names
from ampgraph.report.summary import rewrite_groups
from ampgraph.runtime.opening import open_each
from onnx_text import parse, proto
from planner.form_models import CENTRED, FINE, GELUS, INVERSES, RMS, ROOT, attention, gelu, layer_norm, model, rms
from planner.support import converted, decisions, kinds


def errors(given: ModelProto, **options: Any) -> float:
    """Of strict runs, over a few inputs."""
    result = ampgraph.convert(given, **options)
    rng = np.random.default_rng(2)
    feeds = [{"f": rng.standard_normal((4, 8)).astype(np.float32)} for _ in range(8)]
    return sum(float(np.linalg.norm(run_strict(result, f)["z"] - run_strict(given, f)["z"])) for f in feeds)


@pytest.mark.parametrize("level", ["O1", "O2", "auto"])
@pytest.mark.parametrize("inverse", INVERSES.values(), ids=INVERSES)
def test_a_norm_divides(inverse: str, level: str) -> None:
    written = kinds(converted(rms(inverse), level))
    assert "Reciprocal" not in written and written.count("Div") == 1 and written.count("Mul") == 1


def test_where_the_low_scale_is_cast() -> None:
    """One kernel on CUDA, low in and low out, which computes in float32."""
    assert decisions(converted(rms(INVERSES["Reciprocal"]))) == (
        "Cast>f16 MatMul:f16 Cast>f32 Pow:f32 ReduceMean:f32 Add:f32 Sqrt:f32 Div:f32 Cast>f16 Mul:f16 "
        "MatMul:f16 Cast>f32"
    )
    assert decisions(converted(layer_norm())).endswith("Div:f32 Cast>f16 Mul:f16 Add:f16 MatMul:f16 Cast>f32")
    part = model(f"{CENTRED}  {ROOT}  n = Div (d, r)  y = Mul (n, g)")  # without its bias CUDA does not fuse it
    assert decisions(converted(part)).endswith("Div:f32 Mul:f32 Cast>f16 MatMul:f16 Cast>f32")
    # As an exporter writes equal scales of two norms: one stored, the other an Identity of it.
    plain = layer_norm()
    handed = layer_norm()
    handed.graph.node.insert(0, helper.make_node("Identity", ["g"], ["g2"]))
    scaled = next(node for node in handed.graph.node if node.output[0] == "s")
    scaled.input[1] = "g2"
    assert decisions(converted(handed)).replace("Identity:f16 ", "") == decisions(converted(plain))
    # what the target does not fuse keeps its casts around the scale
    other = rms(INVERSES["Reciprocal"])
    assert "Div:f32" not in decisions(converted(other, target="tensorrt"))
    assert decisions(converted(other, target="tensorrt")).endswith("Mul:f32 Mul:f32 Cast>f16 MatMul:f16 Cast>f32")
    squared = model("q = Mul (x, x)  v = ReduceMean <axes = [-1]> (q)  a = Add (v, eps)  r = Sqrt (a)"
                    "  n = Div (x, r)  y = Mul (n, g)")  # fmt: skip
    assert decisions(converted(squared)).endswith("Div:f32 Mul:f32 Cast>f16 MatMul:f16 Cast>f32")


@pytest.mark.parametrize(("target", "level"), [("cuda", "O1"), ("cpu", "O1"), ("cpu", "O2")])
def test_a_norm_that_would_be_fused_into_two_types_is_written_as_its_operator(target: str, level: str) -> None:
    """ONNX Runtime makes a LayerNormalization-17 of low data and a float32 scale, and refuses its own node."""
    layer = model(f"{CENTRED}  {ROOT}  n = Div (d, r)  s = Mul (n, g)  y = Add (s, g)", opset=18)
    result = converted(layer, level, target=target)
    assert kinds(result).count("LayerNormalization") == 1 and "Div" not in kinds(result)
    ort.InferenceSession(result.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("end", GELUS.values(), ids=GELUS)
def test_a_gelu_is_halved_last(end: str) -> None:
    given = gelu(end)
    result = converted(given)
    assert kinds(result) == ["Cast", *kinds(given), "Cast"]
    reads = {n.output[0]: set(n.input) for n in result.graph.node}
    assert any("x" in name for name in reads["h_doubled"]) and "h_doubled" in reads["y"]
    assert "half" in " ".join(reads["y"])
    assert ampgraph.plan(given).rewrites and not ampgraph.plan(result).rewrites


@pytest.mark.parametrize("end", FINE.values(), ids=FINE)
def test_a_gelu_that_is_fused_as_it_is_stays(end: str) -> None:
    assert not ampgraph.plan(gelu(end)).rewrites


def test_nothing_is_rewritten_where_nothing_is_low() -> None:
    """The file would be no faster, and another one: a GELU between quantized operators comes out to the byte."""
    given = gelu(GELUS["half the sum"])
    assert ampgraph.plan(given).rewrites
    assert ampgraph.convert(given, fp32=["*"]).SerializeToString() == given.SerializeToString()


@pytest.mark.parametrize("given", [gelu(GELUS["half the sum"]), rms(INVERSES["Reciprocal"])], ids=["gelu", "norm"])
def test_forms_are_as_exact_or_more(given: ModelProto) -> None:
    """In float32 to the bit or better; in float16 no worse than with the nodes in the file's order."""
    plain = errors(given, level="O1", target="tensorrt")
    assert errors(given, level="O1") <= 1.01 * plain
    assert errors(given, level="O3") <= 1.01 * errors(given, level="O3", target="tensorrt")


def said(given: ModelProto) -> str:
    (found,) = rewrite_groups(ampgraph.plan(given))
    return str(found)


def test_forms_are_named_and_matched() -> None:
    assert said(rms(INVERSES["Reciprocal"])).startswith(
        "1 group of nodes written as one Div each, which the target runs as one kernel (quotient)"
    )
    assert said(gelu(GELUS["swapped"])).startswith(
        "1 GELU rewritten to multiply by 0.5 last, which the target runs as one kernel (half)"
    )
    for node, shown in (("h", "h_doubled"), ("y", "y")):  # both stay, with other operands
        at = ampgraph.explain(gelu(GELUS["swapped"]), node)
        assert (at.node, at.region) == (shown, "its region is written as x * y, halved last (half)")
    assert ampgraph.explain(rms(INVERSES["1 / root"]), "i").region == "its region is written as one Div (quotient)"
    # plans with a form are matched by place
    given = gelu(GELUS["swapped"])
    found = ampgraph.diff(ampgraph.plan(given), ampgraph.plan(given, target="cann"))
    assert not found.decisions and len(found.nodes.first) == 1
    # Errors by node compare values of one name: the product that is halved last is twice what it was.
    given = gelu(GELUS["swapped"])
    seen = ampgraph.verify(given, ampgraph.convert(given), samples=1, nodes=5)
    assert seen.ok and all(value.error is None or value.error < 0.01 for s in seen.growth for value in s.makes)
    # what the user names is left as it is
    assert not ampgraph.plan(rms(INVERSES["Reciprocal"]), fp32=["op:Reciprocal"]).rewrites
    assert not ampgraph.plan(gelu(GELUS["swapped"]), fp32=["op:Erf"]).rewrites
    # a model without products is returned as it is
    given = parse(
        f"g (float[4,8] x) => (float[4,8] y) {{ {RMS}  i = Reciprocal (r)  n = Mul (x, i)  y = Mul (n, g) }}",
        two=np.float32(2), eps=np.float32(1e-3), g=np.ones(8, np.float32), opset=16,
    )  # fmt: skip
    assert not ampgraph.plan(given, "O1").rewrites
    assert ampgraph.convert(given, "O1").SerializeToString() == given.SerializeToString()


@pytest.mark.parametrize("target", ["cuda", "cpu"])
def test_a_mask_that_the_fusion_of_attention_fails_to_read_stays_float32(target: str) -> None:
    plan = ampgraph.plan(attention(), "O3", target=target)
    (mask,) = [d for d in plan.decisions if "knows a mask" in d.why.text]
    assert (mask.kind, mask.dtype, mask.why.rule) == ("Mul", "float32", "kernel")
    low = ampgraph.convert(attention(), "O3", target=target)
    ort.InferenceSession(low.SerializeToString(), providers=["CPUExecutionProvider"])
    assert not any("knows a mask" in d.why.text for d in ampgraph.plan(attention(), dtype="bfloat16").decisions)


@pytest.mark.parametrize("level", ["O2", "auto"])
def test_what_such_a_mask_is_made_of_is_not_cast_twice(level: str) -> None:
    found = decisions(ampgraph.convert(attention(), level))
    assert "Cast>f32 Sub:f32 Mul:f32 Cast>f16" in found


# Constants behind a convolution go into its weights and its bias, by rewrites that have a name and a class.

RANDOM = np.random.default_rng(5)
W = RANDOM.normal(0, 0.3, (6, 3, 3, 3)).astype(np.float32)
B = RANDOM.normal(0, 1, (1, 6, 1, 1)).astype(np.float32)
X = {"x": RANDOM.normal(0, 1, (2, 3, 8, 8)).astype(np.float32)}
CHAIN = "c = Conv (x, w)  a = Add (c, b)  m = Mul (s, a)  d = Add (m, t)  z = Relu (d)"
LAST = RANDOM.normal(0, 0.3, (2, 6, 1, 1)).astype(np.float32)


def fold_model(body: str = CHAIN, **more: Any) -> ModelProto:
    """With a convolution behind it, so that all of it is low."""
    text = f"{body}  y = Conv (z, last)"
    known = {"w": W, "b": B, "s": np.float32(0.71), "t": np.float32(0.4), "last": LAST, **more}
    return parse(f"g (float[2,3,8,8] x) => (float[2,c,h,v] y) {{ {text} }}", known=known)


def held(result: ModelProto) -> list[np.ndarray]:
    return [numpy_helper.to_array(tensor) for tensor in result.graph.initializer]


def test_what_is_added_becomes_the_bias() -> None:
    result = converted(fold_model())
    assert kinds(result) == ["Cast", "Conv", "Mul", "Add", "Relu", "Conv", "Cast"], decisions(result)
    assert any(np.array_equal(array, B.reshape(-1).astype(np.float16)) for array in held(result))
    # what stays float32 stays as it is
    given = fold_model("c = Conv (x, w)  a = Add (c, b)  z = Relu (a)")
    for wide, low in (("value:c", []), ("value:a", []), ([], "value:a")):
        assert "Add" in kinds(ampgraph.convert(given, fp32=wide, low=low))
    large = fold_model("c = Conv (x, w)  a = Add (c, b)  z = Relu (a)", b=B * 1e6)
    assert "Add" in kinds(converted(large)), "a bias beyond float16 does not take its product along"
    # explain names the rewrite
    assert "Conv (bias)" in str(ampgraph.explain(fold_model(), "a").region)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["none"], ["Conv", "Add", "Mul", "Add", "Relu", "Conv"]),
        (["no-bias"], ["Conv", "Add", "Mul", "Add", "Relu", "Conv"]),
        (["exact"], ["Conv", "Mul", "Add", "Relu", "Conv"]),
        (["all"], ["Conv", "Mul", "Add", "Relu", "Conv"]),
        (["none", "bias"], ["Conv", "Mul", "Add", "Relu", "Conv"]),
    ],
)
def test_words_choose(words: list[str], expected: list[str]) -> None:
    result = converted(fold_model(), rewrite=words)
    assert [kind for kind in kinds(result) if kind != "Cast"] == expected
    np.testing.assert_allclose(run_strict(result, X)["y"], run_strict(fold_model(), X)["y"], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("body", "folds"),
    [
        ("c = Conv (x, w)  a = Sub (c, b)  z = Relu (a)", True),
        ("c = Conv (x, w)  a = Sub (b, c)  z = Relu (a)", False),
        ("c = Conv (x, w)  a = Add (t, c)  z = Relu (a)", True),
        ("c = Conv (x, w)  a = Add (c, b)  r = Relu (a)  z = Add (r, c)", False),  # c is read twice
        ("c = Conv (x, w)  a = Add (c, wide)  z = Relu (a)", False),  # a number to each place, not to each channel
        ("c = Conv (x, w, b1)  a = Add (c, b)  z = Relu (a)", False),  # which has one
        ("i = Identity (b)  j = Identity (w)  c = Conv (x, j)  a = Add (c, i)  z = Relu (a)", True),
        ("c = ConvTranspose <group = 3> (x, v)  a = Add (c, b)  z = Relu (a)", True),
    ],
)
def test_what_becomes_a_bias(body: str, folds: bool) -> None:
    more = {"wide": np.ones((1, 6, 6, 6), np.float32), "b1": np.ones(6, np.float32), "v": W.reshape(3, 2, 9, 3)}
    given = fold_model(body, **more)
    result = converted(given)
    assert (("Add" in kinds(result)) or ("Sub" in kinds(result))) is not folds
    if folds:
        assert "Identity" not in kinds(result) or "j" in body
        np.testing.assert_allclose(run_strict(result, X)["y"], run_strict(given, X)["y"], rtol=2e-2, atol=2e-2)


def test_a_branch_and_the_plan_as_a_file() -> None:
    text = """g (float[2,3,8,8] x, bool q) => (float[2,c,h,v] y) {
        z = If (q) <then_branch = t () => (float[2,6,6,6] p) { u = Conv (x, w)  p = Add (u, b) },
                    else_branch = e () => (float[2,6,6,6] r) { r = Conv (x, w) }>
        y = Conv (z, last) }"""
    given = parse(text, {"w": W, "b": B, "last": LAST})
    plan = ampgraph.plan(given)
    assert [(one.writes, one.name) for one in plan.rewrites] == [("Conv", "bias")]
    result = ampgraph.convert(given)
    assert (
        ampgraph.convert(given, plan=Plan.from_json(plan.to_json())).SerializeToString() == result.SerializeToString()
    )
    feeds = {**X, "q": np.array(True)}
    np.testing.assert_allclose(run_strict(result, feeds)["y"], run_strict(given, feeds)["y"], rtol=1e-2, atol=1e-2)


def test_plans_of_folds() -> None:
    plan = ampgraph.plan(fold_model())
    text = plan.to_json().replace('"nodes":[0,1]', '"nodes":[0,2]')
    assert text != plan.to_json()
    with pytest.raises(AmpError) as raised:
        ampgraph.convert(fold_model(), plan=Plan.from_json(text))
    assert raised.value.code == "AMP402"
    # words
    every = set(rewrite_names())
    assert choose_rewrites(()) == choose_rewrites(("exact",)) == choose_rewrites(("all",)) == every
    assert choose_rewrites(("no-norm",)) == every - {"norm"} and choose_rewrites(("none", "clip")) == {"clip"}
    assert not choose_rewrites(("none",))
    for word in ("nrom", "no-nothing", "Exact"):
        with pytest.raises(AmpError) as raised:
            ampgraph.convert(fold_model(), rewrite=word)
        assert raised.value.code == "AMP301" and raised.value.hint
    # a border keeps its cast and a model without low nodes its bytes
    body = f"s = Shape (x) n = Cast <to = {INT64}> (s) y = MatMul (x, w)"
    given = parse(f"g (float[4,8] x) => (int64[k] n, float[4,8] y) {{ {body} }}", {"w": CAST_W})
    assert kinds(converted(given)).count("Cast") == 3
    nothing = parse(f"g (int64[4] x) => (int64[4] y) {{ t = Cast <to = {INT64}> (x) y = Add (t, t) }}", {})
    assert ampgraph.convert(nothing).SerializeToString() == nothing.SerializeToString()
    # at o1 such a mask stays as it is
    assert not ampgraph.plan(attention(), "O1").rewrites


# Casts of the file that do nothing go; no number changes, and converting again changes nothing.

CAST_W = np.eye(8, dtype=np.float32)
CAST_X = {"x": np.random.default_rng(3).normal(0, 1, (4, 8)).astype(np.float16).astype(np.float32)}
INT32, INT64, FLOAT, BOOL = 6, 7, 1, 9
FAR = np.array([1 << 40, 16])


def cast_model(body: str) -> ModelProto:
    known = {"w": CAST_W, "two": np.array([2, 16], np.int32), "zeros": np.zeros((4, 8), np.float32)}
    known |= {"zero": np.array([0]), "last": np.array([1]), "eight": np.array([8])}
    return parse(f"g (float[4,8] x) => (float[a,b] y) {{ h = MatMul (x, w) {body} }}", known=known)


SAME = f"s = Shape (x) t = Cast <to = {INT64}> (s) r = Reshape (h, t) y = MatMul (r, w)"
STORED = f"t = Cast <to = {INT64}> (two) r = Reshape (h, t) y = Relu (r)"
BACK = f"""s = Shape (x) t = Cast <to = {INT32}> (s) q = Slice (t, zero, last)
    u = Cast <to = {INT64}> (q) k = Concat <axis = 0> (u, eight) r = Reshape (h, k) y = MatMul (r, w)"""
CASES = {
    "to its own type": (SAME, 1),
    "stored numbers": (STORED, 1),
    "two in a row": (SAME.replace("(s) r", f"(s) u = Cast <to = {INT64}> (t) r").replace("(h, t)", "(h, u)"), 2),
    "sizes there and back": (BACK, 2),
    "twice back": (
        BACK.replace("y =", "p =")
        + f" v = Cast <to = {INT64}> (q) n = Concat <axis = 0> (v, eight) y = Reshape (p, n)",
        3,
    ),
    "bool to bool": (f"g = Greater (h, zeros) m = Cast <to = {BOOL}> (g) z = Where (m, h, zeros) y = MatMul (z, w)", 1),
    "floats": (f"t = Cast <to = {FLOAT}> (h) y = MatMul (t, w)", 1),
}


@pytest.mark.parametrize(("body", "fewer"), CASES.values(), ids=CASES)
def test_they_go(body: str, fewer: int) -> None:
    given = cast_model(body)
    result, kept = converted(given), converted(given, rewrite="no-cast")
    assert kinds(kept).count("Cast") - kinds(result).count("Cast") == fewer
    np.testing.assert_array_equal(run_strict(result, CAST_X)["y"], run_strict(kept, CAST_X)["y"])
    assert ampgraph.plan(given).rewrites[-1].name == "cast"


@pytest.mark.parametrize(
    "body",
    [
        f"t = Cast <to = {INT32}> (far) y = Add (t, t)",  # what is stored does not fit
        f"t = Cast <to = {INT32}> (n) v = Cast <to = {INT64}> (t) y = Abs (v)",  # nobody knows that it does
        f"s = Shape (h) t = Cast <to = {INT32}> (s) u = Add (t, t) v = Cast <to = {INT64}> (u) y = Abs (v)",  # computed
        f"s = Shape (h) t = Cast <to = {INT32}> (s) v = Cast <to = {INT64}> (t) y = Abs (v) z = Identity (t)",  # read
    ],
)
def test_what_changes_numbers_stays(body: str) -> None:
    kind = "int32" if "y = Add" in body else "int64"
    body += "" if "z =" in body else " z = Identity (i)"
    head = f"g (float[4,8] x, int64[2] n) => (float[4,8] a, {kind}[k] y, int32[m] z)"
    stored = {"far": FAR, "i": np.array([1], np.int32)}
    given = parse(f"{head} {{ h = MatMul (x, w) a = Relu (h) {body} }}", known=stored, w=CAST_W)
    assert not [one for one in ampgraph.plan(given).rewrites if one.name == "cast"]
    assert kinds(converted(given)).count("Cast") == kinds(given).count("Cast") + 2


# Pads that add nothing go; those that add something, that a border needs or that a pattern names stay.

BODIES = {
    18: "p = Pad (x, amounts)",
    10: "p = Pad <pads = [0, 0, 0, 0]> (x)",
    19: 'p = Pad <mode = "reflect"> (x, amounts)',
}


def given(body: str, opset: int, amounts: int = 0, behind: str = "z = MatMul (p, w)") -> ModelProto:
    text = f"g (float[4,8] f) => (float[A,B] z) {{ x = MatMul (f, w)  {body}  {behind} }}"
    return parse(text, known={"w": np.eye(8, dtype=np.float32), "amounts": np.full(4, amounts)}, opset=opset)


@pytest.mark.parametrize(("opset", "dtype"), [(10, "float16"), (18, "bfloat16"), (19, "float16")])
def test_what_adds_nothing_goes(opset: int, dtype: str) -> None:
    model = given(BODIES[opset], opset)
    result = ampgraph.convert(model, dtype=dtype)
    onnx.checker.check_model(result, full_check=True)
    assert "Pad" not in kinds(result) and [tensor.name for tensor in result.graph.initializer] == ["w"]
    assert ampgraph.convert(result, dtype=dtype).SerializeToString() == result.SerializeToString()
    assert "Pad" in kinds(ampgraph.convert(model, dtype=dtype, rewrite="no-pad"))


def test_pads_are_told() -> None:
    """CUDA has no such kernel of it."""
    model = given(BODIES[18], 18)
    assert decisions(converted(model, dtype="bfloat16")) == "Cast>bf16 MatMul:bf16 MatMul:bf16 Cast>f32"
    assert decisions(converted(model, dtype="bfloat16", rewrite="none")).count("Cast") == 4
    # explain and summary say so
    model = given(BODIES[18], 18)
    assert "did nothing and is taken away" in ampgraph.explain(model, "p").region
    assert said(model) == "1 Pad of the file that added nothing removed (pad)"


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (given(BODIES[18], 18, 1, "z = Relu (p)"), {}),
        (given(BODIES[18], 18), {"fp32": ["op:Pad"]}),
        (given("p = Neg (x)", 18, 0, "q = Shape (p)  z = Pad (p, q)"), {}),
        (given("z = Pad (x, amounts)", 18, 0, ""), {}),
    ],
    ids=["something", "named", "not stored", "at a border"],
)
def test_others_stay(model: ModelProto, options: dict[str, Any]) -> None:
    assert not [rewrite for rewrite in ampgraph.plan(model, **options).rewrites if rewrite.name == "pad"]


# A product behind a Transpose is written so that ONNX Runtime's CPU opens it, at every target.

MATRICES = {
    "w": (8, 8), "v": (8, 8), "q": (4, 8), "u": (6, 4), "b": (8,), "n": (8,), "e": (4,), "v3": (3, 8),
    "stack": (1, 8, 8), "two": np.float32(2), "number": np.full((1, 1, 1, 1), 2, "f"), "wide": np.array([2, 1, 1, 1]),
    "zero": np.array([0]), "one": np.array([1]),
}  # fmt: skip
BATCH, SUMMED = "c = Transpose<perm = [1, 0, 2]>(a)", "c = Transpose<perm = [1, 2, 0]>(a)"
FORMS = {
    "a bias": (f"{BATCH} m = MatMul(c, w) y = Add(b, m)", "MatMul Add Transpose"),
    "no bias": (f"{BATCH} m = MatMul(c, w) y = Relu(m)", "MatMul Transpose Relu"),
    "two products": (f"{BATCH} m = MatMul(c, w) l = Add(m, b) y = MatMul(l, v)", "MatMul Add MatMul Transpose"),
    "another reader": (f"{BATCH} m = MatMul(c, w) r = Relu(c) y = Add(m, r)", "Unsqueeze Transpose MatMul Relu Add"),
    "what was first is summed over": (f"{SUMMED} y = MatMul(c, q)", "Unsqueeze Transpose MatMul"),
    "the matrix is on the left": (f"{BATCH} y = MatMul(u, c)", "Unsqueeze Transpose MatMul"),
    "a vector": (f"{BATCH} m = MatMul(c, n) y = Relu(m)", "Unsqueeze Transpose MatMul Squeeze Relu"),
    "a vector on the left": (f"{BATCH} y = MatMul(e, c)", "Unsqueeze Transpose MatMul Squeeze"),
    "a number between": (f"{BATCH} s = Mul(c, two) y = MatMul(s, w)", "Unsqueeze Transpose Mul MatMul"),
    "a part": (f"{BATCH} s = Slice(c, zero, one) y = MatMul(s, w)", "Unsqueeze Transpose Slice MatMul"),
    "two Transposes": (
        "d = Transpose<perm = [0, 2, 1]>(a) c = Transpose<perm = [2, 0, 1]>(d) y = MatMul(c, w)",
        "Unsqueeze Transpose Transpose MatMul",
    ),
}
OPEN = {  # which open as they are
    "the last two": "c = Transpose<perm = [0, 2, 1]>(a) y = MatMul(c, v3)",
    "a stack of matrices": f"{BATCH} y = MatMul(c, stack)",
    "a number that adds a dimension": f"{BATCH} s = Mul(c, number) y = MatMul(s, w)",
    "copies along a new dimension": f"{BATCH} s = Expand(c, wide) y = MatMul(s, w)",
    "other arithmetic between": f"{BATCH} r = Relu(c) y = MatMul(r, w)",
}


def transpose_model(form: str, opset: int = 17) -> onnx.ModelProto:
    vector = "MatMul(c, n)" in form or "MatMul(e, c)" in form
    shape = "R, S" if vector else "Q, R, S, T" if "number" in form or "wide" in form else "R, S, T"
    return parse(f"g (float[B, 3, 8] a) => (float[{shape}] y) {{ {form} }}", MATRICES, opset=opset)


def transpose_kinds(converted: onnx.ModelProto) -> str:
    return " ".join(node.op_type for node in converted.graph.node if node.op_type != "Cast")


def written(folder: Path, name: str, given: onnx.ModelProto, *rewrites: str, target: str = "cuda") -> onnx.ModelProto:
    made = proto(ampgraph.convert(given, "O3", target=target, rewrite=["exact", *rewrites], check="off"))
    onnx.save(made, folder / f"{name}.onnx")
    return made


@pytest.mark.parametrize(("target", "opset"), [("cuda", 17), ("tensorrt", 17), ("cann", 17), ("cuda", 11)])
def test_every_form_opens_and_is_right(tmp_path: Path, target: str, opset: int) -> None:
    feeds = {"a": np.random.default_rng(0).standard_normal((4, 3, 8)).astype(np.float32)}
    for name, (form, expected) in FORMS.items():
        given = transpose_model(form, opset)
        made = written(tmp_path, name, given, target=target)
        assert transpose_kinds(made) == expected, name
        onnx.checker.check_model(made, full_check=True)
        wanted, found = run_strict(given, feeds)["y"], run_strict(made, feeds)["y"]
        assert wanted.shape == found.shape and np.abs(wanted - found).max() < 2e-3 * np.abs(wanted).max(), name
        again = proto(ampgraph.convert(made, "O3", target=target, check="off"))
        assert again == made, name
    paths = [tmp_path / f"{name}.onnx" for name in FORMS]
    assert [path.stem for path, how in zip(paths, open_each(paths), strict=True) if not how.opens] == []


def test_each_kills_the_runtime_without_it(tmp_path: Path) -> None:
    for name, (form, _) in FORMS.items():
        written(tmp_path, name, transpose_model(form), "no-transpose", "no-ranks")
    opened = open_each([tmp_path / f"{name}.onnx" for name in FORMS])
    assert [name for name, how in zip(FORMS, opened, strict=True) if not how.died] == []


def test_what_opens_stays_as_it_is(tmp_path: Path) -> None:
    """Without the one the other does it, where it can."""
    given = transpose_model(FORMS["a bias"][0])
    assert transpose_kinds(written(tmp_path, "ranks", given, "no-transpose")) == "Unsqueeze Transpose MatMul Add"
    assert open_each([tmp_path / "ranks.onnx"])[0].opens
    # what opens stays as it is
    for name, form in OPEN.items():
        given = transpose_model(form)
        made = written(tmp_path, name, given)
        assert [n.op_type for n in made.graph.node if n.op_type != "Cast"] == [n.op_type for n in given.graph.node]
    assert all(how.opens for how in open_each([tmp_path / f"{name}.onnx" for name in OPEN]))


ATTENTION = """q = Reshape(a, s) k = Reshape(a, s) qt = Transpose<perm = [1, 0, 2]>(q) c = Div(qt, two)
    kt = Transpose<perm = [1, 2, 0]>(k) y = MatMul(c, kt)"""


def attention_model(opset: int) -> onnx.ModelProto:
    text = f"g (float[B, 3, 8] a, int64[3] s) => (float[R, S, T] y) {{ {ATTENTION} }}"
    return parse(text, {"two": MATRICES["two"]}, opset=opset)


@pytest.mark.parametrize("opset", [10, 13])
def test_ranks_that_onnxruntime_does_not_know_are_said(tmp_path: Path, opset: int) -> None:
    """Of a Reshape to computed sizes before opset 14: torch's attention."""
    given = attention_model(opset)
    feeds = {"a": np.random.default_rng(0).standard_normal((4, 3, 8)).astype(np.float32), "s": np.array([4, 6, 4])}
    ways = [(level, rewrite) for level in ("O1", "O2", "auto", "O3") for rewrite in ("exact", "no-rank")]
    for level, rewrite in ways:
        made = proto(ampgraph.convert(given, level, target="cuda", rewrite=["exact", rewrite], check="off"))
        onnx.save(made, tmp_path / f"{level}-{rewrite}.onnx")
        assert transpose_kinds(made) == transpose_kinds(given)
        onnx.checker.check_model(made, full_check=True)
        assert proto(ampgraph.convert(made, level, target="cuda", check="off")) == made
        wanted, found = run_strict(given, feeds)["y"], run_strict(made, feeds)["y"]
        assert np.abs(wanted - found).max() < 2e-3 * np.abs(wanted).max()
    opened = open_each([tmp_path / f"{level}-{rewrite}.onnx" for level, rewrite in ways])
    for way, how in zip(ways, opened, strict=True):
        assert how.died if "no-rank" in way else how.opens, way


def test_transposes_that_stay_and_the_plan() -> None:
    given = transpose_model("[p] c = Transpose<perm = [1, 0, 2]>(a) m = MatMul(c, w) y = Relu(m)")
    made = proto(ampgraph.convert(given, "O3", target="cuda", fp32=["p"], check="off"))
    assert transpose_kinds(made) == "Transpose MatMul Relu"
    # where nothing is low nothing changes
    given = transpose_model(FORMS["a bias"][0])
    assert proto(ampgraph.convert(given, "O3", target="cuda", fp32=["op:*"], check="off")) == given
    # the plan says so
    plan = ampgraph.plan(transpose_model(FORMS["a bias"][0]), level="O3", target="cuda")
    (rewrite,) = plan.rewrites
    assert rewrite.name == "transpose" and "crashes" in rewrite.explanation


# What TensorRT makes an attention of with fewer kernels, once stored tensors, scalings and repeated heads are moved.

ATTENTIONS = {
    "stored": """(float[2,4,4,8] q, float[2,4,8,4] k, float[2,4,4,8] v) => (float[2,4,4,8] y) {
        r = Reshape (bias, sizes)  b = Transpose <perm = [2, 0, 1]> (r)
        s = MatMul (q, k)  a = Add (s, b)  p = Softmax <axis = -1> (a)  y = MatMul (p, v)""",
    "early": """(float[2,6,8] x, float[2,2,4,6] n, float[2,2,6,4] v, float[1,1,6,6] mask) => (float[2,2,6,4] y) {
        h = MatMul (x, w)  r = Reshape (h, sizes)  t = Transpose <perm = [0, 2, 1, 3]> (r)  q = Mul (t, half)
        s = MatMul (q, n)  a = Add (s, mask)  p = Softmax <axis = -1> (a)  y = MatMul (p, v)""",
    "across": """(float[4,6,8] x, float[4,6,8] z, float[4,6,8] v) => (float[4,6,8] y) {
        q = Sigmoid (x)  h = Sigmoid (z)  t = Transpose <perm = [0, 2, 1]> (h)  k = Div (t, half)  s = MatMul (q, k)
        o = MatMul (q, bias)  a = Add (s, o)  p = Softmax <axis = -1> (a)  y = MatMul (p, v)""",
    "groups": """(float[2,4,6,4] q, float[2,4,4,6] k, float[2,2,6,4] v) => (float[2,4,6,4] y) {
        s = MatMul (q, k)  t = Tanh (s)  p = Softmax <axis = -1> (t)  u = Unsqueeze (v, two)  e = Expand (u, wide)
        r = Reshape (e, sizes)  m = MatMul (p, r)  y = Relu (m)""",
}
HELD: dict[str, dict[str, Any]] = {
    "stored": {"bias": (16, 4), "sizes": np.array([4, 4, 4])},
    "early": {"w": (8, 8), "half": np.float32(0.5), "sizes": np.array([2, 6, 2, 4])},
    "across": {"half": np.float32(0.5), "bias": (4, 8, 6)},
    "groups": {"two": np.array([2]), "wide": np.array([2, 2, 2, 6, 4]), "sizes": np.array([2, 4, 6, 4])},
}
OTHERWISE = {
    "stored, read twice": ("y = MatMul (p, v)", "f = Sin (bias)  g = ReduceSum (f)  c = MatMul (p, v)  y = Add (c, g)"),
    "stored, moved and read twice": ("y = MatMul (p, v)", "g = ReduceSum (r)  c = MatMul (p, v)  y = Add (c, g)"),
    "early, moved and read twice": ("y = MatMul (p, v)", "g = ReduceSum (t)  c = MatMul (p, v)  y = Add (c, g)"),
    "early, by no number": ("q = Mul (t, half)", "f = Exp (half)  q = Mul (t, f)"),
    "early, no sum of scores": ("s = MatMul (q, n)  a = Add (s, mask)", "s = MatMul (q, n)  a = Sin (s)"),
    "across, read by one": ("o = MatMul (q, bias)  a = Add (s, o)", "a = Neg (s)"),
    "across, scaled and read twice": ("a = Add (s, o)", "f = ReduceSum (k)  g = Add (s, o)  a = Add (g, f)"),
    "groups, of an attention": ("t = Tanh (s)  p = Softmax <axis = -1> (t)", "p = Softmax <axis = -1> (s)"),
    "groups, repeated and read twice": ("y = Relu (m)", "f = ReduceSum (e)  y = Add (m, f)"),
}


def attention_of(name: str, old: str = "", new: str = "") -> ModelProto:
    """An attention that one rewrite is about, with a part of it written otherwise."""
    body = ATTENTIONS[name]
    assert old in body
    stored = {kind: array for kind, array in HELD[name].items() if kind in body}
    return parse(f"g {body.replace(old, new) if old else body} }}", stored, opset=20)


def rewrites_of(name: str, old: str = "", new: str = "", **options: Any) -> set[str]:
    """The names of the rewrites of an attention's plan for TensorRT, with a part of it written otherwise."""
    plan = ampgraph.plan(attention_of(name, old, new), "O2", target="tensorrt", **options)
    return {rewrite.name for rewrite in plan.rewrites}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_what_is_moved_before_an_attention(name: str) -> None:
    assert name in rewrites_of(name) and name not in rewrites_of(name, rewrite=f"no-{name}")


@pytest.mark.parametrize("case", OTHERWISE)
def test_what_stays_before_an_attention(case: str) -> None:
    name = case.partition(",")[0]
    assert name not in rewrites_of(name, *OTHERWISE[case])


@pytest.mark.parametrize(("name", "node"), [("stored", "r"), ("early", "q"), ("across", "k"), ("groups", "e")])
def test_what_the_user_names_stays_before_an_attention(name: str, node: str) -> None:
    assert name not in rewrites_of(name, fp32=f"value:{node}")


def explained(name: str, node: str) -> list[tuple[str, str]]:
    """What `explain` says of a node of an attention that a rewrite is about: (the node it looks at, its region)."""
    found = ampgraph.explain_all(attention_of(name), node, "O2", target="tensorrt")
    return [(one.node, one.region) for one in found]


EARLY = "reads or makes what a number scaled behind moves, and scales before them now"
ACROSS = "makes scores of which a number scales the other operand now, which further products read unscaled"
STORED = "a stored tensor is not moved any more, but stored as it is added"


SAID = {"early": ("s", EARLY), "across": ("s", ACROSS), "stored": ("a", STORED)}


@pytest.mark.parametrize(
    ("name", "node"),
    [("early", "t"), ("early", "q"), ("across", "k"), ("across", "s"), ("stored", "r"), ("stored", "b")],
)
def test_what_is_no_more_is_explained_at_what_reads_it(name: str, node: str) -> None:
    assert explained(name, node) == [SAID[name]]


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("p = Pad (f, amounts)  z = MatMul (p, w)", "z"),
        ("p = Pad (f, amounts)  r = Pad (p, amounts)  z = MatMul (r, w)", "z"),
        ("h = MatMul (f, w)  p = Pad (h, amounts)  z = MatMul (p, w)", "h"),
    ],
    ids=["of an input", "before another", "of a result"],
)
def test_what_did_nothing_is_explained_at_its_neighbour(body: str, shown: str) -> None:
    text = f"g (float[4,8] f) => (float[4,8] z) {{ {body} }}"
    model = parse(text, known={"w": np.eye(8, dtype=np.float32), "amounts": np.zeros(4, np.int64)}, opset=18)
    (found,) = ampgraph.explain_all(model, "p", "O2")
    said = "a Pad (pad) did nothing and is taken away: what it read is read instead"
    assert (found.node, found.region) == (shown, said)
