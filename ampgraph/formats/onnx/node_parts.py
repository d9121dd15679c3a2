"""Nodes of a file, taken apart: their names, and what many nodes have in common but for these.

To look at each field of a node through protobuf's objects takes longer than to make the node of onnx_ir. All bytes of a
node come at once, its names first, in the encoding that `wire` writes; what is behind them is alike in most nodes.
"""

from __future__ import annotations

from collections.abc import Iterable

from onnx import AttributeProto, NodeProto

LONG = 1 << 10  # bytes behind the names: of more no second node has the same, as of a stored tensor
NUMBERS = frozenset(
    (AttributeProto.INT, AttributeProto.INTS, AttributeProto.FLOAT, AttributeProto.FLOATS, AttributeProto.STRING)
)
"""Types of attributes of which one object is made for all that are equal."""

INPUT, OUTPUT, NAME = 0x0A, 0x12, 0x1A  # tags of fields of a NodeProto
NAMES = frozenset((INPUT, OUTPUT, NAME))


class Kind:
    """What nodes have but for their names.

    Attributes:
        proto: one of the nodes.
        op_type: their operator.
        heavy: whether it may hold a tensor or a body: something else than numbers and texts.
        shared: whether other nodes may be of the same kind: those that are not heavy, and have no metadata.
    """

    __slots__ = ("heavy", "op_type", "proto", "shared")

    def __init__(self, proto: NodeProto) -> None:
        self.proto, self.op_type = proto, proto.op_type
        self.heavy = not all(attribute.type in NUMBERS for attribute in proto.attribute)
        self.shared = not self.heavy and not proto.metadata_props


Parts = tuple[list[bytes], list[bytes], bytes, Kind]
"""The names of a node's inputs and outputs, its own, and what else it has."""


class PartsReader:
    """Takes nodes apart, those of a heavy operator field by field: their bytes may be many.

    ``orderly``: False after a node that cannot be: with a name of 16 KiB, or fields in another order than that of their
    numbers."""

    def __init__(self) -> None:
        self.orderly = True
        self._kinds: dict[bytes, Kind] = {}
        self._heavy: dict[str, bool] = {}

    def of(self, node: NodeProto) -> Parts:
        """The parts of a node; of one that cannot be taken apart the kind alone is right."""
        if self._heavy.get(node.op_type, True):
            kind = self._meet(node)
            if self._heavy[kind.op_type]:
                return _texts(node.input), _texts(node.output), _texts([node.name])[0], kind
        data = node.SerializeToString()
        inputs: list[bytes] = []
        outputs: list[bytes] = []
        name, at, end = b"", 0, len(data)
        while at < end and (field := data[at]) in NAMES:
            length = data[at + 1]
            at += 2
            if length >= 0x80:  # seven bits a byte, the lowest first
                if data[at] >= 0x80:
                    break
                length += (data[at] - 1) << 7
                at += 1
            text = data[at : at + length]
            at += length
            if field == INPUT:
                inputs.append(text)
            elif field == OUTPUT:
                outputs.append(text)
            else:
                name = text
        rest = data[at:] if end - at <= LONG else b""
        return inputs, outputs, name, self._kinds.get(rest) or self._kind(node, rest, inputs, outputs, name)

    def _meet(self, node: NodeProto) -> Kind:
        """Of an operator that is heavy, or new: the first node says which of both."""
        kind = Kind(node)
        self._heavy.setdefault(kind.op_type, kind.heavy)
        return kind

    def _kind(self, node: NodeProto, rest: bytes, inputs: list[bytes], outputs: list[bytes], name: bytes) -> Kind:
        """Of a node with another ``rest`` than those before; no name may be in that."""
        kind = Kind(node)
        found = len(inputs), len(outputs), bool(name)
        if found != (len(node.input), len(node.output), bool(node.name)):
            self.orderly = False
        elif rest and kind.shared:
            self._kinds[rest] = kind
        self._heavy[kind.op_type] |= kind.heavy
        return kind


def _texts(names: Iterable[str]) -> list[bytes]:
    """Names as they are in the file; protobuf gives one that is no text as bytes."""
    return [name if isinstance(name, bytes) else name.encode() for name in names]
