"""What is known of a model beforehand holds when it runs, and is computed once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from ampgraph.core.dataflow import StaleDataflow
from ampgraph.core.low_types import low_type
from ampgraph.core.recipe import Recipe
from ampgraph.formats import adapters
from ampgraph.planner.facts.facts import Facts
from ampgraph.planner.facts.intervals import UNKNOWN
from ampgraph.planner.resolve import resolve
from onnx_text import parse

ONE, TWO = ("Tanh", "Sigmoid", "Neg", "Relu", "Abs", "Transpose"), ("Add", "Sub", "Mul", "Concat", "Where")
STORED = {"w": np.array([[-3, 0], [2, 5]], np.float32), "h": np.array([[0.5, -1.25]], np.float32)}


@st.composite
def arithmetic(draw: st.DrawFn) -> ModelProto:
    """Arithmetic on an input, stored tensors and truths made float."""
    names, nodes = ["x", "w", "h", "f"], [helper.make_node("Cast", ["c"], ["f"], to=TensorProto.FLOAT)]
    for number in range(draw(st.integers(3, 8))):
        kind = draw(st.sampled_from((*ONE, *TWO, "Clip")))
        one, two = (draw(st.sampled_from(names)) for _ in range(2))
        read = {"Clip": [one, "low", "high"], "Where": ["c", one, two]}.get(kind, [one] if kind in ONE else [one, two])
        node = helper.make_node(kind, read, [f"v{number}"])
        node.attribute.extend([helper.make_attribute("axis", 1)] if kind == "Concat" else [])
        nodes.append(node)
        names.append(f"v{number}")
    stored = STORED | {"low": np.array(-1, np.float32), "high": np.array(1.5, np.float32)}
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names[4:]]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 2])]
    inputs += [helper.make_tensor_value_info("c", TensorProto.BOOL, [2, 2])]
    held = [numpy_helper.from_array(array, name) for name, array in stored.items()]
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
        found, whole = facts.bounds.of(ids[output.name]), facts.whole.of(ids[output.name])
        assert found.low <= result.min() and result.max() <= found.high
        if whole.whole:
            assert np.array_equal(result, np.rint(result))
            assert whole.low <= result.min() and result.max() <= whole.high


def test_nothing_is_known_of_an_input_and_something_of_what_bounds_it() -> None:
    model = parse("g (float[4] x) => (float[4] y) { t = Tanh (x)  y = Mul (t, t) }")
    flow = adapters.load(model)[0].dataflow("float16")
    facts = Facts.of(flow, resolve(Recipe(), "ONNX"))
    ids = {value.name: value.id for value in flow.values}
    assert facts.bounds.of(ids["x"]) == UNKNOWN and facts.bounds.of(ids["y"]).size == 4


def test_facts_are_built_once_a_dataflow() -> None:
    graph = adapters.load(parse("g (float[4] x) => (float[4] y) { y = Exp (x) }"))[0]
    flow, options = graph.dataflow("float16"), resolve(Recipe(), "ONNX")
    facts = Facts.of(flow, options)
    other = Facts.of(flow, replace(options, kernels=replace(options.kernels, broken={})))
    assert Facts.of(flow, options) is facts and other is not facts
    assert other.extents is facts.extents and other.numbers is facts.numbers
    flow.expire()
    with pytest.raises(StaleDataflow):
        Facts.of(flow, options)


@pytest.mark.parametrize(("dtype", "bits", "largest"), [("float16", 11, 65504.0), ("bfloat16", 8, 2.0**128 - 2.0**120)])
def test_limits_of_low_types(dtype: str, bits: int, largest: float) -> None:
    low = low_type(dtype)
    assert (low.bits, low.largest, low.counts, low.rounding) == (bits, largest, 2**bits, 2.0**-bits)
    assert low.smallest_subnormal == low.smallest_normal * 2.0 ** (1 - bits)
