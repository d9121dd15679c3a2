"""What verbs return shows itself: as text, in notebooks as HTML, and as plain data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

import ampgraph
from cli_helpers import MODELS
from onnx_text import parse, proto

MODEL = """g (float[4, 8] x) => (float[4, 8] y) {
    [one] h = MatMul (x, w)
    [last] y = Softmax (h)
}"""


def model() -> Any:
    made = parse(MODEL, w=(8, 8))
    made.graph.node[1].name = "less<than"
    return made


def reports() -> dict[str, Any]:
    low = proto(ampgraph.convert(model()))
    return {
        "explain": ampgraph.explain(model(), "less<than"),
        "inspect": ampgraph.inspect(low, model()),
        "verify": ampgraph.verify(model(), low),
        "diff": ampgraph.diff(ampgraph.plan(model(), "O1"), ampgraph.plan(model(), "O3")),
        "plan": ampgraph.plan(model(), "O2"),
    }


@pytest.mark.slow
def test_reports_show_themselves() -> None:
    for name, report in reports().items():
        text, page = repr(report), report._repr_html_()
        assert str(report) == text and "object at" not in text, name
        assert page.startswith("<p") and "<script" not in page and "less<than" not in page, name
        json.dumps(report.to_dict(), allow_nan=False)


def test_the_text_is_that_of_the_command(amp: Any) -> None:
    source = MODELS / "digits_cnn.onnx"
    assert f"{ampgraph.explain(source, 'node_conv2d')}\n" == amp("explain", source, "node_conv2d")[1]
    assert f"{ampgraph.inspect(source)}\n" == amp("inspect", source)[1]


def test_a_plan_says_what_it_does() -> None:
    plan = ampgraph.plan(model())
    assert repr(plan).startswith("Plan(level O2, float16, policy ampgraph, target cuda: ")
    assert " casts, 1 stored tensors)" in repr(plan) and plan.to_dict()["level"] == "O2"


@pytest.mark.parametrize("level", ["O2", "auto"])
def test_a_converted_model_prints(level: str, tmp_path: Path) -> None:
    made = ampgraph.convert(ir.from_proto(model()), level)
    assert "MatMul" in str(made) and "RoundedTensor<FLOAT16" in repr(made.graph.initializers["w"].const_value)
