"""A copy of a model whose nodes may stand before what they read: onnx_ir copies sorted graphs alone."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from .walk import all_graphs, captured


def copied(model: ir.Model) -> ir.Model:
    """A copy, its nodes in the same order; stored tensors are shared. Raises ValueError for a cycle."""
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
    """Whether every node stands behind those of its graph that it reads, its bodies included."""
    seen: set[ir.Node] = set()
    for node in graph:
        for value in (*node.inputs, *captured(node)):
            producer = value.producer() if value is not None else None
            if producer is not None and producer.graph is graph and producer not in seen:
                return False
        seen.add(node)
    return True


def _reorder(graph: ir.Graph, order: Sequence[ir.Node]) -> None:
    graph.remove(order)
    graph.extend(order)
