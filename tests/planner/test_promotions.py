"""What may be put back to float32: the groups, what they cost, and how much of a plan is float32."""

from __future__ import annotations

from typing import Any

import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.core.dataflow import Dataflow
from ampgraph.core.plan import Plan
from ampgraph.core.recipe import Recipe
from ampgraph.formats import adapters
from ampgraph.planner.facts.facts import Facts
from ampgraph.planner.policies.ampgraph import judge
from ampgraph.planner.promotions import (
    HEAVY,
    Float32Size,
    Promotion,
    find_groups,
    float32_size,
    low_operators,
    low_values,
    stems,
)
from ampgraph.planner.resolve import resolve
from onnx_text import parse

MODEL = parse(
    "g (float[4,8] x) => (float[4,2] y) { [mm] p = MatMul (x, w)  [act] s = Sigmoid (p)  [out] y = MatMul (s, v) }",
    w=(8, 8),
    v=(8, 2),
)
P, S, Y, W, V = 4 * 32, 4 * 32, 4 * 8, 4 * 64, 4 * 16  # bytes in float32


def planned(**options: Any) -> tuple[Plan, Dataflow]:
    return ampgraph.plan(MODEL, "O2", **options), adapters.load(MODEL)[0].dataflow()


def test_what_is_low_by_place_and_by_name() -> None:
    for options in ({"fp32": ["act"]}, {"fp32": ["act"], "io": "low"}):  # low inputs and outputs are no operators
        plan, flow = planned(**options)
        assert low_operators(plan) == {("", 0), ("", 2)}
        assert low_values(plan, flow) == {("", "p"), ("", "y")}


@pytest.mark.parametrize(
    ("fp32", "size"),
    [
        ([], Float32Size(0, 0, 0, 0)),
        (["act"], Float32Size(1, 0, S, S)),
        (["mm"], Float32Size(1, 1, P + W, HEAVY * (P + W))),
        (["act", "out"], Float32Size(2, 1, S + Y + V, S + HEAVY * (Y + V))),
    ],
)
def test_how_much_is_float32(fp32: list[str], size: Float32Size) -> None:
    """Nodes, products, bytes of what they write and read from the file, and these by what they cost."""
    plan, flow = planned(fp32=fp32)
    assert float32_size(plan, flow, resolve(Recipe.of(level="O2"), "ONNX")) == size


def groups(model: ModelProto = MODEL, **options: Any) -> list[Promotion]:
    flow = adapters.load(model)[0].dataflow("float16")
    return find_groups(judge(Facts(flow, resolve(Recipe.of(level="O2", **options), "ONNX"))).task)


def test_groups_in_the_order_of_the_model() -> None:
    found = groups()
    assert [(one.patterns, one.bytes, one.cost, one.kind) for one in found] == [
        (("mm",), P + W, HEAVY * (P + W), "MatMul"),
        (("act",), S, S, "Sigmoid"),
        (("out",), Y + V, HEAVY * (Y + V), "MatMul"),
    ]
    assert [(one.writes, one.makes) for one in found][0] == ({("", "p")}, {("p",)})


def test_nodes_of_one_name_are_one_group() -> None:
    """The pattern names both."""
    text = "g (float[4] x) => (float[4] y) { [n] a = Relu (x)  [n] b = Exp (a)  [m] y = Relu (b) }"
    assert [(one.patterns, one.kinds) for one in groups(parse(text))] == [
        (("n",), ("Relu", "Exp")),
        (("m",), ("Relu",)),
    ]


def test_what_the_user_asked_to_be_low_is_no_group() -> None:
    assert [one.patterns for one in groups(low=["mm"])] == [("act",), ("out",)]


def test_the_kind_of_a_group_is_that_of_its_product() -> None:
    def kind(*kinds: str) -> str:
        return Promotion((), 0, frozenset(), kinds=kinds).kind

    assert (kind("Add", "MatMul", "Conv"), kind("Add", "Relu"), kind()) == ("MatMul", "Add", "")


@pytest.mark.parametrize(
    ("products", "held"),
    [(2, []), (3, [1]), (9, [1]), (10, [2]), (19, [3]), (20, [4]), (25, [4, 5]), (33, [5, 6]), (60, [8, 12])],
)
def test_stems_are_an_eighth_and_a_fifth_of_the_products(products: int, held: list[int]) -> None:
    """With all that comes before the next product; never the last one."""
    steps = [f"[a{i}] v{i + 1} = MatMul (v{i}, w)  [r{i}] v{i + 1}r = Relu (v{i + 1})" for i in range(products)]
    text = "g (float[4,8] v0) => (float[4,8] y) { " + "  ".join(steps).replace("r = Relu", "s = Relu")
    for i in range(1, products):
        text = text.replace(f"MatMul (v{i}, w)", f"MatMul (v{i}s, w)")
    flow = adapters.load(parse(text + f"  y = Identity (v{products}s) }}", w=(8, 8)))[0].dataflow("float16")
    names = [tuple(name for i in range(count) for name in (f"a{i}", f"r{i}")) for count in held]
    assert stems(flow) == names
    assert stems(flow, ("a0",)) == [stem[1:] for stem in names]


def test_nodes_without_names_are_named_by_their_values() -> None:
    text = "g (float[4,8] x) => (float[4,8] y) { a = MatMul (x, w)  b = MatMul (a, w)  y = MatMul (b, w) }"
    flow = adapters.load(parse(text, w=(8, 8)))[0].dataflow("float16")
    assert stems(flow) == [("value:a",)]
