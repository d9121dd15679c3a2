"""What the summary tells of trtexec's shapes, for models with open dimensions."""

from __future__ import annotations

from typing import Any

import pytest

import ampgraph
from onnx_text import parse

OPEN = "g (float[batch, 4] x, float[batch, length, 4] z) => (float[batch, 2] y, float[batch, length, 2] u) {"
MODEL = OPEN + " y = MatMul (x, w)  u = MatMul (z, w) }"


def said(text: str = MODEL, target: str = "tensorrt", **fields: Any) -> list[str]:
    _, summary = ampgraph.convert(parse(text, w=(4, 2)), target=target, check="off", report=True, **fields)
    return [note["text"] for note in summary.notes if note["topic"] == "shapes"]


def test_ranges_are_three_flags() -> None:
    assert said(dims={"batch": "1:8:32", "length": "16:128:512"}) == [
        "trtexec --minShapes=x:1x4,z:1x16x4 --optShapes=x:8x4,z:8x128x4 --maxShapes=x:32x4,z:32x512x4"
    ]


def test_a_range_may_begin_or_end_at_its_best() -> None:
    assert said(dims=["batch=1:1:4"]) == [
        "trtexec --minShapes=x:1x4,z:1x128x4 --optShapes=x:1x4,z:1x128x4 --maxShapes=x:4x4,z:4x128x4"
    ]
    assert said(dims=["batch=1:4:4"])[0].endswith("--optShapes=x:4x4,z:4x128x4 --maxShapes=x:4x4,z:4x128x4")


def test_one_size_is_one_flag_and_says_how_to_get_a_range() -> None:
    assert said() == [
        "trtexec --optShapes=x:1x4,z:1x128x4 for these sizes alone; --dim batch=1:8:32 would make it a range"
    ]
    assert said(dims=["batch=8"])[0].startswith("trtexec --optShapes=x:8x4,z:8x128x4 for")


@pytest.mark.parametrize("target", ["cuda", "webgpu"])
def test_other_targets_are_told_nothing(target: str) -> None:
    assert said(target=target) == []


def test_nothing_is_said_where_nothing_is_open() -> None:
    assert said("g (float[3, 4] x) => (float[3, 2] y) { y = MatMul (x, w) }") == []
