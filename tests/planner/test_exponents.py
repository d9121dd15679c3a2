"""What leaves float16 is held as a power of two of what it was: the same in float32 to the bit, and low in float16."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.core.plan import Plan
from ampgraph.core.ranges import Ranges
from ampgraph.formats import adapters
from ampgraph.formats.onnx.graph import OnnxGraph
from ampgraph.numerics.strict.session import run_strict
from ampgraph.oplists.traits import traits
from ampgraph.passes.rewrite_regions import RewriteRegions
from ampgraph.rules.rewrites.exponent import scaling_edits
from onnx_text import parse

WIDTH, WORDS, SEEDS = 32, 50, range(4)
FFN = "u{i} = MatMul (n{i}, up{i})  r{i} = Relu (u{i})  d{i} = MatMul (r{i}, down{i})  x{j} = Add (x{i}, d{i})"
"""Of a block: what its norm gives to the residual stream."""
LAYER_NORM = "n{i} = LayerNormalization <epsilon = 1e-5> (x{i}, scale, bias)"
RMS_NORM = "n{i} = RMSNormalization <epsilon = 1e-6> (x{i}, scale)"
WRITTEN_RMS = """q{i} = Mul (x{i}, x{i})  m{i} = ReduceMean <axes = [-1]> (q{i})  v{i} = Add (m{i}, eps)
    s{i} = Sqrt (v{i})  i{i} = Reciprocal (s{i})  h{i} = Mul (x{i}, i{i})  n{i} = Mul (h{i}, scale)"""
WRITTEN_LAYER = """c{i} = ReduceMean <axes = [-1]> (x{i})  f{i} = Sub (x{i}, c{i})  q{i} = Mul (f{i}, f{i})
    m{i} = ReduceMean <axes = [-1]> (q{i})  v{i} = Add (m{i}, eps)  s{i} = Sqrt (v{i})  h{i} = Div (f{i}, s{i})
    o{i} = Mul (h{i}, scale)  n{i} = Add (o{i}, bias)"""
GATED = """u{i} = MatMul (n{i}, up{i})  s{i} = Sigmoid (u{i})  g{i} = Mul (u{i}, s{i})  w{i} = MatMul (n{i}, wide)
    p{i} = Mul (g{i}, w{i})  d{i} = MatMul (p{i}, down{i})  x{j} = Add (x{i}, d{i})"""
"""The product of gate and branch leaves the range itself."""

SELECTED = """u{i} = MatMul (n{i}, up{i})  r{i} = Relu (u{i})  d{i} = MatMul (r{i}, down{i})  e{i} = Sub (d{i}, bias)
    k{i} = Greater (u{i}, zero)  f{i} = Where (k{i}, e{i}, zero)  x{j} = Sum (x{i}, f{i})"""
SQUARED = """u{i} = MatMul (n{i}, up{i})  r{i} = Relu (u{i})  q{i} = Mul (r{i}, r{i})  d{i} = MatMul (q{i}, down{i})
    x{j} = Add (x{i}, d{i})"""
"""As nanochat has it: the squares leave the range."""
SANDWICH = """u{i} = MatMul (n{i}, up{i})  r{i} = Relu (u{i})  d{i} = MatMul (r{i}, down{i})
    e{i} = RMSNormalization <epsilon = 1e-6> (d{i}, wide{i})  x{j} = Add (x{i}, e{i})"""
"""As Gemma 3 has it: another norm, whose scale is massive, writes the stream."""
ATTENTION = """u{i} = MatMul (n{i}, up{i})  t{i} = Transpose <perm = [0, 2, 1]> (u{i})  a{i} = MatMul (u{i}, t{i})
    s{i} = Softmax (a{i})  w{i} = MatMul (n{i}, down{i})  d{i} = MatMul (s{i}, w{i})  x{j} = Add (x{i}, d{i})"""


def normal(seed: int, *shape: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def stream(
    norm: str,
    block: str = FFN,
    opset: int = 17,
    peak: float = 1e5,
    end: str = "y = MatMul (n3, head)",
    outputs: str = "float[1,t,16] y",
) -> ModelProto:
    """Three blocks out of a stored embedding, of which the second puts a massive number on the stream."""
    body = "x0 = Gather (table, x)  " + "  ".join((norm + "  " + block).format(i=i, j=i + 1) for i in range(3))
    weights = {f"{part}{i}": normal(10 + i, WIDTH, WIDTH) for part in ("up", "down") for i in range(3)}
    weights["down1"][:, 5] *= peak
    weights |= {"table": normal(1, WORDS, WIDTH) * 7, "head": normal(2, WIDTH, 16), "wide": normal(4, WIDTH, WIDTH)}
    weights |= {"scale": 1 + normal(3, WIDTH), "bias": normal(5, WIDTH), "eps": np.array(1e-6, np.float32)}
    weights |= {f"wide{i}": (1 + normal(30 + i, WIDTH)) * np.float32(1 + 8e4 * (i == 1)) for i in range(3)}
    weights |= {"massive": (1 + normal(3, WIDTH)) * np.float32(300)}
    weights["zero"] = np.array(0, np.float32)
    text = f"g (int64[1,t] x) => ({outputs}) {{ {body}  {norm.format(i=3)}  {end} }}"
    return parse(text, known=weights, opset=opset)


def convolutions() -> ModelProto:
    """Stored norms behind convolutions, and a sum of branches beyond the range."""
    text = """g (float[1,3,8,8] x) => (float[1,4] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, k0)  b = BatchNormalization (a, s0, b0, m0, v0)  c = Relu (b)
        d = Conv <pads = [1, 1, 1, 1]> (c, k1, c1)  e = BatchNormalization (d, s1, b0, m0, v0)  f = Add (e, c)
        h = LeakyRelu <alpha = 0.1> (f)  p = MaxPool <kernel_shape = [2, 2]> (h)
        i = Conv (p, k2, c1)  j = BatchNormalization (i, s0, b0, m0, v0)  l = Relu (j)
        o = GlobalAveragePool (l)  q = Flatten (o)  y = Gemm <transB = 1> (q, w, w0) }"""
    k = {f"k{i}": normal(i, 3 + 5 * (i > 0), 8, 3, 3).swapaxes(0, 1).copy() for i in range(3)}
    k |= {"s0": 1 + normal(7, 8) / 4, "s1": normal(8, 8) * 1e6, "b0": normal(9, 8), "m0": normal(10, 8)}
    k |= {"v0": 1 + normal(11, 8) ** 2, "c1": normal(12, 8), "w": normal(13, 4, 8), "w0": normal(14, 4)}
    k["k2"] = k["k2"] * np.float32(1e-4)
    return parse(text, k)


def groups() -> ModelProto:
    """As a decoder of pictures has it: a group norm written out, a SiLU, convolutions upon a stream."""
    norm = """z{i} = Reshape (x{i}, two)  t{i} = InstanceNormalization <epsilon = 1e-6> (z{i}, one, none)
        w{i} = Reshape (t{i}, back)  g{i} = Mul (w{i}, s0)  n{i} = Add (g{i}, b0)"""
    block = """a{i} = Sigmoid (n{i})  u{i} = Mul (n{i}, a{i})  d{i} = Conv <pads = [1, 1, 1, 1]> (u{i}, k{i}, c1)
        x{j} = Add (x{i}, d{i})"""
    body = "  ".join((norm + "  " + block).format(i=i, j=i + 1) for i in range(3))
    text = f"""g (float[1,3,8,8] x) => (float[1,3,16,16] y) {{ x0 = Conv <pads = [1, 1, 1, 1]> (x, first, c1)
        {body}  up = Resize <mode = "nearest"> (x3, , sizes)  x4 = Conv <pads = [1, 1, 1, 1]> (up, k2, c1)
        {norm.format(i=4)}  y = Conv <pads = [1, 1, 1, 1]> (n4, last) }}"""
    k = {f"k{i}": normal(i, 8, 8, 3, 3) for i in range(3)} | {
        "first": normal(20, 8, 3, 3, 3),
        "last": normal(21, 3, 8, 3, 3),
    }
    k["k1"][2] *= 1e5
    k |= {"s0": 1 + normal(7, 8, 1, 1), "b0": normal(9, 8, 1, 1), "c1": normal(12, 8), "one": np.ones(2, np.float32)}
    k |= {"none": np.zeros(2, np.float32), "two": np.array([1, 2, -1]), "back": np.array([1, 8, 8, 8])}
    text = text.replace("Reshape (t4, back)", "Reshape (t4, wide)")
    return parse(text, k, wide=np.array([1, 8, 16, 16]), sizes=np.array([1, 1, 2, 2], np.float32))


MODELS: dict[str, Callable[[], ModelProto]] = {
    "layer norm": lambda: stream(LAYER_NORM),
    "rms norm": lambda: stream(RMS_NORM, opset=23),
    "rms norm, written out": lambda: stream(WRITTEN_RMS),
    "layer norm, written out": lambda: stream(WRITTEN_LAYER),
    "gated": lambda: stream(RMS_NORM, GATED, opset=23),
    "tied": lambda: stream(
        LAYER_NORM, end="w = Transpose <perm = [1, 0]> (table)  y = MatMul (n3, w)", outputs="float[1,t,50] y"
    ),
    "selected": lambda: stream(LAYER_NORM, SELECTED),
    "squares": lambda: stream(RMS_NORM.replace("scale", "massive"), SQUARED, opset=23, peak=1.0),
    "sandwich": lambda: stream(RMS_NORM, SANDWICH, opset=23),
    "attention": lambda: stream(LAYER_NORM, ATTENTION),
    "convolutions": convolutions,
    "groups": groups,
}


def feeds(model: ModelProto) -> list[dict[str, np.ndarray]]:
    whole = model.graph.input[0].type.tensor_type.elem_type == 7
    draws = [np.random.default_rng(seed) for seed in SEEDS]
    return [
        {"x": r.integers(0, WORDS, (1, 9)) if whole else r.standard_normal((1, 3, 8, 8), np.float32)} for r in draws
    ]


@lru_cache
def case(name: str) -> tuple[ModelProto, Ranges]:
    model = MODELS[name]()
    return model, ampgraph.calibrate(model, feeds(model))


def in_float32(model: ModelProto, feed: dict[str, Any]) -> np.ndarray:
    """As the nodes say, one by one."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"]).run(None, feed)[0]


