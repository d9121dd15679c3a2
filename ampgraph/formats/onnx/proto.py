"""ModelProtos as they are read: nodes taken apart, and what onnx_ir would lose, double or refuse put right and said.

To look at each field of a node through protobuf's objects takes longer than to make the node of onnx_ir. All bytes of a
node come at once, its names first, in the encoding that `wire` writes; what is behind them is alike in most nodes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    numpy_helper,
)

from ...core.errors import AmpError

LONG = 1 << 10  # bytes behind the names: of more no second node has the same, as of a stored tensor
NUMBERS = frozenset(
    (AttributeProto.INT, AttributeProto.INTS, AttributeProto.FLOAT, AttributeProto.FLOATS, AttributeProto.STRING)
)
"""Types of attributes that hold numbers or text, of which one object is made for all that are equal."""

INPUT, OUTPUT, NAME = 0x0A, 0x12, 0x1A  # tags of fields of a NodeProto
NAMES = frozenset((INPUT, OUTPUT, NAME))


class Kind:
    """What the NodeProtos of one kind have in common: all but their names. ``proto``: one of them; ``heavy``: whether
    an attribute holds a tensor or a body, and not numbers or text; ``shared``: whether other nodes may be of this kind:
    it is not heavy, and has no metadata."""

    __slots__ = ("heavy", "op_type", "proto", "shared")

    def __init__(self, proto: NodeProto) -> None:
        self.proto, self.op_type = proto, proto.op_type
        self.heavy = not all(attribute.type in NUMBERS for attribute in proto.attribute)
        self.shared = not self.heavy and not proto.metadata_props


Parts = tuple[list[bytes], list[bytes], bytes, Kind]
"""A node taken apart: (names of its inputs, of its outputs, its own name, what else it has), as in the file's bytes; a
name that is left out is b""."""


class PartsReader:
    """Takes NodeProtos of one graph apart: from their bytes, those of a heavy operator, whose bytes may be many, field
    by field. ``orderly``: False once one could not be: with a name of 16 KiB, or fields in another order."""

    def __init__(self) -> None:
        self.orderly = True
        self._kinds: dict[bytes, Kind] = {}  # bytes of a node behind its names -> its kind
        self._heavy: dict[str, bool] = {}  # operator -> whether one of its nodes was heavy

    def parts(self, node: NodeProto) -> Parts:
        """The parts of a NodeProto; of one that cannot be taken apart (not `orderly`) the kind alone is right."""
        if self._heavy.get(node.op_type, True):
            kind = Kind(node)
            if self._heavy.setdefault(kind.op_type, kind.heavy):  # the first node of an operator decides
                return (*_node_names(node), kind)
        data = node.SerializeToString()
        inputs: list[bytes] = []
        outputs: list[bytes] = []
        name, at, end = b"", 0, len(data)
        while at < end and data[at] in NAMES:
            field, length = data[at], data[at + 1]
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
        return inputs, outputs, name, self._kinds.get(rest) or self._new_kind(node, rest, inputs, outputs, name)

    def _new_kind(self, node: NodeProto, rest: bytes, inputs: list[bytes], outputs: list[bytes], name: bytes) -> Kind:
        """The kind of a NodeProto whose bytes behind its names (``rest``, b"" for long ones) were not met before, kept
        for nodes that have the same. Compares the names found with the node's: one found less stands in ``rest``."""
        kind = Kind(node)
        found = len(inputs), len(outputs), bool(name)
        if found != (len(node.input), len(node.output), bool(node.name)):
            self.orderly = False
        elif rest and kind.shared:
            self._kinds[rest] = kind
        self._heavy[kind.op_type] |= kind.heavy
        return kind


def _node_names(node: NodeProto) -> tuple[list[bytes], list[bytes], bytes]:
    """The names of a NodeProto's inputs, of its outputs, and its own, as bytes."""
    return _names_as_bytes(node.input), _names_as_bytes(node.output), _names_as_bytes([node.name])[0]


