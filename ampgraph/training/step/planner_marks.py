"""What the planner reads of a training graph: which nodes stay float32, and where branches are added."""

from __future__ import annotations

import onnx_ir as ir

from ...core.dataflow import BRANCHES, HELD
from ...formats.onnx.graph import OnnxGraph
from ...oplists.patterns import find_regions
from ...oplists.traits import has
from ..forward.read import FLOATS
from ..gradients.rules.norms import KEEP


def hold_norms(model: ir.Model) -> None:
    """Keeps norms that are written in simple operators in float32, and so what is differentiated of them.

    The planner ties the nodes of a norm to one decision where nobody else reads what is between them; a backward does.
    """
    for region in find_regions(OnnxGraph(model).dataflow()):
        if has(region.kind, "norms"):
            for op in region.ops:
                op.native.meta[HELD] = KEEP


def mark_branches(graph: ir.Graph) -> None:
    """Marks the additions of two computed values: residual streams, and gradients that meet."""
    for node in graph:
        if node.op_type == "Add" and all(value is not None and value.producer() is not None for value in node.inputs):
            node.meta[BRANCHES] = True


def hold_seed(graph: ir.Graph, seed: ir.Value) -> None:
    """Keeps in float32 what is nothing but the seed, and what first multiplies it: a loss scale of 65536 is beyond
    float16. Types must be known."""
    pure = {seed}
    for node in graph:
        inputs = [value for value in node.inputs if value is not None]
        if any(value in pure for value in inputs):
            node.meta.setdefault(HELD, "the loss scale itself is beyond the range of float16")
            if all(value in pure or value.dtype not in FLOATS or value.is_initializer() for value in inputs):
                pure.update(node.outputs)
