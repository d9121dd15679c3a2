"""What spares guards a search finds what the search would."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ampgraph.core.recipe import Recipe
from ampgraph.formats import adapters
from ampgraph.planner.classify import classify
from ampgraph.planner.facts.facts import Facts
from ampgraph.planner.regions import find_tied
from ampgraph.planner.resolve import resolve
from ampgraph.planner.rules.cancelling import Cancelling
from ampgraph.planner.rules.rule import Sight
from planner.graphs import random_models

OPSET = helper.make_opsetid("", 17)
STEPS = ("Mul", "Add", "Sub", "ReduceMean", "MatMul", "Softmax", "Reshape", "Identity")


def facts_of(model: ModelProto) -> Facts:
    return Facts(adapters.load(model)[0].dataflow("float16"), resolve(Recipe(), "ONNX"))


BEGUN = (("Mul", "x", "x"), ("ReduceMean", "v0", ""), ("ReduceMean", "x", ""), ("Mul", "v2", "v2"))
STORED: dict[str, np.ndarray] = {"w": np.eye(4, dtype=np.float32), "shape": np.array([-1, 4], np.int64)}


@st.composite
def moments(draw: st.DrawFn) -> ModelProto:
    """Products, means and differences of each other: many of them variances."""
    nodes, names = list[NodeProto](), ["x"]
    taken = (*BEGUN, (draw(st.sampled_from(STEPS)), "v1", "v1"), ("Sub", draw(st.sampled_from(("v1", "v4"))), "v3"))
    for number in range(draw(st.integers(6, 9))):
        one, two = (draw(st.sampled_from(names[-4:])) for _ in range(2))
        kind, one, two = taken[number] if number < len(taken) else (draw(st.sampled_from(STEPS)), one, two)
        beside = {"Mul": [two], "Add": [two], "Sub": [two], "MatMul": ["w"], "Reshape": ["shape"]}.get(kind, [])
        nodes.append(helper.make_node(kind, [one, *beside], [f"v{number}"]))
        names.append(f"v{number}")
    used = {name for node in nodes for name in node.input}
    ends = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names if name not in used)
    given_x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])
    stored = [numpy_helper.from_array(array, name) for name, array in STORED.items() if name in used]
    return helper.make_model(helper.make_graph(nodes, "g", [given_x], list(ends), stored), opset_imports=[OPSET])


@given(model=random_models(widths=(4,)))
@settings(max_examples=20)
def test_no_mask_stands_where_no_softmax_may_read_it(model: ModelProto) -> None:
    facts = facts_of(model)
    everywhere = Facts(facts.flow, facts.options)
    everywhere.masks.__dict__["scores"] = {value.id for value in facts.flow.values}
    for value in facts.flow.values:
        for multiplied in (False, True):
            found = facts.masks.has(value.id, multiplied=multiplied)
            assert found == everywhere.masks.has(value.id, multiplied=multiplied)


@given(model=moments())
@settings(max_examples=40)
def test_no_variance_stands_where_nothing_is_multiplied(model: ModelProto) -> None:
    facts = facts_of(model)
    sight = Sight(facts, find_tied(facts, classify(facts)))
    short, long = Cancelling(sight), Cancelling(sight)
    long.__dict__["_multiplied"] = {value.id for value in facts.flow.values}
    for op in facts.flow.ops:
        assert [one.id for one in short.behind(op)] == [one.id for one in long.behind(op)]
