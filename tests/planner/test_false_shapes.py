"""A number follows from what the file says of its values only where that can be so."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, helper

import ampgraph
from ampgraph.formats.onnx import shapes
from ampgraph.numerics.strict.session import run_strict
from onnx_text import parse
from planner.support import kinds

BODY = "q = Relu (x)  r = Abs (q)  sizes = Shape ({read})  size = Gather (sizes, two)  count = Cast <to = 1> (size)"
TEXT = f"g (float[N,3,8] x) => (float[N,3,8] z) {{ {BODY}  y = Div (q, count)  z = MatMul (y, w) }}"


def _model(read: str) -> ModelProto:
    return parse(TEXT.replace("{read}", read), {"w": np.eye(8, dtype=np.float32), "two": np.int64(2)}, opset=17)


def _is_right(given: ModelProto) -> bool:
    feed = {"x": np.random.default_rng(0).random((2, 3, 8), np.float32)}
    found = run_strict(ampgraph.convert(given, "O1", check="off"), feed)["z"]
    return np.allclose(found, run_strict(given, feed)["z"], rtol=1e-2)


def _said(name: str, *sizes: str | int) -> object:
    return helper.make_tensor_value_info(name, 1, sizes)


@pytest.mark.parametrize("read", ["q", "r"])
def test_what_is_said_of_an_output_is_not_believed(read: str) -> None:
    given = _model(read)
    given.graph.output.append(_said("q", "N", 3, 16))
    assert _is_right(given)
    true = _model(read)
    true.graph.output.append(_said("q", "N", 3, 8))
    assert "Shape" not in kinds(ampgraph.convert(true, "O1"))


def test_what_cannot_be_is_not_believed_in_a_long_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "MOST_NODES", 2)
    given = _model("q")
    given.graph.value_info.append(_said("q", "N", 3, 16))
    assert _is_right(given)
    assert "Shape" not in kinds(ampgraph.convert(_model("q"), "O1"))
