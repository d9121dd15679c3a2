"""What TensorRT says of a model, in words and in kernels."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto
from onnx.parser import parse_model

import ampgraph
from ampgraph.api.check_model import check_build
from ampgraph.core.errors import AmpError
from ampgraph.runtime import tensorrt_rtx
from ampgraph.runtime.tensorrt_rtx import BuildJob, build, build_all, read_kernels, refusal_text
from cli_helpers import process
from onnx_text import parse
from planner.support import dtype_of
from set_up import ROOT

HEAD = '<ir_version: 10, opset_import: ["" : 22]>'
PLAIN = parse_model(HEAD + "g (float16[2, 8] x) => (float16[2, 8] y) { y = Relu(x) }")
MIXED = parse_model(
    HEAD
    + "g (float16[1, 1, 4, 4] x, float[1, 2, 2, 2] grid) => (float16[1, 1, 2, 2] y) {[sampled] y = GridSample(x, grid)}"
)
TRANSPOSED = parse_model(
    HEAD
    + "g (bfloat16[1, 1, 4, 4] x, bfloat16[1, 1, 2, 2] w) => (bfloat16[1, 1, 5, 5] y) {[up] y = ConvTranspose(x, w)}"
)
OPEN = parse_model(HEAD + "g (float16[N, 8] x, float16[8, M] w) => (float16[N, M] y) { y = MatMul(x, w) }")


def _tensor(name: str, shape: str, dtype: str) -> str:
    return f"{{ Name: {name}, Dimensions: [{shape}], Strides: [1], Datatype: {dtype}, Format: (Linear) any }}"


def _layer(name: str, given: str, made: str, nodes: str, constants: str = "") -> str:
    lists = f"Inputs: [ {given}], Constants: [{constants}], Outputs: [ {made}]"
    return f"Name: {name}, LayerType: gemm, {lists}, TacticName: t, StreamId: 0, Metadata: {nodes}"


X, Y, Z = _tensor("x", "2,8", "Float"), _tensor("y", "2,8", "Half"), _tensor("z", "2,8", "Float")
LIST = "\n".join(
    [
        "Layers:",
        _layer("cast_it_myl0_0", X, Y, "[ONNX Layer: one, two][ONNX Layer: three]"),
        _layer("__myl_CastCast_myl0_1", Y, Z, ""),
        _layer("gemm_mha_v2_myl0_2", Y, Y, "[ONNX Layer: four]", _tensor("alpha", "1", "Float")),
        "Name: wait_myl0_3, LayerType: wait, Inputs: [], Outputs: [], TacticName: , StreamId: 0, Metadata: ",
        "",
        "I/O Tensors:",
        " Name: x, IOMode: Input",
    ]
)


def test_what_is_read_and_said() -> None:
    first, cast, product = read_kernels(LIST)
    assert first.nodes == ("one, two", "three") and first.dtype == "float32->float16" and not first.casts
    assert cast.casts and cast.dtype == "float16->float32"
    assert product.attends and product.kind == "gemm" and product.dtype == "float16"
    # words are one line without what any refusal says
    said = (
        "Invalid Node - n\nITensor::getDimensions: Error Code 4: API Usage Error (types\n differ)\n"
        "[x.cpp::catch::250] Error Code 1: Cuda Runtime (cudaError 35: CUDA driver version is insufficient)"
    )
    assert refusal_text(said) == "API Usage Error (types differ)"


def test_environments_that_do_not_build() -> None:
    with pytest.raises(AmpError, match="TensorRT for RTX is not installed") as caught:
        build(BuildJob(PLAIN), python=sys.executable)
    assert caught.value.code == "AMP501" and "tensorrt-rtx-cu13-libs" in caught.value.hint
    # a python that is none is said
    with pytest.raises(AmpError, match="cannot be started") as caught:
        build(BuildJob(PLAIN), python="/nowhere/python")
    assert caught.value.code == "AMP508"
    # one that ends and says nothing is not asked for ever
    with pytest.raises(AmpError, match="exited without an answer") as caught:
        build(BuildJob(PLAIN), python="true")
    assert caught.value.code == "AMP508"


def test_a_process_that_dies_is_an_answer(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """Of three models the second kills the first process, and the third is asked of another."""
    script = tmp_path / "dies.py"
    script.write_text(
        "import json, os, sys\n"
        "for model in json.load(open(sys.argv[1]))['models']:\n"
        "    if model['folder'] == '/dies': os.abort()\n"
        "    told = {'runtime': '1', 'refused': [], 'layers': '', 'bytes': 0}\n"
        "    print(json.dumps(told), file=open(sys.argv[2], 'a'), flush=True)\n"
    )
    monkeypatch.setattr(tensorrt_rtx.tensorrt_one, "__file__", str(script))
    answers = list(
        build_all([BuildJob(PLAIN), BuildJob(PLAIN, folder="/dies"), BuildJob(PLAIN)], python=sys.executable)
    )
    assert [answer.ok for answer in answers] == [True, False, True]
    assert "TensorRT dies of it: Aborted" in answers[1].why


def test_what_is_refused_and_open(trt_python: str) -> None:
    plain, mixed, transposed = build_all([BuildJob(PLAIN), BuildJob(MIXED), BuildJob(TRANSPOSED)], python=trt_python)
    assert plain.ok and plain.engine is not None and plain.engine.types == {"float16": 1} and plain.engine.size > 0
    (refused,) = mixed.refused
    assert (refused.by, refused.node, refused.operator) == ("parser", "sampled", "GridSample")
    assert "`input` type is Half and `grid` type is Float" in refused.words and "cudaError" not in mixed.why
    (refused,) = transposed.refused
    assert (refused.by, refused.node, refused.operator) == ("builder", "up", "ConvTranspose")
    # open dimensions get a profile
    sizes = {"N": (1, 4, 16), "w:1": (8, 8, 8)}
    answer = build(BuildJob(OPEN, sizes=sizes), python=trt_python)
    assert answer.ok and answer.engine is not None and answer.engine.types["float16"] >= 1


def test_external_data_is_found(trt_python: str, tmp_path) -> None:
    weight = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [64, 64], [0.5] * 4096)
    model = parse_model(HEAD + "g (float[2, 64] x) => (float[2, 64] y) { y = MatMul(x, w) }")
    model.graph.initializer.append(weight)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    assert build(BuildJob(tmp_path / "m.onnx"), python=trt_python).ok


# `inspect` and `check` with TensorRT's own parser and builder.

W = {"w": np.eye(64, dtype=np.float32), "v": np.eye(64, dtype=np.float32)}
NET = parse("g (float[N,64] x) => (float[N,64] y) { a = MatMul (x, w)  b = Relu (a)  y = MatMul (b, v) }", W, opset=17)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A model and what it was made from."""
    before, after = tmp_path / "m.onnx", tmp_path / "m.O2.onnx"
    onnx.save(NET, before)
    ampgraph.convert(before, "O2", target="tensorrt", check="off", output=after)
    return before, after


