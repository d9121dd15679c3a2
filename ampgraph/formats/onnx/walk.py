"""Every graph of an ONNX model, and what bodies read from outside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

GRAPH, GRAPHS = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS


def all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """The main graph, the functions' graphs, and the bodies in them at any depth."""
    waiting = [model.graph, *(function.graph for function in model.functions.values())]
    for graph in waiting:
        yield graph
        for node in graph:
            if node.attributes.data:
                waiting += bodies(node)


def stored(model: ir.Model) -> Iterator[ir.Value | ir.Node]:
    """What holds a stored tensor: initializers and Constant nodes, those of functions too, in the order of the above.

    One walk over the nodes."""
    waiting = [model.graph, *(function.graph for function in model.functions.values())]
    for graph in waiting:
        yield from (value for value in graph.initializers.values() if value.const_value is not None)
        for node in graph:
            given = node.attributes.data
            if not given:
                continue
            if node.op_type == "Constant" and "value" in given and not given["value"].is_ref():
                yield node
            waiting += bodies(node)


_NO_BODIES: tuple[ir.Graph, ...] = ()


def bodies(node: ir.Node) -> Sequence[ir.Graph]:
    """The graphs inside a node, in the order of its attributes."""
    found: list[ir.Graph] | None = None
    for attribute in node.attributes.data.values():  # the dict behind it, whose walk is no Python code
        kind = attribute.type
        if (kind is GRAPH or kind is GRAPHS) and not attribute.is_ref():
            found = [] if found is None else found
            found += [attribute.value] if kind is GRAPH else attribute.value
    return _NO_BODIES if found is None else found


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
