"""The file of a whole ONNX model: nodes and what is said of their results as bytes, all else by onnx_ir.

The bytes are those of `to_proto(model).SerializeToString(deterministic=True)`, without the objects in between: of a
large model most are nodes and annotations, and most of these are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import onnx_ir as ir
from onnx import GraphProto, ModelProto, TypeProto

from .map_types import holds_maps, to_proto
from .wire import GRAPH, NodeWriter, number_bytes, text_bytes

PLAIN = "ampgraph.plain"
"""Where the main graph of onnx_ir remembers it."""

VALUE_INFO, INFO_NAME, INFO_TYPE = b"\x6a", b"\x0a", b"\x12"
BEFORE_GRAPH = ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string")
BEHIND_VALUES = ("quantization_annotation", "metadata_props")
"""Fields of a graph whose numbers come after that of what is said of values."""


def know_plain(model: ir.Model) -> None:
    """Notes that no value of the main graph has annotations of quantization, and no node any of devices: to find them
    takes a look at each."""
    model.graph.meta[PLAIN] = True


def model_file(model: ir.Model, finish: Callable[[ModelProto], None]) -> Iterator[bytes]:
    """The pieces of the file. ``finish`` has the last word on what is said of the model as a whole."""
    if PLAIN not in model.graph.meta or holds_maps(model) or model.functions:
        proto = to_proto(model)
        finish(proto)
        yield proto.SerializeToString(deterministic=True)
        return
    outline = ir.serde.serialize_model(_WithoutNodes(model))
    finish(outline)
    head, last = ModelProto(), GraphProto()
    for field in BEFORE_GRAPH:
        if outline.HasField(field):
            setattr(head, field, getattr(outline, field))
            outline.ClearField(field)
    for field in BEHIND_VALUES:
        getattr(last, field).extend(getattr(outline.graph, field))
        outline.graph.ClearField(field)
    infos, nodes = _Infos(), list(model.graph)
    pieces = list(NodeWriter(metadata=True).written(nodes))
    pieces.append(outline.graph.SerializeToString(deterministic=True))
    pieces += (infos.of(value) for node in nodes for value in node.outputs)
    pieces.append(last.SerializeToString(deterministic=True))
    outline.ClearField("graph")
    yield head.SerializeToString() + GRAPH + number_bytes(sum(map(len, pieces)))
    yield from pieces
    yield outline.SerializeToString(deterministic=True)


class _WithoutNodes:
    """A model, or its graph, as it looks without nodes."""

    def __init__(self, whole: ir.Model | ir.Graph) -> None:
        self._whole = whole

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._whole, name)
        return _WithoutNodes(found) if name == "graph" else found

    def __iter__(self) -> Iterator[ir.Node]:
        return iter(())

    def __len__(self) -> int:
        return 0


class _Infos:
    """What a file says of results of nodes."""

    def __init__(self) -> None:
        self._types: dict[ir.DataType, bytes] = {}

    def of(self, value: ir.Value) -> bytes:
        """The entry of a value, empty where there is none."""
        if value.is_graph_output() or not value.name:
            return b""
        if type(value.type) is ir.TensorType and value.shape is None and not (value.metadata_props or value.doc_string):
            content = text_bytes(INFO_NAME, value.name) + self._type(value.type)
        elif value.type is None and value.shape is None and not (value.metadata_props or value.doc_string):
            return b""
        else:
            content = ir.serde.serialize_value(value).SerializeToString(deterministic=True)
        return VALUE_INFO + number_bytes(len(content)) + content

    def _type(self, kind: ir.TensorType) -> bytes:
        if kind.denotation:
            return self._written(kind)
        if kind.dtype not in self._types:
            self._types[kind.dtype] = self._written(kind)
        return self._types[kind.dtype]

    def _written(self, kind: ir.TensorType) -> bytes:
        proto = TypeProto()
        ir.serde.serialize_type_into(proto, kind)
        content: bytes = proto.SerializeToString()
        return INFO_TYPE + number_bytes(len(content)) + content
