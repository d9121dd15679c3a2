"""A strict run against onnx's reference: the float32 operator on rounded inputs, its result rounded, to 1 ulp."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper

from ampgraph.core.graph import LOW
from ampgraph.numerics.strict.session import StrictSession
from conformance.cases import case, index
from conformance.reference import reference
from numerics.oracle import LOWS, NAMES, low_model, oracle, rounded, ulps
from share import examples, turn
from typed import declared

pytestmark = pytest.mark.slow  # a grid: many small cases


def worst(name: str, low: int) -> tuple[int, str] | None:
    """The largest distance over a backend case's outputs; None where the case does not apply."""
    ref = reference(name)
    if ref.skipped or any("random" in e for e in ref.excuses):
        return None
    model = case(name).proto()
    turned = low_model(model, low)
    if turned is None:
        return None
    distance, where = 0, ""
    session = StrictSession(turned, threads=1)
    numbers = {name: number for number, name in NAMES.items()}
    made_of = {v.name: numbers.get(declared(v.type)[1], 0) for v in turned.graph.output}
    lows = {v.name for v in turned.graph.input if declared(v.type)[1] in LOW}
    for feeds in ref.feeds:
        fed = {n: rounded(v, low) if n in lows else v for n, v in feeds.items()}
        expected = oracle(model, fed)
        for output, value in session.run(fed).items():
            made = made_of[output]
            if made and (d := ulps(rounded(expected[output], made), value)) > distance:
                distance, where = d, output
    return distance, where


def _first_of_each_operator() -> list[str]:
    found = index()
    names = {found.ops[n]: n for n in sorted(found.ops, reverse=True) if found.kinds[n] == "node"}
    return sorted(names.values())


def _check(names: list[str], low: int, at_least: int) -> None:
    applied, wrong = 0, []
    for name in names:
        result = worst(name, low)
        applied += result is not None
        if result and result[0] > 1:
            wrong.append(f"{name} {result[1]}: {result[0]} ulp")
    assert not wrong, "\n".join(wrong)
    assert applied >= at_least


@pytest.mark.sample
@pytest.mark.parametrize("low", LOWS)
def test_one_case_of_each_operator(low: int) -> None:
    _check(_first_of_each_operator(), low, 80)


@pytest.mark.conformance
@pytest.mark.parametrize("low", LOWS)
def test_every_single_node_case(low: int) -> None:
    """Each in one of the types; in both in a full run."""
    _check([n for n, kind in sorted(index().kinds.items()) if kind == "node" and low in turn(n, LOWS)], low, 330)


UNARY = ["Exp", "Tanh", "Neg", "Sqrt", "Sigmoid", "Relu", "Identity", "Transpose", "Reciprocal", "Softmax", "Log"]
BINARY = ["Add", "Sub", "Mul", "Div", "MatMul", "Max", "Pow"]


