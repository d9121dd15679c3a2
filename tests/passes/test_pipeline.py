"""A pipeline is a tuple of passes: it prints itself, takes the user's, checks each, and does nothing a second time."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir
import pytest

import ampgraph
from ampgraph.api import pipeline
from ampgraph.core.dataflow import StaleDataflow
from ampgraph.core.graph import Graph, NodeEditor
from ampgraph.core.pass_ import Change, Pass, run
from ampgraph.core.plan import Plan
from ampgraph.formats import adapters
from ampgraph.formats.onnx.graph import OnnxGraph
from ampgraph.passes.apply_plan import ApplyPlan
from ampgraph.passes.pipeline import default_pipeline
from ampgraph.passes.rewrite_regions import RewriteRegions
from conformance.cases import case, index
from formats.mindir.parse import data as mindir_data
from formats.mindir.parse import graph_of, parse, plan_of
from formats.onnx.helpers import code, data, kinds
from onnx_text import parse as onnx_model

NORM = """h = MatMul (x, w)
    mean = ReduceMean <axes = [-1]> (h)  d = Sub (h, mean)  s = Mul (d, d)  var = ReduceMean <axes = [-1]> (s)
    e = Constant <value = float {0.001}> ()  v1 = Add (var, e)  r = Sqrt (v1)  n = Div (d, r)  y = Mul (n, scale)"""
BODIES = {
    "a given cast": "a = MatMul (x, w)  b = Cast <to = 10> (a)  c = Cast <to = 1> (b)  d = MatMul (c, w)  y = Exp (d)",
    "a norm": NORM,
    "a branch": """c = Constant <value = bool {1}> ()  a = MatMul (x, w)
        b = If (c) < then_branch = t () => (float[4,4] p) { p = MatMul (a, w) },
                     else_branch = e () => (float[4,4] q) { q = Exp (a) } >  y = MatMul (b, w)""",
    "calls": "a = MatMul (x, w)  b = loc.f (a)  e = Exp (b)  y = loc.f (e)",
}
FUNCTION = '<domain: "loc", opset_import: ["" : 17]> f (a) => (b) { c = Neg (a)  b = Cast <to = 1> (c) }'
MINDIR = """
    main(x: f32[4,4])
      parameter w: f32[4,4]
      l = Load(w, state)
      a = MatMul(x, l, false, false)
      h = Cast(a, f16)
      b = Cast(h, f32)
      c = MatMul(b, l, false, false)
      e = Exp(c)
      return e
