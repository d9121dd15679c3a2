"""Kinds of models that the backend suite lacks: right by a strict run at every level, and stable when converted again.

A rank that the file says falsely, sparse initializers that are inputs too, loops in loops, a decoder's layer with its
past, and a network of before batch norms, whose activations leave float16."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import ampgraph
from ampgraph.core.verdict import TOLERANCES
from ampgraph.numerics.strict.session import run_strict
from fuzz.checks import distance
from onnx_text import parse, proto

LEVELS = ("O1", "O2", "O3", "auto")
Feeds = dict[str, np.ndarray]


def rows(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def false_ranks() -> tuple[ModelProto, Feeds]:
    """Of a value inside, of an output, and of what a Reshape by an input makes: two, where three are said."""
    text = """g (float[2, 3, 4] x, int64[2] shape) => (float[2, 12] y, float[a, b, c] z) {
        h = MatMul (x, w)  r = Relu (h)  y = Softmax <axis = -1> (r)  t = Reshape (h, shape)  z = MatMul (t, w) }"""
    model = parse(text, w=(4, 4))
    model.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, [2, 12]))
    return model, {"x": rows(2, 3, 4), "shape": np.array([6, 4])}


def sparse_inputs(ir: int, *listed: str) -> tuple[ModelProto, Feeds]:
    model = parse("g (float[2, 4] x) => (float[2, 4] y) { h = MatMul (x, w)  y = Add (h, b) }", b=(4,), ir=ir)
    values = numpy_helper.from_array(np.array([1.0, 2.0, 3.0], np.float32), "w")
    places = numpy_helper.from_array(np.array([0, 5, 10]), "places")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [4, 4]))
    shapes = {"w": [4, 4], "b": [4]}
    model.graph.input.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, shapes[n]) for n in listed)
    return model, {"x": rows(2, 4)}


INNER = """inner (int64 j, bool d, float[2, 4] t) => (bool e, float[2, 4] next) {
    e = Identity (d)  u = MatMul (t, w)  v = Tanh (u)  next = Add (v, s) }"""
BRANCHES = "then_branch = t () => (p) { p = MatMul (s, w) }, else_branch = e () => (q) { q = Neg (s) }"
OUTER = f"""outer (int64 i, bool c, float[2, 4] s) => (bool more, float[2, 4] state, float[2, 4] row) {{
    more = Identity (c)  r = Loop (two, yes, s) <body = {INNER}>  k = If (c) <{BRANCHES}>
    state = Add (r, k)  row = Sigmoid (r) }}"""


def loops_in_loops() -> tuple[ModelProto, Feeds]:
    text = f"""g (float[2, 4] x) => (float[2, 4] y, float[3, 2, 4] z)
        <int64 three = {{3}}, int64 two = {{2}}, bool yes = {{1}}> {{
        h = MatMul (x, w)  l, z = Loop (three, yes, h) <body = {OUTER}>  y = MatMul (l, w) }}"""
    return parse(text, w=(4, 4)), {"x": rows(2, 4)}


def layer_with_a_past() -> tuple[ModelProto, Feeds]:
    """Of GPT-2, as exporters write it: its mask -1e4, its GELU by tanh."""
    text = """g (float[b, s, 32] x, float[2, b, 4, p, 8] past) => (float[b, s, 32] y, float[2, b, 4, t, 8] present) {
        n = LayerNormalization <axis = -1> (x, g1, b1)  qkv0 = MatMul (n, wqkv)  qkv = Add (qkv0, bqkv)
        q0, k0, v0 = Split <axis = -1> (qkv)
        q1 = Reshape (q0, heads)  q = Transpose <perm = [0, 2, 1, 3]> (q1)
        k1 = Reshape (k0, heads)  k2 = Transpose <perm = [0, 2, 1, 3]> (k1)
        v1 = Reshape (v0, heads)  v2 = Transpose <perm = [0, 2, 1, 3]> (v1)
        pk = Gather <axis = 0> (past, zero)  pv = Gather <axis = 0> (past, one)
        k = Concat <axis = 2> (pk, k2)  v = Concat <axis = 2> (pv, v2)
        ku = Unsqueeze (k, first)  vu = Unsqueeze (v, first)  present = Concat <axis = 0> (ku, vu)
        kt = Transpose <perm = [0, 1, 3, 2]> (k)  a0 = MatMul (q, kt)  a1 = Div (a0, root)
        shape = Shape (a1)  ns = Gather (shape, three)  nd = Gather (shape, two)  start = Sub (ns, nd)
        d0 = Unsqueeze (start, first)  d1 = Unsqueeze (ns, first)
        m0 = Slice (causal, d0, d1, axis2)  m = Slice (m0, first, d1, axis3)
        a2 = Where (m, a1, masked)  a3 = Softmax <axis = -1> (a2)  c0 = MatMul (a3, v)
        c1 = Transpose <perm = [0, 2, 1, 3]> (c0)  c2 = Reshape (c1, flat)  c3 = MatMul (c2, wo)  c = Add (c3, b1)
        r = Add (x, c)  n2 = LayerNormalization <axis = -1> (r, g1, b1)
        f0 = MatMul (n2, wi)  f = Add (f0, bi)  cube = Pow (f, third)  s0 = Mul (cube, small)  s1 = Add (f, s0)
        s2 = Mul (s1, scale)  s3 = Tanh (s2)  s4 = Add (s3, unit)  s5 = Mul (f, half)  gelu = Mul (s5, s4)
        o0 = MatMul (gelu, wp)  o = Add (o0, b1)  y = Add (r, o) }"""
    numbers = {"root": 8**0.5, "masked": -1e4, "third": 3, "small": 0.044715, "scale": 0.79788, "unit": 1, "half": 0.5}
    whole = {"zero": 0, "one": 1, "two": 2, "three": 3, "first": [0], "axis2": [2], "axis3": [3]}
    stored: dict[str, Any] = {name: np.float32(number) for name, number in numbers.items()}
    stored |= {name: np.array(number) for name, number in whole.items()}
    stored |= {"heads": np.array([0, 0, 4, 8]), "flat": np.array([0, 0, 32])}
    stored |= {"wqkv": (32, 96), "bqkv": (96,), "wo": (32, 32), "wi": (32, 128), "bi": (128,), "wp": (128, 32)}
    stored |= {"g1": (32,), "b1": (32,), "causal": np.tril(np.ones((16, 16), bool))[None, None]}
    return parse(text, stored), {"x": rows(1, 5, 32), "past": rows(2, 1, 4, 7, 8, seed=1)}


def network_of_before_norms() -> tuple[ModelProto, Feeds]:
    """As VGG in Caffe: pictures less a mean, and convolutions whose results grow to 1e6, until a Softmax."""
    rng, stored = np.random.default_rng(0), dict[str, Any]()
    nodes, last = "c = Sub (x, mean)", "c"
    for number, (wide, deep) in enumerate(((16, 3), (32, 16), (32, 32), (32, 32))):
        stored[f"w{number}"] = (rng.standard_normal((wide, deep, 3, 3)) * 4 * np.sqrt(2 / (deep * 9))).astype(
            np.float32
        )
        nodes += f"  c{number} = Conv <pads = [1, 1, 1, 1]> ({last}, w{number})  r{number} = Relu (c{number})"
        nodes += f"  p{number} = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r{number})"
        last = f"p{number}"
    stored["mean"] = np.array([104, 117, 123], np.float32).reshape(1, 3, 1, 1)
    stored["wo"] = rows(128, 10) * np.float32(1e-6)
    nodes += f"  f = Flatten ({last})  o = Gemm (f, wo)  y = Softmax (o)"
    text = f"g (float[1, 3, 32, 32] x) => (float[1, 10] y) {{ {nodes} }}"
    return parse(text, stored), {"x": (rng.random((1, 3, 32, 32)) * 255).astype(np.float32)}


KINDS = {
    "false ranks": false_ranks,
    "sparse": lambda: sparse_inputs(9),
    "sparse and an input": lambda: sparse_inputs(9, "w"),
    "sparse and inputs, IR 3": lambda: sparse_inputs(3, "w", "b"),
    "loops in loops": loops_in_loops,
    "a layer with a past": layer_with_a_past,
}


def outputs(model: ModelProto, feeds: Feeds) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(
        model.SerializeToString(), options, disabled_optimizers=["FuseFp16InitializerToFp32NodeTransformer"]
    )
    return list(session.run(None, feeds))


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", KINDS)
def test_right_at_every_level(kind: str, level: str, dtype: str) -> None:
    model, feeds = KINDS[kind]()
    before, expected = model.SerializeToString(), outputs(model, feeds)
    made = proto(ampgraph.convert(model, level, dtype=dtype, check="off"))
    assert model.SerializeToString() == before
    found = run_strict(made, feeds).values()
    errors = [distance(a, b) for a, b in zip(expected, found, strict=True)]
    assert max(errors) <= TOLERANCES[dtype]
    products = [one for one in ampgraph.plan(model, level, dtype=dtype).decisions if one.kind in ("MatMul", "Gemm")]
    assert products and {one.dtype for one in products} == {dtype}
    assert proto(ampgraph.convert(made, level, dtype=dtype, check="off")) == made
    if dtype == "float16":
        assert [array.shape for array in outputs(made, feeds)] == [array.shape for array in expected]


@pytest.mark.parametrize("level", LEVELS)
def test_what_leaves_float16_is_scaled_where_it_was_measured(level: str) -> None:
    model, feeds = network_of_before_norms()
    expected = outputs(model, feeds)
    lost = run_strict(proto(ampgraph.convert(model, level, check="off")), feeds)["y"]
    assert not np.isfinite(lost).all(), "without samples the check has to say so"
    made, report = ampgraph.convert(model, level, data=[feeds], check="off", report=True)
    assert distance(expected[0], run_strict(made, feeds)["y"]) <= TOLERANCES["float16"]
    assert (report.products.low, report.products.float32, report.casts_after) == (5, 0, 2)
