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

# tags of fields of a NodeProto, then of a ModelProto and its graph, of a TensorProto, and of a ValueInfoProto
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
"""Fields of a ModelProto whose numbers are below the graph's."""
BEHIND_VALUES = ("quantization_annotation", "metadata_props")  # fields of a GraphProto behind its value infos
TOGETHER = 256  # stored tensors of which the short ones are rounded at once: 4 MiB of float32 at most


def graph_file(
    ir_version: int | None,
    imports: Mapping[str, int],
    inputs: Iterable[ir.Value],
    outputs: Iterable[ir.Value],
    nodes: Iterable[ir.Node],
    stored: Iterable[ir.Value],
) -> bytes:
    """The bytes of a ModelProto of one graph, without metadata. ``imports``: domain -> opset; ``stored``: values with
    tensors, which are its initializers; references to data files stay references."""
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
    """The bytes of the model ``outline`` with these nodes in its graph, without their metadata, and ``more`` entries of
    the graph, as bytes: a second GraphProto, which every reader of protobuf merges with the outline's."""
    body = [*NodeWriter().entries(nodes), *more]
    return b"".join((outline.SerializeToString(), GRAPH, number_bytes(sum(map(len, body))), *body))


def model_file(model: ir.Model, finish: Callable[[ModelProto], None]) -> Iterator[bytes | memoryview]:
    """The file of a whole ONNX model, in pieces: the bytes that `to_proto` serializes to, without the objects in
    between; each piece may be overwritten by the next one. ``finish``: may change the fields of the model, but for its
    graph, before they are written."""
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
    pieces: list[bytes | RoundedTensor] = list(NodeWriter(metadata=True, result=infos.result).entries(model.graph))
    pieces.append(first.SerializeToString())
    pieces += _tensor_entries([value for value in stored if value.const_value is not None])
    pieces.append(outline.graph.SerializeToString(deterministic=True))
    own = (value for value in stored if value.name not in inputs)
    pieces += (infos.annotation(value, text_bytes(INFO_NAME, value.name or "")) for value in own)
    pieces += infos.results
    pieces.append(last.SerializeToString(deterministic=True))
    outline.ClearField("graph")
    length = sum(len(piece) if isinstance(piece, bytes) else nbytes(piece) for piece in pieces)
    yield head.SerializeToString() + GRAPH + number_bytes(length)
    for piece in pieces:
        if isinstance(piece, bytes):
            yield piece
        else:
            yield from tensor_chunks(piece)
    yield outline.SerializeToString(deterministic=True)


def _move_fields(fields: Iterable[str], source: ModelProto | GraphProto, target: ModelProto | GraphProto) -> None:
    """Moves those of these fields that are set from one ONNX message to another, so that they are not written twice."""
    for field in fields:
        if source.HasField(field):
            setattr(target, field, getattr(source, field))
            source.ClearField(field)


class _Outline:
    """An onnx_ir model, or its graph, for onnx_ir to serialize without nodes and stored tensors."""

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
    """Writes onnx_ir nodes as bytes: the fields of a NodeProto in their order; each attribute and name is encoded once.
    ``metadata``: with doc strings and metadata, as a file has them; a runtime needs neither. ``result``: called with
    each value that a node makes and the name field of its ValueInfoProto, in the order of the nodes."""

    def __init__(self, metadata: bool = False, result: Callable[[ir.Value, bytes], None] | None = None) -> None:
        self._metadata, self._result = metadata, result
        self._kinds: dict[tuple[str, str, str], tuple[bytes, bytes]] = {}  # (domain, operator, overload) -> `_kind`
        self._metadata_fields: dict[tuple[str, ...], bytes] = {}  # keys, then values, of metadata -> its fields
        self._attributes: dict[int, bytes] = {}  # `id` of an attribute, which many nodes may share -> its field
        self._kept: list[ir.Attr] = []  # these attributes: one that is gone might give its `id` to another

    def entries(self, nodes: Iterable[ir.Node]) -> Iterator[bytes]:
        """The entry of each onnx_ir node in a graph, as bytes. They are yielded as they come, so iterate to the end."""
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
            content += self._with_metadata(node, behind) if self._metadata else behind
            yield NODE + number_bytes(len(content)) + content

    def _kind(self, key: tuple[str, str, str]) -> tuple[bytes, bytes]:
        """(fields of a NodeProto in front of its attributes, fields behind them) for the (domain, operator, overload)
        of ``key``: the operator, then domain and overload; kept in `_kinds`."""
        domain, op_type, overload = key
        behind = b"".join(text_bytes(tag, text) for tag, text in ((DOMAIN, domain), (OVERLOAD, overload)) if text)
        found = self._kinds[key] = text_bytes(KIND, op_type), behind
        return found

    def _attribute(self, attribute: ir.Attr) -> bytes:
        """The attribute field of a NodeProto for an attribute, encoded and kept in `_attributes`."""
        proto = AttributeProto()
        if attribute.is_ref():
            ir.serde.serialize_reference_attribute_into(proto, attribute)
        else:
            ir.serde.serialize_attribute_into(proto, attribute)
        self._kept.append(attribute)
        found = self._attributes[id(attribute)] = message_bytes(ATTRIBUTE, proto)
        return found

    def _with_metadata(self, node: ir.Node, behind: bytes) -> bytes:
        """All fields of a NodeProto behind its attributes: doc string, ``behind`` (domain, overload), metadata."""
        if node.doc_string:
            behind = text_bytes(DOC, node.doc_string) + behind
        props = node.metadata_props
        if not props:
            return behind
        texts = *props, *props.values()
        if texts not in self._metadata_fields:
            entries = (StringStringEntryProto(key=key, value=text) for key, text in sorted(props.items()))
            self._metadata_fields[texts] = b"".join(message_bytes(METADATA, entry) for entry in entries)
        return behind + self._metadata_fields[texts]


