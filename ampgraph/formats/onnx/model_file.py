"""The file of a whole ONNX model: nodes, stored tensors and what is said of values as bytes, all else by onnx_ir.

The bytes are those of `to_proto(model).SerializeToString(deterministic=True)`, without the objects in between: of a
large model most are nodes, weights and annotations, and most of these are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import onnx_ir as ir
from onnx import GraphProto, ModelProto, TensorProto

from .map_types import holds_maps, to_proto
from .weights import InFile, RoundedTensor, dims, is_raw_float, short_rounded
from .wire import GRAPH, NodeWriter, number_bytes, text_bytes
from .wire_types import NAME, VALUE_INFO, InfoWriter

PLAIN = "ampgraph.plain"
"""Where the main graph of onnx_ir remembers it."""

INITIALIZER, TENSOR_NAME, RAW_DATA = b"\x2a", b"\x42", b"\x4a"
BEFORE_GRAPH = ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string")
BEFORE_TENSORS = ("name",)
BEHIND_VALUES = ("quantization_annotation", "metadata_props")
"""Fields of a graph whose numbers come before that of stored tensors, or after that of what is said of values."""

TOGETHER = 256  # stored tensors of which the short ones are rounded together: 4 MiB of float32 at most


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
    outline = ir.serde.serialize_model(_Outline(model))
    finish(outline)
    head, first, last = ModelProto(), GraphProto(), GraphProto()
    _move(BEFORE_GRAPH, outline, head)
    _move(BEFORE_TENSORS, outline.graph, first)
    for field in BEHIND_VALUES:
        getattr(last, field).extend(getattr(outline.graph, field))
        outline.graph.ClearField(field)
    infos, tensors = _Infos(), _Tensors()
    stored, inputs = model.graph.initializers.values(), {value.name for value in model.graph.inputs}
    pieces = list(NodeWriter(metadata=True, result=infos.result).written(model.graph))
    pieces.append(first.SerializeToString())
    pieces += tensors.written([value for value in stored if value.const_value is not None])
    pieces.append(outline.graph.SerializeToString(deterministic=True))
    pieces += (infos.of(value, text_bytes(NAME, value.name or "")) for value in stored if value.name not in inputs)
    pieces += infos.results
    pieces.append(last.SerializeToString(deterministic=True))
    outline.ClearField("graph")
    yield head.SerializeToString() + GRAPH + number_bytes(sum(map(len, pieces)))
    yield from pieces
    yield outline.SerializeToString(deterministic=True)


def _move(fields: Iterable[str], source: ModelProto | GraphProto, target: ModelProto | GraphProto) -> None:
    for field in fields:
        if source.HasField(field):
            setattr(target, field, getattr(source, field))
            source.ClearField(field)


class _Outline:
    """A model, or its graph, as it looks without nodes and stored tensors."""

    initializers: Mapping[str, ir.Value] = MappingProxyType({})

    def __init__(self, whole: ir.Model | ir.Graph) -> None:
        self._whole = whole

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._whole, name)
        return _Outline(found) if name == "graph" else found

    def __iter__(self) -> Iterator[ir.Node]:
        return iter(())

    def __len__(self) -> int:
        return 0


class _Tensors:
    """Stored tensors of the graph; of rounded ones no object is made, and their heads are written once each."""

    def __init__(self) -> None:
        self._heads: dict[tuple[ir.DataType, tuple[int, ...]], bytes] = {}

    def written(self, values: Sequence[ir.Value]) -> Iterator[bytes]:
        """The entries of initializers."""
        for start in range(0, len(values), TOGETHER):
            some = values[start : start + TOGETHER]
            short = short_rounded(value.const_value for value in some)
            for value in some:
                tensor = value.const_value
                assert tensor is not None  # asked for where there is one
                yield self._entry(value.name, tensor, short.get(id(tensor)))

    def _entry(self, name: str | None, tensor: ir.TensorProtocol, data: bytes | memoryview | None) -> bytes:
        """``data``: what is known to be in it."""
        tensor.name = name
        parts: list[bytes | memoryview]
        if type(tensor) is InFile and is_raw_float(tensor.raw) and not tensor.metadata_props:
            parts = [tensor.raw.SerializeToString(deterministic=True)]
        elif not isinstance(tensor, RoundedTensor) or not name or tensor.doc_string or tensor.metadata_props:
            parts = [ir.serde.serialize_tensor(tensor).SerializeToString(deterministic=True)]
        else:
            data = tensor.tobytes() if data is None else data
            parts = [self._head(tensor), text_bytes(TENSOR_NAME, name), RAW_DATA, number_bytes(len(data)), data]
        return b"".join((INITIALIZER, number_bytes(sum(map(len, parts))), *parts))

    def _head(self, tensor: RoundedTensor) -> bytes:
        key = tensor.dtype, dims(tensor)
        if key not in self._heads:
            self._heads[key] = TensorProto(data_type=tensor.dtype.value, dims=key[1]).SerializeToString()
        return self._heads[key]


class _Infos:
    """What the file says of values, whose names are given as fields.

    Shapes are looked at once each, for stored tensors have few and they are frozen."""

    def __init__(self) -> None:
        self._infos = InfoWriter()
        self._plain: dict[int, tuple[int, ...] | None] = {}
        self.results: list[bytes] = []

    def result(self, value: ir.Value, named: bytes) -> None:
        """Takes a node's result."""
        if not value.is_graph_output():
            self.results.append(self.of(value, named))

    def of(self, value: ir.Value, named: bytes) -> bytes:
        """Empty where it is nothing."""
        kind, shape, more = value.type, value.shape, value.metadata_props or value.doc_string
        if not value.name or (kind is None and shape is None and not more):
            return b""
        if type(kind) is ir.TensorType and not (more or kind.denotation):
            if shape is None:
                return self._infos.of(VALUE_INFO, named, kind.dtype, None)
            numbers = self._plain[id(shape)] if id(shape) in self._plain else self._numbers(shape)
            if numbers is not None:
                return self._infos.of(VALUE_INFO, named, kind.dtype, numbers)
        content: bytes = ir.serde.serialize_value(value).SerializeToString(deterministic=True)
        return VALUE_INFO + number_bytes(len(content)) + content

    def _numbers(self, shape: ir.Shape) -> tuple[int, ...] | None:
        """A shape of numbers alone, of which nothing more is said; None for another."""
        plain = shape.is_static() and not any(map(shape.get_denotation, range(len(shape))))
        found = self._plain[id(shape)] = shape.numpy() if plain else None
        return found