def error(model: ModelProto, result: ModelProto) -> float:
    """The root of the mean of squares beside that of what float32 gives, over all inputs."""
    pairs = [(run_strict(result, feed)["y"], run_strict(model, feed)["y"]) for feed in feeds(model)]
    return float(np.sqrt(sum(np.square(a - b).sum() for a, b in pairs) / sum(np.square(b).sum() for _, b in pairs)))


@pytest.mark.parametrize("name", MODELS)
def test_float32_is_the_same_to_the_bit(name: str) -> None:
    model, ranges = case(name)
    rewrites = ampgraph.plan(model, ranges=ranges, rewrite=["none", "exponent"]).rewrites
    graph = OnnxGraph(ir.from_proto(model))
    RewriteRegions(tuple(rewrites))(graph)
    written = ir.to_proto(graph.model)
    assert (
        len(rewrites) == 1 and len(written.graph.node) <= len(model.graph.node) + 3
    )  # where a sum or a square needs a product
    for feed in feeds(model):
        assert in_float32(model, feed).tobytes() == in_float32(written, feed).tobytes()
    # what is compared by name knows the scaled values by the names that they got, and no other
    made = {output for node in written.graph.node for output in node.output}
    renamed = rewrites[0].renamed
    assert renamed and {new for new, _ in renamed.values()} <= made and made.isdisjoint(renamed)


