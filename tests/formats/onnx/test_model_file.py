"""The file of a model written as bytes: those that onnx_ir and protobuf would write."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import ModelProto, TensorProto, helper, parser

import ampgraph
from ampgraph.core.dataflow import Dataflow
from ampgraph.formats.onnx.graph import OnnxGraph
from ampgraph.formats.onnx.io import deserialize, to_proto
from ampgraph.formats.onnx.native import SORTED, flat_model
from ampgraph.formats.onnx.proto import holders
from ampgraph.formats.onnx.weights import ChannelsTensor, RoundedTensor
from ampgraph.formats.onnx.wire import PLAIN, NodeWriter, model_file
from ampgraph.formats.rounding import BLOCK
from onnx_text import parse

MODELS = Path(__file__).resolve().parents[3] / "models"
SAID = "what a person wrote"


def written(model: ir.Model) -> bytes:
    return b"".join(map(bytes, model_file(model, lambda proto: None)))


def expected(model: ir.Model) -> bytes:
    return to_proto(model).SerializeToString(deterministic=True)


def read(proto: ModelProto) -> ir.Model:
    return deserialize(onnx.ModelProto.FromString(proto.SerializeToString()), None)


def rich() -> ModelProto:
    """A body, an optional input that is not there, doc strings and metadata of everything that may have them."""
    proto = parse(
        """g (float[N,2] x, bool c) => (float[N,2] y, float[N,2] z) <float[N,2] r, float s = {2.5}> {
            [clip] r = Clip (x, , s)
            [roll] t = Mul (r, s)
            [if] y = If (c) <then_branch = a () => (float[N,2] p) { p = Relu (r) },
                             else_branch = b () => (float[N,2] q) { q = Identity (t) }>
            z, unused = Dropout (t) }"""
    )
    node, graph = proto.graph.node[0], proto.graph
    proto.producer_name, proto.domain, proto.model_version, proto.doc_string = "maker", "of.models", 3, SAID
    graph.doc_string = node.doc_string = graph.value_info[0].doc_string = SAID
    for place in (proto, graph, node, graph.value_info[0], graph.initializer[0]):
        place.metadata_props.add(key="second", value="2")
        place.metadata_props.add(key="first", value=SAID)
    proto.ir_version = 10
    return proto


@pytest.mark.parametrize("name", ["digits_cnn.onnx", "digits_transformer.onnx"])
def test_a_model_is_written_as_by_onnx_ir(name: str) -> None:
    model = read(onnx.load(MODELS / name))
    assert PLAIN in model.graph.meta
    assert written(model) == expected(model)


@pytest.mark.parametrize("kept", [False, True])
def test_a_long_tensor_is_rounded_while_it_is_written(kept: bool) -> None:
    """Piece by piece, whether or not its numbers are rounded together."""
    numbers = np.random.default_rng(3).standard_normal((70, 3000), np.float32)
    model = read(parse("g (float[70,3000] x) => (float[70,3000] y) { y = Add (x, w) }", {"w": numbers}))
    plain = RoundedTensor(ir.tensor(numbers, name="w"), "float16")
    tensor = model.graph.initializers["w"].const_value = ChannelsTensor(plain, None, "float16") if kept else plain
    pieces = [bytes(piece) for piece in model_file(model, lambda proto: None)]
    assert b"".join(pieces) == expected(model)
    assert kept or max(map(len, pieces)) <= 2 * BLOCK
    assert (plain.tobytes() != tensor.tobytes()) is kept


def test_written_as_by_onnx_ir(tmp_path: Path) -> None:
    model = read(rich())
    assert written(model) == expected(model)
    assert expected(model).count(SAID.encode()) == 9
    # Low weights, new Casts, retyped values, reasons in the metadata of nodes.
    place = tmp_path / "low.onnx"
    ampgraph.convert(MODELS / "digits_cnn.onnx", "O1", output=place, check="off")
    assert place.read_bytes() == onnx.load(place).SerializeToString(deterministic=True)
    # annotations of quantization are not lost
    proto = rich()
    note = proto.graph.quantization_annotation.add(tensor_name="r")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="s")
    model = read(proto)
    assert PLAIN not in model.graph.meta
    assert written(model) == expected(model)
    assert b"SCALE_TENSOR" in written(model)
    # attributes that differ in their docs alone are two
    proto = parse("g (float[2] x) => (float[2] y) { h = Softmax <axis = 0> (x)  y = Softmax <axis = 0> (h) }")
    proto.graph.node[1].attribute[0].doc_string = SAID
    model = read(proto)
    assert written(model) == expected(model)


# -- how much work it is ----------------------------------------------------------------------------------------------


def chain(count: int) -> ModelProto:
    """A chain of products and sums."""
    names = [f"v{place}" for place in range(count + 1)]
    nodes = [
        helper.make_node("MatMul" if place % 2 else "Add", [before, "w"], [name], name=name)
        for place, (before, name) in enumerate(zip(names, names[1:], strict=False))
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in (names[0], names[-1])]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2, 2], [0.5, 0.25, 0.125, 1.0])
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


WALKS = 7  # over the nodes, from reading to writing; each is a few microseconds a node


def test_a_conversion_walks_over_the_nodes_a_fixed_number_of_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, seen, walk = tmp_path / "chain.onnx", [], ir.Graph.__iter__
    onnx.save(chain(8), source)

    def counted(graph: ir.Graph) -> Iterator[ir.Node]:
        seen.append(graph.name)
        return walk(graph)

    monkeypatch.setattr(ir.Graph, "__iter__", counted)
    ampgraph.convert(source, "O2", output=tmp_path / "low.onnx", check="off")
    assert seen.count("chain") == WALKS


# The file that is written node by node says what onnx_ir's own writing says, annotations left out.

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


# A model of one graph is read as onnx_ir reads it, to the last field; what is unusual is left to onnx_ir.

FLAT_MODELS = sorted(MODELS.glob("*.onnx"))
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


@pytest.mark.parametrize(
    "proto", [model(), *map(onnx.load, FLAT_MODELS)], ids=["fields", *(path.stem for path in FLAT_MODELS)]
)
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
    proto = onnx.load(FLAT_MODELS[0])
    unsorted(proto)
    path.write_bytes(proto.SerializeToString())
    graph = OnnxGraph.load(path)
    graph.prepare()
    assert not graph.fault()
    assert SORTED not in deserialize(proto, None).graph.meta


# Shapes are inferred from the nodes as the file has them, which says the same as writing them anew, until an edit.

SHAPE_TEXT = """
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
    model = parser.parse_model(SHAPE_TEXT)
    model.graph.node[1].domain = "ai.onnx"
    graph = _bare(model, tmp_path / "model.onnx")
    assert _shapes(graph.dataflow())["back"] == (2, 3, 4)


def test_nodes_that_are_made_on_the_way_have_attributes_of_their_own() -> None:
    """Attributes are known by identity, which one that is gone leaves to another."""

    def nodes() -> Iterator[ir.Node]:
        for number in range(6):
            made = ir.node("Constant", [], {"value_int": number}, outputs=[ir.Value(name="y")])
            yield made
            made.attributes.clear()

    read = [onnx.GraphProto.FromString(piece).node[0] for piece in NodeWriter().entries(nodes())]
    assert [node.attribute[0].i for node in read] == list(range(6))
