"""What onnx_ir would lose or double in a ModelProto, put right on the way in."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, SparseTensorProto, TensorProto, numpy_helper

from ...core.errors import AmpError

DENSE_LIMIT = 1 << 30  # bytes of a sparse tensor that is written out: more is a damaged file


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
            elif attribute.type == AttributeProto.GRAPH:
                yield from _tensors(attribute.g)
            elif attribute.type == AttributeProto.GRAPHS:
                for body in attribute.graphs:
                    yield from _tensors(body)


def drop_unreadable(proto: ModelProto) -> None:
    """Drops annotations of values inside functions that onnx_ir writes into the main graph of files before version 10,
    as ``domain::function/value``, and does not read again: where the value's own name has a slash."""
    heads = tuple(f"{function.domain}::{function.name}/" for function in proto.functions)
    kept = [i for i in proto.graph.value_info if not (i.name.startswith(heads) and i.name.count("/") > 1)]
    if len(kept) < len(proto.graph.value_info):
        del proto.graph.value_info[:]
        proto.graph.value_info.extend(kept)


def densify(proto: ModelProto, where: str) -> int:
    """Writes sparse tensors out in place, as ONNX Runtime does when it loads them: onnx_ir has none. Their number.

    Raises AmpError AMP102 for one that makes no sense.
    """
    return sum(_densify(graph, where) for graph in (proto.graph, *proto.functions))


def _densify(graph: GraphProto | FunctionProto, where: str) -> int:
    count = 0
    if isinstance(graph, GraphProto):
        count = len(graph.sparse_initializer)
        graph.initializer.extend(_dense(sparse, where) for sparse in graph.sparse_initializer)
        del graph.sparse_initializer[:]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.SPARSE_TENSOR and node.op_type == "Constant":
                dense = _dense(attribute.sparse_tensor, where)
                attribute.Clear()
                attribute.name, attribute.type = "value", AttributeProto.TENSOR
                attribute.t.CopyFrom(dense)
                count += 1
            elif attribute.type == AttributeProto.GRAPH:
                count += _densify(attribute.g, where)
            elif attribute.type == AttributeProto.GRAPHS:
                count += sum(_densify(body, where) for body in attribute.graphs)
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
