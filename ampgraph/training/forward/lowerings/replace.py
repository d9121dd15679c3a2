"""What all lowerings share."""

from __future__ import annotations

import onnx_ir as ir

from ...gradients.builder import Builder


def replace_value(b: Builder, old: ir.Value, new: ir.Value) -> None:
    """Readers of ``old`` read ``new``; an output of the graph keeps its name. ``new`` is a result of a new node."""
    if old.is_graph_output():
        new.name, old.name = old.name, b.fresh("replaced")
    old.replace_all_uses_with(new, replace_graph_outputs=True)
