"""What is rounded once between low values is low at O1, and gives the bits of its float32 arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import ampgraph
from onnx_text import parse
from planner.support import dtype_of

TWO = "s = {} (a, b)"
TEXT = """g (float[4,16] x) => (float[4,16] y) {{
    a = MatMul (x, w)  b = MatMul (x, u)  {}  y = MatMul (s, w) }}"""
RNG = np.random.default_rng(0)
STORED = {name: RNG.standard_normal((16, 16), np.float32) for name in "wu"}
NUMBERS = {"half": np.float32(0.5), "third": np.float32(1 / 3)}
DTYPES = {"float16": "f16", "bfloat16": "bf16"}


def model(middle: str = "s = Add (a, b)") -> ModelProto:
    text = TEXT.format(middle)
    text = text.replace("=> (", "=> (float[4,16] left, ") if "left" in middle else text
    return parse(text, STORED, known=NUMBERS, opset=22)


def converted(source: ModelProto, **options: Any) -> ModelProto:
    return ampgraph.convert(source, "O1", **{"check": "off", **options})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("kind", "middle"),
    [
        *((kind, TWO.format(kind)) for kind in ("Add", "Sub", "Mul", "Div")),
        ("Sqrt", "m = Relu (a)  s = Sqrt (m)"),
        ("Div", "s = Div (half, a)"),
    ],
)
def test_the_same_bits(kind: str, middle: str, dtype: str) -> None:
    source = model(middle)
    low, wide = converted(source, dtype=dtype), converted(source, dtype=dtype, rule="no-once")
    assert dtype_of(low, kind) == DTYPES[dtype] and dtype_of(wide, kind) == "f32"
    assert sum(node.op_type == "Cast" for node in low.graph.node) == 2  # of the model's input and output
    for scale in (1e-3, 1, 100):
        feeds = {"x": np.float32(scale) * RNG.standard_normal((4, 16), np.float32)}
        one, other = (ampgraph.run(made, feeds, strict=True)["y"] for made in (low, wide))
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "middle",
    [
        "s = Add (a, x)",
        "s = Mul (a, third)",
        "t = Sum (a, b)  s = Add (t, b)",
        "s = Add (a, b)  left = Exp (s)",
        "e = Exp (b)  s = Add (a, e)",
    ],
    ids=["an input", "a number that is rounded", "a float32 sum", "a float32 reader", "a float32 writer"],
)
def test_what_would_be_rounded_more_often_stays(middle: str) -> None:
    assert dtype_of(converted(model(middle)), "Mul" if "third" in middle else "Add") == "f32"


def test_the_users_words_stand(tmp_path: Any) -> None:
    lists = tmp_path / "mine.toml"
    lists.write_text('[fp32]\nAdd = "as I say"\n', encoding="utf-8")
    for options in ({"fp32": ["op:Add"]}, {"lists": [str(lists)]}, {"rule": ["no-once"]}):
        assert dtype_of(converted(model(), **options), "Add") == "f32"
    slot = ampgraph.explain(model(), "s", level="O1").slots[0]
    assert slot.rule == "once" and "to the same bits" in slot.reason