def _names_as_bytes(names: Iterable[str]) -> list[bytes]:
    """Names of a NodeProto as bytes, as the file has them; protobuf gives one that is not UTF-8 as bytes already."""
    return [name if isinstance(name, bytes) else name.encode() for name in names]


DENSE_LIMIT = 1 << 30  # bytes of a sparse tensor that is made dense: more is a damaged file
HOLDING = (
    AttributeProto.TENSOR,
    AttributeProto.TENSORS,
    AttributeProto.SPARSE_TENSOR,
    AttributeProto.GRAPH,
    AttributeProto.GRAPHS,
)
"""Types of attributes that hold tensors or bodies."""


@dataclass(frozen=True)
class Holder:
    """What a ModelProto's main graph, body or function holds, found in one walk; edits make it out of date."""

    graph: GraphProto | FunctionProto
    opsets: Mapping[str, int]  # by domain, "" for that of the standard operators
    attributes: list[AttributeProto]  # those that hold tensors or bodies
    constants: list[NodeProto]  # Constant nodes
    parts: list[Parts] | None  # all nodes, taken apart; None where one cannot be

    def nodes(self) -> Iterable[Parts]:
        """The parts of every NodeProto in this graph, in order, also where not all can be taken apart fast."""
        if self.parts is not None:
            return self.parts
        return ((*_node_names(node), Kind(node)) for node in self.graph.node)

    def tensors(self) -> Iterator[TensorProto]:
        """The TensorProtos in this graph: initializers, and those of attributes; none of its bodies."""
        if isinstance(self.graph, GraphProto):
            yield from self.graph.initializer
        for attribute in self.attributes:
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t
            elif attribute.type == AttributeProto.TENSORS:
                yield from attribute.tensors


def holders(proto: ModelProto) -> list[Holder]:
    """A Holder for every graph of a ModelProto, in the order of `walk.all_graphs`: functions, then bodies."""
    opsets = _opsets(proto)
    waiting: list[tuple[GraphProto | FunctionProto, Mapping[str, int]]] = [(proto.graph, opsets)]
    waiting += [(function, {**opsets, **_opsets(function)}) for function in proto.functions]
    found = []
    for graph, versions in waiting:
        held = _holder(graph, versions)
        found.append(held)
        for attribute in held.attributes:
            if attribute.type == AttributeProto.GRAPH:
                waiting.append((attribute.g, versions))
            elif attribute.type == AttributeProto.GRAPHS:
                waiting.extend((body, versions) for body in attribute.graphs)
    return found


def _opsets(owner: ModelProto | FunctionProto) -> dict[str, int]:
    """The opset imports of a model or function: domain -> version; ``ai.onnx`` is "" too."""
    return {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in owner.opset_import}


def tensors(held: Iterable[Holder]) -> Iterator[TensorProto]:
    """Every TensorProto that a model stores, by the `holders` of all of its graphs: initializers and attributes."""
    return (tensor for holder in held for tensor in holder.tensors())


def _holder(graph: GraphProto | FunctionProto, opsets: Mapping[str, int]) -> Holder:
    """The Holder of one graph of a ModelProto. An attribute that refers to a function's (``ref_attr_name``) holds
    nothing. A sparse tensor counts in a Constant alone, whose ``value`` it becomes (`_densify`)."""
    reader, nodes = PartsReader(), list[Parts]()
    held = Holder(graph, opsets, [], [], nodes)
    for node in graph.node:
        parts = reader.parts(node)
        nodes.append(parts)
        kind = parts[3]
        if kind.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            held.constants.append(node)
        for attribute in () if kind.shared else node.attribute:  # a shared kind has numbers and texts alone
            sparse = attribute.type == AttributeProto.SPARSE_TENSOR and kind.op_type != "Constant"
            if attribute.type in HOLDING and not attribute.ref_attr_name and not sparse:
                held.attributes.append(attribute)
    return held if reader.orderly else replace(held, parts=None)