@st.composite
def graphs(draw: st.DrawFn) -> ModelProto:
    """A small random graph of 4 x 4 values, most of them low, every one of them an output."""
    low = draw(st.sampled_from(LOWS))
    kinds = {"a": low, "b": low, "c": TensorProto.FLOAT}
    nodes = []
    for i in range(draw(st.integers(1, 8))):
        name, op = f"v{i}", draw(st.sampled_from([*UNARY, *BINARY, "Cast", "Round"]))
        first = draw(st.sampled_from(sorted(kinds)))
        if op == "Cast":
            to = draw(st.sampled_from([low, TensorProto.FLOAT]))
            nodes.append(helper.make_node("Cast", [first], [name], to=to))
            kinds[name] = to
            continue
        second = draw(st.sampled_from([n for n in sorted(kinds) if kinds[n] == kinds[first]]))
        nodes.append(helper.make_node(op, [first, second] if op in BINARY else [first], [name]))
        kinds[name] = kinds[first]
    inputs = [helper.make_tensor_value_info(n, kinds[n], [4, 4]) for n in "abc"]
    outputs = [helper.make_tensor_value_info(o, kinds[o], [4, 4]) for n in nodes for o in n.output]
    graph = helper.make_graph(nodes, "random", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


# -- the same nodes elsewhere: a function, a branch, a loop body ------------------------------------------------------


def _in_function(model: ModelProto) -> ModelProto:
    graph = model.graph
    outputs = [v.name for v in graph.output]
    function = helper.make_function("own", "f", list("abc"), outputs, list(graph.node), list(model.opset_import))
    call = helper.make_node("f", list("abc"), outputs, domain="own")
    made = helper.make_graph([call], "g", list(graph.input), list(graph.output))
    imports = [*model.opset_import, helper.make_opsetid("own", 1)]
    return helper.make_model(made, functions=[function], opset_imports=imports, ir_version=10)


def _in_branch(model: ModelProto) -> ModelProto:
    """The body's names are its own; the outputs of the If bear the old ones."""
    graph = model.graph
    inner = _renamed(graph)
    yes = helper.make_node("Constant", [], ["yes"], value=helper.make_tensor("yes", TensorProto.BOOL, [], [True]))
    outputs = [v.name for v in graph.output]
    choice = helper.make_node("If", ["yes"], outputs, then_branch=inner, else_branch=inner)
    made = helper.make_graph([yes, choice], "g", list(graph.input), list(graph.output))
    return helper.make_model(made, opset_imports=list(model.opset_import), ir_version=10)


def _in_loop(model: ModelProto) -> ModelProto:
    """One round, each value a scan output."""
    graph = model.graph
    inner = _renamed(graph)
    inner.input.extend(
        [
            helper.make_tensor_value_info("round", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        ]
    )
    inner.node.append(helper.make_node("Identity", ["go"], ["on"]))
    values = list(inner.output)
    del inner.output[:]
    inner.output.extend([helper.make_tensor_value_info("on", TensorProto.BOOL, []), *values])
    one = helper.make_node("Constant", [], ["one"], value=helper.make_tensor("one", TensorProto.INT64, [], [1]))
    loop = helper.make_node("Loop", ["one", ""], [v.name for v in graph.output], body=inner)
    rows = [helper.make_tensor_value_info(v.name, v.type.tensor_type.elem_type, [1, 4, 4]) for v in graph.output]
    made = helper.make_graph([one, loop], "g", list(graph.input), rows)
    return helper.make_model(made, opset_imports=list(model.opset_import), ir_version=10)


def _renamed(graph: onnx.GraphProto) -> onnx.GraphProto:
    """A body: the same nodes, their values called ``inner_...``, the inputs captured."""
    body = helper.make_graph(list(graph.node), "body", [], list(graph.output))
    own = {v.name for v in graph.output}
    for node in body.node:
        for names in (node.input, node.output):
            names[:] = [f"inner_{n}" if n in own else n for n in names]
    for value in body.output:
        value.name = f"inner_{value.name}"
    return body


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(model=graphs(), seed=st.integers(0, 99), scale=st.sampled_from([1.0, 30.0, 1e4, 1e-4]))
def test_the_same_bits_in_functions_branches_and_loops(model: ModelProto, seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    kinds = {v.name: v.type.tensor_type.elem_type for v in model.graph.input}
    with np.errstate(all="ignore"):
        feeds = {n: rounded((rng.standard_normal((4, 4)) * scale).astype(np.float32), kinds[n]) for n in "abc"}
    expected = StrictSession(model, threads=1).run(feeds)
    for wrap in (_in_function, _in_branch, _in_loop):
        wrapped = wrap(ModelProto.FromString(model.SerializeToString()))
        onnx.checker.check_model(wrapped)
        for name, value in StrictSession(wrapped, threads=1).run(feeds).items():
            got, want = (array.astype(np.float32).reshape(4, 4) for array in (value, expected[name]))
            np.testing.assert_array_equal(got, want, err_msg=f"{wrap.__name__} {name}")