"""


def given(body: str) -> onnx.ModelProto:
    text = f"g (float[4,4] x) => (float[4,4] y) {{ {body} }}"
    return onnx_model(text, functions=FUNCTION, domains=["loc"], w=(4, 4), scale=(4,))


def planned(proto: onnx.ModelProto, level: str) -> tuple[OnnxGraph, tuple[Pass, ...]]:
    plan, graph = ampgraph.plan(proto, level, target="cuda"), OnnxGraph(ir.from_proto(proto))
    adapters.freeze(graph, None)
    return graph, default_pipeline(*pipeline.follow_plan(plan, graph))


def again(step: Pass, graph: Graph) -> bool:
    """Whether a second run changes nothing; a plan is carried out once, and names what is no longer there."""
    try:
        return step(graph) == Change(0)
    except ampgraph.AmpError as error:
        return isinstance(step, ApplyPlan) and error.code == "AMP402"


def test_it_prints_itself_and_plans_are_applied_once() -> None:
    _, passes = planned(given(NORM), "O3")
    assert repr(passes) == "(ApplyPlan(O3, float16, 2 casts), FuseCasts(float16), VerifyTypes())"
    rewrites = ampgraph.plan(given(NORM), "O3", target="cuda").rewrites
    assert repr(RewriteRegions(tuple(rewrites))) == "RewriteRegions(1 LayerNormalization (norm))"
    # a plan is applied once and another is refused
    proto = given(BODIES["a given cast"])
    graph, passes = planned(proto, "O2")
    run(passes, graph)
    other = Plan.from_json(ampgraph.plan(proto, "O3", target="cuda").to_json())
    assert code(lambda: run(default_pipeline(other, graph.dataflow()), graph)) == "AMP402"


@pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"])
@pytest.mark.parametrize("body", BODIES)
def test_a_second_run_of_each_pass_changes_nothing(body: str, level: str) -> None:
    """And what each of them leaves is valid, by its own types and by onnx."""
    graph, passes = planned(given(BODIES[body]), level)
    for step in passes:
        run((step,), graph, check=True)
        revision, before = graph.revision, data(ir.to_proto(graph.model))
        assert again(step, graph)
        assert graph.revision == revision and data(ir.to_proto(graph.model)) == before
    assert data(ir.to_proto(graph.model)) == data(
        ampgraph.convert(given(BODIES[body]), level, target="cuda", metadata=False)
    )


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_a_second_run_changes_nothing_in_mindir(level: str) -> None:
    plan, graph = plan_of(parse(MINDIR), level), graph_of(parse(MINDIR))
    for step in default_pipeline(plan, graph.dataflow(plan.dtype)):
        run((step,), graph, check=True)
        before = mindir_data(graph.file.model)
        assert again(step, graph) and mindir_data(graph.file.model) == before
    assert len(graph.file.model.graph.node) > 0 and not plan.changes_nothing


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of onnx, which computes what its cases expect
def test_passes_over_some_of_the_backend_suite() -> None:
    """What each pass leaves is as valid as what it was given, and a second run changes nothing."""
    changes = 0
    for name in random.Random(11).sample(sorted(index().kinds), 60):  # read from bytes: no other test has changed them
        graph, passes = planned(case(name).proto(), "O3")
        for step in passes:
            changes += run((step,), graph, check=True)[0].count
            assert again(step, graph), (name, step)
    assert changes > 60


def test_passes_of_a_user() -> None:
    proto = given("y = Exp (x)")
    graph, passes = planned(proto, "O1")
    assert passes == () and run(passes, graph) == []
    # a user adds a pass
    proto = given("a = MatMul (x, w)  b = Neg (a)  y = MatMul (b, w)")
    result = ampgraph.convert(proto, "O2", target="cpu", passes=[Replace("Neg", "Abs")], check_passes=True)
    assert "Abs" in kinds(result) and "Neg" not in kinds(result)
    onnx.checker.check_model(result, full_check=True)
    assert [o.name for o in result.graph.output] == ["y"]
    # a pass runs where the plan changes nothing too
    result = ampgraph.convert(given("a = Neg (x)  y = Exp (a)"), "O0", passes=[Replace("Neg", "Abs")])
    assert kinds(result) == ["Abs", "Exp"]
    # what was wrong in the file is no fault of a pass
    proto = given("a = MatMul (x, w)  b = Neg (a)  y = MatMul (b, w)")
    proto.graph.node.add(op_type="NoSuchOperator", input=["a"], output=["z"])
    assert run((Replace("Neg", "Abs"),), OnnxGraph(ir.from_proto(proto)), check=True)[0].count == 1


# -- passes of a user -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Replace:
    """Writes one operator in the place of another."""

    old: str
    new: str

    def __call__(self, graph: Graph) -> Change:
        flow = graph.dataflow()
        found = [op for op in flow.ops if op.role == self.old]
        if not found:
            return Change(0)
        with graph.editor(flow) as editor:
            assert isinstance(editor, NodeEditor)
            for op in found:
                value = flow.values[op.outputs[0]]
                [result] = editor.add(self.new, [flow.values[op.inputs[0]]], [value.dtype], behind=op)
                editor.rewire(result, [flow.place(use) for use in flow.uses[value.id]])
                assert editor.remove(op)
        return Change(len(found), (f"{len(found)} {self.old} became {self.new}",))


def invalid(graph: Graph) -> Change:
    """Says that a float32 value is low."""
    flow = graph.dataflow()
    with graph.editor(flow) as editor:
        editor.retype(flow.values[flow.ops[0].outputs[0]], "float16")
        product = flow.ops[0]
        editor.cast(flow.values[product.inputs[0]], "float16", [("", product.index, 0)])
    return Change(1)


def miscounts(graph: Graph) -> Change:
    return Replace("Neg", "Abs")(graph) and Change(0)


def boasts(graph: Graph) -> Change:
    return Change(3)


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (invalid, "T holds float16 and float32"),
        (miscounts, "it counts 0 changes and edits the graph"),
        (boasts, "it counts 3 changes and edits nothing"),
        (Replace("Neg", "Tan"), ""),
        (Replace("Neg", "NoSuchOperator"), "NoSuchOperator"),
    ],
)
def test_the_checker_names_a_pass_that_breaks_its_promise(step: Any, why: str) -> None:
    graph = OnnxGraph(ir.from_proto(given("a = MatMul (x, w)  b = Neg (a)  y = MatMul (b, w)")))
    if not why:
        assert run((step,), graph, check=True)[0].count == 1
        return
    with pytest.raises(ampgraph.AmpError) as caught:
        run((Replace("Neg", "Neg"), step), graph, check=True)
    assert caught.value.code == "AMP901" and why in caught.value.message and repr(step) in caught.value.message


# -- dataflows --------------------------------------------------------------------------------------------------------


def test_a_dataflow_is_read_once_and_outlives_no_edit() -> None:
    graph = OnnxGraph(ir.from_proto(given(BODIES["a given cast"])))
    first, second = graph.dataflow(), graph.dataflow()
    assert first.values is second.values and first is not second
    first.merge([0, 1])
    assert first.find(1) != second.find(1) == 1  # ties are the reader's own
    with graph.editor(first) as editor:
        pass
    assert first.values and graph.revision == 0  # nothing was edited
    with graph.editor(first) as editor:
        editor.round(first.values[0], "float16", [("", first.ops[0].index, 0)])
    assert graph.revision == 1
    for flow in (first, second):
        with pytest.raises(StaleDataflow):
            _ = flow.values
    with pytest.raises(StaleDataflow):
        graph.editor(first)
    assert len(graph.dataflow().ops) == 7
    with pytest.raises(StaleDataflow):  # that of another graph, of the same model
        graph.editor(OnnxGraph(ir.from_proto(given(BODIES["a given cast"]))).dataflow())
