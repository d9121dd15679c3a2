"""What an operator makes whose kernel rounds to a low type inside: in standard operators, for any runtime of ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from ...core.runnable import Sums
from .formulas import by_formula
from .low_nodes import LowNodes
from .normalizers import NORMALIZERS, NormalizerNodes, conv_with_norm
from .products import PRODUCTS, SCAN, ProductNodes, knows
from .reductions import REDUCTIONS, ReductionNodes

EXACT = "exact"
"""Key in the meta of an onnx_ir value that was computed again as a kernel does -> what its operator makes in
float32."""


def computed_again(
    sums: Sums, dtype: str, opset: int, to: Mapping[str, ir.Attr], name: Callable[[str], str]
) -> tuple[list[ir.Node], ir.Value]:
    """For a strict run: (new nodes in order, in no graph yet, that compute an operator again as its low kernel does;
    the value that they make). No nodes and the operator's own output where its kernel is not modelled. ``dtype``: the
    low type; ``to``: type -> Cast's attribute; ``name``: makes a name that is free."""
    node: ir.Node = sums.op.native
    stepwise = sums.stepwise and opset >= SCAN
    found: ir.Value | None = None
    nodes: LowNodes
    if sums.op.kind in PRODUCTS:
        nodes = products = ProductNodes(opset, to, name, sums.fused)
        if knows(node, opset, sums.shapes):
            found = products.write(node, dtype, sums.shapes)
    elif sums.op.kind in REDUCTIONS:
        nodes = reductions = ReductionNodes(opset, to, name, sums.fused)
        found = reductions.write(node, dtype, sums.shapes[0], stepwise)
    elif sums.folded is not None and knows(sums.folded.op.native, opset, sums.folded.shapes):
        nodes = products = ProductNodes(opset, to, name, sums.fused)
        shapes = sums.folded.shapes
        conv = conv_with_norm(nodes, sums.folded.op.native, node, len(shapes[1] or ()), dtype)
        found = products.write(conv, dtype, shapes)
    elif sums.op.kind in NORMALIZERS:
        nodes = normalizers = NormalizerNodes(opset, to, name, sums.fused)
        if stepwise:
            found = normalizers.write(node, dtype, sums.shapes[0])
    else:
        nodes = LowNodes(opset, to, name, sums.fused)
        if stepwise:
            found = by_formula(nodes, node, dtype)
    if found is None:
        return [], node.outputs[0]
    found.meta[EXACT] = node.outputs[0]
    return nodes.nodes, found
