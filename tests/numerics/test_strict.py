"""What a strict model is: the same interface, valid, every low value rounded, whatever the graph is made of."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import onnx_text
from ampgraph.core.arrays import Array
from ampgraph.core.errors import AmpError
from ampgraph.numerics.strict.session import StrictSession, _to_feed, run_strict, strict_model
from ampgraph.runtime.onnxruntime_session import CRASHING
from needs import needs_runtime

X = np.array([1.0009765625, -3.0, 0.333251953125, 60000.0], np.float16)


parse = partial(onnx_text.parse, opset=21)  # its float16 constants are bit patterns: 15360 is 1


def check(model: ModelProto, feeds: dict[str, Any], *, reference: bool = True) -> dict[str, Any]:
    """The strict model is valid and keeps the interface; its run, the session's and the reference's agree."""
    before = model.SerializeToString(deterministic=True)
    strict = strict_model(model)
    assert model.SerializeToString(deterministic=True) == before
    onnx.checker.check_model(strict, full_check=True)
    for what in ("input", "output"):
        assert [v.name for v in getattr(strict.graph, what)] == [v.name for v in getattr(model.graph, what)]
        old, new = ([v.type.tensor_type.elem_type for v in getattr(m.graph, what)] for m in (model, strict))
        assert old == new
    got = StrictSession(model).run(feeds)
    names = list(got)
    session = ort.InferenceSession(
        strict.SerializeToString(), providers=["CPUExecutionProvider"], disabled_optimizers=CRASHING
    )
    plain = session.run(names, feeds)
    with np.errstate(all="ignore"):
        expected = ReferenceEvaluator(model).run(None, feeds) if reference else plain
    for name, one, two in zip(names, plain, expected, strict=True):
        np.testing.assert_array_equal(got[name], one, err_msg=name)
        np.testing.assert_array_equal(got[name], two, err_msg=name)
    return got


def test_overflow_shows_where_a_plain_run_hides_it() -> None:
    model = parse("""g (float[4] x) => (float[4] y) <float16 s = {19456}> {
        a = Cast <to = 10> (x)  b = Mul (a, s)  c = Div (b, s)  y = Cast <to = 1> (c)
    }""")
    feeds = {"x": X.astype(np.float32)}
    assert np.isinf(check(model, feeds)["y"][3])
    plain = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    assert np.isfinite(plain).all(), "the runtime rounds by itself now: strict runs may have become needless"


def test_borders() -> None:
    check(
        parse("""g (float16[4] x, float16[4] w) => (float16[4] y, float16[4] x, float16[4] k, float16[4] z)
        <float16[4] w = {15360, 16384, 16896, 17408}, float16[4] k = {17664, 17920, 18176, 18432}> {
            a = Add (x, k)  y = Mul (a, w)  z = Identity (y)
        }"""),
        {"x": X},
    )
    # bfloat16 at the border
    model = parse(
        "g (bfloat16[4] x) => (bfloat16[4] y, float[4] z) { a = Mul (x, x) y = Mul (a, x) z = Cast <to=1> (a) }"
    )
    x = np.array([1.0078125, 3.0, -0.3, 1e20], ml_dtypes.bfloat16)
    got = run_strict(model, {"x": x})
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got["z"], (x * x).astype(np.float32))
        np.testing.assert_array_equal(got["y"], x * x * x)
    assert got["y"].dtype == ml_dtypes.bfloat16 and np.isinf(got["y"][3])
    onnx.checker.check_model(strict_model(model), full_check=True)
    # float32 models are left alone
    model = parse("g (float[4] x) => (float[4] y) { a = Exp (x)  y = Cast <to = 1> (a) }")
    assert [n.op_type for n in strict_model(model).graph.node] == ["Exp", "Cast"]


def test_bodies() -> None:
    model = parse("""g (float16[4] x, bool c) => (float16[4] y, float[4] f) {
        a = Mul (x, x)
        b = If (c) <
            then_branch = t () => (float16[4] p) { q = Mul (a, x)  p = Add (q, x) },
            else_branch = e () => (float16[4] r) { r = Identity (x) }
        >
        y = Neg (b)  f = Cast <to = 1> (b)
    }""")
    for c in (True, False):
        check(model, {"x": X / np.float16(100), "c": np.array(c)})
    # loop with low state
    check(parse(LOOP.replace("STATE", "a")), {"x": X / np.float16(1000), "n": np.array(3), "go": np.array(True)})
    # formal that shadows an outer low name
    x = X / np.float16(1000)
    feeds = {"x": x, "n": np.array(3), "go": np.array(True)}
    got = check(parse(LOOP.replace("STATE", "t")), feeds, reference=False)
    np.testing.assert_array_equal(got["y"], x + x + x + x)
    # scan with low scanned values
    model = parse("""g (float16[2] x, float16[3, 2] w) => (float16[2] y, float16[3, 2] s) {
        y, s = Scan (x, w) <num_scan_inputs = 1,
            body = b (float16[2] a, float16[2] e) => (float16[2] f, float16[2] h) { f = Mul (a, e) h = Exp (f) }>
    }""")
    check(model, {"x": X[:2], "w": (np.arange(6).reshape(3, 2) / 7).astype(np.float16)})
    # functions are inlined
    function = """<domain: "own", opset_import: ["" : 21]>
        f (a, b) => (c) { d = Mul (a, b)  e = Constant <value_float = 3.0> ()  h = CastLike (e, a)  c = Add (d, h) }"""
    text = "g (float16[4] x) => (float16[4] y, float[4] z) { y = own.f (x, x) w = Cast <to = 1> (x) z = own.f (w, w) }"
    check(parse(text, functions=function, domains=["own"]), {"x": X / np.float16(1000)})


LOOP = """g (float16[4] x, int64 n, bool go) => (float16[4] y, float16[k, 4] s) {
    t = Mul (x, x)
    y, s = Loop (n, go, x) <body = b (int64 i, bool c, float16[4] STATE) => (bool d, float16[4] u, float16[4] v) {
        d = Identity (c)  u = Add (STATE, x)  v = Mul (u, t)
    }>
}"""


def test_sequences() -> None:
    model = parse("""g (float16[4] x) => (float16[8] y, float16[4] z) {
        a = Exp (x)  s = SequenceConstruct (a, x)  y = ConcatFromSequence <axis = 0> (s)
        zero = Constant <value_int = 0> ()  e = SequenceEmpty <dtype = 10> ()
        t = SequenceInsert (e, a)  z = SequenceAt (t, zero)
    }""")
    check(model, {"x": X[:3].repeat(2)[:4]})
    # low sequence at the border
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT16, [2]))
    graph = helper.make_graph(
        [helper.make_node("SequenceInsert", ["s", "x"], ["t"])],
        "g",
        [helper.make_value_info("s", kind), helper.make_tensor_value_info("x", TensorProto.FLOAT16, [2])],
        [helper.make_value_info("t", kind)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    got = run_strict(model, {"s": [X[:2]], "x": X[2:]})["t"]
    assert [v.dtype for v in got] == [np.float16] * 2
    np.testing.assert_array_equal(got, [X[:2], X[2:]])


def test_attributes_that_carry_a_type() -> None:
    model = parse("""g (float16[4] x, int64[1] n, float16[4, 4] m) =>
        (float16[k] a, float16[4] b, float16[4, 4] c, float16[8] d, float16[2] e, float16[4] f) {
        a = ConstantOfShape <value = float16[1] {11878}> (n)
        half = Constant <value = float16 {13652}> ()
        b = Mul (x, half)
        c = EyeLike (m)
        size = Constant <value_int = 8> ()
        d = HannWindow <output_datatype = 10> (size)
        q = Constant <value = int8[2] {3, -5}> ()
        scale = Constant <value = float16 {11878}> ()
        e = DequantizeLinear (q, scale)
        w = Cast <to = 1> (x)
        f = CastLike (w, x)
    }""")
    got = check(model, {"x": X, "n": np.array([3]), "m": np.zeros((4, 4), np.float16)}, reference=False)
    np.testing.assert_array_equal(got["a"], np.full(3, 0.1, np.float16))
    np.testing.assert_array_equal(got["e"], (np.array([3, -5]) * np.float16(0.1)).astype(np.float16))


def test_attributes_that_no_runtime_is_asked_about() -> None:
    """A type number of an operator that only newer runtimes have, a type, and several tensors."""
    model = parse("g (float16[1, 2, 4, 8] q) => (float16[1, 2, 4, 8] y) { y = Attention (q, q, q) }", opset=23)
    half = numpy_helper.from_array(np.array([0.1], np.float16), "half")
    whole = numpy_helper.from_array(np.array([3]), "whole")
    model.graph.node[0].attribute.append(helper.make_attribute("softmax_precision", TensorProto.FLOAT16))
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT16, [2])
    model.graph.node.append(helper.make_node("Optional", [], ["o"], type=kind))
    model.graph.node.append(helper.make_node("Several", [], ["s"], domain="my", values=[half, whole]))
    model.opset_import.append(helper.make_opsetid("my", 1))
    strict = strict_model(model)
    found = {a.name: helper.get_attribute_value(a) for node in strict.graph.node for a in node.attribute}
    assert found["softmax_precision"] == TensorProto.FLOAT
    assert found["type"] == helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    low, kept = found["values"]
    assert numpy_helper.to_array(low) == np.float32(np.float16(0.1)) and low.data_type == TensorProto.FLOAT
    assert kept == whole


def test_types_that_follow() -> None:
    model = parse("""g (float16[2, 4] x, float16[4] w) => (float16[2, 4] y, float[2, 1] m, float16[3] r) {
        y, m = LayerNormalization (x, w)
        r = RandomNormal <dtype = 10, shape = [3], seed = 1.0> ()
    }""")
    feeds = {"x": np.stack([X[:3].repeat(2)[:4]] * 2), "w": X / np.float16(1000)}
    strict = strict_model(model)
    onnx.checker.check_model(strict, full_check=True)
    got = run_strict(model, feeds)
    assert [v.dtype for v in got.values()] == [np.float16, np.float32, np.float16]
    exact = feeds["x"].astype(np.float64).mean(1, keepdims=True)
    # float32 statistics are not rounded to float16.
    np.testing.assert_allclose(got["m"], exact, rtol=1e-6)
    # an output that no input of its slot types
    model = parse(
        """g (float16[2, 4, 64] q, float16[2, 4, 32] k, float16[2, 4, 32] v)
            => (float16[2, 4, 64] y, float16[2, 4, 8, 8] s)
        { y, s = LinearAttention <kv_num_heads = 4, q_num_heads = 8, update_rule = "linear"> (q, k, v) }""",
        opset=27,
    )
    onnx.checker.check_model(model, full_check=True)
    strict = strict_model(model)
    onnx.checker.check_model(strict, full_check=True)
    assert [v.type.tensor_type.elem_type for v in strict.graph.output] == [TensorProto.FLOAT16] * 2


@needs_runtime("older ones know no opset 26, the first with BitCast")
def test_bits_are_read_from_the_low_type() -> None:
    model = parse(
        """g (float16[4] x) => (int16[4] y, float16[4] z) {
        a = Mul (x, x)  y = BitCast <to = 5> (a)  z = BitCast <to = 10> (y)
    }""",
        opset=26,
    )
    strict = strict_model(model)
    onnx.checker.check_model(strict, full_check=True)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(run_strict(model, {"x": X})["y"], (X * X).view(np.int16))


def test_other_domains() -> None:
    model = parse(
        """g (float16[2, 3, 4] x, float16[4] w) => (float16[2, 3, 4] y, float16[2, 3, 4] s, float16[2, 3, 3] p) {
            y, , , s = com.microsoft.SkipLayerNormalization (x, x, w)
            p = com.microsoft.FusedMatMul <transB = 1> (x, x)
        }""",
        domains=["com.microsoft"],
    )
    x = np.linspace(-1, 1, 24).reshape(2, 3, 4).astype(np.float16)
    got = run_strict(model, {"x": x, "w": X / np.float16(1000)})
    np.testing.assert_array_equal(got["s"], x + x)
    wide = x.astype(np.float32)
    np.testing.assert_array_equal(got["p"], (wide @ wide.transpose(0, 2, 1)).astype(np.float16))
    # a model without the standard operators
    node = helper.make_node("FusedMatMul", ["x", "x"], ["y"], domain="com.microsoft")
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT16, [2, 2]) for n in "xy"]
    imports = [helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(
        helper.make_graph([node], "g", values[:1], values[1:]), opset_imports=imports, ir_version=8
    )
    x = X.reshape(2, 2)[:, ::-1] / np.float16(1000)
    np.testing.assert_array_equal(run_strict(model, {"x": x})["y"], (x.astype("f") @ x.astype("f")).astype(np.float16))
    # stale annotations are not believed
    model = parse("g (float16[4] x) => (float16[4] y) { a = Mul (x, x)  y = Mul (a, x) }")
    model.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [7]))
    x = X / np.float16(10000)
    np.testing.assert_array_equal(run_strict(model, {"x": x})["y"], x * x * x)


@pytest.mark.parametrize("shape", [[700, 800], [4, 800]])
def test_external_and_large_weights(tmp_path: Path, shape: list[int]) -> None:
    weight = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
    values = [helper.make_tensor_value_info(*v) for v in (("x", TensorProto.FLOAT16, [1, shape[0]]), ("y", 10, None))]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        values[:1],
        values[1:],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = {"x": np.ones((1, shape[0]), np.float16)}
    inside = run_strict(model, feeds)["y"]
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.data", size_threshold=0)
    strict = strict_model(path)
    assert [(e.key, e.value) for e in strict.graph.initializer[0].external_data][0] == ("location", "w.data")
    np.testing.assert_array_equal(run_strict(path, feeds)["y"], inside)
    onnx.save(strict, tmp_path / "strict.onnx")
    session = ort.InferenceSession(tmp_path / "strict.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, feeds)[0], inside)


def test_mistakes_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse("g (float16[4] x) => (float16[4] y) { y = Exp (x) }")
    for feeds, message in (
        ({}, "no value for input 'x'"),
        ({"x": X, "xx": X}, "no input 'xx'"),
        ({"x": X.astype(np.float32)}, "takes float16 .* but float32 was fed"),
        ({"x": X[:3]}, r"takes float16 \[4\] but the array fed has shape \[3\]"),
    ):
        with pytest.raises(AmpError, match=message):
            run_strict(model, feeds)
    with pytest.raises(AmpError, match="no output 'z'"):
        run_strict(model, {"x": X}, outputs=["z"])
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(AmpError, match=r"AMP501.*\n.*pip install 'onnxruntime"):
        StrictSession(model)


@pytest.mark.parametrize("width", [8, 200])  # in the file, and cast as it is read
def test_a_float16_accumulator_stops_at_2048_however_large_the_weight_is(width: int) -> None:
    ones = {"w": np.ones((4096, width), np.float16)}
    model = onnx_text.parse(f"g (float16[1,4096] x) => (float16[1,{width}] y) {{ y = MatMul (x, w) }}", ones, opset=17)
    for target, total in (("webgpu", 2048), ("cpu-arm64", 2048), ("cuda", 4096)):
        found = StrictSession(model, target=target).run({"x": np.ones((1, 4096), np.float16)})["y"]
        assert isinstance(found, np.ndarray) and found.tolist() == [[total] * width], target


@pytest.mark.parametrize(("kind", "exact"), [("ReduceMean", [60, 70]), ("ReduceLogSum", [11.023, 11.18])])
def test_a_sum_overflows_where_the_kernel_of_the_target_stores_it(kind: str, exact: list[float]) -> None:
    model = parse(f"g (float16[2,1024] x) => (float16[2] y) {{ y = {kind} <axes = [1], keepdims = 0> (x) }}", opset=17)
    feeds = {"x": np.full((2, 1024), [[60], [70]], np.float16)}
    np.testing.assert_allclose(StrictSession(model, target="cuda").run(feeds)["y"], [exact[0], np.inf], rtol=1e-3)
    np.testing.assert_allclose(StrictSession(model).run(feeds)["y"], exact, rtol=1e-3)


erf = np.vectorize(math.erf)
FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "Erf": erf,
    "Exp": np.exp,
    "Gelu": lambda x: x / 2 * (1 + erf(x / np.sqrt(2))),
    'Gelu <approximate = "tanh">': lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "HardSigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "HardSigmoid <alpha = 0.3, beta = 0.25>": lambda x: np.clip(0.3 * x + 0.25, 0, 1),
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Tanh": np.tanh,
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_functions_step_by_step_as_kernels_of_webgpu_compute_them(kind: str) -> None:
    """Close to the function itself; and not as one operator rounded once gives it."""
    model = parse(f"g (float16[321] x) => (float16[321] y) {{ y = {kind} (x) }}", opset=20)
    x = np.linspace(-4, 4, 321).astype(np.float16)
    y, whole = (np.asarray(StrictSession(model, target=to).run({"x": x})["y"]) for to in ("webgpu", ""))
    exact = FUNCTIONS[kind](x.astype(np.float64))
    assert y.dtype == np.float16 and (y != whole).any()
    np.testing.assert_allclose(y.astype(np.float64), exact, rtol=2.0**-7, atol=2.0**-8)


def test_what_a_session_is_fed_is_a_copy() -> None:
    """ONNX Runtime may write over it: lists by element; float8 as the runtime's own, None and maps as they are."""
    x = np.ones(3, np.float32)
    for fed, low in (
        (_to_feed(x, ""), np.float32),
        (_to_feed(x.astype(np.float16), "float16"), np.float32),
    ):
        assert fed.dtype == low and fed.tolist() == [1, 1, 1] and not np.shares_memory(fed, x)
    one, other = _to_feed([x, np.arange(2)], "")
    assert not np.shares_memory(one, x) and other.dtype == np.int64
    table = {"a": 1.0}
    assert _to_feed(None, "float16") is None and _to_feed(table, "") is table
    eighth = _to_feed(np.ones(3, ml_dtypes.float8_e4m3fn), "")
    assert eighth.element_type() == TensorProto.FLOAT8E4M3FN and eighth.shape() == [3]


