"""Every graph of an ONNX model."""

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
