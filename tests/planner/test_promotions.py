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
    all_but_costliest,
    ends,
    find_groups,
    float32_size,
    low_operators,
    low_values,
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


def chain(products: int, wide: int = 0) -> Dataflow:
    """Products a0, a1, ..., a Relu r0, r1, ... behind each; the first ``wide`` ones have 16 columns between them."""
    sizes = [8] + [16] * wide + [8] * (products - wide)
    steps = [f"[a{i}] m{i} = MatMul (v{i}, w{i})  [r{i}] v{i + 1} = Relu (m{i})" for i in range(products)]
    text = "g (float[4,8] v0) => (float[4,8] y) { " + "  ".join(steps) + f"  y = Identity (v{products}) }}"
    stored = {f"w{i}": (sizes[i], sizes[i + 1]) for i in range(products)}
    return adapters.load(parse(text, stored))[0].dataflow("float16")


def trials(flow: Dataflow, **options: Any) -> list[tuple[str, ...]]:
    chosen = resolve(Recipe.of(level="O2", **options), "ONNX")
    return [*ends(flow, chosen), *all_but_costliest(flow, chosen)]


def held(flow: Dataflow, **options: Any) -> list[str]:
    """The products of each trial, all of which also name what follows them."""
    found = trials(flow, **options)
    for patterns in found:
        assert all(f"r{name[1:]}" in patterns for name in patterns if name.startswith("a"))
    return [" ".join(name[1:] for name in patterns if name.startswith("a")) for patterns in found]


@pytest.mark.parametrize(
    ("products", "expected"),
    [
        (1, []),
        (2, ["1"]),  # of two alike one has half, and neither most
        (3, ["0", "0 2", "2"]),  # a third in front is the first trial again
        (10, ["0 1", "0 1 8 9", "0 1 2", "8 9", "5 6 7 8 9"]),
        (20, ["0 1 2 3", "0 1 2 3 16 17 18 19", "0 1 2 3 4 5", "16 17 18 19", " ".join(map(str, range(10, 20)))]),
    ],
)
def test_trials_are_the_ends_and_all_but_the_costliest(products: int, expected: list[str]) -> None:
    assert held(chain(products)) == expected


def test_the_costliest_products_have_most_of_the_multiplications() -> None:
    """The first four of eight have 128, 256, 256 and 256 weights, the fifth 128, the others 64."""
    assert held(chain(8, wide=4))[-2:] == ["5 6 7", "0 4 5 6 7"]
    large = trials(chain(64))
    assert [sum(name.startswith("a") for name in patterns) for patterns in large] == [8, 16, 21, 12, 32]


def test_what_the_user_asked_to_be_low_is_in_no_trial() -> None:
    assert held(chain(10), low=["op:MatMul"]) == []
    assert held(chain(10), low=["a0"])[:2] == ["1", "1 8 9"]


def test_nodes_without_names_are_named_by_their_values() -> None:
    text = "g (float[4,8] x) => (float[4,8] y) { a = MatMul (x, w)  b = MatMul (a, w)  y = MatMul (b, w) }"
    flow = adapters.load(parse(text, w=(8, 8)))[0].dataflow("float16")
    assert trials(flow)[0] == ("value:a",)
