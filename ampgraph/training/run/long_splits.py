"""Splits of long vectors, as a step is opened on CUDA.

Where the parts differ in size, ONNX Runtime's CUDA kernel of Split writes a table with an entry for each element of the
axis, on the host and in every run (onnxruntime/core/providers/cuda/tensor/split.cc): 1 ms and 8 MB for a million.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import onnx
from onnx import helper, numpy_helper

WORTH = 1 << 13
"""Elements whose entries take the time of another kernel's start, 5 to 8 us on an H100 (benchmarks/gpu.md)."""


def with_slices(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which every Split of a long axis into parts that differ in size is a Slice for each part."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    sizes = {tensor.name: tensor for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.INT64}
    del found.graph.node[:]
    for node in model.graph.node:
        given = sizes.get(node.input[1]) if node.op_type == "Split" and len(node.input) > 1 else None
        parts = [] if given is None else numpy_helper.to_array(given).tolist()
        found.graph.node.extend(_slices(node, parts, found.graph) if _writes_a_long_table(parts) else [node])
    return found


def _writes_a_long_table(parts: list[int]) -> bool:
    return len(set(parts)) > 1 and sum(parts) > WORTH * len(parts)


def _slices(node: onnx.NodeProto, parts: list[int], graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The parts that somebody reads, cut out one by one; their ends are new initializers."""
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
    name = f"{node.output[0]}/split"
    ends = [0, *accumulate(parts)]
    for key, number in [("axis", axis), *((str(n), end) for n, end in enumerate(ends))]:
        graph.initializer.append(numpy_helper.from_array(np.array([number], np.int64), f"{name}/{key}"))
    pairs = zip(node.output, pairwise(range(len(ends))), strict=True)
    return [
        helper.make_node("Slice", [node.input[0], f"{name}/{start}", f"{name}/{end}", f"{name}/axis"], [part], part)
        for part, (start, end) in pairs
        if part
    ]
