"""Types in the file are facts: float16 islands, casts, roundings, doubles, integers, quantized parts, random draws."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import ampgraph
from ampgraph.numerics.metrics.compare import Tolerance
from formats.onnx.helpers import LEVELS, casts, convert_everywhere, kinds, low_kinds, nodes, x
from onnx_text import parse

pytestmark = pytest.mark.slow  # a grid: many small cases

MS = ["com.microsoft"]


@pytest.mark.slow
def test_a_float16_island() -> None:
    given = parse(
        """g (float[2,4] x, float16[2,4] q) => (float[2,4] y, float16[2,4] z) {
        a = MatMul (x, w)  b = Cast <to = 10> (a)  c = Relu (b)  z = Add (c, q)
        e = Cast <to = 1> (z)  y = MatMul (e, w) }""",
        w=(4, 4),
    )
    result = convert_everywhere(given, {"x": x(2, 4), "q": x(2, 4).astype(np.float16)}, low=["MatMul"])
    for level in LEVELS:
        assert kinds(result[level]) == ["Cast", "MatMul", "Relu", "Add", "MatMul", "Cast"]


def test_a_given_cast_serves_readers_that_come_before_it() -> None:
    given = parse(
        """g (float[2,4] x) => (float[2,4] y, float16[2,4] z) {
        h = Exp (x)  y = MatMul (h, w)  c = Cast <to = 10> (h)  z = Relu (c) }""",
        w=(4, 4),
    )
    result = convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"])
    assert kinds(result["O1"]) == ["Exp", "Cast", "MatMul", "Cast", "Relu"]


@pytest.mark.parametrize("source", ["x", "w"])
def test_a_given_cast_of_an_input_or_weight_comes_before_every_reader(source: str) -> None:
    given = parse(
        f"""g (float[4,4] x) => (float[4,4] y, float16[4,4] z, float[4,4] k) {{
        y = MatMul (x, w)  e = CumSum ({source}, axis)  k = Exp (e)  c = Cast <to = 10> ({source})  z = Relu (c) }}""",
        w=(4, 4),
        axis=np.array(0),
    )
    convert_everywhere(given, {"x": x(4, 4)}, low=["MatMul"])


@pytest.mark.parametrize("low", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_rounding_in_the_file_stays(low: int, dtype: str) -> None:
    """float32 -> low -> float32 rounds: whatever reads the result must not read the unrounded value."""
    given = parse(
        f"""g (float[2,4] x) => (float[2,4] y, float[2,4] v) {{
        r = Cast <to = {low}> (x)  u = Cast <to = 1> (r)  v = CumSum (u, axis)  y = MatMul (u, w) }}""",
        w=(4, 4),
        axis=np.array(0),
    )
    convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"])
    for level in ("O1", "O2", "auto"):
        converted = ampgraph.convert(given, level, dtype=dtype, target="cuda")
        first = converted.graph.node[0]
        assert first.op_type == "Cast" and first.attribute[0].i == low and list(first.input) == ["x"]
        assert sum("x" in n.input for n in converted.graph.node) == 1, "x is read past its rounding"


def test_casts_that_nobody_needs_go() -> None:
    """The widening of b has no reader left, the narrowing of h narrows nothing."""
    given = parse(
        """g (float[2,4] x, float16[2,4] b) => (float[2,4] y, float16[2,4] z) {
        u = Cast <to = 1> (b)  h = MatMul (u, w)  c = Cast <to = 10> (h)  z = Relu (c)  y = MatMul (h, w) }""",
        w=(4, 4),
    )
    result = convert_everywhere(given, {"x": x(2, 4), "b": x(2, 4).astype(np.float16)}, low=["MatMul"])
    for level in LEVELS:
        assert kinds(result[level]) == ["MatMul", "Relu", "MatMul", "Cast"]


def test_what_was_unread_before_is_left_alone() -> None:
    given = parse(
        "g (float[2,4] x, float16[2,4] b) => (float[2,4] y) { dead = Cast <to = 1> (b)  y = MatMul (x, w) }", w=(4, 4)
    )
    result = convert_everywhere(given, {"x": x(2, 4), "b": x(2, 4).astype(np.float16)}, low=["MatMul"])
    assert any(n.output[0] == "dead" for n in result["O3"].graph.node)


def test_doubles_and_integers() -> None:
    given = parse(
        """g (float[2,4] x, double[2,4] d) => (double[2,4] y, int32[2,4] n, int64[2] top) {
        a = MatMul (x, w)  b = Cast <to = 11> (a)  c = Add (b, d)  e = Cast <to = 1> (c)  f = MatMul (e, w)
        y = Cast <to = 11> (f)  g0 = Mul (x, two)  g1 = Floor (g0)  n = Cast <to = 6> (g1)
        top = ArgMax <axis = 1, keepdims = 0> (f) }""",
        w=(4, 4),
        two=np.array(2, np.float32),
    )
    result = convert_everywhere(given, {"x": x(2, 4), "d": x(2, 4).astype(np.float64)}, low=["MatMul"])
    for level in LEVELS:
        assert low_kinds(result[level])["Floor"] == 0


def test_cast_like() -> None:
    given = parse(
        """g (float[2,4] x, float16[1] d, float[2,4] u) => (float[2,4] y, float16[2,4] z) {
        a = MatMul (x, w)  z = CastLike (a, d)  c = CastLike (z, u)  y = MatMul (c, w) }""",
        w=(4, 4),
    )
    convert_everywhere(given, {"x": x(2, 4), "d": x(1).astype(np.float16), "u": x(2, 4)}, low=["MatMul"])


@pytest.mark.parametrize("opset", [13, 19, 21])
def test_quantize_and_dequantize(opset: int) -> None:
    given = parse(
        """g (float[2,4] x) => (float[2,4] y) <float s = {0.05}, int8 z = {0}> {
        q = QuantizeLinear (x, s, z)  d = DequantizeLinear (q, s, z)
        dw = DequantizeLinear <axis = 1> (wq, ws, wz)  m = MatMul (d, dw)
        q2 = QuantizeLinear (m, s, z)  d2 = DequantizeLinear (q2, s, z)
        e = MatMul (d2, w)  y = Softmax (e) }""",
        opset=opset,
        ir=8 if opset < 21 else 10,
        w=(4, 4),
        wq=(x(4, 4) * 100).astype(np.int8),
        ws=np.abs(x(4)) * 0.05,
        wz=np.zeros(4, np.int8),
    )
    step = Tolerance(1e-5, 2e-2, 5e-2)  # a rounding may move a value to the next of 256 steps
    result = convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"], tolerance=step)
    low = low_kinds(result["O2"])
    assert low["MatMul"] == 1, "the first is a product of integers"
    assert bool(low["DequantizeLinear"]) == (opset >= 19), "scales are float32 before opset 19"


def test_random_operators() -> None:
    given = parse(
        """g (float[2,4] x) => (float[2,4] y, float[2,4] z, float[2,4] q) {
        a = MatMul (x, w)  r = RandomNormalLike <seed = 1.0> (a)
        b = RandomUniform <shape = [2,4], seed = 2.0> ()  c = Add (r, b)  y = MatMul (c, w)
        s = Sigmoid (a)  z = Bernoulli <seed = 1.0> (s)
        e = RandomNormal <shape = [2,4], seed = 2.0, dtype = 1> ()  q = MatMul (e, w) }""",
        w=(4, 4),
    )
    convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"], tolerance=Tolerance(100, 100, 100))


def test_a_random_operator_that_follows_its_input_says_its_type() -> None:
    """The draw is asked for in float32 while what it is shaped like goes low: its type has to be written down."""
    given = parse(
        "g (float[2,4] x) => (float[2,4] y) { a = MatMul (x, w)  r = RandomNormalLike <seed = 1.0> (a)  y = Exp (r) }",
        w=(4, 4),
    )
    result = convert_everywhere(given, None, run=False, target="cuda", fp32=["value:r"], low=["MatMul"])
    draw = next(n for n in nodes(result["O3"]) if n.op_type == "RandomNormalLike")
    assert [a.i for a in draw.attribute if a.name == "dtype"] == [TensorProto.FLOAT]


def test_an_operator_that_follows_its_input_says_that_it_is_low() -> None:
    """Its input stays float32, and what it makes is low: the type has to be written down."""
    body = "e = EyeLike (x)  y = MatMul (e, w)  d = CumSum (x, z)"
    given = parse(f"g (float[2,2] x) => (float[2,2] y, float[2,2] d) {{ {body} }}", w=(2, 2), z=np.array(0))
    result = convert_everywhere(given, None, run=False, low=["MatMul"], fp32=["value:d"], target="tensorrt")
    eye = next(n for n in nodes(result["O2"]) if n.op_type == "EyeLike")
    assert [a.i for a in eye.attribute if a.name == "dtype"] == [TensorProto.FLOAT16]


def test_fills_and_attributes_that_name_a_type() -> None:
    given = parse(
        """g (float[2,4] x) => (float[2,4] y, float[2,2] z) {
        a = MatMul (x, w)  s = Shape (a)  c = ConstantOfShape <value = float[1] {0.5}> (s)  b = Add (a, c)
        e = EyeLike <dtype = 1> (sq)  k = MatMul (e, sq)  z = MatMul (k, sq)  y = MatMul (b, w) }""",
        w=(4, 4),
        sq=(2, 2),
    )
    result = convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"])
    fill = next(n for n in nodes(result["O3"]) if n.op_type == "ConstantOfShape")
    assert helper.get_attribute_value(fill.attribute[0]).data_type == TensorProto.FLOAT16


# -- com.microsoft ----------------------------------------------------------------------------------------------------

CONTRIB: dict[str, tuple[str, dict, dict, list[str]]] = {
    "FusedMatMul, Gelu": (
        """g (float[2,4] x) => (float[2,4] y) {
        a = com.microsoft.FusedMatMul <transB = 1> (x, w)  b = com.microsoft.Gelu (a)  y = MatMul (b, w) }""",
        {"w": (4, 4)},
        {"x": x(2, 4)},
        ["FusedMatMul", "Gelu", "MatMul"],
    ),
    "BiasGelu, FastGelu": (
        """g (float[2,4] x) => (float[2,4] y) {
        a = MatMul (x, w)  c = com.microsoft.BiasGelu (a, b)  d = com.microsoft.FastGelu (c, b)
        y = MatMul (d, w) }""",
        {"w": (4, 4), "b": (4,)},
        {"x": x(2, 4)},
        ["MatMul", "BiasGelu", "FastGelu"],
    ),
    "SkipLayerNormalization": (
        """g (float[1,2,4] x) => (float[1,2,4] y, float[1,2,4] s) {
        m = MatMul (x, w)  y, , , s = com.microsoft.SkipLayerNormalization (m, x, g1, b1) }""",
        {"w": (4, 4), "g1": (4,), "b1": (4,)},
        {"x": x(1, 2, 4)},
        ["MatMul"],
    ),
    "Attention": (
        "g (float[1,2,4] x) => (float[1,2,4] y) { y = com.microsoft.Attention <num_heads = 2> (x, w, b) }",
        {"w": (4, 12), "b": (12,)},
        {"x": x(1, 2, 4)},
        ["Attention"],
    ),
    "MultiHeadAttention": (
        """g (float[1,2,4] x) => (float[1,2,4] y) {
        a = MatMul (x, w)  y = com.microsoft.MultiHeadAttention <num_heads = 2> (a, a, a) }""",
        {"w": (4, 4)},
        {"x": x(1, 2, 4)},
        ["MatMul", "MultiHeadAttention"],
    ),
    "QAttention": (
        """g (uint8[1,2,4] x) => (float[1,2,4] y) {
        y = com.microsoft.QAttention <num_heads = 2> (x, w, b, s, s, , z, z) }""",
        {"w": np.ones((4, 12), np.uint8), "b": (12,), "s": np.array(0.1, np.float32), "z": np.array(1, np.uint8)},
        {"x": np.ones((1, 2, 4), np.uint8)},
        ["QAttention"],
    ),
    "MatMulNBits": (
        """g (float[2,32] x) => (float[2,8] y) {
        y = com.microsoft.MatMulNBits <K = 32, N = 8, bits = 4, block_size = 32> (x, w, s) }""",
        {"w": np.arange(128, dtype=np.uint8).reshape(8, 1, 16), "s": (8,)},
        {"x": x(2, 32)},
        ["MatMulNBits"],
    ),
    "DynamicQuantizeMatMul": (
        """g (float[2,4] x) => (float[2,4] y) {
        a = MatMul (x, w)  q = com.microsoft.DynamicQuantizeMatMul (a, wq, ws)  y = Exp (q) }""",
        {"w": (4, 4), "wq": np.ones((4, 4), np.uint8), "ws": np.array([0.1], np.float32)},
        {"x": x(2, 4)},
        ["MatMul"],
    ),
    "EmbedLayerNormalization": (
        """g (int32[2,3] x) => (float[2,3,4] y) {
        a, m = com.microsoft.EmbedLayerNormalization (x, , we, pe, , g1, b1)  y = MatMul (a, w) }""",
        {"we": (5, 4), "pe": (5, 4), "g1": (4,), "b1": (4,), "w": (4, 4)},
        {"x": np.array([[0, 1, 2], [2, 1, 0]], np.int32)},
        ["MatMul"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTRIB)
@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_com_microsoft(name: str, target: str) -> None:
    text, weights, feeds, low = CONTRIB[name]
    given = parse(text, domains=MS, **weights)
    # Where the CPU has no kernel for it the float16 node is left alone there, and cannot run here when cuda has one.
    convert_everywhere(given, feeds, checked=False, low=low if target == "cuda" else [], target=target)


def test_an_operator_unknown_in_com_microsoft_stays_float32() -> None:
    given: ModelProto = parse(
        "g (float[2,4] x) => (float[2,4] y) { a = MatMul (x, w)  y = com.microsoft.NoSuchOp (a) }", domains=MS, w=(4, 4)
    )
    result = convert_everywhere(given, None, run=False, checked=False, low=["MatMul"])
    assert casts(result["O3"]) == 2
    assert [n.where for n in ampgraph.plan(given).notes if n.topic == "unlisted"] == ["com.microsoft::NoSuchOp"]


def test_statistics_of_a_norm_have_the_type_that_it_stashes() -> None:
    """Nothing annotates the mean here: its readers must still be decided by their own right."""
    given = parse(
        """g (float[4, 8] x) => (float[4, 8] z) {
            y, mean = LayerNormalization (x, s)
            z = MatMul (mean, w)
        }""",
        s=(8,),
        w=(1, 8),
    )
    decided = {d.kind: (d.dtype, d.why.rule) for d in ampgraph.plan(given).decisions}
    assert decided["MatMul"] == ("float16", "list")
    convert_everywhere(given, {"x": x(4, 8)})
