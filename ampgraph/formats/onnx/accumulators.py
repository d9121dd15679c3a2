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
"""Of a value's meta: what its operator makes in float32."""


def computed_again(
    sums: Sums, dtype: str, opset: int, to: Mapping[str, ir.Attr], name: Callable[[str], str]
) -> tuple[list[ir.Node], ir.Value]:
    """The nodes that compute an operator again as its kernel does, and what they make; itself where it is not modelled.

    ``to``: Cast's attribute by type; ``name``: makes a name that is free."""
    node: ir.Node = sums.op.native
    found: ir.Value | None = None
    if sums.op.kind in PRODUCTS:
        nodes: LowNodes = (products := ProductNodes(opset, to, name, sums.fused))
        found = products.of(node, dtype, sums.shapes) if knows(node, opset, sums.shapes) else None
    elif sums.op.kind in REDUCTIONS:
        nodes = (reductions := ReductionNodes(opset, to, name, sums.fused))
        found = reductions.of(node, dtype, sums.shapes[0], sums.stepwise and opset >= SCAN)
    elif sums.folded is not None and knows(sums.folded.op.native, opset, sums.folded.shapes):
        nodes = (products := ProductNodes(opset, to, name, sums.fused))
        shapes = sums.folded.shapes
        conv = conv_with_norm(nodes, sums.folded.op.native, node, len(shapes[1] or ()), dtype)
        found = products.of(conv, dtype, shapes)
    elif sums.op.kind in NORMALIZERS:
        nodes = (normalizers := NormalizerNodes(opset, to, name, sums.fused))
        found = normalizers.of(node, dtype, sums.shapes[0]) if sums.stepwise and opset >= SCAN else None
    else:
        nodes = LowNodes(opset, to, name, sums.fused)
        found = by_formula(nodes, node, dtype) if sums.stepwise and opset >= SCAN else None
    if found is None:
        return [], node.outputs[0]
    found.meta[EXACT] = node.outputs[0]
    return nodes.nodes, found