def test_inspect_and_check_build(files: tuple[Path, Path], trt_python: str) -> None:
    before, after = files
    found = ampgraph.inspect(after, before, target="tensorrt", runtime=trt_python, dims={"N": 8}).fusions
    assert found is not None and found.before is not None and found.after is not None and not found.note
    assert set(found.before.types) == {"float32"} and found.after.types["float16"] >= 1
    assert found.after.engine_bytes > 0 and found.runtime.startswith("TensorRT for RTX")
    assert {name for node in found.nodes for name in node.computes} >= {"y"}
    ended = process("inspect", after, "--against", before, "--target", "tensorrt", "--runtime", trt_python)
    assert ended.returncode == 0 and "builds it; nothing was run" in ended.stdout and "types   float16" in ended.stdout
    # check builds
    checked = ampgraph.check(after, before, runtime=trt_python)
    assert checked.ok and "builds" in checked.passed
    # for GPUs that lack bfloat16, and for none that there is
    low = ampgraph.convert(NET, "O2", dtype="bfloat16", target="tensorrt", check="off")
    onnx.save(low, after)
    checked = ampgraph.check(after, runtime=trt_python, sm=["75"])
    assert not checked.ok and "sm75" in checked.findings[0].message
    ended = process("check", before, "--runtime", trt_python, "--sm", "90")
    assert ended.returncode == 2 and "error[AMP301]: TensorRT for RTX builds for no GPU" in ended.stderr
    assert "hint: it knows 75, 80" in ended.stderr and "Traceback" not in ended.stderr
    with pytest.raises(AmpError, match="--sm says for which GPUs"):
        ampgraph.check(after, sm=["75"])