def seen_by(target: str, text: str, x: Array, weights: dict[str, Any] | None = None) -> Array:
    """The strict result of a model in float16."""
    made = StrictSession(onnx_text.parse(text, weights or {}, opset=17), target=target).run({"x": x})["y"]
    assert isinstance(made, np.ndarray) and made.dtype == np.float16
    return made


@pytest.mark.parametrize("size", [7, 14])
@pytest.mark.parametrize("kind", ["GlobalAveragePool", "Softmax"])
def test_rows_of_open_length_are_summed_as_those_of_known_length(kind: str, size: int) -> None:
    x = np.random.default_rng(size).standard_normal((2, 4, size, size)).astype(np.float16)
    known, ends = f"2,4,{size},{size}", "2,4,1,1" if kind == "GlobalAveragePool" else f"2,4,{size},{size}"
    texts = [
        f"g (float16[{given}] x) => (float16[{made}] y) {{ y = {kind} (x) }}"
        for given, made in ((known, ends), ("N,4,A,B", "N,4,C,D"))
    ]
    one, other = (seen_by("webgpu", text, x) for text in texts)
    np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(one.astype(np.float64), seen_by("", texts[0], x), rtol=2.0**-6, atol=2.0**-9)


@pytest.mark.parametrize(
    ("attributes", "shape", "kernel", "made"),
    [
        ("pads = [1, 1, 1, 1]", (2, 8, 9, 9), (12, 8, 3, 3), (2, 12, 9, 9)),
        ("group = 4", (2, 8, 9, 9), (12, 2, 3, 3), (2, 12, 7, 7)),
        ("pads = [1, 1]", (2, 8, 20), (12, 8, 3), (2, 12, 20)),
    ],
)
@pytest.mark.parametrize("bias", ["", ", b"])
def test_a_norm_that_webgpu_takes_into_a_conv(
    attributes: str, shape: tuple[int, ...], kernel: tuple[int, ...], made: tuple[int, ...], bias: str
) -> None:
    """Whatever the windows are: by rounding alone another result than that of both one after the other."""
    given, gives = (",".join(map(str, sizes)) for sizes in (shape, made))
    text = f"""g (float16[{given}] x) => (float16[{gives}] y) {{
        c = Conv <{attributes}> (x, k{bias})  y = BatchNormalization <epsilon = 0.01> (c, s, t, m, v) }}"""
    draw = np.random.default_rng(3)
    names = "bstmv" if bias else "stmv"
    weights = {name: draw.standard_normal(12).astype(np.float16) for name in names}
    weights |= {"v": np.abs(weights["v"]) + np.float16(0.1), "k": draw.standard_normal(kernel).astype(np.float16) / 4}
    x = draw.standard_normal(shape).astype(np.float16)
    taken, apart = (seen_by(target, text, x, weights) for target in ("webgpu", ""))
    assert (taken != apart).any()
    np.testing.assert_allclose(taken.astype(np.float64), apart.astype(np.float64), rtol=0.02, atol=0.06)


def test_a_mean_of_an_old_opset_is_run_as_it_is() -> None:
    model = parse("g (float16[2,4] x) => (float16[2] y) { y = ReduceMean <axes = [1], keepdims = 0> (x) }", opset=6)
    feeds = {"x": np.full((2, 4), [[1], [2]], np.float16)}
    assert StrictSession(model, target="cuda").run(feeds)["y"].tolist() == [1, 2]
