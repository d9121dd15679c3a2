"""A model of one graph is read as onnx_ir reads it, to the last field; what is unusual is left to onnx_ir."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, parser

from ampgraph.formats.onnx.graph import OnnxGraph
from ampgraph.formats.onnx.io import deserialize
from ampgraph.formats.onnx.native import SORTED, flat_model
from ampgraph.formats.onnx.proto import holders

MODELS = sorted((Path(__file__).parents[3] / "models").glob("*.onnx"))
TEXT = """
<ir_version: 10, opset_import: ["" : 18, "mine" : 2], producer_name: "p", producer_version: "1", domain: "d",
 model_version: 3, doc_string: "doc", metadata_props: ["k": "v"]>
g (float[N, 2] x, float y) => (float[N, 2] out, float[] two) <float[2] w = {1, 2}, float y = {3}, float[N, 2] a> {
  a = Add (x, w)
  b = Clip (a, , y)
  c, d = mine.Split <axis = 1, names = ["q"], by = [1.5, 2.0], whole = 7> (b)
  e = Softmax <axis = 1> (c)
  f = Softmax <axis = 1> (d)
  g = Cast <to = 1> (f)
  h = Constant <value = float[2] {1, 2}> ()
  i = Mul (g, h)
  out = Add (e, i)
  two = Identity (y)
}
"""


def model() -> onnx.ModelProto:
    proto = parser.parse_model(TEXT)
    proto.graph.doc_string = "of the graph"
    proto.graph.metadata_props.add(key="g", value="1")
    proto.graph.node[0].name, proto.graph.node[1].doc_string, proto.graph.node[2].overload = "first", "second", "o"
    proto.graph.node[3].metadata_props.add(key="n", value="2")
    proto.graph.value_info.append(helper.make_tensor_value_info("e", TensorProto.FLOAT, [None, 2], "said of e"))
    proto.graph.value_info.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [2], "said of w"))
    proto.graph.node.append(helper.make_node("Split", ["b"], ["", "second half"], num_outputs=2))
    return proto


def flat(proto: onnx.ModelProto) -> ir.Model | None:
    return flat_model(proto, *holders(proto))


@pytest.mark.parametrize("proto", [model(), *map(onnx.load, MODELS)], ids=["fields", *(path.stem for path in MODELS)])
def test_it_is_what_onnx_ir_makes(proto: onnx.ModelProto) -> None:
    found, known = flat(copy.deepcopy(proto)), ir.from_proto(copy.deepcopy(proto))
    assert found is not None
    assert ir.to_proto(found) == ir.to_proto(known)
    for mine, theirs in zip(found.graph, known.graph, strict=True):
        assert mine.name == theirs.name and mine.doc_string == theirs.doc_string
        for one, other in zip(mine.outputs, theirs.outputs, strict=True):
            assert (one.name, one.type, one.shape) == (other.name, other.type, other.shape)
            assert one.doc_string == other.doc_string
            assert [(use.node.name, use.idx) for use in one.uses()] == [(u.node.name, u.idx) for u in other.uses()]


def test_equal_attributes_are_one_object() -> None:
    found = flat(model())
    assert found is not None
    first, second = (node for node in found.graph if node.op_type == "Softmax")
    assert first.attributes["axis"] is second.attributes["axis"]


def unsorted(proto: onnx.ModelProto) -> None:
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend(reversed(nodes))


def undefined(proto: onnx.ModelProto) -> None:
    proto.graph.node[3].input[0] = "nobody's"


def redefined(proto: onnx.ModelProto) -> None:
    proto.graph.node[3].output[0] = "a"


def no_output(proto: onnx.ModelProto) -> None:
    proto.graph.output[0].name = "nobody's"


def nameless(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].name = ""


def quantized(proto: onnx.ModelProto) -> None:
    proto.graph.quantization_annotation.add(tensor_name="a").quant_parameter_tensor_names.add(key="SCALE", value="w")


def long_name(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].name = "a" * 0x4000


def no_text(proto: onnx.ModelProto) -> None:
    """A name that is not UTF-8."""
    data = proto.graph.node[1].SerializeToString()
    proto.graph.node[1].ParseFromString(data.replace(b"\x0a\x01y", b"\x0a\x01\xff"))


@pytest.mark.parametrize("change", [unsorted, undefined, redefined, no_output, nameless, quantized, long_name, no_text])
def test_what_is_unusual_is_left_to_onnx_ir(change: Callable[[onnx.ModelProto], None]) -> None:
    proto = model()
    change(proto)
    assert flat(proto) is None


def test_a_graph_that_was_read_unsorted_is_sorted(tmp_path: Path) -> None:
    path = tmp_path / "unsorted.onnx"
    proto = onnx.load(MODELS[0])
    unsorted(proto)
    path.write_bytes(proto.SerializeToString())
    graph = OnnxGraph.load(path)
    graph.prepare()
    assert not graph.fault()
    assert SORTED not in deserialize(proto, None).graph.meta
