"""Pads that add nothing go; those that add something, that a border needs or that a pattern names stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.report.lines import rewrite_line
from onnx_text import parse
from planner.support import converted, decisions, kinds

BODIES = {
    18: "p = Pad (x, amounts)",
    10: "p = Pad <pads = [0, 0, 0, 0]> (x)",
    19: 'p = Pad <mode = "reflect"> (x, amounts)',
}


def given(body: str, opset: int, amounts: int = 0, behind: str = "z = MatMul (p, w)") -> ModelProto:
    stored = {"w": np.eye(8, dtype=np.float32)} | ({"amounts": np.full(4, amounts)} if "amounts" in body else {})
    text = f"g (float[4,8] f) => (float[A,B] z) {{ x = MatMul (f, w)  {body}  {behind} }}"
    return parse(text, stored, opset=opset)


@pytest.mark.parametrize(("opset", "dtype"), [(10, "float16"), (18, "bfloat16"), (19, "float16")])
def test_what_adds_nothing_goes(opset: int, dtype: str) -> None:
    model = given(BODIES[opset], opset)
    result = ampgraph.convert(model, dtype=dtype)
    onnx.checker.check_model(result, full_check=True)
    assert "Pad" not in kinds(result) and [tensor.name for tensor in result.graph.initializer] == ["w"]
    assert ampgraph.convert(result, dtype=dtype).SerializeToString() == result.SerializeToString()
    assert "Pad" in kinds(ampgraph.convert(model, dtype=dtype, rewrite="no-pad"))


def test_in_bfloat16_it_took_two_casts() -> None:
    """CUDA has no such kernel of it."""
    model = given(BODIES[18], 18)
    assert decisions(converted(model, dtype="bfloat16")) == "Cast>bf16 MatMul:bf16 MatMul:bf16 Cast>f32"
    assert decisions(converted(model, dtype="bfloat16", rewrite="none")).count("Cast") == 4


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (given(BODIES[18], 18, 1, "z = Relu (p)"), {}),
        (given(BODIES[18], 18), {"fp32": ["op:Pad"]}),
        (given("p = Neg (x)", 18, 0, "q = Shape (p)  z = Pad (p, q)"), {}),
        (given("z = Pad (x, amounts)", 18, 0, ""), {}),
    ],
    ids=["something", "named", "not stored", "at a border"],
)
def test_others_stay(model: ModelProto, options: dict[str, Any]) -> None:
    assert not [rewrite for rewrite in ampgraph.plan(model, **options).rewrites if rewrite.name == "pad"]


def test_explain_and_summary_say_so() -> None:
    model = given(BODIES[18], 18)
    assert "did nothing and is taken away" in ampgraph.explain(model, "p").region
    assert rewrite_line("Pad (pad)", 1) == "1 Pad of the file that added nothing taken away (pad)"
