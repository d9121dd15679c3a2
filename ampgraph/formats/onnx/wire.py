"""The file of an ONNX graph as bytes: nodes, stored tensors and what is said of values, all else by onnx_ir.

Serialising through onnx_ir and protobuf makes four objects a node, and a strict run has twice the nodes of its model.
The encoding is protobuf's: a tag, which is the field's number and a kind, then the length of what follows, then that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import onnx_ir as ir
from google.protobuf.message import Message
from onnx import AttributeProto, GraphProto, ModelProto, StringStringEntryProto, TensorProto, TypeProto
from onnx.helper import make_opsetid

from .native import holds_maps, to_proto, value_info
from .weights import InFile, RoundedTensor, dims, is_raw_float, nbytes, short_rounded, tensor_chunks

# fields of a NodeProto, then of a ModelProto and its graph, of a tensor, and of what is said of a value
INPUT, OUTPUT, NAME, KIND, ATTRIBUTE, DOC, DOMAIN, OVERLOAD, METADATA = (
    bytes([8 * field + 2]) for field in (1, 2, 3, 4, 5, 6, 7, 8, 9)
)
NODE, GRAPH, INITIALIZER, GRAPH_INPUT, VALUE_INFO = b"\x0a", b"\x3a", b"\x2a", b"\x5a", b"\x6a"
TENSOR_NAME, RAW_DATA = b"\x42", b"\x4a"
INFO_NAME, INFO_TYPE = b"\x0a", b"\x12"

PLAIN = "ampgraph.plain"
"""Where the main graph of onnx_ir remembers that no value has annotations of quantization, and no node any of devices:
to find them takes a look at each."""
BEFORE_GRAPH = ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string")
BEHIND_VALUES = ("quantization_annotation", "metadata_props")
TOGETHER = 256  # stored tensors of which the short ones are rounded together: 4 MiB of float32 at most


def graph_file(
    ir_version: int | None,
    imports: Mapping[str, int],
    inputs: Iterable[ir.Value],
    outputs: Iterable[ir.Value],
    nodes: Iterable[ir.Node],
    stored: Iterable[ir.Value],
) -> bytes:
    """The bytes of a ModelProto. ``stored``: values with tensors; references to data files stay references."""
    rest = GraphProto(name="graph")
    rest.input.extend(value_info(value) for value in inputs)
    rest.output.extend(value_info(value) for value in outputs)
    for value in stored:
        if value.const_value is not None:
            ir.serde.serialize_tensor_into(rest.initializer.add(), value.const_value)
            rest.initializer[-1].name = value.name or ""
    model = ModelProto(ir_version=ir_version)
    model.opset_import.extend(make_opsetid(domain, version) for domain, version in imports.items())
    return with_nodes(model, nodes, [rest.SerializeToString()])


def with_nodes(outline: ModelProto, nodes: Iterable[ir.Node], more: Iterable[bytes] = ()) -> bytes:
    """The file of a model, and of nodes of its graph, without metadata, and ``more`` of its fields: who reads it merges
    the two parts."""
    body = [*NodeWriter().written(nodes), *more]
    return b"".join((outline.SerializeToString(), GRAPH, number_bytes(sum(map(len, body))), *body))


def model_file(model: ir.Model, finish: Callable[[ModelProto], None]) -> Iterator[bytes | memoryview]:
    """The pieces of the file of a whole model: the bytes of `to_proto`, without the objects in between. A piece holds
    until the next one is asked for.

    ``finish`` has the last word on what is said of the model as a whole."""
    if PLAIN not in model.graph.meta or holds_maps(model) or model.functions:
        proto = to_proto(model)
        finish(proto)
        yield proto.SerializeToString(deterministic=True)
        return
    outline = ir.serde.serialize_model(_Outline(model))
    finish(outline)
    head, first, last = ModelProto(), GraphProto(), GraphProto()
    _move_fields(BEFORE_GRAPH, outline, head)
    _move_fields(("name",), outline.graph, first)
    for field in BEHIND_VALUES:
        getattr(last, field).extend(getattr(outline.graph, field))
        outline.graph.ClearField(field)
    infos, stored = _ValueInfos(), model.graph.initializers.values()
    inputs = {value.name for value in model.graph.inputs}
    pieces: list[bytes | RoundedTensor] = list(NodeWriter(metadata=True, result=infos.result).written(model.graph))
    pieces.append(first.SerializeToString())
    pieces += _tensor_entries([value for value in stored if value.const_value is not None])
    pieces.append(outline.graph.SerializeToString(deterministic=True))
    pieces += (
        infos.said(value, text_bytes(INFO_NAME, value.name or "")) for value in stored if value.name not in inputs
    )
    pieces += infos.results
    pieces.append(last.SerializeToString(deterministic=True))
    outline.ClearField("graph")
    length = sum(nbytes(piece) if isinstance(piece, RoundedTensor) else len(piece) for piece in pieces)
    yield head.SerializeToString() + GRAPH + number_bytes(length)
    for piece in pieces:
        if isinstance(piece, RoundedTensor):
            yield from tensor_chunks(piece)
        else:
            yield piece
    yield outline.SerializeToString(deterministic=True)


def _move_fields(fields: Iterable[str], source: ModelProto | GraphProto, target: ModelProto | GraphProto) -> None:
    """Moves fields that are set from one message to another, so that they are not written twice."""
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


# -- nodes ------------------------------------------------------------------------------------------------------------


class NodeWriter:
    """Writes nodes: the fields of a NodeProto in their order, attributes and names once each.

    ``metadata``: with doc strings and metadata, as a file has them; a runtime needs neither. ``result`` is given each
    value that a node makes, and its name as the first field of what may be said of it, while both are at hand."""

    def __init__(self, metadata: bool = False, result: Callable[[ir.Value, bytes], None] | None = None) -> None:
        self._metadata, self._result = metadata, result
        self._kinds: dict[tuple[str, str, str], tuple[bytes, bytes]] = {}
        self._notes: dict[tuple[str, ...], bytes] = {}
        self._attributes: dict[int, bytes] = {}  # by identity, for many nodes may have one
        self._met: list[ir.Attr] = []  # these: one that is gone might give its identity to another

    def written(self, nodes: Iterable[ir.Node]) -> Iterator[bytes]:
        """One piece for each node. Pieces are added up as they come: that is less work than keeping parts of them."""
        kinds, names, attributes, result = self._kinds, _EncodedNames(), self._attributes, self._result
        for node in nodes:
            content, text, name = b"", b"", ""
            for value in node.inputs:
                content += names[value]
            outputs = node.outputs
            while outputs and not outputs[-1].name:
                outputs = outputs[:-1]
            for value in outputs:
                name = value.name or ""
                text = sized(name)
                content += OUTPUT + text
                names[value] = named = INPUT + text
                if result:
                    result(value, named)
            label = node.name
            if label:
                content += NAME + (text if label == name else sized(label))
            key = node.op_identifier()
            before, behind = kinds.get(key) or self._kind(key)
            content += before
            for attribute in node.attributes.data.values():
                content += attributes.get(id(attribute)) or self._attribute(attribute)
            content += self._said(node, behind) if self._metadata else behind
            yield NODE + number_bytes(len(content)) + content

    def _kind(self, key: tuple[str, str, str]) -> tuple[bytes, bytes]:
        """The bytes of a node before its attributes and behind them, for a kind that was not met before."""
        domain, op_type, overload = key
        behind = b"".join(text_bytes(tag, text) for tag, text in ((DOMAIN, domain), (OVERLOAD, overload)) if text)
        found = self._kinds[key] = text_bytes(KIND, op_type), behind
        return found

    def _attribute(self, attribute: ir.Attr) -> bytes:
        """The entry of an attribute that is met for the first time."""
        proto = AttributeProto()
        if attribute.is_ref():
            ir.serde.serialize_reference_attribute_into(proto, attribute)
        else:
            ir.serde.serialize_attribute_into(proto, attribute)
        self._met.append(attribute)
        found = self._attributes[id(attribute)] = message_bytes(ATTRIBUTE, proto)
        return found

    def _said(self, node: ir.Node, behind: bytes) -> bytes:
        """The fields of a node that stand behind its attributes, as bytes: ``behind`` with doc string and metadata."""
        if node.doc_string:
            behind = text_bytes(DOC, node.doc_string) + behind
        props = node.metadata_props
        if not props:
            return behind
        notes = *props, *props.values()
        if notes not in self._notes:
            entries = (StringStringEntryProto(key=key, value=note) for key, note in sorted(props.items()))
            self._notes[notes] = b"".join(message_bytes(METADATA, entry) for entry in entries)
        return behind + self._notes[notes]


class _EncodedNames(dict[ir.Value | None, bytes]):
    """The ``input`` field of nodes by the value that is read, encoded once: `NodeWriter.written` enters what nodes
    make; graph inputs, initializers and None, an operand that is left away, are entered when first read."""

    def __missing__(self, value: ir.Value | None) -> bytes:
        text = self[value] = text_bytes(INPUT, (value.name or "") if value is not None else "")
        return text


def message_bytes(tag: bytes, message: Message) -> bytes:
    """A field that is a message: its tag, its length, its content."""
    content: bytes = message.SerializeToString(deterministic=True)
    return tag + number_bytes(len(content)) + content


def text_bytes(tag: bytes, text: str) -> bytes:
    """A field that is a text, as protobuf writes it."""
    return tag + sized(text)


def sized(text: str) -> bytes:
    """A text's bytes with their length in front, as protobuf writes them."""
    content = text.encode()
    return number_bytes(len(content)) + content


