"""What onnx_ir would lose or double in a ModelProto, put right on the way in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
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
from .node_parts import Parts, PartsReader

DENSE_LIMIT = 1 << 30  # bytes of a sparse tensor that is written out: more is a damaged file
WATCHED = ("Constant", "Slice")
"""Operators of which some are put right when a model is read."""

HOLDING = (
    AttributeProto.TENSOR,
    AttributeProto.TENSORS,
    AttributeProto.SPARSE_TENSOR,
    AttributeProto.GRAPH,
    AttributeProto.GRAPHS,
)


def tensors(proto: ModelProto) -> Iterator[TensorProto]:
    """Every stored tensor: initializers and attributes, of bodies and functions too."""
    for graph in (proto.graph, *proto.functions):
        yield from _tensors(graph)


def _tensors(graph: GraphProto | FunctionProto) -> Iterator[TensorProto]:
    yield from getattr(graph, "initializer", ())
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t
            elif attribute.type == AttributeProto.TENSORS:
                yield from attribute.tensors
            elif attribute.type == AttributeProto.GRAPH:
                yield from _tensors(attribute.g)
            elif attribute.type == AttributeProto.GRAPHS:
                for body in attribute.graphs:
                    yield from _tensors(body)


@dataclass(frozen=True)
class Holder:
    """A graph, its attributes that hold a tensor or bodies, its nodes that are `WATCHED`, and all nodes taken apart, as
    they were then; None where one of them cannot be."""

    graph: GraphProto | FunctionProto
    attributes: list[AttributeProto]
    watched: list[NodeProto]
    parts: list[Parts] | None

    def standard(self, kind: str) -> list[NodeProto]:
        """The watched nodes of one of ONNX's operators."""
        return [node for node in self.watched if node.op_type == kind and node.domain in ("", "ai.onnx")]

    def tensors(self) -> Iterator[TensorProto]:
        """The tensors in it, without those of its bodies."""
        if isinstance(self.graph, GraphProto):
            yield from self.graph.initializer
        for attribute in self.attributes:
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t
            elif attribute.type == AttributeProto.TENSORS:
                yield from attribute.tensors


def holders(proto: ModelProto) -> list[Holder]:
    """Every graph, in the order of `walk.all_graphs`; of a large model all but a few nodes hold nothing."""
    waiting: list[GraphProto | FunctionProto] = [proto.graph, *proto.functions]
    found = []
    for graph in waiting:
        held = _holder(graph)
        found.append(held)
        for attribute in held.attributes:
            if attribute.type == AttributeProto.GRAPH:
                waiting.append(attribute.g)
            elif attribute.type == AttributeProto.GRAPHS:
                waiting.extend(attribute.graphs)
    return found


def _holder(graph: GraphProto | FunctionProto) -> Holder:
    """One walk over the nodes."""
    reader, nodes = PartsReader(), list[Parts]()
    held = Holder(graph, [], [], nodes)
    for node in graph.node:
        parts = reader.of(node)
        nodes.append(parts)
        kind = parts[3]
        if kind.op_type in WATCHED:
            held.watched.append(node)
        if not kind.shared:
            held.attributes.extend(attribute for attribute in node.attribute if _holds(attribute, kind.op_type))
    return held if reader.orderly else replace(held, parts=None)


def _holds(attribute: AttributeProto, op_type: str) -> bool:
    if attribute.type not in HOLDING or attribute.ref_attr_name:
        return False
    return attribute.type != AttributeProto.SPARSE_TENSOR or op_type == "Constant"


def drop_unreadable(proto: ModelProto) -> None:
    """Drops annotations of values inside functions that onnx_ir writes into the main graph of files before version 10,
    as ``domain::function/value``, and does not read again: where the value's own name has a slash."""
    heads = tuple(f"{function.domain}::{function.name}/" for function in proto.functions)
    kept = [i for i in proto.graph.value_info if not (i.name.startswith(heads) and i.name.count("/") > 1)]
    if len(kept) < len(proto.graph.value_info):
        del proto.graph.value_info[:]
        proto.graph.value_info.extend(kept)


def densify(held: Iterable[Holder], where: str) -> int:
    """Writes sparse tensors out in place, as ONNX Runtime does when it loads them: onnx_ir has none. Their number.

    Raises AmpError AMP102 for one that makes no sense.
    """
    return sum(_densify(holder, where) for holder in held)


def _densify(holder: Holder, where: str) -> int:
    count, graph = 0, holder.graph
    if isinstance(graph, GraphProto):
        count = len(graph.sparse_initializer)
        graph.initializer.extend(_dense(sparse, where) for sparse in graph.sparse_initializer)
        del graph.sparse_initializer[:]
    for attribute in holder.attributes:
        if attribute.type == AttributeProto.SPARSE_TENSOR:
            dense = _dense(attribute.sparse_tensor, where)
            attribute.Clear()
            attribute.name, attribute.type = "value", AttributeProto.TENSOR
            attribute.t.CopyFrom(dense)
            count += 1
    return count


def _dense(sparse: SparseTensorProto, where: str) -> TensorProto:
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
