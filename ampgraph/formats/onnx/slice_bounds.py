"""Bounds of a Slice that are stored as scalars, as torch writes them beside an LSTM.

ONNX wants vectors, and ONNX Runtime runs such a node only where one of its optimisations takes it away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

INTEGERS = (TensorProto.INT32, TensorProto.INT64)


def bounds_as_vectors(graph: GraphProto, slices: list[NodeProto]) -> int:
    """Makes vectors of one element of the scalars that the Slices of a graph read, in place; the number of such Slices.

    A scalar that others read too stays beside its vector."""
    scalars = _scalars(graph) if any(len(node.input) > 1 for node in slices) else {}
    wrong = [node for node in slices if not scalars.keys().isdisjoint(node.input[1:])]
    if not wrong:
        return 0
    read = Counter(name for node in wrong for name in node.input[1:])
    everywhere = Counter([*_reads(graph), *(value.name for value in (*graph.output, *graph.input))])
    for name in [name for name in read if name in scalars]:
        tensor = scalars[name]
        if everywhere[name] > read[name]:
            tensor = graph.initializer.add()
            tensor.CopyFrom(scalars[name])
            tensor.name = _fresh(f"{name}_as_vector", everywhere.keys() | scalars.keys())
            _rename(wrong, name, tensor.name)
        tensor.dims.append(1)
    return len(wrong)


def _scalars(graph: GraphProto) -> dict[str, TensorProto]:
    """Integers without dimensions, stored or in Constant nodes, by name."""
    found = {tensor.name: tensor for tensor in graph.initializer}
    constants = (node for node in graph.node if node.op_type == "Constant")
    found |= {node.output[0]: a.t for node in constants for a in node.attribute if a.name == "value"}
    return {name: tensor for name, tensor in found.items() if not tensor.dims and tensor.data_type in INTEGERS}


def _reads(graph: GraphProto) -> Iterator[str]:
    """What the nodes of a graph read, those of bodies too."""
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _reads(attribute.g)
                yield from (value.name for value in attribute.g.output)


def _fresh(name: str, taken: set[str]) -> str:
    return name if name not in taken else _fresh(f"{name}_", taken)


def _rename(nodes: list[NodeProto], old: str, new: str) -> None:
    for node in nodes:
        for place in [i for i, name in enumerate(node.input) if name == old and i]:
            node.input[place] = new
