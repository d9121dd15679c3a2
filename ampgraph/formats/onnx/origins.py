"""What exporters say of an ONNX model's nodes (layers, operators, places), and what we write for viewers: reasons."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from ...core.annotations import NODES, PRECISION, REASON
from ...core.dataflow import Op, Origin
from ...core.runnable import Site
from .nodes import kind_of
from .walk import captured


def layer_of(op: Op) -> str:
    """The layer of an ONNX operator, as `layer_of_node` finds it."""
    return layer_of_node(op.native)


def layer_of_node(node: ir.Node) -> str:
    """The layer that an onnx_ir node belongs to, dot separated: the innermost module of the exporter's scopes, else the
    folders of its slash-separated name; "" for a node without either."""
    scopes = node.metadata_props.get("pkg.torch.onnx.name_scopes")
    if scopes:
        names = [name.strip(" '\"") for name in scopes.strip("[]").split(",")]
        return names[-2] if len(names) > 1 else names[0]
    parts = [part for part in (node.name or "").split("/")[:-1] if part]
    return ".".join(parts)


NODE = "pkg.torch.onnx.fx_node"
CLASSES = "pkg.torch.onnx.class_hierarchy"
SCOPES = "pkg.torch.onnx.name_scopes"

_NODE = re.compile(r"\s*(%\S+) :.*?call_function\[target=torch\.ops\.(\w+)\.(\w+)")
_STORED = re.compile(r"%[pbc]_(\w+)")
_QUOTED = re.compile(r"'([^']*)'")


class Origins:
    """What ONNX nodes were exported from, by operator; each is read once."""

    def __init__(self) -> None:
        self._known: dict[int, Origin | None] = {}

    def __call__(self, op: Op) -> Origin | None:
        """The framework's operator that an ONNX operator was exported from; None where the exporter does not say it."""
        if op.id not in self._known:
            self._known[op.id] = origin_of_node(op.native)
        return self._known[op.id]


def origin_of_node(node: ir.Node) -> Origin | None:
    """What an onnx_ir node was exported from: ``torch::CLASS`` of each module around it, then ``aten::NAME``; None
    where the exporter does not say it. torch.onnx.export(dynamo=True) writes the exported graph's line of a node,
    ``%linear : [num_users=1] = call_function[target=torch.ops.aten.linear.default](args = ...)``, and classes."""
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


Functions = Mapping[tuple[str, str, str], ir.Function]  # by (domain, name, overload)


def read_sites(model: ir.Model, flat: ir.Model) -> tuple[Site, ...]:
    """A `Site` for each node of the main graph of ``flat``, the ONNX ``model`` with its functions inlined, in order:
    its names in the file, if the inliner wrote the nodes as `_nodes_as_inlined` does, else those in ``flat``."""
    before, after = list(_nodes_as_inlined(model.graph, model.functions, "")), list(flat.graph)
    if [node.op_type for node, _ in before] != [node.op_type for node in after]:
        before = [(node, "") for node in after]  # the inliner wrote nodes of its own
    return tuple(_site_of(old, path, new) for (old, path), new in zip(before, after, strict=True))


def _nodes_as_inlined(
    nodes: Iterable[ir.Node], functions: Functions, path: str, depth: int = 0
) -> Iterator[tuple[ir.Node, str]]:
    """(node, path of calls around it) of ONNX nodes and those of the functions that they call, in the order in which
    onnx's inliner writes them. ``depth``: of calls; beyond 64 a call is left as a node, as functions may recurse."""
    for node in nodes:
        called = functions.get((node.domain, node.op_type, node.overload)) if depth < 64 else None
        if called is None:
            yield node, path
        else:
            name = node.name or next((v.name for v in node.outputs if v.name), node.op_type)
            yield from _nodes_as_inlined(called, functions, f"{path}/{name}".lstrip("/"), depth + 1)


def _site_of(old: ir.Node, path: str, new: ir.Node) -> Site:
    """The `Site` of an ONNX node: ``old`` in the file, at a ``path`` of calls, and ``new`` in the inlined model."""
    read = ["" if value is None else value.name or "" for value in (*new.inputs, *captured(new))]
    made, written = (tuple(v.name or "" for v in node.outputs) for node in (new, old))
    return Site(old.name or "", kind_of(new), path, layer_of_node(old), tuple(read), made, written)


NODE_METADATA = 10  # the IR version that gave nodes metadata
CAST = "cast: for what reads it in this type"


def describe(model: ir.Model, rows: Iterable[tuple[ir.Node, str, str]], about: Mapping[str, str]) -> None:
    """Writes (node, type, reason) of ``rows`` and the entries ``about`` into the metadata of an ONNX model: of nodes
    into their own, from IR version 10 on, else as one table. Entries that are there stay as they are."""
    if (model.ir_version or 0) >= NODE_METADATA:
        for node, dtype, reason in rows:
            own = node.metadata_props
            if PRECISION not in own and REASON not in own:
                own[PRECISION], own[REASON] = dtype, reason
    elif NODES not in model.metadata_props:
        model.metadata_props[NODES] = _reasons_table(rows)
    for key, text in about.items():
        model.metadata_props.setdefault(key, text)


def _reasons_table(rows: Iterable[tuple[ir.Node, str, str]]) -> str:
    """The (node, type, reason) rows of an older ONNX model as JSON: {type: {reason: names of nodes or outputs}}."""
    table: dict[str, dict[str, list[str]]] = {}
    for node, dtype, reason in rows:
        name = node.name or next((value.name for value in node.outputs if value.name), "")
        table.setdefault(dtype, {}).setdefault(reason, []).append(name or "")
    return json.dumps(table, ensure_ascii=False, separators=(",", ":"))
