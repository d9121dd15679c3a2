"""Where values are made: the nodes of a model with its functions inlined, under the names of the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from ...core.sites import Site
from .layers import layer_of_node
from .schemas import kind_of
from .walk import captured

Functions = Mapping[tuple[str, str, str], ir.Function]


def read_sites(model: ir.Model, flat: ir.Model) -> tuple[Site, ...]:
    """The nodes of the main graph; ``flat`` is the same with functions inlined."""
    before, after = list(_expanded(model.graph, model.functions, "")), list(flat.graph)
    if [node.op_type for node, _ in before] != [node.op_type for node in after]:
        before = [(node, "") for node in after]  # the inliner wrote nodes of its own: the names are then its names
    return tuple(_site(old, path, new) for (old, path), new in zip(before, after, strict=True))


def _expanded(
    nodes: Iterable[ir.Node], functions: Functions, path: str, depth: int = 0
) -> Iterator[tuple[ir.Node, str]]:
    """Nodes in the order in which the inliner writes them, with the path of calls around them."""
    for node in nodes:
        called = functions.get((node.domain, node.op_type, node.overload)) if depth < 64 else None
        if called is None:
            yield node, path
        else:
            name = node.name or next((v.name for v in node.outputs if v.name), node.op_type)
            yield from _expanded(called, functions, f"{path}/{name}".lstrip("/"), depth + 1)


def _site(old: ir.Node, path: str, new: ir.Node) -> Site:
    inputs = (*(v.name or "" if v is not None else "" for v in new.inputs), *(v.name or "" for v in captured(new)))
    made, written = (tuple(v.name or "" for v in node.outputs) for node in (new, old))
    return Site(old.name or "", kind_of(new.domain, new.op_type), path, layer_of_node(old), inputs, made, written)
