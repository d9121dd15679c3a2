"""Counts of an ONNX model as it lies in the file: nodes, casts and stored tensors."""

from __future__ import annotations

import onnx_ir as ir

from ...core.graph import Census, Stored
from .types import dtype_name
from .walk import all_graphs
from .weights import stored_tensor


def census(model: ir.Model) -> Census:
    """One walk over the file's nodes and stored tensors; no data is read."""
    nodes = casts = 0
    weights: dict[str, list[int]] = {}
    for graph in all_graphs(model):
        stored = [value.const_value for value in graph.initializers.values()]
        for node in graph:
            nodes += 1
            if node.op_type == "Constant":
                stored.append(stored_tensor(node.outputs[0]))
            elif node.op_type == "Cast":
                casts += 1
        for tensor in stored:
            if tensor is not None:
                row = weights.setdefault(dtype_name(tensor.dtype), [0, 0])
                row[0] += 1
                row[1] += tensor.nbytes
    return Census(nodes, casts, {name: Stored(*row) for name, row in sorted(weights.items())})
