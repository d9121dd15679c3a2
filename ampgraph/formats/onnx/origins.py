"""Which operator of a framework a node was exported from, where the exporter says it.

torch.onnx.export(dynamo=True) writes the line of the exported graph that a node belongs to, ``%linear : [num_users=1] =
call_function[target=torch.ops.aten.linear.default](args = ...)``, and the classes of the modules around it.
"""

from __future__ import annotations

import re

import onnx_ir as ir

from ...core.dataflow import Op, Origin

NODE = "pkg.torch.onnx.fx_node"
CLASSES = "pkg.torch.onnx.class_hierarchy"
SCOPES = "pkg.torch.onnx.name_scopes"

_NODE = re.compile(r"\s*(%\S+) :.*?call_function\[target=torch\.ops\.(\w+)\.(\w+)")
_STORED = re.compile(r"%[pbc]_(\w+)")
_QUOTED = re.compile(r"'([^']*)'")


class Origins:
    """Where nodes came from, each read once."""

    def __init__(self) -> None:
        self._known: dict[int, Origin | None] = {}

    def __call__(self, op: Op) -> Origin | None:
        """None where the exporter of a node does not say it."""
        if op.id not in self._known:
            self._known[op.id] = origin_of_node(op.native)
        return self._known[op.id]


def origin_of_node(node: ir.Node) -> Origin | None:
    """The same of one node. Its names are ``torch::CLASS`` of each module around it, then ``aten::NAME``."""
    props = getattr(node, "metadata_props", {})
    found = _NODE.match(props.get(NODE, ""))
    if found is None:
        return None
    modules = [f"torch::{name}" for name in _QUOTED.findall(props.get(CLASSES, ""))[:-1]]
    scopes = _QUOTED.findall(props.get(SCOPES, ""))
    if len(scopes) != len(modules) + 1:
        modules, scopes = [], [found[1]]
    reads = frozenset(_STORED.findall(props[NODE]))
    return Origin(found[1], (*modules, f"{found[2]}::{found[3]}"), tuple(scopes), reads)