@lru_cache(maxsize=1 << 12)
def number_bytes(number: int) -> bytes:
    """A whole number as protobuf's varint: seven bits a byte, lowest first, all but the last byte marked."""
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


# -- stored tensors, and what is said of values -----------------------------------------------------------------------


def _tensor_entries(values: Sequence[ir.Value]) -> Iterator[bytes | RoundedTensor]:
    """The entries of initializers; of rounded ones no object is made, and their heads are written once each. Of a long
    one what is in front of its bytes, then the tensor, which is rounded when they are written."""
    heads: dict[tuple[ir.DataType, tuple[int, ...]], bytes] = {}
    for start in range(0, len(values), TOGETHER):
        some = values[start : start + TOGETHER]
        short = short_rounded(value.const_value for value in some)
        for value in some:
            tensor, name = value.const_value, value.name
            assert tensor is not None  # asked for where there is one
            tensor.name = name
            if type(tensor) is InFile and is_raw_float(tensor.raw) and not tensor.metadata_props:
                yield message_bytes(INITIALIZER, tensor.raw)
            elif not isinstance(tensor, RoundedTensor) or not name or tensor.doc_string or tensor.metadata_props:
                yield message_bytes(INITIALIZER, ir.serde.serialize_tensor(tensor))
            else:
                key = tensor.dtype, dims(tensor)
                if key not in heads:
                    heads[key] = TensorProto(data_type=tensor.dtype.value, dims=key[1]).SerializeToString()
                data, held = short.get(id(tensor), b""), nbytes(tensor)
                parts = heads[key], text_bytes(TENSOR_NAME, name), RAW_DATA, number_bytes(held)
                yield b"".join((INITIALIZER, number_bytes(sum(map(len, parts)) + held), *parts, data))
                if not data:
                    yield tensor