def test_nothing_builds_elsewhere(files: tuple[Path, Path]) -> None:
    ended = process("inspect", files[1], "--target", "tensorrt", "--runtime", sys.executable)
    assert ended.returncode == 2 and "error[AMP501]: TensorRT for RTX is not installed" in ended.stderr
    assert "hint:" in ended.stderr and "Traceback" not in ended.stderr
    # nothing builds for other targets
    ended = process("check", files[1], "--target", "cuda", "--runtime", sys.executable)
    assert ended.returncode == 2 and "nothing executes files for cuda" in ended.stderr


def test_check_says_what_is_refused_and_what_mends_it(tmp_path: Path, trt_python: str) -> None:
    onnx.save(MIXED, tmp_path / "m.onnx")
    found = ampgraph.check(tmp_path / "m.onnx", runtime=trt_python)
    (finding,) = [one for one in found.findings if one.rule == "builds"]
    assert finding.level == "error" and "node 'sampled' (GridSample)" in finding.message
    assert finding.hint == "convert it with --fp32 sampled"


def test_what_the_original_meets_as_well_is_a_warning(tmp_path: Path, trt_python: str) -> None:
    onnx.save(MIXED, tmp_path / "m.onnx")
    found = ampgraph.check(tmp_path / "m.onnx", tmp_path / "m.onnx", runtime=trt_python)
    (finding,) = [one for one in found.findings if one.rule == "builds"]
    assert finding.level == "warning" and "is refused as well" in finding.hint


# Written attention with a test for NaN behind its Softmax is one kernel, and never what the builder dies of.

sys.path.append(str(ROOT / "benchmarks" / "tensorrt"))

WEIGHTS = {name: np.eye(256, dtype=np.float32) for name in ("wq", "wk", "wv", "wo")}
HEADS = {"split": np.array([2, 64, 4, 64]), "joined": np.array([2, 64, 256]), "zero": np.zeros((), np.float32)}
ATTENTION_NET = """g (float[2,64,256] x, float[2,1,64,64] mask) => (float[2,64,256] y) {
    q0 = MatMul (x, wq)  k0 = MatMul (x, wk)  v0 = MatMul (x, wv)
    q1 = Reshape (q0, split)  k1 = Reshape (k0, split)  v1 = Reshape (v0, split)
    q = Transpose <perm = [0, 2, 1, 3]> (q1)  k = Transpose <perm = [0, 2, 3, 1]> (k1)
    v = Transpose <perm = [0, 2, 1, 3]> (v1)
    s = MatMul (q, k)  a = Add (s, mask)  p = Softmax <axis = -1> (a)  n = IsNaN (p)  w = Where (n, zero, p)
    c = MatMul (w, v)  t = Transpose <perm = [0, 2, 1, 3]> (c)  j = Reshape (t, joined)  y = MatMul (j, wo) }"""
FP32 = ("op:Softmax", "op:IsNaN", "op:Where")
WAYS = [(level, dtype) for level in ("O1", "O2", "O3", "auto") for dtype in ("float16", "bfloat16")]


def made(level: str, dtype: str, target: str = "tensorrt", fp32: tuple[str, ...] = ()) -> ModelProto:
    model = parse(ATTENTION_NET, {**WEIGHTS, **HEADS}, opset=20)
    return ampgraph.convert(model, level, dtype=dtype, target=target, fp32=list(fp32), check="off")


@pytest.mark.slow
def test_attention_is_one_kernel(trt_python: str) -> None:
    for way, answer in zip(WAYS, build_all([BuildJob(made(*way)) for way in WAYS], python=trt_python), strict=True):
        assert answer.ok and answer.engine is not None and answer.engine.attentions == 1, way
    # Softmax, IsNaN and Where in float32 before a low product: the user's patterns do not lead there.
    jobs = [BuildJob(made(level, dtype, fp32=FP32)) for level, dtype in WAYS]
    assert [answer.why for answer in build_all(jobs, python=trt_python)] == [""] * len(WAYS)
    attention_forms = pytest.importorskip("attention_forms")
    wide = BuildJob(attention_forms.attention("float16", *["float32"] * 3))
    assert not next(build_all([wide], python=trt_python)).ok


@pytest.mark.parametrize("level", ["O1", "auto"])
def test_the_softmax_goes_with_its_products_where_the_target_wants_it(level: str) -> None:
    assert dtype_of(made(level, "bfloat16"), "Softmax") == "bf16"
    assert dtype_of(made(level, "float16"), "Softmax") == "f16"
    assert dtype_of(made("O1", "bfloat16", "cpu"), "Softmax") == "f32"


