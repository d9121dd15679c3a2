"""Where values are made: the nodes of a model with its functions inlined, under the names of the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto

from ...core.sites import Site as Site
from ...formats.onnx.layers import layer_of
from ..strict import value_types as vt


def read_sites(model: ModelProto, flat: ModelProto) -> tuple[Site, ...]:
    """The nodes of the main graph; ``flat`` is the model with functions inlined."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    before, after = list(_expanded(model.graph.node, functions, "")), flat.graph.node
    if [node.op_type for node, _ in before] != [node.op_type for node in after]:
        before = [(node, "") for node in after]  # the inliner wrote nodes of its own: the names are then its names
    return tuple(_site(old, path, new) for (old, path), new in zip(before, after, strict=True))


def _expanded(
    nodes: Sequence[NodeProto], functions: Mapping[tuple[str, str, str], Any], path: str, depth: int = 0
) -> Iterator[tuple[NodeProto, str]]:
    """Nodes in the order in which the inliner writes them, with the path of calls around them."""
    for node in nodes:
        called = functions.get((node.domain, node.op_type, node.overload)) if depth < 64 else None
        if called is None:
            yield node, path
        else:
            name = node.name or next(filter(None, node.output), node.op_type)
            yield from _expanded(called.node, functions, f"{path}/{name}".lstrip("/"), depth + 1)


def _site(old: NodeProto, path: str, new: NodeProto) -> Site:
    props = {p.key: p.value for p in old.metadata_props}
    native = SimpleNamespace(metadata_props=props, name=old.name)
    layer = layer_of(SimpleNamespace(native=native))  # type: ignore[arg-type]
    kind = f"{new.domain}::{new.op_type}" if vt.domain(new.domain) else new.op_type
    inputs = (*new.input, *captured(new))
    return Site(old.name, kind, path, layer, inputs, tuple(new.output), tuple(old.output))


def captured(node: NodeProto) -> list[str]:
    """The names that the bodies of a node read from outside."""
    return list(dict.fromkeys(name for body in vt.bodies(node) for name in _captured(body)))


def _captured(graph: GraphProto) -> Iterator[str]:
    own = {v.name for v in graph.input} | {i.name for i in graph.initializer}
    for node in graph.node:
        inner = [name for body in vt.bodies(node) for name in _captured(body)]
        yield from (name for name in (*node.input, *inner) if name and name not in own)
        own.update(node.output)
    yield from (v.name for v in graph.output if v.name not in own)