# -- repairs ----------------------------------------------------------------------------------------------------------


def repair(proto: ModelProto, held: list[Holder], where: str) -> tuple[list[str], list[Holder]]:
    """Repairs a ModelProto in place, whose `holders` are ``held``: constants that are defined twice, sparse tensors.
    Returns (a sentence for each repair, the holders as they are then). Raises AmpError AMP102 for a sparse tensor that
    makes no sense; ``where``: how that names the file."""
    said = _settle_duplicates(proto.graph, held[0].constants)
    held = holders(proto) if said else held
    count = sum(_densify(holder, where) for holder in held)
    if count:
        tensors = "sparse tensor is" if count == 1 else "sparse tensors are"
        said.append(f"{count} {tensors} stored dense, as ONNX Runtime holds them")
        held = holders(proto)
    return said, held


def _settle_duplicates(graph: GraphProto, constants: list[NodeProto]) -> list[str]:
    """Removes all definitions of a constant from a GraphProto but the one that ONNX Runtime uses, which reads
    initializers, then Constant nodes, then sparse initializers, and lets the last one win. Returns a sentence for each
    name. ``constants``: the graph's Constant nodes."""
    made = [
        *((tensor.name, graph.initializer, tensor) for tensor in graph.initializer),
        *((node.output[0], graph.node, node) for node in constants if node.output),
        *((sparse.values.name, graph.sparse_initializer, sparse) for sparse in graph.sparse_initializer),
    ]
    last = {name: place for place, (name, *_) in enumerate(made)}
    if len(last) == len(made):
        return []
    for place, (name, home, item) in enumerate(made):
        if name and last[name] != place:
            home.remove(item)  # the first that is equal, which is this one
    counts = Counter(name for name, *_ in made if name)
    return [
        f"constant '{name}' is defined {count} times: the last is used, as ONNX Runtime does"
        for name, count in counts.items()
        if count > 1
    ]


def _densify(holder: Holder, where: str) -> int:
    """Makes the sparse tensors of one graph in a ModelProto dense, in place, as ONNX Runtime does when it loads them:
    onnx_ir has none. Returns how many there were. Raises AmpError AMP102 for one that makes no sense."""
    count, graph = 0, holder.graph
    if isinstance(graph, GraphProto):
        count = len(graph.sparse_initializer)
        graph.initializer.extend(_dense_tensor(sparse, where) for sparse in graph.sparse_initializer)
        del graph.sparse_initializer[:]
    for attribute in holder.attributes:
        if attribute.type == AttributeProto.SPARSE_TENSOR:
            dense = _dense_tensor(attribute.sparse_tensor, where)
            attribute.Clear()
            attribute.name, attribute.type = "value", AttributeProto.TENSOR
            attribute.t.CopyFrom(dense)
            count += 1
    return count


def _dense_tensor(sparse: SparseTensorProto, where: str) -> TensorProto:
    """The dense TensorProto of a sparse one, whose indices are flat, or a row of coordinates each. Raises AmpError
    AMP102 for indices and shapes that make no sense, and beyond `DENSE_LIMIT`."""
    name, shape = sparse.values.name, tuple(sparse.dims)
    try:
        values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
        if min(shape, default=0) < 0 or math.prod(shape) * values.itemsize > DENSE_LIMIT:
            raise ValueError(f"shape {list(shape)}")
        dense = np.zeros(shape, values.dtype)
        flat = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), shape)
        dense.reshape(-1)[flat] = values
    except (ValueError, IndexError, TypeError, onnx.checker.ValidationError) as error:
        raise AmpError(
            "AMP102",
            f"sparse tensor '{name}' makes no sense: {str(error).splitlines()[0]}",
            where=where,
            hint="the file is damaged: export it again",
        ) from error
    tensor = numpy_helper.from_array(dense, name)
    tensor.doc_string = sparse.values.doc_string
    return tensor