@pytest.mark.parametrize("level", ["O2", "auto"])
@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_float32_for_its_range(name: str, level: str) -> None:
    model, ranges = case(name)
    plan = ampgraph.plan(model, level, ranges=ranges)
    held = [d.kind for d in plan.decisions if d.dtype == "float32" and d.kind != "graph"]
    if name == "rms norm, written out":  # its norms, and the stream that they read, are float32 whatever the range
        assert not {"MatMul"} & {*held}
    else:
        assert set(held) <= {"Resize"}  # whose scales are sizes
    islands = ampgraph.plan(model, level, ranges=ranges, rewrite="no-exponent")
    assert [d for d in islands.decisions if d.why.rule == "range" and d.dtype == "float32"]
    result = ampgraph.convert(model, level, ranges=ranges)
    islanded = ampgraph.convert(model, level, ranges=ranges, rewrite="no-exponent")
    assert error(model, result) <= 1.5 * error(model, islanded)  # whose stream is float32 in part
    # the plan says all of it
    assert ampgraph.apply(model, Plan.from_json(plan.to_json())).SerializeToString() == result.SerializeToString()


@pytest.mark.parametrize(
    "given",
    [
        stream(LAYER_NORM, outputs="float[1,t,16] y, float[1,t,32] x2"),
        stream(LAYER_NORM, FFN + "  z{i} = Softmax (x{i})"),
        stream(LAYER_NORM, peak=1e12),
    ],
    ids=["an output", "read by what has no other scale", "weights that would vanish"],
)
def test_what_cannot_be_scaled_stays_float32(given: ModelProto) -> None:
    ranges = ampgraph.calibrate(given, feeds(given))
    plan = ampgraph.plan(given, ranges=ranges)
    assert not [one for one in plan.rewrites if one.name == "exponent"]
    assert [d for d in plan.decisions if d.why.rule == "range" and d.dtype == "float32"]
    result = ampgraph.convert(given, ranges=ranges, check="off")
    assert result == ampgraph.convert(given, ranges=ranges, check="off", rewrite="no-exponent")


