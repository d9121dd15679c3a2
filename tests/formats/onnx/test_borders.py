"""Inputs and outputs of any kind, and those that may change their type."""

from __future__ import annotations

from functools import partial

import pytest
from onnx import TensorProto

import ampgraph
from formats.onnx.helpers import (
    LEVELS,
    code,
    convert_everywhere,
    convert_twice,
    kinds,
    stored,
    types,
    x,
)
from onnx_text import parse

pytestmark = pytest.mark.slow  # a grid: many small cases

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


def test_an_output_listed_twice() -> None:
    """The checker and the runtime have their doubts; the names stay what they were."""
    given = parse("g (float[2,4] x) => (float[2,4] y, float[2,4] y) { y = MatMul (x, w) }", w=(4, 4))
    result = convert_everywhere(given, None, run=False, checked=False, low=["MatMul"])
    assert kinds(result["O2"]) == ["Cast", "MatMul", "Cast"]


@pytest.mark.parametrize(("ir", "opset"), [(3, 8), (8, 17)])
def test_initializers_listed_as_inputs_stay_float32_inputs(ir: int, opset: int) -> None:
    given = parse(
        """g (float[2,4] x, float[4,4] w, float[4] b) => (float[2,4] y) {
        h = MatMul (x, w)  i = Add (h, b)  y = Softmax <axis = 1> (i) }""",
        ir=ir,
        opset=opset,
        w=(4, 4),
        b=(4,),
    )
    feeds = [{"x": x(2, 4)}] + ([{"x": x(2, 4), "w": x(4, 4)}] if ir > 3 else [])
    result = convert_everywhere(given, feeds, bfloat16=opset > 12, low=["MatMul"])
    assert set(stored(result["O3"]).values()) == {TensorProto.FLOAT}


def test_graphs_with_little_in_them() -> None:
    for text in (
        "g (float[2,4] x) => (float[2,4] x) { }",
        "g () => () { }",
        "g () => (float[2] y) { y = Constant <value_floats = [1.0, 2.0]> () }",
    ):
        convert_everywhere(parse(text), None, run=False)


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


def test_io_never_takes_a_name_from_another_border() -> None:
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


def test_io_keeps_the_shape_where_a_given_cast_takes_over() -> None:
    given = parse(
        "g (float[2,4] x) => (float[2,4] h, float16[2,4] z) { h = Exp (x)  c = Cast <to = 10> (h)  z = Relu (c) }"
    )
    convert_everywhere(given, None, run=False, io="keep")
    converted = convert_twice(given, "O1", target="cpu", io=["h=low"])
    assert types(converted.graph.output) == {"h": TensorProto.FLOAT16, "z": TensorProto.FLOAT16}
    assert [d.dim_value for d in converted.graph.output[0].type.tensor_type.shape.dim] == [2, 4]


def test_io_mistakes() -> None:
    given = parse(CACHE, w=(4, 4))
    for wrong in (["nothing*=low"], ["x=bfloat16"], ["x"]):
        assert code(partial(ampgraph.convert, given, io=wrong)) == "AMP305"
