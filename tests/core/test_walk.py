"""Walks through a dataflow: where each goes on, and where it ends."""

from __future__ import annotations

from ampgraph.core.dataflow import NONE, Dataflow
from ampgraph.core.walk import (
    Crossings,
    carried_values,
    downstream,
    first_operand_of,
    operators_above,
    reachable,
    sole_reader,
    sole_readers,
    upstream,
    value_above,
)
from ampgraph.formats import adapters
from onnx_text import parse

TEXT = """g (float[4] x, bool c) => (float[4] y, float[4] z) {
    a = Relu (x)  b = Neg (a)  y = Sqrt (b)
    z = If (c) <then_branch = t () => (float[4] u) { u = Exp (b) },
                else_branch = e () => (float[4] v) { v = Abs (x) }> }"""


def opened() -> tuple[Dataflow, dict[str, int]]:
    """The dataflow of `TEXT`, and its values by name."""
    flow = adapters.load(parse(TEXT))[0].dataflow()
    return flow, {value.name: value.id for value in flow.values}


def test_walks_up_by_one_operand() -> None:
    flow, values = opened()
    before = first_operand_of({"Sqrt", "Neg"})
    assert [op.kind for op in operators_above(flow, values["y"], before)] == ["Sqrt", "Neg"]
    assert value_above(flow, values["y"], before) == values["a"]
    assert value_above(flow, values["a"], before) == values["a"]  # Relu is none of these
    assert list(operators_above(flow, NONE, before)) == []


def test_walks_down_to_sole_readers() -> None:
    flow, values = opened()
    relu, sqrt = flow.writer(values["a"]), flow.writer(values["y"])
    assert relu is not None and sqrt is not None
    assert [(value, op.kind) for value, op in sole_readers(flow, relu)] == [(values["a"], "Neg")]
    assert sole_reader(flow, values["b"]) is None  # the branch reads it too
    assert sole_reader(flow, values["y"]) is None and list(sole_readers(flow, sqrt)) == []  # an output
    assert sole_reader(flow, values["a"], scope=0) is not None and sole_reader(flow, values["a"], scope=1) is None


def test_walks_cross_boundaries_only_by_crossings() -> None:
    flow, values = opened()
    crossings = Crossings(flow)
    assert crossings.origins(values["z"]) == {values["z"], values["u"], values["v"]}
    assert crossings.copies(values["u"]) == {values["u"], values["z"]} and crossings.copies(NONE) == {NONE}
    above = [op.kind for op in upstream(flow, [values["z"]], lambda op: op.inputs, crossings.origins)]
    assert sorted(above) == ["Abs", "Exp", "If", "Neg", "Relu"]
    assert [op.kind for op in upstream(flow, [values["u"]], lambda op: op.inputs)] == ["Exp", "Neg", "Relu"]
    uses = downstream(flow, [values["b"]], lambda op: op.outputs, crossings.copies)
    assert sorted(flow.ops[use.op].kind if use.op != NONE else "output" for use in uses) == [
        "Exp", "Sqrt", "output", "output", "output",
    ]  # fmt: skip
    found = carried_values(flow.ops, lambda op: op.kind == "Exp", lambda op: True, crossings.copies)
    assert found == {values["u"], values["z"]}
    held = set[int]()
    crossings.copies_into(held)([values["u"], values["x"]])
    assert held == {values["u"], values["z"], values["x"]}


def test_what_is_reachable_comes_once_and_the_nearest_first() -> None:
    assert list(reachable([1, 2], lambda n: [n * 2, n + 2] if n < 5 else [])) == [1, 2, 3, 4, 6, 5, 8]
