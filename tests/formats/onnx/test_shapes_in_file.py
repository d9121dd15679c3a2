"""Shapes that the file does not say."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import parser

from ampgraph.core.dataflow import Dataflow
from ampgraph.formats.onnx.graph import OnnxGraph

TEXT = """
<ir_version: 10, opset_import: ["" : 18]>
g (float[2, 3, 4] x) => (float[N, M, K] out) {
  turned = Transpose <perm = [2, 0, 1]> (x)
  back = Transpose <perm = [1, 2, 0]> (turned)
  out = Relu (back)
}
"""


def _bare(model: onnx.ModelProto, path: Path) -> OnnxGraph:
    """A model without what its file says of values inside."""
    del model.graph.value_info[:]
    onnx.save(model, path)
    return OnnxGraph.load(path)


def _shapes(flow: Dataflow) -> dict[str, object]:
    return {value.name: flow.shape(value.id) for value in flow.values}


def test_a_node_may_name_the_default_domain_in_full(tmp_path: Path) -> None:
    model = parser.parse_model(TEXT)
    model.graph.node[1].domain = "ai.onnx"
    graph = _bare(model, tmp_path / "model.onnx")
    assert _shapes(graph.dataflow())["back"] == (2, 3, 4)
