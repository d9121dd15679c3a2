"""Models of old opsets: bfloat16 has no Cast before opset 13, and what a newer opset would free is said."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import ampgraph
from onnx_text import parse
from planner.support import FLOATS, LEVELS

MICROSOFT = "com.microsoft"
STANDARD = ("Relu", "Sigmoid", "Exp", "Neg", "Softmax", "Identity", "Clip", "Transpose")
OWN = ("Gelu", "FastGelu", "QuickGelu")


@st.composite
def old_models(draw: st.DrawFn) -> ModelProto:
    """A chain with branches of standard operators and of com.microsoft's, in a subgraph at times, at opset 7 to 12."""
    nodes: list[NodeProto] = []
    made = ["x"]
    for number in range(draw(st.integers(1, 7))):
        nodes += _step(draw, number, made)
        made.append(f"v{number}")
    weights = [numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")]
    if draw(st.booleans()):
        weights.append(numpy_helper.from_array(np.ones(4, np.float32), "b"))
        nodes.append(helper.make_node("Add", [made[-1], "b"], ["last"]))
        made.append("last")
    outputs = draw(st.lists(st.sampled_from(made[1:]), min_size=1, max_size=2, unique=True))
    graph = helper.make_graph(
        nodes, "g", [_value("x")], [_value(name) for name in dict.fromkeys([*outputs, made[-1]])], weights
    )
    imports = [helper.make_opsetid("", draw(st.integers(7, 12))), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=draw(st.sampled_from([4, 7])))


def _value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4])


def _step(draw: st.DrawFn, number: int, made: list[str]) -> list[NodeProto]:
    first, out = draw(st.sampled_from(made)), f"v{number}"
    kind = draw(st.sampled_from(("MatMul", "Gemm", "Standard", "Own", "Fused", "Add", "If")))
    if kind == "Standard":
        return [helper.make_node(draw(st.sampled_from(STANDARD)), [first], [out])]
    if kind == "Own":
        return [helper.make_node(draw(st.sampled_from(OWN)), [first], [out], domain=MICROSOFT)]
    if kind == "Fused":
        return [helper.make_node("FusedMatMul", [first, "w"], [out], domain=MICROSOFT)]
    if kind == "If":
        truth = helper.make_tensor("truth", TensorProto.BOOL, [], [True])
        inner = [helper.make_node(k, [first, "w"], [f"{out}_{k}"], domain=d) for k, d in BRANCHES]
        branches = [helper.make_graph([n], n.output[0], [], [_value(n.output[0])]) for n in inner]
        condition = helper.make_node("Constant", [], [f"{out}_if"], value=truth)
        chosen = helper.make_node("If", [f"{out}_if"], [out], then_branch=branches[0], else_branch=branches[1])
        return [condition, chosen]
    if kind == "Add":
        return [helper.make_node("Add", [first, draw(st.sampled_from(made))], [out])]
    return [helper.make_node(kind, [first, "w", *(["w"] if kind == "Gemm" else [])], [out])]


BRANCHES = (("FusedMatMul", MICROSOFT), ("MatMul", ""))


def casts_to(model: ModelProto, dtype: int) -> int:
    def all_nodes(nodes: Iterable[NodeProto]) -> Iterable[NodeProto]:
        for node in nodes:
            yield node
            for attribute in node.attribute:
                yield from all_nodes(attribute.g.node)

    return sum(n.op_type == "Cast" and n.attribute[0].i == dtype for n in all_nodes(model.graph.node))


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(old_models(), st.sampled_from([*LEVELS, "O0"]), st.sampled_from(["cuda", "cann", "cpu"]))
def test_no_cast_to_bfloat16_before_opset_13(model: ModelProto, level: str, target: str) -> None:
    onnx.checker.check_model(model)
    result = ampgraph.convert(model, level, dtype="bfloat16", target=target)
    onnx.checker.check_model(result)
    assert casts_to(result, TensorProto.BFLOAT16) == 0
    assert all(i.data_type != TensorProto.BFLOAT16 for i in result.graph.initializer)
    low = ampgraph.convert(model, level, dtype="float16", target=target)
    onnx.checker.check_model(low)
    assert {i.data_type for i in low.graph.initializer} <= {*FLOATS, TensorProto.INT64}


@pytest.mark.parametrize("level", ["O1", "O3"])
@pytest.mark.parametrize("inner", [11, 12])
def test_a_function_of_an_older_opset_casts_nothing_to_bfloat16(inner: int, level: str) -> None:
    text = "g (float[4, 8] x) => (float[4, 8] y) { e = Exp(x) f = own.F(e, w) h = MatMul(f, w) y = Softmax(h) }"
    body = "F (a, b) => (c) { m = com.microsoft.FusedMatMul(a, b) r = Relu(m) c = MatMul(r, b) }"
    function = f'<domain: "own", opset_import: ["" : {inner}, "com.microsoft" : 1]> {body}'
    model = parse(text, w=(8, 8), opset=17, ir=8, domains=("own", "com.microsoft"), functions=function)
    made = ampgraph.convert(model, level, dtype="bfloat16")
    assert not [node for node in made.functions[0].node if node.op_type == "Cast"]
    assert casts_to(made, TensorProto.BFLOAT16) > 0
    assert ampgraph.convert(made, level, dtype="bfloat16") == made
