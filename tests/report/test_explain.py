"""Which node `explain NAME` means, and what it says where that is none or several."""

from __future__ import annotations

import pytest

from ampgraph.core.dataflow import Dataflow
from ampgraph.core.errors import AmpError
from ampgraph.formats import adapters
from ampgraph.report.explain import find_node, find_nodes
from onnx_text import parse


@pytest.fixture(scope="module")
def flow() -> Dataflow:
    model = parse("g (float[4] x) => (float[4] y) { a = Relu (x)  b = Neg (a)  c = Exp (b)  y = Exp (c) }")
    for node, name in zip(model.graph.node, ("layer/same", "layer/same", "", "op:Exp"), strict=True):
        node.name = name
    return adapters.load(model)[0].dataflow()


@pytest.mark.parametrize(("wanted", "output"), [("b", "b"), ("/2:Exp", "c"), ("op:E*p", "y"), ("op:Exp", "y")])
def test_one_node(flow: Dataflow, wanted: str, output: str) -> None:
    assert flow.values[find_node(flow, wanted).outputs[0]].name == output


@pytest.mark.parametrize(
    ("wanted", "outputs"),
    [
        ("op:Exp", "cy"),
        ("scope:layer", "ab"),
        ("scope:other", ""),
        ("value:[ab]", "ab"),
        ("*", "abcy"),
        ("layer/*", "ab"),
        ("c", "c"),
    ],
)
def test_the_nodes_of_a_pattern(flow: Dataflow, wanted: str, outputs: str) -> None:
    if outputs:
        found = find_nodes(flow, wanted)
        assert "".join(flow.values[op.outputs[0]].name for op in found) == outputs
    else:
        with pytest.raises(AmpError, match="AMP308"):
            find_nodes(flow, wanted)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("layer/same", "means 2 nodes\nhint: name one of them: a, b$"),
        ("x", "no node 'x'\nhint: that is an input, read by 'layer/same'"),
        ("layer/sam", "no node .*\nhint: did you mean 'layer/same'"),
        ("yer", "no node .*\nhint: names that hold it: layer/same"),
        ("nowhere", "no node .*\nhint: nodes are named like layer/same, c, op:Exp"),
    ],
)
def test_none_or_several(flow: Dataflow, wanted: str, message: str) -> None:
    with pytest.raises(AmpError, match=message):
        find_node(flow, wanted)
