"""Every graph of an ONNX model, and what bodies read from outside."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir


def all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """The main graph, the functions' graphs, and the bodies in them at any depth."""
    waiting = [model.graph, *(function.graph for function in model.functions.values())]
    for graph in waiting:
        yield graph
        for node in graph:
            for attribute in node.attributes.data.values():  # the dict behind it, whose walk is no Python code
                if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
                    waiting.append(attribute.value)
                elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
                    waiting.extend(attribute.value)


def bodies(node: ir.Node) -> list[ir.Graph]:
    """The graphs inside a node, in the order of its attributes."""
    found: list[ir.Graph] = []
    for attribute in node.attributes.data.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            found.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            found.extend(attribute.as_graphs())
    return found


def captured(node: ir.Node) -> list[ir.Value]:
    """The values that the bodies of a node read from outside, once each."""
    found = bodies(node)
    return list(dict.fromkeys(value for body in found for value in _captured(body))) if found else []


def _captured(graph: ir.Graph) -> Iterator[ir.Value]:
    own = {*graph.inputs, *graph.initializers.values()}
    for node in graph:
        inner = [value for body in bodies(node) for value in _captured(body)]
        yield from (value for value in (*node.inputs, *inner) if value is not None and value not in own)
        own.update(node.outputs)
    yield from (value for value in graph.outputs if value not in own)