def test_the_users_pattern_holds_the_softmax_alone() -> None:
    model = made("O2", "bfloat16", fp32=("op:Softmax",))
    assert dtype_of(model, "Softmax") == "f32" and dtype_of(model, "MatMul") == "bf16"


# What is added to scores is stored so; what is read in both types is low.

STORED = {
    "bias": np.arange(4096 * 4, dtype=np.float32).reshape(4096, 4) / 16384,
    "sizes": np.array([64, 64, 4]),
    "first": np.array([0]),
}
BIASED = """g (float[2,4,64,64] q, float[2,4,64,64] k) => (float[2,4,64,64] y) {
    r = Reshape (bias, sizes)  t = Transpose <perm = [2, 0, 1]> (r)  b = Unsqueeze (t, first)
    s = MatMul (q, k)  a = Add (s, b)  p = Softmax <axis = -1> (a)  y = MatMul (p, k) }"""
PACKED = """g (float[2,24,64] x) => (float[2,24,32] y) {
    p = MatMul (x, w)  r = Reshape (p, halves)  q = Slice (r, zero, one, axis)  v = Slice (r, one, two, axis)
    e = Exp (q)  m = Reshape (e, joined)  n = Reshape (v, turned)  l = MatMul (m, n)  y = MatMul (l, u) }"""
INDICES = {name: np.array(row) for name, row in {"zero": [0], "one": [1], "two": [2], "axis": [2]}.items()}
SHAPES = {"halves": np.array([2, 24, 2, 32]), "joined": np.array([2, 24, 32]), "turned": np.array([2, 32, 24])}


@pytest.mark.slow
def test_what_is_added_to_scores_is_stored_so(trt_python: str) -> None:
    model = parse(BIASED, STORED, opset=20)
    ways = [("O1", "float16"), ("O2", "float16"), ("O2", "bfloat16")]
    models = [ampgraph.convert(model, level, dtype=dtype, target="tensorrt", check="off") for level, dtype in ways]
    for answer in build_all(map(BuildJob, models), python=trt_python):
        assert answer.engine is not None and answer.engine.attentions == 1
    for one, (level, dtype) in zip(models, ways, strict=True):
        assert {"Reshape", "Transpose", "Unsqueeze"}.isdisjoint(node.op_type for node in one.graph.node)
        assert ampgraph.convert(one, level, dtype=dtype, target="tensorrt", check="off") == one
    feeds = {name: np.ones((2, 4, 64, 64), np.float32) for name in ("q", "k")}
    before, after = (ampgraph.run(one, feeds)["y"] for one in (model, models[1]))
    np.testing.assert_allclose(before, after, rtol=1e-2)


# Numbers and halves stand where the builder takes them into the kernel before.

SCALED = """g (float[1,197,64] x, float[1,4,197,16] k, float[1,4,197,16] v, float[1,1,197,197] mask)
    => (float[1,4,197,16] y) {
    h = MatMul (x, w)  r = Reshape (h, sizes)  t = Transpose <perm = [0, 2, 1, 3]> (r)  q = OPERATOR (t, number)
    n = Transpose <perm = [0, 1, 3, 2]> (k)  s = MatMul (q, n)  a = Add (s, mask)
    p = Softmax <axis = -1> (a)  y = MatMul (p, v) }"""
PROJECTION = {"w": np.eye(64, dtype=np.float32), "sizes": np.array([1, 197, 4, 16])}


LATE = "c = Constant <value = float {0.3}> ()  q = Mul (t, c)"
"""The number stands behind the moves."""


@pytest.mark.parametrize("scaling", ["q = Mul (t, number)", "q = Div (t, number)", LATE])
def test_a_number_scales_before_what_it_scales_is_moved(scaling: str) -> None:
    operator = "Div" if "Div" in scaling else "Mul"
    text = SCALED.replace("q = OPERATOR (t, number)", scaling)
    number = {} if scaling == LATE else {"number": np.float32(3)}
    model = parse(text, {**PROJECTION, **number}, opset=20)

    def converted(**options: Any) -> ModelProto:
        return ampgraph.convert(model, **{"target": "tensorrt", "check": "off", **options})

    made = converted()
    onnx.checker.check_model(made, full_check=True)
    kinds = [node.op_type for node in made.graph.node if node.op_type != "Constant"]
    assert kinds.index(operator) == kinds.index("Reshape") - 1 and converted_again(made) == made
    for other in ({"dtype": "bfloat16"}, {"target": "cuda"}, {"rewrite": "no-early"}, {"fp32": [f"op:{operator}"]}):
        kinds = [node.op_type for node in converted(**other).graph.node]
        assert kinds.index(operator) > kinds.index("Transpose"), other
    rng = np.random.default_rng(0)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    feeds = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    one, other = (ampgraph.run(m, feeds, strict=True)["y"] for m in (made, converted(rewrite="no-early")))
    np.testing.assert_array_equal(one, other)


