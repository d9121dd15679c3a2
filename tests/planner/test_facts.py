"""What is known of a model beforehand holds when it runs, and is computed once."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import ampgraph
from ampgraph.core.dataflow import Dataflow, StaleDataflow
from ampgraph.core.low_types import low_type
from ampgraph.core.recipe import Recipe
from ampgraph.formats import adapters
from ampgraph.planner.facts.facts import OF_FILE, Facts
from ampgraph.planner.facts.values import UNKNOWN
from ampgraph.planner.resolve import resolve
from onnx_text import parse
from planner.support import casts, converted, dtype_of

ONE, TWO = ("Tanh", "Sigmoid", "Relu", "Transpose"), ("Add", "Sub", "Mul", "Concat", "Where")
STORED = {"w": np.array([[-3, 0], [2, 5]], np.float32), "h": np.array([[0.5, -1.25]], np.float32)}


@st.composite
def arithmetic(draw: st.DrawFn) -> ModelProto:
    """Arithmetic on an input, stored tensors and truths made float."""
    names, nodes = ["x", "w", "h", "f"], [helper.make_node("Cast", ["c"], ["f"], to=TensorProto.FLOAT)]
    for number in range(draw(st.integers(3, 8))):
        kind = draw(st.sampled_from((*ONE, *TWO)))
        one, two = (draw(st.sampled_from(names)) for _ in range(2))
        read = ["c", one, two] if kind == "Where" else [one] if kind in ONE else [one, two]
        node = helper.make_node(kind, read, [f"v{number}"])
        node.attribute.extend([helper.make_attribute("axis", 1)] if kind == "Concat" else [])
        nodes.append(node)
        names.append(f"v{number}")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names[4:]]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 2])]
    inputs += [helper.make_tensor_value_info("c", TensorProto.BOOL, [2, 2])]
    held = [numpy_helper.from_array(array, name) for name, array in STORED.items()]
    graph = helper.make_graph(nodes, "g", inputs, ends, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@given(model=arithmetic(), seed=st.integers(0, 9))
@settings(max_examples=60)
def test_what_runs_lies_between_the_bounds(model: ModelProto, seed: int) -> None:
    draws = np.random.default_rng(seed)
    feeds = {"x": (draws.standard_normal((2, 2)) * 9).astype(np.float32), "c": draws.integers(0, 2, (2, 2)) == 1}
    try:
        results = ReferenceEvaluator(model).run(None, feeds)
    except (TypeError, ValueError):
        reject()  # shapes that do not fit
    flow = adapters.load(model)[0].dataflow("float16")
    facts = Facts.of(flow, resolve(Recipe(), "ONNX"))
    ids = {value.name: value.id for value in flow.values}
    for output, result in zip(model.graph.output, results, strict=True):
        found, whole = facts.values.interval(ids[output.name]), facts.truths.interval(ids[output.name])
        assert found.low <= result.min() and result.max() <= found.high
        if whole.whole:
            assert np.array_equal(result, np.rint(result))
            assert whole.low <= result.min() and result.max() <= whole.high


def test_what_is_known_once() -> None:
    model = parse("g (float[4] x) => (float[4] y) { t = Tanh (x)  y = Mul (t, t) }")
    flow = adapters.load(model)[0].dataflow("float16")
    facts = Facts.of(flow, resolve(Recipe(), "ONNX"))
    ids = {value.name: value.id for value in flow.values}
    assert facts.values.interval(ids["x"]) == UNKNOWN and facts.values.interval(ids["y"]).size == 4
    # facts are built once a dataflow
    graph = adapters.load(parse("g (float[4] x) => (float[4] y) { y = Exp (x) }"))[0]
    flow, options = graph.dataflow("float16"), resolve(Recipe(), "ONNX")
    facts = Facts.of(flow, options)
    assert facts.values is facts.values and facts.truths is facts.truths
    other = Facts.of(flow, replace(options, kernels=replace(options.kernels, broken={})))
    assert Facts.of(flow, options) is facts and other is not facts
    assert other.values is facts.values and other.truths is facts.truths
    flow.expire()
    with pytest.raises(StaleDataflow):
        Facts.of(flow, options)


def test_facts_of_other_options_are_what_fresh_ones_are() -> None:
    """Whatever was asked before for whichever options: the facts that are handed on are of the file alone."""
    assert all(isinstance(getattr(Facts, name), cached_property) for name in OF_FILE)
    text = """g (float[2,4] x) => (float[2,4] y) { m = MatMul (x, w)  s = Softmax (m)  q = Mul (m, m)  r = Sqrt (q)
        a = Add (s, r)  y = Div (a, k) }"""
    model = parse(text, w=(4, 4), k=np.array(3, np.float32))
    recipes = [Recipe(), Recipe(level="O3"), Recipe(target="cpu"), Recipe(dtype="bfloat16"), Recipe(fp32=("op:Mul",))]
    names = sorted(name for name, kind in vars(Facts).items() if isinstance(kind, cached_property))

    def asked(facts: Facts) -> list[str]:
        known = [facts.values.interval(value.id) for value in facts.flow.values]
        return [repr(known), repr([facts.truths.interval(value.id) for value in facts.flow.values])]

    def flow() -> Dataflow:
        return adapters.load(model)[0].dataflow("float16")

    fresh = [asked(Facts.of(flow(), resolve(recipe, "ONNX"))) for recipe in recipes]
    for order in permutations(range(len(recipes)), 3):
        shared = flow()
        for number in order:
            facts = Facts.of(shared, resolve(recipes[number], "ONNX"))
            assert asked(facts) == fresh[number] and [getattr(facts, name) is not None for name in names]


@pytest.mark.parametrize(("dtype", "bits", "largest"), [("float16", 11, 65504.0), ("bfloat16", 8, 2.0**128 - 2.0**120)])
def test_limits_of_low_types(dtype: str, bits: int, largest: float) -> None:
    low = low_type(dtype)
    assert (low.bits, low.largest, low.exact_up_to, low.rounding) == (bits, largest, 2**bits, 2.0**-bits)
    assert low.smallest_subnormal == low.smallest_normal * 2.0 ** (1 - bits)


# Rules that look back along a chain end soon, however long it is.


def chain(first: str, then: str, count: int, bias: tuple[int, ...]) -> ModelProto:
    """A product with many additions of one stored bias behind it."""
    body = "  ".join(f"v{n + 1} = {then} (v{n}, b)" for n in range(count))
    stored = {"w": np.ones((4, 4, 1, 1), np.float32), "b": np.ones(bias, np.float32)}
    shape = "float[N,4,2,2]"
    return parse(f"g ({shape} x) => ({shape} v{count}) {{ v0 = {first}  {body} }}", stored, opset=17)


@pytest.mark.parametrize(("first", "bias"), [("Conv (x, w)", (4, 1, 1)), ("Relu (x)", (4, 1, 1)), ("Relu (x)", (2,))])
def test_a_chain_of_additions_is_planned(first: str, bias: tuple[int, ...]) -> None:
    plan = ampgraph.plan(chain(first, "Add", 40, bias), level="O1")
    assert len(plan.decisions) >= 40


def test_long_chains_are_planned() -> None:
    assert ampgraph.plan(chain("Relu (x)", "Add", 600, (2,)), level="O1").decisions
    # Each Slice reads the one before it twice; the last may be a known number.
    slices = "  ".join(f"s{n + 1} = Slice (c, s{n}, s{n})" for n in range(40))
    text = f"g (float[N,8] x) => (float[N,8] z) {{ q = Relu (x)  s0 = Shape (q)  {slices}"
    given = parse(text + "  f = Cast <to = 1> (s40)  z = Mul (q, f) }", c=np.arange(4), opset=17)
    assert ampgraph.plan(given, level="O1").decisions


# Sums and means by how many elements they are of: static sizes, and open ones by the strides before them.

W = np.ones((8, 8, 1, 1), np.float32) / 8


def pooled(sizes: str, strides: int, pool: str = "GlobalAveragePool (c)") -> ModelProto:
    text = f"""g (float[1,8,{sizes}] x) => (float[1,8,1,1] y) {{
        a = Conv <strides = [{strides}, {strides}]> (x, w)  c = Relu (a)  p = {pool}  y = Conv (p, w) }}"""
    return parse(text, {"w": W}, opset=13)


@pytest.mark.parametrize(
    ("sizes", "strides", "dtype"),
    [("H,W", 8, "f16"), ("H,W", 2, "f32"), ("48,192", 1, "f32"), ("48,192", 4, "f16"), ("H,W", 1, "f32")],
)
def test_open_sizes_are_divided_by_the_strides_before(sizes: str, strides: int, dtype: str) -> None:
    assert dtype_of(converted(pooled(sizes, strides), "O2"), "GlobalAveragePool") == dtype


def test_sizes_that_are_named_or_enlarged() -> None:
    model = pooled("H,W", 1)
    assert dtype_of(ampgraph.convert(model, "O2", dims={"H": 32, "W": 32}), "GlobalAveragePool") == "f16"
    # what is enlarged is guessed anew
    text = """g (float[1,8,H,W] x) => (float[1,8,1,1] y) {
        a = Conv <strides = [32, 32]> (x, w)  b = Resize (a, , s)  p = GlobalAveragePool (b)  y = Conv (p, w) }"""
    model = parse(text, {"w": W, "s": np.array([1, 1, 32, 32], np.float32)}, opset=13)
    assert dtype_of(converted(model, "O2"), "GlobalAveragePool") == "f32"


@pytest.mark.parametrize(("sizes", "strides", "count"), [("7,7", 1, 0), ("H,W", 1, 2), ("H,W", 8, 0), ("64,64", 1, 2)])
def test_a_mean_of_few_elements_is_no_sum_to_fear(sizes: str, strides: int, count: int) -> None:
    model = pooled(sizes, strides, "ReduceMean <axes = [2, 3]> (c)")
    assert casts(converted(model, "auto")) == 2 + count
    assert dtype_of(converted(model, "O1"), "ReduceMean") == "f32"


@pytest.mark.parametrize("square", ["Mul (c, c)", "Pow (c, two)"])
def test_a_mean_of_squares_is_held(square: str) -> None:
    text = f"""g (float[1,8,7,7] x) => (float[1,8,1,1] y) {{
        c = Conv (x, w)  s = {square}  p = ReduceMean <axes = [2, 3]> (s)  y = Conv (p, w) }}"""
    model = parse(text, known={"w": W, "two": np.float32(2)}, opset=13)
    assert dtype_of(converted(model, "auto"), "ReduceMean") == "f32"
