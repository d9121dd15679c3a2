"""The file that is written node by node says what onnx_ir's own writing says, annotations left out."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest
from onnx import ModelProto

from ampgraph.formats.onnx.graph import OnnxGraph
from onnx_text import parse

MODELS = Path(__file__).resolve().parents[2] / "models"
LONG = "a" * 200
BODIES = f"""g (float16[4] x, bool c, float[4] d) => (float16[4] y, float[4] z) <float[4] d = {{1, 2, 3, 4}}> {{
    {LONG} = Mul (x, x)
    y = If (c) <then_branch = t () => (float16[4] p) {{ q = Mul ({LONG}, x)  p = Add (q, x) }},
                else_branch = e () => (float16[4] r) {{ r = Identity (x) }}>
    k, m = Dropout (x)
    s = com.microsoft.Gelu (d)
    n, o = Split <axis = -1> (d)
    w = Clip (s, , n)
    f = Constant <value = float[2] {{1, 2}}> ()
    z = LeakyRelu <alpha = 0.25> (w)
}}"""


def written_by_onnx_ir(model: ir.Model) -> ModelProto:
    """Without what a runtime has no need of."""
    proto = ir.to_proto(model)
    found = ModelProto(ir_version=proto.ir_version, graph=proto.graph, opset_import=proto.opset_import)
    found.graph.name = "graph"
    for field in ("value_info", "doc_string", "metadata_props"):
        found.graph.ClearField(field)
    for node in found.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    return found


@pytest.mark.parametrize("name", ["digits_cnn", "digits_transformer", "bodies"])
def test_content_is_what_onnx_ir_writes(name: str) -> None:
    text = parse(BODIES, domains=["com.microsoft"]) if name == "bodies" else None
    graph = OnnxGraph(ir.load(MODELS / f"{name}.onnx") if text is None else ir.from_proto(text))
    if text is not None:
        last = list(graph.model.graph)[-1]
        last.attributes["alpha"] = ir.AttrFloat32("alpha", 0.5)
        next(node for node in graph.model.graph if node.op_type == "Dropout").outputs[1].name = ""
    assert ModelProto.FromString(graph.content()) == written_by_onnx_ir(graph.model)