SCALE = "q = OPERATOR (t, number)"


@pytest.mark.parametrize(
    ("changes", "number", "order"),
    [
        ({}, np.float32(3), "MatMul Mul Reshape Transpose"),
        ({SCALE: f"{SCALE}  left = Neg (t)"}, np.float32(3), "MatMul Reshape Transpose Mul"),
        ({SCALE: f"{SCALE}  left = Neg (r)"}, np.float32(3), "MatMul Reshape Mul Transpose"),
        (
            {"h = MatMul (x, w)  r = Reshape (h, sizes)": "r = Reshape (x, sizes)"},
            np.float32(3),
            "Reshape Transpose Mul",
        ),
        ({}, np.full((1, 1, 1, 1), 3, np.float32), "MatMul Reshape Transpose Mul"),
        ({}, np.full(16, 3, np.float32), "MatMul Reshape Transpose Mul"),
    ],
    ids=["all fits", "two readers", "two readers of a move", "an input", "more dimensions", "several numbers"],
)
def test_a_number_scales_before_moves_of_what_is_computed_for_it_alone(
    changes: dict[str, str], number: Any, order: str
) -> None:
    text = SCALED
    for old, new in changes.items():
        text = text.replace(old, new)
    if "left" in text:
        text = text.replace("(float[1,4,197,16] y)", "(float[1,4,197,16] y, float[A,B,C,D] left)")
    stored = {name: array for name, array in PROJECTION.items() if f" {name})" in text}
    model = parse(text.replace("OPERATOR", "Mul"), {**stored, "number": number}, opset=20)
    made = ampgraph.convert(model, target="tensorrt", check="off")
    makers = {name: node for node in made.graph.node for name in node.output}
    scores = [node for node in made.graph.node if node.op_type == "MatMul"][-2]
    way, name = list[str](), scores.input[0]
    while name in makers:
        way.append(makers[name].op_type)
        name = makers[name].input[0]
    assert " ".join(kind for kind in reversed(way) if kind != "Cast") == order


# A number scales the operand that another product reads too, as two products of one operand become one.

BESIDE = """g (float[2,24,64] x, bool[2,1,24,24] hidden) => (float[2,24,64] y) {
    qm = MatMul (x, w)  qs = Reshape (qm, split)  qt = Transpose <perm = [0, 2, 1, 3]> (qs)  q = Reshape (qt, rows)
    km = MatMul (x, w)  ks = Reshape (km, split)  kt = Transpose <perm = [0, 2, 1, 3]> (ks)  k = Reshape (kt, rows)
    t = Transpose <perm = [0, 2, 1]> (k)  d = OPERATOR (t, number)  s = MatMul (q, d)
    o = MatMul (q, positions)  g = GatherElements <axis = 2> (o, places)  a = Add (s, g)
    h = Reshape (a, heads)  m = Where (hidden, lowest, h)  p = Softmax <axis = -1> (m)  r = Reshape (p, square)
    v = MatMul (r, k)  vh = Reshape (v, apart)  vt = Transpose <perm = [0, 2, 1, 3]> (vh)  vr = Reshape (vt, whole)
    y = MatMul (vr, w) }"""
BESIDE_STORED = {
    "w": np.eye(64, dtype=np.float32),
    "positions": np.linspace(-1, 1, 8 * 16 * 24, dtype=np.float32).reshape(8, 16, 24),
    "places": np.broadcast_to(np.arange(24)[::-1], (8, 24, 24)).copy(),
    "lowest": np.float32(-65504),
    **{"split": np.array([2, 24, 4, 16]), "rows": np.array([8, 24, 16]), "heads": np.array([2, 4, 24, 24])},
    **{"square": np.array([8, 24, 24]), "apart": np.array([2, 4, 24, 16]), "whole": np.array([2, 24, 64])},
}