@pytest.mark.parametrize("exponent", [5000, -5000])
def test_a_plan_with_other_exponents_is_refused(exponent: int) -> None:
    model, ranges = case("layer norm")
    row = json.loads(ampgraph.plan(model, ranges=ranges).to_json())
    row["rewrites"][0]["exponents"][0][1] = exponent
    with pytest.raises(AmpError, match="AMP402"):
        ampgraph.apply(model, Plan.from_json(json.dumps(row)))


@pytest.mark.parametrize(
    ("body", "exponents", "edits"),
    [
        ("y = Sqrt (x)", {"x": 4, "y": 2}, {}),
        ("y = Sqrt (x)", {"x": 4, "y": 4}, None),
        ("y = Reciprocal (x)", {"x": 4, "y": -4}, {}),
        ("y = Pow (x, three)", {"x": 4, "y": 12}, {}),
        ("y = Pow (x, three)", {"x": 4}, None),
        ("y = Pow (x, z)", {"x": 4}, {0: -4}),  # by a computed exponent: what it reads is scaled back
        ("y = Pow (x, z)", {"x": 4, "y": 4}, None),
        ("y = Mul (x, g)", {"x": 4, "y": 6}, {1: 2}),
        ("y = Mul (g, x)", {"x": 4, "y": 6}, {0: 2}),
        ("y = Div (x, g)", {"x": 4, "y": 6}, {1: -2}),
        ("y = Div (g, x)", {"x": 4, "y": 6}, {0: 10}),
        ("y = Add (x, z)", {"x": 4, "y": 4}, {1: 4}),
        ("y = Gemm (x, w, g)", {"y": 3}, {1: 3, 2: 3}),
        ("y = Exp (x)", {"x": 4}, {0: -4}),
        ("y = Exp (x)", {"y": 4}, None),
        ("y = Clip <max = 6.0> (x)", {"x": 4, "y": 4}, None),  # an old Clip, by a number of its own
    ],
)
def test_which_operands_are_scaled_on_top(body: str, exponents: dict[str, int], edits: dict[int, int] | None) -> None:
    """Place of an operand -> e, for values that are held as 2^-e of themselves."""
    opset = 7 if "Clip" in body else 13
    stored = {"three": np.float32(3), "g": np.ones(4, np.float32), "w": (4, 4)}
    text = f"g (float[4,4] x, float[4,4] z) => (float[4,4] y) {{ {body} }}"
    model = parse(text, {name: array for name, array in stored.items() if name in body.split("(")[1]}, opset=opset)
    flow = adapters.load(model)[0].dataflow("float16")
    ids = {value.name: value.id for value in flow.values}
    found = scaling_edits(flow, traits(), flow.ops[0], {ids[name]: e for name, e in exponents.items()})
    assert found == edits
