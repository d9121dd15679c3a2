"""The last pass finds a slot with two types, whatever made it so."""

from __future__ import annotations

import onnx_ir as ir
import pytest

import ampgraph
from ampgraph.formats.onnx.graph import OnnxGraph
from ampgraph.passes.verify_types import VerifyTypes
from onnx_text import parse


def mixed(text: str) -> OnnxGraph:
    return OnnxGraph(ir.from_proto(parse(text, w=(4, 4))))


WRONG = {
    "two types in one slot": "g (float16[2,4] x) => (float[2,4] y) { y = MatMul (x, w) }",
    "a type that is not admitted": "g (bfloat16[4,4] x) => (bfloat16 y) { y = Det (x) }",
    "inside a branch": """g (float16[2,4] x, bool c) => (float[2,4] y) {
        y = If (c) < then_branch = t () => (float[2,4] p) { p = MatMul (x, w) },
                     else_branch = e () => (float[2,4] q) { q = Cast <to = 1> (x) } > }""",
    "inside a function": """g (float16[2,4] x) => (float[2,4] y) { y = loc.f (x, w) }
        <domain: "loc", opset_import: ["" : 17]> f (a, w) => (b) { b = MatMul (a, w) }""",
}


@pytest.mark.parametrize("name", WRONG)
def test_finds(name: str) -> None:
    graph = mixed(WRONG[name])
    with pytest.raises(ampgraph.AmpError) as caught:
        VerifyTypes()(graph)
    assert caught.value.code == "AMP901"


def test_what_was_wrong_before_is_not_ours() -> None:
    graph = mixed(WRONG["two types in one slot"])
    known = frozenset(graph.dataflow().conflicts)
    assert known and VerifyTypes(known)(graph).count == 0


def test_passes_what_is_right() -> None:
    graph = mixed("g (float[2,4] x) => (float[2,4] y) { y = MatMul (x, w) }")
    assert VerifyTypes()(graph).count == 0
