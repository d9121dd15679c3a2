"""Shapes are inferred from the nodes as the file has them, which says the same as writing them anew, until an edit."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from ampgraph.core.dataflow import Dataflow
from ampgraph.formats.onnx import shapes
from ampgraph.formats.onnx.graph import OnnxGraph

MODELS = sorted((Path(__file__).parents[3] / "models").glob("*.onnx"))
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


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_both_ways_say_the_same(path: Path, tmp_path: Path) -> None:
    graph = _bare(onnx.load(path), tmp_path / "model.onnx")
    known, in_file = _shapes(graph.dataflow()), graph._in_file
    graph.edited()
    assert in_file is not None
    assert known == _shapes(graph.dataflow())
    assert shapes.infer(graph.model, in_file=in_file) == shapes.infer(graph.model)


def test_a_node_may_name_the_default_domain_in_full(tmp_path: Path) -> None:
    model = parser.parse_model(TEXT)
    model.graph.node[1].domain = "ai.onnx"
    graph = _bare(model, tmp_path / "model.onnx")
    assert _shapes(graph.dataflow())["back"] == (2, 3, 4)


def test_no_node_is_written_before_an_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    whole = shapes.with_nodes

    def counted(outline: onnx.ModelProto, nodes: Iterable[ir.Node], more: Iterable[bytes]) -> bytes:
        written.append(len(list(nodes)))
        assert not outline.graph.node, "the outline lives through the inference: a copy of all nodes would too"
        return whole(outline, nodes, more)

    monkeypatch.setattr(shapes, "with_nodes", counted)
    graph = _bare(parser.parse_model(TEXT), tmp_path / "model.onnx")
    assert _shapes(graph.dataflow())["turned"] == (4, 2, 3)
    flow = graph.dataflow()
    with graph.editor(flow) as editor:
        assert editor.bypass(flow.ops[0])
    assert _shapes(graph.dataflow())["back"] == (3, 4, 2)
    assert written == [0, 2]
