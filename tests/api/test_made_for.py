"""Without a target `explain` and `inspect` speak of the one that a converted file names."""

from __future__ import annotations

from pathlib import Path

import pytest

import ampgraph
from ampgraph.core.annotations import target_in
from onnx_text import parse

MODEL = "g (float[4, 8] x) => (float[4, 2] y) { h = MatMul (x, w)  s = Softmax (h)  y = Relu (s) }"


@pytest.mark.parametrize("target", ["webgpu", "tensorrt", "openvino"])
def test_explain_takes_the_target_of_the_file(target: str, tmp_path: Path) -> None:
    file = tmp_path / "made.onnx"
    ampgraph.convert(parse(MODEL, w=(8, 2)), target=target, dtype="float16", level="O2", check="off", output=file)
    taken = ampgraph.explain(file, "value:y").to_dict()
    assert taken == ampgraph.explain(file, "value:y", target=target).to_dict()
    assert taken["target"] == target
    assert ampgraph.explain(file, "value:y", target="cuda").to_dict()["target"] == "cuda"


def test_inspect_takes_the_target_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "made.onnx"
    ampgraph.convert(parse(MODEL, w=(8, 2)), target="tensorrt", check="off", output=file)
    assert ampgraph.inspect(file, fusions=False).speed == ampgraph.inspect(file, fusions=False, target="tensorrt").speed
    web = tmp_path / "web.onnx"
    ampgraph.convert(parse(MODEL, w=(8, 2)), target="webgpu", check="off", output=web)
    found = ampgraph.inspect(web, fusions=False).speed
    assert found is not None and found.reason  # no device is known of it
    assert ampgraph.inspect(web, fusions=False, target="cuda").speed is not None


def test_a_type_that_the_target_lacks_leaves_the_default(tmp_path: Path) -> None:
    file = tmp_path / "made.onnx"
    ampgraph.convert(parse(MODEL, w=(8, 2)), target="webgpu", check="off", output=file)
    assert ampgraph.explain(file, "value:y", dtype="bfloat16").to_dict()["target"] == "cuda"


def test_the_last_conversion_counts() -> None:
    first = {"ampgraph.target": "cuda", "ampgraph.version": "1"}
    assert target_in({}) == "" and target_in(first) == "cuda"
    later = {f"ampgraph.{number}.target": f"t{number}" for number in (2, 10, 9)}
    assert target_in({**later, **first}) == "t10"
