"""The file of an ONNX graph as a runtime needs it, written node by node, annotated at inputs and outputs alone.

Serialising through onnx_ir and protobuf makes four objects a node, and a strict run has twice the nodes of its model.
The encoding is protobuf's: a tag, which is the field's number and a kind, then the length of what follows, then that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

import onnx_ir as ir
from onnx import AttributeProto, GraphProto, ModelProto, StringStringEntryProto
from onnx.helper import make_opsetid

from .map_types import value_info

# fields of a NodeProto, then those of what holds it
INPUT, OUTPUT, NAME, KIND, ATTRIBUTE, DOC, DOMAIN, OVERLOAD, METADATA = (
    bytes([8 * field + 2]) for field in (1, 2, 3, 4, 5, 6, 7, 8, 9)
)
NODE, GRAPH = b"\x0a", b"\x3a"


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
    body = [*NodeWriter().written(nodes), rest.SerializeToString()]
    return b"".join((model.SerializeToString(), GRAPH, number_bytes(sum(map(len, body))), *body))


def with_nodes(outline: ModelProto, nodes: Iterable[ir.Node], more: Iterable[bytes] = ()) -> bytes:
    """The file of a model, and of nodes of its graph, without metadata, and ``more`` of its fields: who reads it merges
    the two parts."""
    body = [*NodeWriter().written(nodes), *more]
    return b"".join((outline.SerializeToString(), GRAPH, number_bytes(sum(map(len, body))), *body))


class NodeWriter:
    """Writes nodes: the fields of a NodeProto in their order, attributes and names once each.

    ``metadata``: with doc strings and metadata, as a file has them; a runtime needs neither. ``result`` is given each
    value that a node makes, and its name as the first field of what may be said of it, while both are at hand."""

    def __init__(self, metadata: bool = False, result: Callable[[ir.Value, bytes], None] | None = None) -> None:
        self._metadata, self._result = metadata, result
        self.names = _Names()
        self._kinds: dict[tuple[str, str, str], tuple[bytes, bytes]] = {}
        self._notes: dict[tuple[str, ...], bytes] = {}

    def written(self, nodes: Iterable[ir.Node]) -> Iterator[bytes]:
        """One piece for each node. Pieces are added up as they come: that is less work than keeping parts of them."""
        kinds, names, attributes, result = self._kinds, self.names, _Attributes(), self._result
        for node in nodes:
            content, text, name = b"", b"", ""
            for value in node.inputs:
                content += names[value]
            outputs = node.outputs
            if outputs and not outputs[-1].name:
                outputs = _named(outputs)
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
                content += attributes.get(id(attribute)) or attributes.of(attribute)
            content += self._said(node, behind) if self._metadata else behind
            yield NODE + number_bytes(len(content)) + content

    def _said(self, node: ir.Node, behind: bytes) -> bytes:
        """What stands behind the attributes, with what is said of the node."""
        if node.doc_string:
            behind = text_bytes(DOC, node.doc_string) + behind
        props = node.metadata_props
        if not props:
            return behind
        notes = *props, *props.values()
        return behind + (self._notes.get(notes) or self._note(notes, props))

    def _note(self, notes: tuple[str, ...], props: Mapping[str, str]) -> bytes:
        """The entries of metadata that are met for the first time."""
        entries = (
            StringStringEntryProto(key=key, value=note).SerializeToString() for key, note in sorted(props.items())
        )
        found = self._notes[notes] = b"".join(METADATA + number_bytes(len(entry)) + entry for entry in entries)
        return found

    def _kind(self, key: tuple[str, str, str]) -> tuple[bytes, bytes]:
        """What stands before the attributes, and behind them."""
        domain, op_type, overload = key
        behind = b"".join(text_bytes(tag, text) for tag, text in ((DOMAIN, domain), (OVERLOAD, overload)) if text)
        found = self._kinds[key] = text_bytes(KIND, op_type), behind
        return found


class _Attributes(dict[int, bytes]):
    """Attributes by identity, for many nodes may have one; whole numbers once each, for many are alike."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, object, str | None], bytes] = {}

    def of(self, attribute: ir.Attr) -> bytes:
        """The entry of an attribute that is met for the first time."""
        if attribute.type != ir.AttributeType.INT or attribute.is_ref():
            found = self[id(attribute)] = _attribute_bytes(attribute)
            return found
        key = attribute.name, attribute.value, attribute.doc_string
        if key not in self._numbers:
            self._numbers[key] = _attribute_bytes(attribute)
        found = self[id(attribute)] = self._numbers[key]
        return found


class _Names(dict[ir.Value | None, bytes]):
    """Names of values as inputs of nodes: one is written where it is made, and again wherever it is read."""

    def __missing__(self, value: ir.Value | None) -> bytes:
        text = self[value] = text_bytes(INPUT, (value.name or "") if value is not None else "")
        return text


def _attribute_bytes(attribute: ir.Attr) -> bytes:
    proto = AttributeProto()
    if attribute.is_ref():
        ir.serde.serialize_reference_attribute_into(proto, attribute)
    else:
        ir.serde.serialize_attribute_into(proto, attribute)
    content: bytes = proto.SerializeToString()
    return ATTRIBUTE + number_bytes(len(content)) + content


def _named(outputs: Sequence[ir.Value]) -> Sequence[ir.Value]:
    """Without those at the end that have no name."""
    while outputs and not outputs[-1].name:
        outputs = outputs[:-1]
    return outputs


def text_bytes(tag: bytes, text: str) -> bytes:
    return tag + sized(text)


def sized(text: str) -> bytes:
    """A text behind its length."""
    content = text.encode()
    return number_bytes(len(content)) + content


@lru_cache(maxsize=1 << 12)
def number_bytes(number: int) -> bytes:
    """Seven bits a byte, the lowest first; all but the last byte are marked."""
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)