@pytest.mark.parametrize(
    ("changes", "scaled"),
    [
        ({}, "q"),
        ({"OPERATOR": "Div"}, "q"),
        ({"MatMul (q, positions)": "MatMul (k, positions)"}, "t"),
        ({"d = OPERATOR (t, number)": "d = OPERATOR (t, number)  left = Neg (t)"}, "t"),
        ({"a = Add (s, g)": "e = Relu (s)  a = Add (e, g)"}, "t"),
        ({"Softmax <axis = -1> (m)": "Sigmoid (m)"}, "t"),
    ],
    ids=["multiplied", "divided", "no other product", "two readers", "no scores", "no attention"],
)
@pytest.mark.parametrize(("level", "dtype"), [("O1", "bfloat16"), ("O2", "float16")])
def test_a_number_scales_the_operand_that_another_product_reads(
    changes: dict[str, str], scaled: str, level: str, dtype: str
) -> None:
    text = BESIDE
    for old, new in changes.items():
        text = text.replace(old, new)
    if "left" in text:
        text = text.replace("(float[2,24,64] y)", "(float[2,24,64] y, float[8,16,24] left)")
    model = parse(text.replace("OPERATOR", "Mul"), {**BESIDE_STORED, "number": np.float32(0.3)}, opset=20)

    def reads(**options: Any) -> str:
        made = ampgraph.convert(model, level, **{"dtype": dtype, "target": "tensorrt", "check": "off", **options})
        onnx.checker.check_model(made, full_check=True)
        (scaling,) = (node for node in made.graph.node if node.op_type in ("Mul", "Div"))
        return scaling.input[0].removesuffix("_float32")

    assert reads() == scaled
    scaling = "Div" if changes == {"OPERATOR": "Div"} else "Mul"
    for other in ({"target": "cuda"}, {"rewrite": "no-across"}, {"fp32": [f"op:{scaling}"]}):
        assert reads(**other) == "t"


@pytest.mark.slow
def test_products_of_one_operand_lose_no_attention(trt_python: str) -> None:
    text = BESIDE.replace("OPERATOR", "Div")
    model = parse(text, {**BESIDE_STORED, "number": np.float32(7)}, opset=20)
    ways = [(level, dtype) for level in ("O1", "O2") for dtype in ("float16", "bfloat16")]
    models = [ampgraph.convert(model, level, dtype=dtype, target="tensorrt", check="off") for level, dtype in ways]
    for answer in build_all(map(BuildJob, models), python=trt_python):
        assert answer.engine is not None and answer.engine.attentions == 1
    for one, (level, dtype) in zip(models, ways, strict=True):
        assert ampgraph.convert(one, level, dtype=dtype, target="tensorrt", check="off") == one
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((2, 24, 64), np.float32), "hidden": rng.random((2, 1, 24, 24)) < 0.3}
    before, after = (ampgraph.run(one, feeds, strict=True)["y"] for one in (model, models[1]))
    np.testing.assert_allclose(before, after, atol=0.05)


# A recurrent operator in float32 is refused behind a Cast of what is computed low.

RECURRENT = """g (float[3,5,16] x, int64[3,5] i) => (float[5,3,8] y) {
    DATA  t = Transpose <perm = [1, 0, 2]> (e)  n = KIND (t, w, r, b)  s = Squeeze (n, one)  y = MatMul (s, m) }"""
GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}


def recurrent(kind: str, data: str) -> ModelProto:
    rng, width = np.random.default_rng(0), 8 * GATES[kind]
    shapes = {
        "w": (1, width, 16),
        "r": (1, width, 8),
        "b": (1, 2 * width),
        "p": (16, 16),
        "table": (32, 16),
        "m": (8, 8),
    }
    stored = {name: rng.standard_normal(shape, np.float32) / 4 for name, shape in shapes.items()}
    text = RECURRENT.replace("DATA", data).replace("KIND", f"{kind} <hidden_size = 8>")
    return parse(text, {**stored, "one": np.array([1])}, opset=13)


