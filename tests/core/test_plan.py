"""What a plan may say, and what it shows of itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from ampgraph.core.plan import CastEdge, Decision, JointRounding, Plan, Rounding, WeightEdit, Why
from ampgraph.core.rewrites import Rewrite

WHY = Why("list", "allow")
RELU = Decision("", 0, "Relu", "T", "float16", WHY)
CAST = CastEdge("", "x", "float16", (("", 0, 0),))
WEIGHT = WeightEdit("", "w", "low", floor=-1.0)
JOINED = Rewrite("joined", "", (0, 1))
PLAN = Plan(
    "d", "O2", "float16", "ampgraph", "cuda", decisions=[RELU], casts=[CAST], weights=[WEIGHT], rewrites=[JOINED]
)


def scaled(factor: float) -> list[JointRounding]:
    return [JointRounding("", 0, WHY, (("", "w", factor),))]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"opset": 17},
        {"together": None},
        {"together": [*scaled(0.51), *scaled(1.99)]},
        {"decisions": [RELU, RELU, replace(RELU, scope="b", dtype="float32")]},  # sequences of one body share a name
        {"weights": [WEIGHT, replace(WEIGHT, scope="b", store="both"), replace(WEIGHT, value="v", store="float32")]},
        {"casts": [CAST, replace(CAST, to="float32", uses=(("", 0, 1),))]},
        {"rewrites": [JOINED, replace(JOINED, scope="b")]},
    ],
)
def test_what_a_plan_may_say(fields: dict[str, Any]) -> None:
    replace(PLAN, **fields).check()


@pytest.mark.parametrize(
    "fields",
    [
        {"dtype": "float64"},
        {"level": "O9"},
        {"opset": -1},
        {"decisions": [replace(RELU, dtype="bfloat16")]},
        {"decisions": [RELU, replace(RELU, dtype="float32")]},
        {"casts": [replace(CAST, to="bfloat16")]},
        {"casts": [CAST, replace(CAST, to="float32")]},
        {"weights": [replace(WEIGHT, store="high")]},
        {"weights": [replace(WEIGHT, floor=0.0)]},
        {"weights": [WEIGHT, replace(WEIGHT, store="both")]},
        {"together": scaled(0.5)},
        {"together": scaled(2.0)},
        {"rewrites": [JOINED, replace(JOINED, nodes=(1, 2))]},
    ],
)
def test_what_no_plan_says(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a plan"):
        replace(PLAN, **fields).check()


def test_a_plan_in_short() -> None:
    assert repr(PLAN) == (
        "Plan(level O2, float16, policy ampgraph, target cuda: 1 of 1 decisions low, 1 casts, 1 stored tensors)"
    )


def test_rows_of_reasons() -> None:
    """The most decisions first; of each type and rule the first reason, and `KINDS` operators by how often they are."""
    told = [("float16", "list", kind, f"why {kind}") for kind in ("Relu", "MatMul", "MatMul", "Add", "Neg", "Exp")]
    told += [("float32", "list", kind, f"why {kind}") for kind in ("Log", "Sqrt", "Softmax", "Sqrt", "Erf")]
    told.insert(0, ("float32", "user", "Mul", "first"))
    decided = [Decision("", i, kind, "T", dtype, Why(rule, why)) for i, (dtype, rule, kind, why) in enumerate(told)]
    rows = Plan("d", "O2", "float16", "ampgraph", "cuda", decisions=decided)._reason_rows()
    assert [(*row[:3], *row[4:]) for row in rows] == [
        ("float16", "list", "6", "2 MatMul, 1 Relu, 1 Add, 1 Neg, ...", "why Relu"),
        ("float32", "list", "5", "2 Sqrt, 1 Log, 1 Softmax, 1 Erf", "why Log"),
        ("float32", "user", "1", "1 Mul", "first"),
    ]
    assert [row[3].count('alt="6 float16"') for row in rows] == [1, 0, 0]
    assert not Plan("d", "O2", "float16", "ampgraph", "cuda")._reason_rows()


def test_counts_of_edits() -> None:
    weights = [WEIGHT, WEIGHT, replace(WEIGHT, store="both"), replace(WEIGHT, store="float32")]
    found = replace(PLAN, casts=[CAST, replace(CAST, to="float32")], weights=weights)._edit_counts()
    assert found == Counter({
        "weights stored as float16": 2, "weights stored in both types": 1, "weights with another floor": 1,
        "Casts to float16": 1, "Casts to float32": 1, "rewrites: joined": 1,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "nothing"),
    [
        ({"decisions": [replace(RELU, dtype="float32")]}, True),
        ({"decisions": [RELU]}, False),
        ({"casts": [CAST]}, False),
        ({"weights": [WEIGHT]}, False),
        ({"rewrites": [JOINED]}, False),
        ({"roundings": [Rounding("", "x", (("", 0, 0),))]}, False),
    ],
)
def test_whether_a_plan_changes_anything(fields: dict[str, Any], nothing: bool) -> None:
    bare = replace(PLAN, decisions=[], casts=[], weights=[], rewrites=[])
    assert bare.changes_nothing and replace(bare, **fields).changes_nothing == nothing
