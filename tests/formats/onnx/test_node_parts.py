"""Nodes that are taken apart say what their fields say, or that they cannot be."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import AttributeProto, NodeProto, helper, numpy_helper

from ampgraph.formats.onnx.proto import LONG, Kind, PartsReader

NAMES = st.sampled_from(["", "a", "é", "a" * 127, "a" * 128, "b" * 300, "c" * 0x3FFF])
LISTS = st.lists(NAMES, max_size=3)
VALUES = st.sampled_from([1, 2.5, "text", [1, 2], [0.5], ["several", "texts"]])
ATTRIBUTES = st.dictionaries(st.sampled_from(["axis", "to", "mode"]), VALUES, max_size=2)
KINDS = st.tuples(st.sampled_from(["Add", "Mul"]), LISTS, LISTS, NAMES, NAMES, ATTRIBUTES)


def node(op_type: str, inputs: list[str], outputs: list[str], name: str, doc: str, attributes: object) -> NodeProto:
    assert isinstance(attributes, dict)
    return helper.make_node(op_type, inputs, outputs, name=name, doc_string=doc, **attributes)


def rest(proto: NodeProto) -> NodeProto:
    """A node without its names."""
    found = NodeProto()
    found.CopyFrom(proto)
    for field in ("input", "output", "name"):
        found.ClearField(field)
    return found


@settings(max_examples=50)
@given(st.lists(KINDS, min_size=1, max_size=4))
def test_parts_are_the_fields(drawn: list[tuple[str, list[str], list[str], str, str, object]]) -> None:
    reader = PartsReader()
    for proto in [node(*fields) for fields in drawn]:
        inputs, outputs, name, kind = reader.parts(proto)
        assert [text.decode() for text in inputs] == list(proto.input)
        assert [text.decode() for text in outputs] == list(proto.output)
        assert (name.decode(), kind.op_type) == (proto.name, proto.op_type)
        assert rest(kind.proto) == rest(proto)
    assert reader.orderly


def kinds(*protos: NodeProto) -> list[Kind]:
    reader = PartsReader()
    return [reader.parts(proto)[3] for proto in protos]


def test_what_has_a_kind_of_its_own() -> None:
    first, second, third = (helper.make_node("Softmax", [name], ["y"], axis=axis) for name, axis in ("a1", "b1", "b2"))
    kind, same = kinds(first, second)
    assert kind is same and kind.shared
    third.attribute[0].i = 2
    assert kinds(first, third)[1] is not kind
    # a node with metadata is of its own kind
    proto = helper.make_node("Relu", ["x"], ["y"])
    proto.metadata_props.add(key="k", value="v")
    one, other = kinds(proto, proto)
    assert one is not other and not one.shared
    # an operator may turn out to be heavy
    number = NodeProto(op_type="Constant", output=["n"], attribute=[helper.make_attribute("value_int", 1)])
    reader = PartsReader()
    for proto in (number, constant("c"), constant("d"), number):
        inputs, outputs, name, kind = reader.parts(proto)
        assert (inputs, outputs, name) == ([], [proto.output[0].encode()], b"") and kind.proto == proto
    assert reader.orderly


def tensor(size: int) -> AttributeProto:
    return helper.make_attribute("value", numpy_helper.from_array(np.zeros(size, np.float32)))


@pytest.mark.parametrize("size", [1, LONG])
def test_a_node_with_a_tensor_is_of_its_own_kind(size: int) -> None:
    protos = [NodeProto(op_type="Constant", output=["c"], attribute=[tensor(size)]) for _ in range(2)]
    found = kinds(*protos)
    assert [kind.proto for kind in found] == protos and found[0] is not found[1]
    assert not any(kind.shared for kind in found)


@pytest.mark.parametrize("place", ["input", "output"])
def test_a_name_of_three_bytes_of_length_is_not_taken_apart(place: str) -> None:
    proto = helper.make_node("Relu", ["x"], ["y"])
    getattr(proto, place).append("a" * 0x4000)
    reader = PartsReader()
    assert reader.parts(proto)[3].op_type == "Relu"
    assert not reader.orderly


def constant(name: str) -> NodeProto:
    return NodeProto(op_type="Constant", output=[name], attribute=[tensor(1 << 20)])


def branch() -> NodeProto:
    """An If whose bodies hold tensors."""
    bodies = {f"{side}_branch": helper.make_graph([constant(side)], side, [], []) for side in ("then", "else")}
    return helper.make_node("If", ["c"], ["y"], **bodies)


@pytest.mark.parametrize("node", [constant("c"), branch()], ids=["Constant", "If"])
def test_tensors_and_bodies_are_not_copied(node: NodeProto) -> None:
    """However large they are: the model is in memory once."""
    number = NodeProto(op_type=node.op_type, output=["n"], attribute=[helper.make_attribute("value_int", 1)])
    assert node.ByteSize() > 1 << 22
    tracemalloc.start()
    first, second = kinds(node, number)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    assert first.heavy and not second.heavy and (first.proto, second.proto) == (node, number)
