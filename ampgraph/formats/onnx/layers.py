"""Which layer of the exported module a node belongs to."""

from __future__ import annotations

import onnx_ir as ir

from ...core.dataflow import Op


def layer_of(op: Op) -> str:
    """The exporter's scope of a node, dot separated, or the folders of its slash-separated name."""
    return layer_of_node(op.native)


def layer_of_node(node: ir.Node) -> str:
    """The same of a node."""
    scopes = node.metadata_props.get("pkg.torch.onnx.name_scopes")
    if scopes:
        names = [name.strip(" '\"") for name in scopes.strip("[]").split(",")]
        return names[-2] if len(names) > 1 else names[0]
    parts = [part for part in (node.name or "").split("/")[:-1] if part]
    return ".".join(parts)
