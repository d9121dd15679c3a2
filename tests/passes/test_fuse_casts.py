"""Which given casts go, and which stay because a border or a body needs them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ampgraph
from ampgraph.api import pipeline
from ampgraph.core.pass_ import run
from ampgraph.formats.onnx.graph import OnnxGraph
from ampgraph.passes.apply_plan import ApplyPlan
from ampgraph.passes.fuse_casts import FuseCasts, has_casts
from ampgraph.passes.pipeline import default_pipeline
from ampgraph.passes.verify_types import VerifyTypes
from formats.onnx.helpers import kinds, nodes, types
from onnx_text import parse
from planner.graphs import random_models

CASES = {
    "a narrowing of what is low": ("a = MatMul (x, w)  y = Cast <to = 10> (a)", 1),
    "two of them": ("a = MatMul (x, w)  b = Cast <to = 10> (a)  c = Cast <to = 10> (a)  y = Add (b, c)", 2),
    "a rounding": (
        "a = Exp (x)  b = Cast <to = 10> (a)  c = Cast <to = 1> (b)  d = Exp (c)  y = Cast <to = 10> (d)",
        0,
    ),
    "to the other low type": ("a = MatMul (x, w)  b = Cast <to = 16> (a)  y = Cast <to = 10> (b)", 0),
    "a widening that nobody reads any more": (
        "h = Cast <to = 10> (x)  a = Cast <to = 1> (h)  b = MatMul (a, w)  y = Cast <to = 10> (b)",
        2,
    ),
    "a widening that a float32 reader needs": (
        """h = Cast <to = 10> (x)  a = Cast <to = 1> (h)  b = MatMul (a, w)  e = CumSum (a, axis)
           f = Add (b, e)  y = Cast <to = 10> (f)""",
        0,
    ),
    "a double": ("a = MatMul (x, w)  b = Cast <to = 11> (a)  y = Cast <to = 10> (b)", 0),
}


@pytest.mark.parametrize("name", CASES)
def test_count(name: str) -> None:
    body, expected = CASES[name]
    proto = parse(f"g (float[4,4] x) => (float16[4,4] y) {{ {body} }}", w=(4, 4), axis=np.array(0))
    plan = ampgraph.plan(proto, "O1", target="cpu")
    graph = OnnxGraph(ir.from_proto(proto))
    ApplyPlan(plan)(graph)
    before = len(nodes(ir.to_proto(graph.model)))
    change = FuseCasts()(graph)
    after = ir.to_proto(graph.model)
    assert change.count == expected == before - len(nodes(after))
    VerifyTypes()(graph)
    onnx.checker.check_model(after, full_check=True)
    assert types(after.graph.output) == {"y": onnx.TensorProto.FLOAT16}


def test_borders_keep_their_names() -> None:
    """b is an output and so is the value that it would be: one Cast stays, and both names."""
    proto = parse(
        """g (float[4,4] x) => (float16[4,4] b, float16[4,4] c) {
        a = MatMul (x, w)  b = Cast <to = 10> (a)  c = Cast <to = 10> (a) }""",
        w=(4, 4),
    )
    converted = ampgraph.convert(proto, "O2", target="cpu")
    assert list(types(converted.graph.output)) == ["b", "c"]
    assert kinds(converted) == ["Cast", "MatMul", "Cast"]
    shapes = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in converted.graph.output]
    assert shapes == [[4, 4], [4, 4]]
    # a second run changes nothing
    proto = parse(f"g (float[4,4] x) => (float16[4,4] y) {{ {CASES['two of them'][0]} }}", w=(4, 4))
    graph = OnnxGraph(ir.from_proto(ampgraph.convert(proto, "O1", target="cpu")))
    assert FuseCasts()(graph).count == 0


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_a_function_keeps_a_cast_that_one_of_its_calls_needs(order: tuple[str, str]) -> None:
    """For one call the Cast does nothing, for the other it narrows: both read one function."""
    first, second = order
    proto = parse(
        f"""g (float16[4,4] a, float[4,4] b) => (float16[4,4] y, float16[4,4] z) {{
        y = loc.f ({first})  z = loc.f ({second}) }}""",
        functions='<domain: "loc", opset_import: ["" : 17]> f (a) => (c) { b = Cast <to = 10> (a)  c = Neg (b) }',
        domains=["loc"],
    )
    graph = OnnxGraph(ir.from_proto(proto))
    assert FuseCasts()(graph).count == 0
    VerifyTypes()(graph)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(random_models(), st.sampled_from(("O1", "O2", "O3", "auto")))
def test_what_a_plan_adds_to_a_model_without_casts_stays(proto: onnx.ModelProto, level: str) -> None:
    plan, graph = ampgraph.plan(proto, level, target="cuda"), OnnxGraph(ir.from_proto(proto))
    if has_casts(graph.dataflow()):
        return
    passes = default_pipeline(*pipeline.follow_plan(plan, graph))
    if not passes:
        return
    assert passes[1] == FuseCasts(given=False)
    run(passes[:1], graph)
    assert FuseCasts()(graph).count == 0
