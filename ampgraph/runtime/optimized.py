"""Reads the graph that ONNX Runtime would run: nodes with their provider and type, what was fused, copied and cast.

found = read_optimized(before, after, log)     # two onnx.ModelProto and what the session logged
found.fused()                                  # Counter({'com.microsoft::FusedMatMul': 4})
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx

from ..oplists.traits import has
from .fused_parts import fused_parts
from .unwritten_types import unwritten

FLOATS: dict[int, str] = {
    onnx.TensorProto.BFLOAT16: "bfloat16",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.DOUBLE: "float64",
}
"""The lowest first: a node is named by the lowest type that it touches."""
OWN_DOMAINS = ("com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc")
COPY = "Memcpy"
UNKNOWN = "?"
_SECTION = re.compile(r"AssignedToAnEp\]\s+(All nodes|Node\(s\)) placed on \[(\w+?)(?:ExecutionProvider)?\]")
_PLACED = re.compile(r"AssignedToAnEp\]\s+(\S+) \((.*)\)\s*$")


@dataclass(frozen=True)
class OptimizedNode:
    """A node of the graph that is run, bodies included."""

    name: str
    kind: str
    """The operator, with its domain unless that is ONNX's own."""
    provider: str
    """`CUDA`, `CPU`, ...; `?` where the log does not tell nodes of one name apart."""
    dtype: str
    """The lowest float type that it touches; of a Cast both, as `float32->float16`; empty where there is none."""
    computes: tuple[str, ...] = ()
    """The nodes of the file that it computes, by the first output of each; empty for what the runtime made up."""

    @property
    def copies(self) -> bool:
        """A copy between a device and the host."""
        return self.kind.startswith(COPY)

    @property
    def casts(self) -> bool:
        """A Cast of a float type to one, the same one too: a runtime may leave such a node."""
        return has(self.kind, "casts") and UNKNOWN not in self.dtype and "->" in self.dtype


@dataclass(frozen=True)
class Optimized:
    """The graph that a session runs, and what stood in the file."""

    runtime: str
    nodes: tuple[OptimizedNode, ...]
    kinds: frozenset[str]
    """The operators of the file."""

    def providers(self) -> Counter[str]:
        """Provider -> nodes."""
        return Counter(node.provider for node in self.nodes)

    def copied(self) -> Counter[str]:
        """Copies between device and host, by kind."""
        return Counter(node.kind for node in self.nodes if node.copies)

    def cast(self) -> Counter[str]:
        """Casts between float types, by both types."""
        return Counter(node.dtype for node in self.nodes if node.casts)

    def fused(self) -> Counter[str]:
        """Operators of ONNX Runtime's own, and those that it makes of several where the file had none."""
        return Counter(node.kind for node in self.nodes if self._fused(node))

    def _fused(self, node: OptimizedNode) -> bool:
        if node.kind.partition("::")[0] in OWN_DOMAINS:
            return True
        return has(node.kind, "made_by_fusion") and node.kind not in self.kinds


def read_optimized(before: onnx.ModelProto, after: onnx.ModelProto, log: str, runtime: str = "") -> Optimized:
    """The optimised graph ``after`` of the file ``before``; ``log``: what its session wrote at severity 0.

    Weights need not be there. Providers are exact where `name_nodes` named the nodes of the file.
    """
    places = placements(log)
    given, made = [node for node, _ in walk(before.graph)], list(walk(after.graph))
    stored = [tensor.name for tensor in after.graph.initializer]
    parts = fused_parts(given, [node for node, _ in made], stored)
    nodes = tuple(_node(node, types, places, part) for (node, types), part in zip(made, parts, strict=True))
    return Optimized(runtime, nodes, frozenset(map(kind_of, given)))


def placements(log: str) -> dict[tuple[str, str], str]:
    """(operator, node's name) -> provider; ("", "") -> the one provider of all nodes, where the log says that."""
    found: dict[tuple[str, str], str] = {}
    current = ""
    for line in log.splitlines():
        if section := _SECTION.search(line):
            current = section[2]
            if section[1].startswith("All"):
                found["", ""] = current
        elif current and (placed := _PLACED.search(line)):
            key = placed[1], placed[2]
            found[key] = current if found.get(key, current) == current else UNKNOWN
    return found


def name_nodes(graph: onnx.GraphProto, seen: set[str] | None = None) -> None:
    """Gives every node a name of its own, in place, so that a log can be matched with nodes."""
    seen = set() if seen is None else seen
    for node in graph.node:
        if not node.name or node.name in seen:
            node.name = f"{node.name or node.op_type}#{len(seen)}"
        seen.add(node.name)
        for body in bodies(node):
            name_nodes(body, seen)


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that a node holds."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def kind_of(node: onnx.NodeProto) -> str:
    """The operator as lists name it."""
    return f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type


def walk(
    graph: onnx.GraphProto, outer: Mapping[str, int] | None = None
) -> Iterator[tuple[onnx.NodeProto, dict[str, int]]]:
    """Every node, bodies included, with the element types of the values that it sees, written or not."""
    types = dict(outer or {})
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.HasField("tensor_type"):
            types[value.name] = value.type.tensor_type.elem_type
    types.update((tensor.name, tensor.data_type) for tensor in graph.initializer)
    for node in graph.node:
        types.update(unwritten(node, kind_of(node), types))
        yield node, types
        for body in bodies(node):
            yield from walk(body, types)


def _node(
    node: onnx.NodeProto, types: Mapping[str, int], places: Mapping[tuple[str, str], str], computes: tuple[str, ...]
) -> OptimizedNode:
    kind = kind_of(node)
    provider = places.get((node.op_type, node.name)) or places.get(("", "")) or UNKNOWN
    return OptimizedNode(node.name, kind, provider, _dtype(node, kind, types), computes)


def _dtype(node: onnx.NodeProto, kind: str, types: Mapping[str, int]) -> str:
    floats = [FLOATS.get(types.get(name, 0), "") for name in (*node.input, *node.output) if name]
    if has(kind, "casts"):
        made = next((FLOATS.get(item.i, "") for item in node.attribute if item.name == "to"), "")
        given = types.get(node.input[0])
        source = UNKNOWN if given is None else FLOATS.get(given, "")
        return f"{source}->{made}" if source and made else source.replace(UNKNOWN, "") or made
    return next((name for name in FLOATS.values() if name in floats), "")
