"""Two operators of one kernel on CUDA: what is low beside the one that is held follows it, and no more than that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.core.plan import Decision
from ampgraph.core.ranges import Range
from ampgraph.formats.adapters import load
from ampgraph.planner.joints import find_joints
from ampgraph.planner.options import Options
from ampgraph.planner.resolve import resolve
from onnx_text import parse
from planner.support import converted, kinds

NUMBERS = {"one": 1, "six": 6, "zero": 0, "scale": 0.3, "third": 0.35355338}
PAIRS = {
    "QuickGelu": "a = Relu (x)  t = Sigmoid (a)  y = Mul (a, t)",
    "SkipLayerNormalization": "t = Add (x, f)  y = LayerNormalization (t, b, b)",
    "BiasSoftmax": "a = Relu (x)  t = Add (a, m)  y = Softmax <axis = -1> (t)",
    "Clip": "t = Relu (x)  y = Clip (t, zero, six)",
    "Div": "a = Relu (x)  t = Div (one, a)  y = Mul (a, t)",
    "through an Identity": "a = Relu (x)  t = Add (a, m)  i = Identity (t)  y = Softmax <axis = -1> (i)",
}
APART = {
    "two readers": "a = Relu (x)  t = Sigmoid (a)  u = Mul (a, t)  y = Add (u, t)",
    "not by itself": "a = Relu (x)  t = Sigmoid (a)  y = Mul (f, t)",
    "another axis": "t = Add (x, m)  y = Softmax <axis = 1> (t)",
    "a stored vector": "t = Add (x, b)  y = LayerNormalization (t, b, b)",
    "no inverse": "a = Relu (x)  t = Div (six, a)  y = Mul (a, t)",
    "a bias of a product of known sizes": "t = Add (x, b)  y = Softmax <axis = -1> (t)",
}


def between(body: str, size: str = "2") -> ModelProto:
    """A body between two products."""
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    stored: dict[str, Any] = {name: np.float32(number) for name, number in NUMBERS.items() if name in words}
    stored |= {"w": (16, 16), **({"b": (16,)} if "b" in words else {})}
    mask = f", float[{size},1,16] m" if "m" in words else ""
    graph = (
        f"g (float[{size},4,16] f{mask}) => (float[{size},4,16] z) {{ x = MatMul (f, w)  {body}  z = MatMul (y, w) }}"
    )
    model = parse(graph, stored, opset=18)
    for node in model.graph.node:
        node.name = node.output[0]
    return model


def decided(model: ModelProto, level: str, **options: Any) -> dict[str, Decision]:
    """By name of a node, what holds its result."""
    found = ampgraph.plan(model, level, **options).decisions
    return {model.graph.node[one.index].name: one for one in found if one.index >= 0}


def joined(model: ModelProto, target: str = "cuda") -> list[str]:
    options: Options = resolve(ampgraph.Recipe(level="O2", target=target), "ONNX")
    return [joint.join.makes for joint in find_joints(load(model)[0].dataflow("float16"), options)]


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_are_found(name: str) -> None:
    expected = "BiasSoftmax" if name.startswith("through") else name
    assert joined(between(PAIRS[name])) == [expected] and not joined(between(PAIRS[name]), "cpu")


@pytest.mark.parametrize("body", APART.values(), ids=list(APART))
def test_others_are_none(body: str) -> None:
    assert joined(between(body)) == []


def test_a_bias_of_a_product_of_open_sizes_is_one_kernel_with_the_softmax() -> None:
    assert joined(between(APART["a bias of a product of known sizes"], "B")) == ["BiasSoftmax"]


@pytest.mark.parametrize(("name", "dtype"), [*((name, "float16") for name in PAIRS), ("BiasSoftmax", "bfloat16")])
@pytest.mark.parametrize("held", ["t", "y"])
def test_both_are_float32_where_one_is_held(name: str, held: str, dtype: str) -> None:
    found = decided(between(PAIRS[name]), "O2", fp32=[held], dtype=dtype)
    other = found["y" if held == "t" else "t"]
    assert found["t"].dtype == found["y"].dtype == "float32"
    assert f"with '{held}', which is float32: both are one kernel on cuda" in other.why.text
    assert found["x"].dtype == found["z"].dtype == dtype
    elsewhere = decided(between(PAIRS[name]), "O2", fp32=[held], dtype=dtype, target="tensorrt")
    assert all(decision.why.rule != "joined" for decision in elsewhere.values())


@pytest.mark.parametrize("level", ["O1", "O2", "auto"])
@pytest.mark.parametrize(
    "body", ["s = MatMul (x, w)  l = Mul (s, third)", "r = Relu (x)  l = Mul (r, third)  s = MatMul (l, w)"]
)
def test_a_scale_follows_its_product(level: str, body: str) -> None:
    last = "l" if body.endswith("third)") else "s"
    found = decided(between(f"{body}  y = Relu ({last})"), level, fp32=["s"])
    assert found["l"].dtype == found["s"].dtype == "float32" and found["z"].dtype == "float16"


def test_a_product_follows_nothing() -> None:
    assert decided(between("s = MatMul (x, w)  y = Mul (s, third)"), "O2", fp32=["y"])["s"].dtype == "float16"


def test_what_o3_makes_low_stays_low() -> None:
    assert decided(between(PAIRS["QuickGelu"]), "O3", fp32=["y"])["t"].dtype == "float16"


@pytest.mark.parametrize("held", ["t", "y"])
@pytest.mark.parametrize("name", PAIRS)
def test_converted_again_it_stays(name: str, held: str) -> None:
    made = ampgraph.convert(between(PAIRS[name]), "O2", fp32=[held])
    assert ampgraph.convert(made, "O2").SerializeToString() == made.SerializeToString()


def test_explain_says_so() -> None:
    said = ampgraph.explain(between(PAIRS["QuickGelu"]), "t", level="O2", fp32=["y"]).slots[0]
    assert "one kernel on cuda, QuickGelu" in said.reason


@pytest.mark.parametrize("level", ["O1", "O2", "auto"])
def test_a_softmax_at_the_end_is_one_kernel_with_its_bias(level: str) -> None:
    text = "g (float[B,S,16] f) => (float[B,S,16] z) { x = MatMul (f, w)  a = Add (x, b)  z = Softmax <axis = -1> (a) }"
    made = converted(parse(text, {"w": (16, 16), "b": (16,)}), level)
    assert kinds(made) == ["Cast", "MatMul", "Cast", "Add", "Softmax"]


CUBE = """c = Pow (a, three)  k = Mul (c, cubic)  i = Add (a, k)  s = Mul (i, factor)  t = Tanh (s)  o = Add (t, one)
    h = Mul (a, half)  y = Mul (h, o)"""


@pytest.mark.parametrize("options", [{"fp32": ["a"]}, {"ranges": "c"}])
def test_a_cube_that_overflows_or_follows_float32_is_written_of_squares(options: dict[str, Any]) -> None:
    stored = {"three": 3, "cubic": 0.044715, "factor": 0.7978845608, "one": 1, "half": 0.5}
    text = f"g (float[4,8] f) => (float[4,8] z) {{ x = MatMul (f, w)  a = Relu (x)  {CUBE}  z = MatMul (y, w) }}"
    model = parse(text, {"w": (8, 8), **{name: np.float32(number) for name, number in stored.items()}}, opset=18)
    for node in model.graph.node:
        node.name = node.output[0]
    if "ranges" in options:
        ranges = ampgraph.calibrate(model, [{"f": np.ones((4, 8), np.float32)}])
        ranges.values["c"] = Range(-1e5, 1e5, 32, 0, 0, {16: 32})
        options = {"ranges": ranges}
    assert "Pow" not in kinds(ampgraph.convert(model, "O2", **options)) and "Pow" in kinds(converted(model, "O2"))
