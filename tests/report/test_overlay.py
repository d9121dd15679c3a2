"""Model Explorer's node data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx

import ampgraph
from cli_helpers import MODELS, refused
from onnx_text import parse, proto

TEXT = """g (float[4, 8] x) => (float[4, 8] y) {
    [one] h = MatMul (x, w)
    [two] s = Softmax (h)
    y = Relu (s)
}"""


def test_node_data(tmp_path: Path, amp: Any) -> None:
    made = proto(ampgraph.convert(parse(TEXT, w=(8, 8)), "O1"))
    onnx.save(made, tmp_path / "m.onnx")
    assert amp("inspect", tmp_path / "m.onnx", "--model-explorer", tmp_path / "colours.json")[0] == 0
    data = json.loads((tmp_path / "colours.json").read_text())
    assert data == ampgraph.overlay(made) and list(data) == ["g"]
    results = data["g"]["results"]
    assert (results["one"]["value"], results["two"]["value"]) == ("float16", "float32")
    assert {results[n.name]["value"] for n in made.graph.node if n.op_type == "Cast"} == {
        "Cast to float16",
        "Cast to float32",
    }
    assert len(results) == len(made.graph.node) and f"<node_{len(made.graph.node) - 1}>" in results
    # a format that is not drawn
    out = tmp_path / "none.json"
    refused(amp("inspect", MODELS / "digits_cnn.mindir", "--model-explorer", out), "AMP304", "MindIR")
    assert not out.exists()
