"""Every graph of an ONNX model, what bodies (graphs in attributes, as of an If) read from outside, and copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from ...core.walk import reachable

GRAPH, GRAPHS = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS


def outermost(model: ir.Model) -> list[ir.Graph]:
    """The main graph of an ONNX model, and the graphs of its functions; no bodies."""
    return [model.graph, *(function.graph for function in model.functions.values())]


def all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """The main graph of an ONNX model, the functions' graphs, and the bodies in them at any depth, each once."""

    def bodies_in(graph: ir.Graph) -> list[ir.Graph]:
        return [body for node in graph if node.attributes.data for body in bodies(node)]

    return reachable(outermost(model), bodies_in)


_NO_BODIES: tuple[ir.Graph, ...] = ()


def bodies(node: ir.Node) -> Sequence[ir.Graph]:
    """The bodies of an onnx_ir node, in the order of its attributes; none that a function's caller gives."""
    found: list[ir.Graph] | None = None
    for attribute in node.attributes.data.values():  # the dict behind it, whose walk is no Python code
        kind = attribute.type
        if (kind is GRAPH or kind is GRAPHS) and not attribute.is_ref():
            found = [] if found is None else found
            found += [attribute.value] if kind is GRAPH else attribute.value
    return _NO_BODIES if found is None else found


def captured(node: ir.Node) -> list[ir.Value]:
    """The values that the bodies of an onnx_ir node, if any, read from outside, once each, in the order of reading."""
    found = bodies(node)
    return list(dict.fromkeys(value for body in found for value in _captured_by(body))) if found else []


def _captured_by(graph: ir.Graph) -> Iterator[ir.Value]:
    """The values that a sorted ONNX body, or a body inside of it, reads from outside; one may come twice."""
    own = {*graph.inputs, *graph.initializers.values()}
    for node in graph:
        by_bodies = [value for body in bodies(node) for value in _captured_by(body)]
        yield from (value for value in (*node.inputs, *by_bodies) if value is not None and value not in own)
        own.update(node.outputs)
    yield from (value for value in graph.outputs if value not in own)


def copy_model(model: ir.Model) -> ir.Model:
    """A copy of an ONNX model, its nodes in the same order, sorted or not; stored tensors are shared. onnx_ir copies
    sorted graphs alone, so unsorted ones are sorted for that and put back. Raises ValueError for a cycle."""
    graphs = list(all_graphs(model))
    if all(map(is_sorted, graphs)):
        return model.clone()
    orders = {graph: list(graph) for graph in graphs}
    try:
        for graph in graphs:
            graph.sort()
        copy = model.clone()
        for graph, twin in zip(list(all_graphs(model)), list(all_graphs(copy)), strict=True):
            twins = dict(zip(graph, twin, strict=True))
            _reorder(twin, [twins[node] for node in orders[graph]])
    finally:
        for graph, order in orders.items():
            _reorder(graph, order)
    return copy


def is_sorted(graph: ir.Graph) -> bool:
    """Whether every node of an ONNX graph stands behind those of it that it or its bodies read; not inside bodies."""
    seen: set[ir.Node] = set()
    for node in graph:
        for value in (*node.inputs, *captured(node)):
            producer = value.producer() if value is not None else None
            if producer is not None and producer.graph is graph and producer not in seen:
                return False
        seen.add(node)
    return True


def _reorder(graph: ir.Graph, order: Sequence[ir.Node]) -> None:
    """Puts the nodes of an ONNX graph into ``order``, which has to hold all of them."""
    graph.remove(order)
    graph.extend(order)
