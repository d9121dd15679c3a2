"""The file of a model written as bytes: those that onnx_ir and protobuf would write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from onnx import ModelProto, TensorProto, helper

import ampgraph
from ampgraph.formats.onnx.io import deserialize, to_proto
from ampgraph.formats.onnx.wire import PLAIN, model_file
from onnx_text import parse

MODELS = Path(__file__).resolve().parents[3] / "models"
SAID = "what a person wrote"


def written(model: ir.Model) -> bytes:
    return b"".join(model_file(model, lambda proto: None))


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


def test_bodies_docs_and_metadata_are_written_as_by_onnx_ir() -> None:
    model = read(rich())
    assert written(model) == expected(model)
    assert expected(model).count(SAID.encode()) == 9


def test_what_is_converted_is_written_as_by_onnx_ir(tmp_path: Path) -> None:
    """Low weights, new Casts, retyped values, reasons in the metadata of nodes."""
    place = tmp_path / "low.onnx"
    ampgraph.convert(MODELS / "digits_cnn.onnx", "O1", output=place, check="off")
    assert place.read_bytes() == onnx.load(place).SerializeToString(deterministic=True)


def test_annotations_of_quantization_are_not_lost() -> None:
    proto = rich()
    note = proto.graph.quantization_annotation.add(tensor_name="r")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="s")
    model = read(proto)
    assert PLAIN not in model.graph.meta
    assert written(model) == expected(model)
    assert b"SCALE_TENSOR" in written(model)


def test_attributes_that_differ_in_their_docs_alone_are_two() -> None:
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


WALKS = 8  # over the nodes, from reading to writing; each is a few microseconds a node


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