class InfoWriter:
    """Writes what is said of tensors: a name and a type, each type once."""

    def __init__(self) -> None:
        self._types: dict[tuple[ir.DataType, tuple[int, ...] | None], bytes] = {}

    def of(self, field: bytes, named: bytes, dtype: ir.DataType, shape: tuple[int, ...] | None) -> bytes:
        """The entry in a field of a graph; ``named``: the field of its name, ``shape``: None where nothing is said of
        it."""
        known = self._types.get((dtype, shape))
        if known is None:
            proto = TypeProto()
            ir.serde.serialize_type_into(proto, ir.TensorType(dtype))
            if shape is not None:
                ir.serde.serialize_shape_into(proto, ir.Shape(shape))
            known = self._types[dtype, shape] = message_bytes(INFO_TYPE, proto)
        return field + number_bytes(len(named) + len(known)) + named + known


class _ValueInfos(InfoWriter):
    """What the file says of values. A shape is looked at once: many values share one, and none changes while the
    file is written."""

    def __init__(self) -> None:
        super().__init__()
        self._plain: dict[int, tuple[int, ...] | None] = {}  # by `id` of a shape, which the model keeps; see _numbers
        self.results: list[bytes] = []

    def result(self, value: ir.Value, named: bytes) -> None:
        """Keeps what is said of a node's result, unless the graph's outputs say it."""
        if not value.is_graph_output():
            self.results.append(self.said(value, named))

    def said(self, value: ir.Value, named: bytes) -> bytes:
        """The bytes that annotate a value; empty where the file says nothing of it."""
        kind, shape, more = value.type, value.shape, value.metadata_props or value.doc_string
        if not value.name or (kind is None and shape is None and not more):
            return b""
        if type(kind) is ir.TensorType and not (more or kind.denotation):
            if shape is None:
                return self.of(VALUE_INFO, named, kind.dtype, None)
            numbers = self._plain[id(shape)] if id(shape) in self._plain else self._numbers(shape)
            if numbers is not None:
                return self.of(VALUE_INFO, named, kind.dtype, numbers)
        return message_bytes(VALUE_INFO, ir.serde.serialize_value(value))

    def _numbers(self, shape: ir.Shape) -> tuple[int, ...] | None:
        """A shape of numbers alone, of which nothing more is said; None for another."""
        plain = shape.is_static() and not any(map(shape.get_denotation, range(len(shape))))
        found = self._plain[id(shape)] = shape.numpy() if plain else None
        return found