class _EncodedNames(dict[ir.Value | None, bytes]):
    """Value that a node reads -> the input field of a NodeProto, encoded once; None, an input that is left out, has an
    empty name. `NodeWriter.entries` puts in what nodes make, the others come in when they are first read."""

    def __missing__(self, value: ir.Value | None) -> bytes:
        """Encodes the name of a graph input, an initializer or None, which no node makes."""
        name = "" if value is None else value.name or ""
        field = self[value] = text_bytes(INPUT, name)
        return field


def message_bytes(tag: bytes, message: Message) -> bytes:
    """A protobuf field that holds a message: its tag, its length, its content."""
    content: bytes = message.SerializeToString(deterministic=True)
    return tag + number_bytes(len(content)) + content


def text_bytes(tag: bytes, text: str) -> bytes:
    """A protobuf field that holds a text: its tag, its length, its UTF-8 bytes."""
    return tag + sized(text)


def sized(text: str) -> bytes:
    """The UTF-8 bytes of a text with their length in front, as protobuf writes them behind a tag."""
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
    """The initializer entry of a GraphProto for each value, all of which have tensors, as bytes. Of rounded tensors no
    protobuf object is made, and the fields in front of their names are encoded once a type and shape; of a long one
    come the entry up to its data, then the tensor, which is rounded while it is written."""
    heads: dict[tuple[ir.DataType, tuple[int, ...]], bytes] = {}  # (type, dimensions) -> these two fields
    for start in range(0, len(values), TOGETHER):
        some = values[start : start + TOGETHER]
        short = short_rounded(value.const_value for value in some)
        for value in some:
            tensor, name = value.const_value, value.name
            assert tensor is not None
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
    """Writes ValueInfoProtos of tensors as bytes, and encodes each type and shape once."""

    def __init__(self) -> None:
        self._types: dict[tuple[ir.DataType, tuple[int, ...] | None], bytes] = {}  # -> the type field

    def entry(self, tag: bytes, named: bytes, dtype: ir.DataType, shape: tuple[int, ...] | None) -> bytes:
        """A ValueInfoProto as a field of a GraphProto. ``tag``: the field's tag; ``named``: the entry's name field;
        ``shape``: None for none."""
        known = self._types.get((dtype, shape))
        if known is None:
            proto = TypeProto()
            ir.serde.serialize_type_into(proto, ir.TensorType(dtype))
            if shape is not None:
                ir.serde.serialize_shape_into(proto, ir.Shape(shape))
            known = self._types[dtype, shape] = message_bytes(INFO_TYPE, proto)
        return tag + number_bytes(len(named) + len(known)) + named + known


class _ValueInfos(InfoWriter):
    """Writes the value_info entries of a GraphProto. Each shape object is looked at once: many values share one, and
    while a file is written none changes, frozen or not, and the model keeps all of them alive."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes: dict[int, tuple[int, ...] | None] = {}  # `id` of a shape -> `_fixed_sizes`
        self.results: list[bytes] = []  # entries of the results of nodes, in their order

    def result(self, value: ir.Value, named: bytes) -> None:
        """Adds the value_info entry of a node's result, unless it is an output: those have theirs in the outputs."""
        if not value.is_graph_output():
            self.results.append(self.annotation(value, named))

    def annotation(self, value: ir.Value, named: bytes) -> bytes:
        """The value_info entry of a value, b"" where the model annotates nothing of it. ``named``: the name field."""
        kind, shape, more = value.type, value.shape, value.metadata_props or value.doc_string
        if not value.name or (kind is None and shape is None and not more):
            return b""
        if type(kind) is ir.TensorType and not (more or kind.denotation):
            if shape is None:
                return self.entry(VALUE_INFO, named, kind.dtype, None)
            numbers = self._sizes[id(shape)] if id(shape) in self._sizes else self._fixed_sizes(shape)
            if numbers is not None:
                return self.entry(VALUE_INFO, named, kind.dtype, numbers)
        return message_bytes(VALUE_INFO, ir.serde.serialize_value(value))

    def _fixed_sizes(self, shape: ir.Shape) -> tuple[int, ...] | None:
        """The sizes of a shape that has numbers alone and no denotations; None for another; kept in `_sizes`."""
        fixed = shape.is_static() and not any(map(shape.get_denotation, range(len(shape))))
        found = self._sizes[id(shape)] = shape.numpy() if fixed else None
        return found