@pytest.mark.slow
def test_a_float32_recurrence_stands_behind_no_cast(trt_python: str) -> None:
    product, looked_up = "e = MatMul (x, p)", "e = Gather (table, i)"
    ways: list[tuple[str, str, dict[str, Any]]] = [
        *(
            ("GRU", data, {"dtype": "bfloat16", "level": level})
            for data in (product, looked_up)
            for level in ("O1", "O2")
        ),
        ("GRU", product, {"dtype": "bfloat16", "level": "auto"}),
        *((kind, product, {"fp32": f"op:{kind}"}) for kind in GATES),
        ("LSTM", product, {"dtype": "bfloat16"}),
    ]
    models = [ampgraph.convert(recurrent(*way), target="tensorrt", check="off", **given) for *way, given in ways]
    answers = build_all(map(BuildJob, models), python=trt_python)
    assert [answer.why for answer in answers] == [""] * len(ways)
    kinds = [{node.op_type: node.output[0] for node in model.graph.node} for model in models]
    assert all("MatMul" in one for one in kinds)
    (why,) = {
        slot.reason
        for slot in ampgraph.explain(recurrent("GRU", product), "e", target="tensorrt", dtype="bfloat16").slots
    }
    assert "makes what GRU reads, which fails behind a Cast" in why


# Heads that share values: the product broadcasts them, where no attention is one kernel.

SHARING = """g (float[B,L,64] x, float[B,2,L,16] k, float[B,2,L,16] v) => (float[B,L,64] y) {
    qm = MatMul (x, w)  qs = Reshape (qm, heads)  q = Transpose <perm = [0, 2, 1, 3]> (qs)
    ku = Unsqueeze (k, two)  ke = Expand (ku, repeated)  kr = Reshape (ke, joined)
    kt = Transpose <perm = [0, 1, 3, 2]> (kr)  s = MatMul (q, kt)  d = Mul (s, number)  t = BOUNDED (d)
    p = Softmax <axis = -1> (t)  u = Unsqueeze (v, two)  e = Expand (u, repeated)  r = Reshape (e, joined)
    a = MatMul (p, r)  at = Transpose <perm = [0, 2, 1, 3]> (a)  ar = Reshape (at, whole)  b = MatMul (ar, w)
    y = Add (x, b) }"""
SHARING_STORED = {
    "w": np.linspace(-0.1, 0.1, 64 * 64, dtype=np.float32).reshape(64, 64),
    "heads": np.array([0, 0, 4, 16]),
    "two": np.array([2]),
    "repeated": np.array([1, 1, 2, 1, 1]),
    "joined": np.array([0, 4, -1, 16]),
    "whole": np.array([0, 0, 64]),
    "number": np.float32(0.25),
}


def sharing(bounded: str, batch: int | str = 2, length: int | str = 24) -> ModelProto:
    text = SHARING.replace("BOUNDED", bounded).replace("[B,", f"[{batch},").replace(",L,", f",{length},")
    return parse(text, SHARING_STORED, opset=20)


@pytest.mark.parametrize(
    ("model", "repeats"),
    [
        (sharing("Tanh"), 1),
        (sharing("Tanh", "n"), 1),
        (sharing("Identity"), 2),
        (sharing("Tanh", length="m"), 2),
    ],
    ids=["bounded scores", "open batch", "an attention", "two sizes are open"],
)
def test_a_product_broadcasts_what_heads_share(model: ModelProto, repeats: int) -> None:
    def expands(**options: Any) -> int:
        made = ampgraph.convert(model, **{"target": "tensorrt", "check": "off", **options})
        onnx.checker.check_model(made, full_check=True)
        return sum(node.op_type == "Expand" for node in made.graph.node)

    assert expands() == repeats
    for other in ({"target": "cuda"}, {"rewrite": "no-groups"}, {"fp32": ["op:Expand"]}):
        assert expands(**other) == 2


@pytest.mark.slow
def test_heads_that_share_values_start_no_further_kernels(trt_python: str) -> None:
    model, ways = (
        sharing("Tanh"),
        [(dtype, words) for dtype in ("float16", "bfloat16") for words in ("no-groups", "exact")],
    )

    def made(dtype: str, rewrite: str, io: str = "*=low", given: ModelProto = model) -> ModelProto:
        return ampgraph.convert(given, dtype=dtype, rewrite=rewrite, io=io, target="tensorrt", check="off")

    answers = build_all((BuildJob(made(*way)) for way in ways), python=trt_python)
    kernels = [len(answer.engine.kernels) for answer in answers if answer.engine is not None]
    assert kernels[1] < kernels[0] and kernels[3] < kernels[2]
    assert made(*ways[1], given=made(*ways[1])) == made(*ways[1])
    rng, shapes = np.random.default_rng(0), {"x": (2, 24, 64), "k": (2, 2, 24, 16), "v": (2, 2, 24, 16)}
    feeds = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    repeated, shared = (ampgraph.run(made(*way, io="x=keep"), feeds, strict=True)["y"] for way in ways[:2])
    np.testing.assert_array_equal(repeated, shared)


