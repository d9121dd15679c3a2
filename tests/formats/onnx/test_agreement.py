"""Whether the types of a model fit, told without a dataflow: the answer is that of a dataflow, whatever was edited."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

import ampgraph
from ampgraph.core.pass_ import run
from ampgraph.formats.onnx.agreement import types_agree
from ampgraph.formats.onnx.dataflow import read_dataflow
from ampgraph.formats.onnx.graph import OnnxGraph
from ampgraph.passes.apply_plan import ApplyPlan
from ampgraph.passes.verify_types import VerifyTypes
from formats.onnx.helpers import code
from onnx_text import parse
from planner.graphs import random_models

FEW = settings(max_examples=15, deadline=None)
TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.INT64)
UNUSUAL = {
    "a branch": """g (float[4] x, bool c) => (float[4] y) {
        y = If (c) < then_branch = t () => (float[4] p) { p = Exp (x) },
                     else_branch = e () => (float[4] q) { q = Neg (x) } > }""",
    "a function": """g (float[4] x) => (float[4] y) { y = loc.f (x) }
        <domain: "loc", opset_import: ["" : 17]> f (a) => (b) { b = Exp (a) }""",
    "an operator that nothing is known of": "g (float[4] x) => (float[4] y) { y = loc.Mine (x) }",
    "a sequence": "g (float[4] x) => (float[4] y) { s = SequenceConstruct (x)  y = ConcatFromSequence <axis = 0> (s) }",
    "what nothing defines": "g (float[4] x) => (float[4] y) { y = Add (x, nowhere) }",
    "a node before what it reads": "g (float[4] x) => (float[4] y) { y = Exp (a)  a = Neg (x) }",
}


def test_an_input_without_a_type_has_one_for_all_readers() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[4] x, float[4] a, float16[4] b) => (float[4] y, float16[4] z) { y = Add (x, a)  z = Add (x, b) }"""
    made = parse(text)
    made.graph.input[0].ClearField("type")
    model = ir.from_proto(made)
    assert _conflicts(model)
    assert not types_agree(model)


def _conflicts(model: ir.Model) -> list[str]:
    return read_dataflow(model, "float16", frozenset()).conflicts


def _edit(model: ir.Model, draw: Any) -> None:
    """Makes one thing another: the type of an input, of a stored tensor or of a Cast, or what a node reads."""
    graph, what = model.graph, draw(st.sampled_from(("input", "weight", "cast", "read")))
    dtype, nodes = draw(st.sampled_from(TYPES)), list(graph)
    casts = [node for node in nodes if node.op_type == "Cast"]
    if what == "input":
        draw(st.sampled_from(list(graph.inputs))).type = ir.TensorType(dtype)
    elif what == "weight" and graph.initializers:
        value = graph.initializers[draw(st.sampled_from(sorted(graph.initializers)))]
        value.const_value = ir.tensor(np.ones((1,), dtype.numpy()), dtype=dtype)
    elif what == "cast" and casts:
        draw(st.sampled_from(casts)).attributes["to"] = ir.AttrInt64("to", dtype.value)
    else:
        number = draw(st.integers(0, len(nodes) - 1))
        before = [*graph.inputs, *graph.initializers.values(), *(v for node in nodes[:number] for v in node.outputs)]
        place = draw(st.integers(0, len(nodes[number].inputs) - 1)) if nodes[number].inputs else None
        if place is not None:
            nodes[number].replace_input_with(place, draw(st.sampled_from(before)))


@pytest.mark.slow
@FEW
@given(random_models(), st.data())
def test_after_any_edit_the_answer_is_that_of_a_dataflow(proto: onnx.ModelProto, data: st.DataObject) -> None:
    model = ir.from_proto(proto)
    assert types_agree(model) and not _conflicts(model)
    for _ in range(data.draw(st.integers(1, 3))):
        _edit(model, data.draw)
        found = _conflicts(model)
        note(str(found))
        assert types_agree(model) == (not found)


@pytest.mark.slow
@FEW
@given(random_models(), st.data())
def test_a_cast_that_is_missing_is_found(proto: onnx.ModelProto, data: st.DataObject) -> None:
    plan, graph = ampgraph.plan(proto, "O1", target="cuda"), OnnxGraph(ir.from_proto(proto))
    if plan.rewrites or not plan.casts:
        return
    plan.casts.remove(data.draw(st.sampled_from(plan.casts)))
    run([ApplyPlan(plan)], graph)
    found = _conflicts(graph.model)
    assert list(graph.conflicts()) == found and types_agree(graph.model) == (not found)
    if found:
        assert code(lambda: VerifyTypes()(graph)) == "AMP901"


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_left_to_a_dataflow(name: str) -> None:
    graph = OnnxGraph(ir.from_proto(parse(UNUSUAL[name])))
    assert not types_agree(graph.model) and graph.conflicts() == graph.dataflow().conflicts == []
