"""What a converted file says of itself: nodes, casts, and how many of the heavy nodes are low."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx

HEAVY = frozenset(
    {"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "Attention", "LSTM", "GRU", "RNN"}
    | {"FusedMatMul", "FusedGemm", "FusedConv", "NhwcFusedConv", "TransposeMatMul", "MatMulScale"}
    | {"MultiHeadAttention", "GroupQueryAttention", "PackedAttention", "PackedMultiHeadAttention"}
)
LOW = frozenset({onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16})
UNKNOWN = onnx.TensorProto.UNDEFINED
# Larger tensors are never shapes, so type inference does not need their contents.
KEPT_BYTES = 1024

Types = dict[str, int]


def subgraphs(node: onnx.NodeProto) -> Iterable[onnx.GraphProto]:
    """The bodies of a node."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterable[onnx.NodeProto]:
    """Nodes at any depth."""
    for node in nodes:
        yield node
        for body in subgraphs(node):
            yield from all_nodes(body.node)


def typed(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with functions inlined, large weights emptied, and types inferred afresh: stored ones may be wrong."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    if copy.functions:
        from onnx import inliner

        copy = inliner.inline_local_functions(copy)

    def strip(graph: onnx.GraphProto) -> None:
        del graph.value_info[:]
        for tensor in graph.initializer:
            if len(tensor.raw_data) > KEPT_BYTES:
                tensor.ClearField("raw_data")
        for node in graph.node:
            for body in subgraphs(node):
                strip(body)

    strip(copy.graph)
    return onnx.shape_inference.infer_shapes(copy)


def heavy_share(graph: onnx.GraphProto, outer: Types) -> tuple[int, int, int]:
    """`(low, unknown, all)` of the heavy nodes in a typed graph, by the first input whose type is known."""
    types = dict(outer)
    for value in [*graph.input, *graph.output, *graph.value_info]:
        types[value.name] = value.type.tensor_type.elem_type or types.get(value.name, UNKNOWN)
    types.update({tensor.name: tensor.data_type for tensor in graph.initializer})
    low = unknown = heavy = 0
    for node in graph.node:
        if node.op_type in HEAVY:
            kind = next((types[n] for n in [*node.input, *node.output] if types.get(n)), UNKNOWN)
            low, unknown, heavy = low + (kind in LOW), unknown + (kind == UNKNOWN), heavy + 1
        for body in subgraphs(node):
            inside = heavy_share(body, types)
            low, unknown, heavy = low + inside[0], unknown + inside[1], heavy + inside[2]
    return low, unknown, heavy


def static_facts(path: Path) -> dict[str, Any]:
    """Counts for the file at `path`; its external data is not read."""
    model = onnx.load(str(path), load_external_data=False)
    nodes = list(all_nodes(model.graph.node))
    for function in model.functions:
        nodes += all_nodes(function.node)
    facts: dict[str, Any] = {
        "nodes": len(nodes),
        "casts": sum(node.op_type == "Cast" for node in nodes),
        "opset": next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), None),
    }
    try:
        inferred = typed(model)
    except Exception:
        # A peer's file may be too broken to infer: then the types that it states are all there is.
        inferred = model
    facts["heavy_low"], facts["heavy_unknown"], facts["heavy"] = heavy_share(inferred.graph, {})
    return facts


def microsoft_ops(path: Path) -> dict[str, int]:
    """How often each com.microsoft operator stands in the file: in an optimized model, the fusions that were found."""
    model = onnx.load(str(path), load_external_data=False)
    found: dict[str, int] = {}
    for node in all_nodes(model.graph.node):
        if node.domain == "com.microsoft":
            found[node.op_type] = found.get(node.op_type, 0) + 1
    return dict(sorted(found.items()))