def converted_again(made: ModelProto) -> ModelProto:
    return ampgraph.convert(made, target="tensorrt", check="off")


GROUPS = """g (float[1,8,6,6] x) => (float[1,8,6,6] y) {
    c = Conv <pads = [1, 1, 1, 1]> (x, w)  r = Reshape (c, split)  n = InstanceNormalization (r, ones, zeros)
    b = Reshape (n, back)  m = Mul (b, scale)  a = Add (m, shift)  y = Conv <pads = [1, 1, 1, 1]> (a, w) }"""
GROUPED = {
    "w": np.full((8, 8, 3, 3), 0.1, np.float32),
    **{"split": np.array([0, 4, -1]), "back": np.array([1, 8, 6, 6])},
    **{"ones": np.ones(4, np.float32), "zeros": np.zeros(4, np.float32)},
    **{name: np.full((8, 1, 1), 0.5, np.float32) for name in ("scale", "shift")},
}


@pytest.mark.parametrize(("level", "norm"), [("O1", "f32"), ("O2", "f16"), ("auto", "f16"), ("O3", "f16")])
def test_a_norm_of_groups_is_of_one_type_as_its_kernel_keeps_float32_inside(level: str, norm: str) -> None:
    made = ampgraph.convert(parse(GROUPS, GROUPED, opset=20), level, target="tensorrt", check="off")
    types = [dtype_of(made, kind) for kind in ("InstanceNormalization", "Mul", "Add")]
    assert types == [norm] * 3 and dtype_of(made, "Conv") == "f16"
    other = ampgraph.convert(parse(GROUPS, GROUPED, opset=20), level, target="cann", check="off")
    assert dtype_of(other, "InstanceNormalization") == ("f16" if level == "O3" else "f32")


def test_parts_of_what_is_read_in_both_types_are_taken_low() -> None:
    """The builder dies of packed queries, keys and values of which some are taken behind a Cast, and others before."""
    weights = {"w": np.eye(64, dtype=np.float32), "u": np.ones((24, 32), np.float32)}
    model = parse(PACKED, {**weights, **INDICES, **SHAPES}, opset=20)
    made = ampgraph.convert(model, "O1", target="tensorrt", check="off")
    wide = [node.input[0] for node in made.graph.node if node.op_type == "Cast" and node.attribute[0].i == 1]
    assert dtype_of(made, "Slice") == "f16" and dtype_of(made, "Exp") == "f32" and "r" not in wide and "p" not in wide


# What was written is built where it is written, and beside a verification.


def test_convert_and_verify_build(files: tuple[Path, Path], trt_python: str) -> None:
    before, after = files
    ended = process("convert", before, "-o", after, "--target", "tensorrt", "--runtime", trt_python, "--dim", "N=8")
    assert ended.returncode == 0 and f"{after}: ok (reads, builds)" in ended.stdout
    assert "engine: 2 kernels (2 float32)" in ended.stdout and "float16" in ended.stdout.rpartition(" -> ")[2]
    ended = process("verify", before, after, "--target", "tensorrt", "--runtime", trt_python, "--json")
    built = json.loads(ended.stdout)["build"]
    assert ended.returncode == 0 and built["passed"] == ["reads", "builds"] and len(built["engines"]) == 2
    # nothing builds for other targets
    ended = process("convert", before, "-o", after, "--runtime", trt_python)
    assert ended.returncode == 2 and "AMP404" in ended.stderr and "Traceback" not in ended.stderr
    ended = process("verify", before, after, "--runtime", trt_python)
    assert ended.returncode == 2 and "AMP404" in ended.stderr


def test_a_refused_result_is_a_missed_check(tmp_path: Path, trt_python: str) -> None:
    paths = [tmp_path / "plain.onnx", tmp_path / "mixed.onnx"]
    for path, model in zip(paths, (PLAIN, MIXED), strict=True):
        onnx.save(model, path)
    found = check_build(paths[1], paths[0], trt_python)
    assert not found.ok and "convert it with --fp32 sampled" in found.lines()[-1]
    assert found.lines()[1].startswith("  engine: 1 kernels (1 float16)")
