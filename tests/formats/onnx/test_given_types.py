"""Types in the file are facts: float16 islands, casts, roundings, doubles, integers, quantized parts, random draws."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

import ampgraph
from formats.onnx.helpers import (
    LEVELS,
    casts,
    code,
    convert_everywhere,
    convert_twice,
    kinds,
    low_kinds,
    nodes,
    stored,
    types,
    x,
)
from near import Tolerance
from onnx_text import parse, proto

pytestmark = pytest.mark.slow  # a grid: many small cases

MS = ["com.microsoft"]


@pytest.mark.slow
def test_given_casts_serve_or_go() -> None:
    given = parse(
        """g (float[2,4] x, float16[2,4] q) => (float[2,4] y, float16[2,4] z) {
        a = MatMul (x, w)  b = Cast <to = 10> (a)  c = Relu (b)  z = Add (c, q)
        e = Cast <to = 1> (z)  y = MatMul (e, w) }""",
        w=(4, 4),
    )
    result = convert_everywhere(given, {"x": x(2, 4), "q": x(2, 4).astype(np.float16)}, low=["MatMul"])
    for level in LEVELS:
        assert kinds(result[level]) == ["Cast", "MatMul", "Relu", "Add", "MatMul", "Cast"]
    # a given cast serves readers that come before it
    given = parse(
        """g (float[2,4] x) => (float[2,4] y, float16[2,4] z) {
        h = Exp (x)  y = MatMul (h, w)  c = Cast <to = 10> (h)  z = Relu (c) }""",
        w=(4, 4),
    )
    result = convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"])
    assert kinds(result["O1"]) == ["Exp", "Cast", "MatMul", "Cast", "Relu"]
    # The widening of b has no reader left, the narrowing of h narrows nothing.
    given = parse(
        """g (float[2,4] x, float16[2,4] b) => (float[2,4] y, float16[2,4] z) {
        u = Cast <to = 1> (b)  h = MatMul (u, w)  c = Cast <to = 10> (h)  z = Relu (c)  y = MatMul (h, w) }""",
        w=(4, 4),
    )
    result = convert_everywhere(given, {"x": x(2, 4), "b": x(2, 4).astype(np.float16)}, low=["MatMul"])
    for level in LEVELS:
        assert kinds(result[level]) == ["MatMul", "Relu", "MatMul", "Cast"]
    # what was unread before is left alone
    given = parse(
        "g (float[2,4] x, float16[2,4] b) => (float[2,4] y) { dead = Cast <to = 1> (b)  y = MatMul (x, w) }", w=(4, 4)
    )
    result = convert_everywhere(given, {"x": x(2, 4), "b": x(2, 4).astype(np.float16)}, low=["MatMul"])
    assert any(n.output[0] == "dead" for n in result["O3"].graph.node)


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


def test_other_types() -> None:
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
    # cast like
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


def test_what_follows_its_input_says_its_type() -> None:
    given = parse(
        """g (float[2,4] x) => (float[2,4] y, float[2,4] z, float[2,4] q) {
        a = MatMul (x, w)  r = RandomNormalLike <seed = 1.0> (a)
        b = RandomUniform <shape = [2,4], seed = 2.0> ()  c = Add (r, b)  y = MatMul (c, w)
        s = Sigmoid (a)  z = Bernoulli <seed = 1.0> (s)
        e = RandomNormal <shape = [2,4], seed = 2.0, dtype = 1> ()  q = MatMul (e, w) }""",
        w=(4, 4),
    )
    convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"], tolerance=Tolerance(100, 100, 100))
    # The draw is asked for in float32 while what it is shaped like goes low: its type has to be written down.
    given = parse(
        "g (float[2,4] x) => (float[2,4] y) { a = MatMul (x, w)  r = RandomNormalLike <seed = 1.0> (a)  y = Exp (r) }",
        w=(4, 4),
    )
    result = convert_everywhere(given, None, run=False, target="cuda", fp32=["value:r"], low=["MatMul"])
    draw = next(n for n in nodes(result["O3"]) if n.op_type == "RandomNormalLike")
    assert [a.i for a in draw.attribute if a.name == "dtype"] == [TensorProto.FLOAT]
    # Its input stays float32, and what it makes is low: the type has to be written down.
    body = "e = EyeLike (x)  y = MatMul (e, w)  d = CumSum (x, z)"
    given = parse(f"g (float[2,2] x) => (float[2,2] y, float[2,2] d) {{ {body} }}", w=(2, 2), z=np.array(0))
    result = convert_everywhere(given, None, run=False, low=["MatMul"], fp32=["value:d"], target="tensorrt")
    eye = next(n for n in nodes(result["O2"]) if n.op_type == "EyeLike")
    assert [a.i for a in eye.attribute if a.name == "dtype"] == [TensorProto.FLOAT16]
    # fills and attributes that name a type
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


# Inputs and outputs of any kind, and those that may change their type.

BORDERS = {
    "an output that is read inside": "(float[2,4] y, float[2,4] z) { y = MatMul (x, w)  z = Softmax (y) }",
    "an input that is an output": "(float[2,4] y, float[2,4] x) { y = MatMul (x, w) }",
    "an initializer that is an output": "(float[2,4] y, float[4,4] w) { y = MatMul (x, w) }",
    "an output that is only moved": """(float[2,4] y, float[2,4] z) {
        a = MatMul (x, w)  y = Identity (a)  z = Identity (a) }""",
    "an output of a given cast": """(float16[2,4] h, float[2,4] y) {
        a = MatMul (x, w)  h = Cast <to = 10> (a)  y = Softmax (a) }""",
    "an output of a given cast, its source an output too": """(float16[2,4] h, float[2,4] a, float[2,4] y) {
        a = MatMul (x, w)  h = Cast <to = 10> (a)  y = MatMul (a, w) }""",
}


@pytest.mark.parametrize("rest", BORDERS.values(), ids=BORDERS.keys())
def test_borders(rest: str) -> None:
    convert_everywhere(parse(f"g (float[2,4] x) => {rest}", w=(4, 4)), {"x": x(2, 4)}, low=["MatMul"])


@pytest.mark.parametrize(("ir", "opset", "kept"), [(3, 8, False), (8, 17, True)])
def test_initializers_listed_as_inputs_stay_float32_inputs_where_a_choice(ir: int, opset: int, kept: bool) -> None:
    """IR version 3 left none, and a file that lists all means none: they are constants."""
    listed = "" if kept else ", float[4] b"
    given = parse(
        f"""g (float[2,4] x, float[4,4] w{listed}) => (float[2,4] y) {{
        h = MatMul (x, w)  i = Add (h, b)  y = Softmax <axis = 1> (i) }}""",
        ir=ir,
        opset=opset,
        w=(4, 4),
        b=(4,),
    )
    feeds = [{"x": x(2, 4)}] + ([{"x": x(2, 4), "w": x(4, 4)}] if ir > 3 else [])
    result = convert_everywhere(given, feeds, bfloat16=opset > 12, low=["MatMul"])
    assert stored(result["O3"])["w"] == (TensorProto.FLOAT if kept else TensorProto.FLOAT16)


def test_small_graphs() -> None:
    for text in (
        "g (float[2,4] x) => (float[2,4] x) { }",
        "g () => () { }",
        "g () => (float[2] y) { y = Constant <value_floats = [1.0, 2.0]> () }",
    ):
        convert_everywhere(parse(text), None, run=False)
    # The checker and the runtime have their doubts; the names stay what they were.
    given = parse("g (float[2,4] x) => (float[2,4] y, float[2,4] y) { y = MatMul (x, w) }", w=(4, 4))
    result = convert_everywhere(given, None, run=False, checked=False, low=["MatMul"])
    assert kinds(result["O2"]) == ["Cast", "MatMul", "Cast"]


CACHE = """g (float[2,4] x, float[2,4] past_k) => (float[2,4] y, float[2,4] past_o, float[4,4] w) {
    a = MatMul (x, w)  past_o = Add (a, past_k)  y = Softmax (past_o) }"""


@pytest.mark.parametrize(
    ("io", "low"),
    [
        ("low", "x past_k y past_o w"),
        (["past_*=low"], "past_k past_o"),
        (["*=low", "y=keep"], "x past_k past_o w"),
        (["w=low"], "w"),
        (["x=low"], "x"),
        ("keep", ""),
    ],
)
def test_io(io: str | list[str], low: str) -> None:
    given = parse(CACHE, w=(4, 4))
    result = convert_everywhere(given, None, run=False, io=io)
    for level in LEVELS:
        graph = result[level].graph
        found = types([*graph.input, *graph.output])
        assert list(found) == ["x", "past_k", "y", "past_o", "w"]
        assert {name for name, kind in found.items() if kind == TensorProto.FLOAT16} == set(low.split())
        shapes = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in (*graph.input, *graph.output)]
        assert shapes == [[2, 4]] * 4 + [[4, 4]]


def test_io_keeps_names_and_shapes() -> None:
    """wide and y become low: they are what l and n are already, under names of their own."""
    given = parse(
        """g (float16[2,4] l) => (float16[2,4] l, float[2,4] wide, float[2,4] y, float16[2,4] n) {
        wide = Cast <to = 1> (l)  y = MatMul (wide, w)  n = Cast <to = 10> (y) }""",
        w=(4, 4),
    )
    result = convert_everywhere(given, None, run=False, io=["wide=low", "y=low"])
    for level in LEVELS:
        assert list(types(result[level].graph.output)) == ["l", "wide", "y", "n"]
        assert set(types(result[level].graph.output).values()) == {TensorProto.FLOAT16}
    # io keeps the shape where a given cast takes over
    given = parse(
        "g (float[2,4] x) => (float[2,4] h, float16[2,4] z) { h = Exp (x)  c = Cast <to = 10> (h)  z = Relu (c) }"
    )
    convert_everywhere(given, None, run=False, io="keep")
    converted = convert_twice(given, "O1", target="cpu", io=["h=low"])
    assert types(converted.graph.output) == {"h": TensorProto.FLOAT16, "z": TensorProto.FLOAT16}
    assert [d.dim_value for d in converted.graph.output[0].type.tensor_type.shape.dim] == [2, 4]
    # io mistakes
    given = parse(CACHE, w=(4, 4))
    for wrong in (["nothing*=low"], ["x=bfloat16"], ["x"]):
        assert code(partial(ampgraph.convert, given, io=wrong)) == "AMP305"


# Sequences and optionals: no Cast exists for them, so their elements, and what feeds them, share one type.

SEQUENCES = {
    "construct, insert, erase, at, concat": """ <int64 i = {0}, int64 j = {1}> {
        a = MatMul (x, w)  b = Softmax (x)
        s = SequenceConstruct (a, b)  s2 = SequenceInsert (s, x)  s3 = SequenceErase (s2, j)
        e = SequenceAt (s3, i)  y = MatMul (e, w)  z = ConcatFromSequence <axis = 0> (s3) }""",
    "split and concat": """ {
        a = MatMul (x, w)  s = SplitToSequence <axis = 0> (a)
        y = ConcatFromSequence <axis = 0> (s)  z = Concat <axis = 0> (y, x) }""",
    "a map over two sequences": """ {
        a = MatMul (x, w)  s = SequenceConstruct (a, a)
        t = SequenceMap (s, x) <body = b (float[2,4] p, float[2,4] q) => (float[2,4] r) {
            k = MatMul (p, w)  r = Add (k, q) } >
        z = ConcatFromSequence <axis = 0> (t)  y = Relu (a) }""",
    "a sequence from branches": """ <int64 i = {0}> {
        a = MatMul (x, w)  b = Softmax (a)
        c = Constant <value = bool {1}> ()
        s = If (c) <
            then_branch = t () => (seq(float[2,4]) p) { p = SequenceConstruct (a, b) },
            else_branch = e () => (seq(float[2,4]) q) { q = SequenceConstruct (b, b) } >
        k = SequenceAt (s, i)  y = MatMul (k, w)  z = ConcatFromSequence <axis = 0> (s) }""",
    "a sequence that a loop fills": """ <int64 n = {2}, bool t = {1}> {
        e = SequenceEmpty ()
        s, y = Loop (n, t, e, x) <
            body = b (int64 i, bool go, seq(float[2,4]) q, float[2,4] a)
                => (bool on, seq(float[2,4]) r, float[2,4] next) {
            on = Identity (go)  next = MatMul (a, w)  r = SequenceInsert (q, next) } >
        z = ConcatFromSequence <axis = 0> (s) }""",
}


@pytest.mark.parametrize("body", SEQUENCES.values(), ids=SEQUENCES.keys())
def test_sequences(body: str) -> None:
    given = parse("g (float[2,4] x) => (float[2,4] y, float[4,4] z)" + body, w=(4, 4))
    convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"])


def test_sequences_share_a_type() -> None:
    given = parse(f"g (float[2,4] x) => (float[2,4] y, float[4,4] z){next(iter(SEQUENCES.values()))}", w=(4, 4))
    converted = convert_everywhere(given, {"x": x(2, 4)}, levels=("O3",), bfloat16=False)["O3"]
    low = low_kinds(converted)
    assert casts(converted) == 3, "one for the input, one for each output"
    assert all(low[kind] == 1 for kind in ("SequenceConstruct", "SequenceInsert", "SequenceAt", "ConcatFromSequence"))
    # sequences at the border stay float32
    given = parse(
        """g (seq(float[2,4]) s, float[2,4] x) => (seq(float[2,4]) t, float[2,4] y, seq(float[1,4]) u) <int64 i = {0}> {
        a = SequenceAt (s, i)  b = MatMul (a, w)  t = SequenceInsert (s, b)
        u = SplitToSequence <axis = 0> (b)  y = ConcatFromSequence <axis = 0> (u) }""",
        w=(4, 4),
    )
    convert_everywhere(given, {"s": [x(2, 4), x(2, 4) * 2], "x": x(2, 4)}, low=["MatMul"])
    # an empty sequence takes the type of what it will hold
    given = parse(
        "g (float[2,4] x) => (float[2,4] y, float[4,4] z)" + SEQUENCES["a sequence that a loop fills"], w=(4, 4)
    )
    converted = convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"])["O3"]
    empty = next(n for n in nodes(converted) if n.op_type == "SequenceEmpty")
    assert [a.i for a in empty.attribute if a.name == "dtype"] == [onnx.TensorProto.FLOAT16]
    # a sequence of another type is none of ours
    given = parse(
        """g (float[2,4] x) => (int64 n, float[2,4] y) {
        e = SequenceEmpty <dtype = 11> ()  n = SequenceLength (e)  y = MatMul (x, w) }""",
        w=(4, 4),
    )
    result = convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"])
    for level in LEVELS:
        assert [n.attribute[0].i for n in nodes(result[level]) if n.op_type == "SequenceEmpty"] == [11]


def test_optionals() -> None:
    given = parse(
        """g (float[2,4] x) => (float[2,4] y, bool z) {
        a = MatMul (x, w)  o = Optional (a)  z = OptionalHasElement (o)
        k = OptionalGetElement (o)  y = MatMul (k, w) }""",
        w=(4, 4),
    )
    convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"])
    # optional sequences at the border
    given = parse(
        """g (optional(seq(float[2,4])) o, float[2,4] x) => (float[2,4] y) <int64 i = {0}> {
        s = OptionalGetElement (o)  a = SequenceAt (s, i)  b = MatMul (a, w)  y = Add (b, x) }""",
        w=(4, 4),
        opset=18,
    )
    convert_everywhere(given, {"o": [x(2, 4)], "x": x(2, 4)}, low=["MatMul"])
    # the element of what is no optional
    given = parse(
        """g (float[2,4] x) => (float[2,4] y) {
        e = Exp (x)  s = OptionalGetElement (e)  b = MatMul (s, w)  y = Add (b, x) }""",
        w=(4, 4),
        opset=18,
    )
    convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"])


def test_an_empty_optional_names_its_type() -> None:
    given = parse(
        """g (float[2,4] x, bool c) => (bool z, float[2,4] y) {
        a = MatMul (x, w)
        y = Relu (a)
        o = If (c) <
            then_branch = t () => (optional(float[2,4]) p) { p = Optional (a) },
            else_branch = e () => (optional(float[2,4]) q) { q = Optional () } >
        z = OptionalHasElement (o) }""",
        w=(4, 4),
        opset=18,
    )
    empty = next(n for n in nodes(given) if n.op_type == "Optional" and not n.input)
    empty.attribute.append(helper.make_attribute("type", helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [2, 4])))
    result = convert_everywhere(given, [{"x": x(2, 4), "c": np.array(c)} for c in (True, False)], low=["MatMul"])
    kinds = {
        n.attribute[0].tp.tensor_type.elem_type for n in nodes(result["O3"]) if n.op_type == "Optional" and n.attribute
    }
    assert kinds == {onnx.TensorProto.FLOAT16}


def test_what_cannot_be_low_is_not_asked_of_an_input_in_silence() -> None:
    given = parse(
        """g (seq(float[2, 8]) s, int64 i, float[2, 8] x) => (float[2, 8] y) {
        a = SequenceAt (s, i) h = MatMul (a, w) y = Add (h, x) }""",
        w=(8, 8),
        opset=17,
    )
    for word, held in ("s=low", "'s' is a sequence of float32"), ("i*=low", "'i' is int64"):
        with pytest.raises(ampgraph.AmpError, match=f"AMP305.*cannot be low: {held}"):
            ampgraph.convert(given, io=[word], check="off")
    low = proto(ampgraph.convert(given, io=["*=low"], check="off"))  # what is float32 among all of them
    assert [value.type.tensor_type.elem_type for value in low.graph.output] == [onnx.TensorProto.FLOAT16]
    assert proto(ampgraph.convert(low, io=["x=low"], check="off")) == low, "what is low already may be asked for"
