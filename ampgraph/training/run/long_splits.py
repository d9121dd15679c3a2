"""Rewrites Splits of long vectors before a training step is opened on CUDA.

Where more than two parts differ in size, ONNX Runtime's CUDA kernel of Split writes a table with an entry for each
element of the axis, on the host and in every run (onnxruntime/core/providers/cuda/tensor/split.cc): 1 ms and 8 MB for a
million elements. Slices instead do not help: GatherSliceToSplitFusion makes a Split of them again. So a vector is seen
as a matrix, whose rows are as long as the greatest common divisor of the parts' sizes, and split by rows.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import helper, numpy_helper

WORTH = 1 << 13
"""Elements of the table that take as long to write as a kernel to start, 5 to 8 us on an H100 (benchmarks/gpu.md)."""


def with_rows(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a training step's model in which each Split of a long vector into parts of different sizes is a Split
    of rows between Reshapes, where the sizes have a common divisor."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    graph = found.graph
    sizes = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.INT64}
    declared = (*graph.value_info, *graph.output)
    vectors = {value.name for value in declared if len(value.type.tensor_type.shape.dim) == 1}
    del graph.node[:]
    for node in model.graph.node:
        given = sizes.get(node.input[1]) if node.op_type == "Split" and len(node.input) > 1 else None
        parts = [] if given is None or vectors.isdisjoint(node.output) else numpy_helper.to_array(given).tolist()
        width = math.gcd(*parts)
        pays = width > 1 and len(set(parts)) > 1 and sum(parts) > WORTH * len(parts)
        graph.node.extend(_split_by_rows(node, parts, width, graph) if pays else [node])
    return found


def _split_by_rows(node: onnx.NodeProto, parts: list[int], width: int, graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Before a training step is opened: the nodes of a Split of a vector into ``parts`` by rows of ``width`` elements:
    Reshape, Split, and a Reshape for each part that is used. Adds their constants to ``graph`` as initializers."""
    name = f"{node.output[0]}/rows"
    numbers = {"into": [-1, width], "counts": [part // width for part in parts], "back": [-1]}
    for key, values in numbers.items():
        graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), f"{name}/{key}"))
    pieces = [f"{name}/{number}" if output else "" for number, output in enumerate(node.output)]
    whole = helper.make_node("Reshape", [node.input[0], f"{name}/into"], [name], name)
    split = helper.make_node("Split", [name, f"{name}/counts"], pieces, node.name or f"{name}/split", axis=0)
    pairs = zip(pieces, node.output, strict=True)
    return [
        whole,
        split,
        *(helper.make_node("Reshape", [piece, f"{name}/back"], [output], output) for piece, output in pairs if output),
    ]
