"""Reads the graph that ONNX Runtime would run: nodes with their provider and type, what was fused, copied and cast.

found = read_optimized(before, after, log)     # two onnx.ModelProto and what the session logged
found.fused()                                  # Counter({'com.microsoft::FusedMatMul': 4})
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx

from ..oplists.traits import has

_TENSOR_TYPES = {
    f"tensor({name.lower()})": number
    for name, number in (*onnx.TensorProto.DataType.items(), ("float32", onnx.TensorProto.FLOAT))
}


def infer_output_types(node: onnx.NodeProto, kind: str, types: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Outputs of a node of the optimised graph that have no type in ``types``, each with the element type that follows
    from its operator and its inputs; those of which none follows are left out. ``kind``: as `kind_of` says it."""
    for index, name in enumerate(node.output):
        if name and not types.get(name):
            found = _cast_type(node, kind) or _followed_type(node, index, types)
            if found:
                yield name, found


def _cast_type(node: onnx.NodeProto, kind: str) -> int:
    """The element type to which a Cast of the optimised graph casts; 0 for any other operator."""
    return next((item.i for item in node.attribute if item.name == "to"), 0) if has(kind, "casts") else 0


def _followed_type(node: onnx.NodeProto, index: int, types: Mapping[str, int]) -> int:
    """The element type of output number ``index`` of a node of the optimised graph, by its inputs; 0 for unknown."""
    given = [types.get(name, 0) for name in node.input]
    sources = _type_sources(node.op_type, node.domain, len(given), index)
    if isinstance(sources, int):
        return sources
    return next((given[i] for i in sources if given[i]), 0)


@functools.cache
def _type_sources(kind: str, domain: str, inputs: int, index: int) -> int | tuple[int, ...]:
    """Whose type output ``index`` of an operator in the optimised graph has, which says few: an element type that is
    always the same, or the numbers of the inputs that it shares its type with."""
    try:
        schema = onnx.defs.get_schema(kind, domain="" if domain == "ai.onnx" else domain)
    except onnx.defs.SchemaError:  # of the runtime's own domains: what it fuses has the type of its data
        return tuple(range(inputs)) if index == 0 else ()
    if not schema.outputs:
        return ()
    name = schema.outputs[min(index, len(schema.outputs) - 1)].type_str
    last = len(schema.inputs) - 1
    alike = tuple(i for i in range(inputs) if last >= 0 and schema.inputs[min(i, last)].type_str == name)
    allowed = next((t.allowed_type_strs for t in schema.type_constraints if t.type_param_str == name), [name])
    only = _TENSOR_TYPES.get(allowed[0]) if len(allowed) == 1 else None
    return only or alike  # a type's number is never 0


def fused_parts(
    before: Sequence[onnx.NodeProto], after: Sequence[onnx.NodeProto], stored: Iterable[str]
) -> list[tuple[str, ...]]:
    """Of the optimised graph: for each node of ``after``, in order, the nodes of the file ``before`` that went into it,
    by the first output of each.

    A runtime that fuses keeps the names of what a fused node reads and makes, and elsewhere names of nodes; what it
    made up is empty here. What a data move was found to cover goes to the node that computed it
    (`_move_to_computing`).

    Args:
        before: all nodes of the file, those of bodies included; a name that two of them make says nothing.
        after: all nodes of the optimised graph.
        stored: its stored tensors, some of which were nodes of the file.
    """
    counts = Counter(name for node in before for name in node.output if name)
    makers = {name: node for node in before for name in node.output if counts[name] == 1}
    known = {name for node in after for name in node.output} | set(stored)
    kept = {(node.op_type, node.name) for node in before if node.name}
    kept &= {(node.op_type, node.name) for node in after}
    firsts = {(node.op_type, node.name): tuple(node.output[:1]) for node in before}
    found = []
    for node in after:
        here = node.op_type, node.name
        parts = _covered_nodes(node, makers, known, kept)
        if not parts and here in kept:  # it kept its name, and what it writes was renamed
            parts = firsts[here]
        found.append(parts)
    _move_to_computing(after, found, {node.output[0]: node.op_type for node in before if node.output})
    return found


def _move_to_computing(after: Sequence[onnx.NodeProto], found: list[tuple[str, ...]], kinds: dict[str, str]) -> None:
    """In the optimised graph: file nodes that a data move was found to cover, and that are more than moves, go to the
    node in front of the move, which computed them; ``found``, by node of ``after``, is changed in place.

    MatMul and Add on three axes are Reshape, Gemm and Reshape, of which the last has the name that the file knows.
    ``kinds``: operators of the file's nodes by first output.
    """
    makers = {name: number for number, node in enumerate(after) for name in node.output if name}
    for number, node in enumerate(after):
        parts, last = found[number], number
        if not parts or not has(node.op_type, "moves") or all(has(kinds[name], "moves") for name in parts):
            continue
        while has(after[last].op_type, "moves"):
            source = makers.get(next(iter(after[last].input), ""), last)
            if source >= last or found[source]:
                break
            last = source
        if not has(after[last].op_type, "moves"):
            found[number], found[last] = (), parts


def _covered_nodes(
    node: onnx.NodeProto, makers: dict[str, onnx.NodeProto], known: set[str], kept: set[tuple[str, str]]
) -> tuple[str, ...]:
    """The file nodes, by first output, that a node of the optimised graph covers: back from what it makes to values
    ``known`` there, but for other nodes of the file that were ``kept``. ``makers``: file nodes by output."""
    found: dict[str, None] = {}
    todo = [name for name in node.output if name in makers]
    while todo:
        maker = makers[todo.pop()]
        itself = (maker.op_type, maker.name) == (node.op_type, node.name)
        if maker.output[0] in found or (not itself and (maker.op_type, maker.name) in kept):
            continue
        found[maker.output[0]] = None
        if not itself:
            todo += [name for name in maker.input if name in makers and name not in known]
    return tuple(found)


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
        """Whether this node of the optimised graph is a copy between a device and the host."""
        return self.kind.startswith(COPY)

    @property
    def casts(self) -> bool:
        """Whether a node of the optimised graph is a Cast between float types, also to the same one."""
        return has(self.kind, "casts") and UNKNOWN not in self.dtype and "->" in self.dtype


@dataclass(frozen=True)
class Optimized:
    """The graph that a session runs, and what stood in the file."""

    runtime: str
    nodes: tuple[OptimizedNode, ...]
    kinds: frozenset[str]
    """The operators of the file."""

    def providers(self) -> Counter[str]:
        """How many nodes of the optimised graph each provider runs."""
        return Counter(node.provider for node in self.nodes)

    def copied(self) -> Counter[str]:
        """How many copies between device and host ONNX Runtime inserted, by kind."""
        return Counter(node.kind for node in self.nodes if node.copies)

    def cast(self) -> Counter[str]:
        """How many Casts between float types the optimised graph has, by both types."""
        return Counter(node.dtype for node in self.nodes if node.casts)

    def fused(self) -> Counter[str]:
        """Operators of ONNX Runtime's own, and those that it makes of several where the file had none."""
        return Counter(node.kind for node in self.nodes if self._fused(node))

    def _fused(self, node: OptimizedNode) -> bool:
        """Whether ONNX Runtime made a node by fusion: by its domain, or a kind that fusions make and the file lacks."""
        if node.kind.partition("::")[0] in OWN_DOMAINS:
            return True
        return has(node.kind, "made_by_fusion") and node.kind not in self.kinds


def read_optimized(before: onnx.ModelProto, after: onnx.ModelProto, log: str, runtime: str = "") -> Optimized:
    """The optimised graph ``after`` of the file ``before``; ``log``: what its session wrote at severity 0.

    Weights need not be there. Providers are exact where `name_nodes` named the nodes of the file.
    """
    places = placements(log)
    given, made = [node for node, _ in walk_nodes(before.graph)], list(walk_nodes(after.graph))
    stored = [tensor.name for tensor in after.graph.initializer]
    parts = fused_parts(given, [node for node, _ in made], stored)
    nodes = []
    for (node, types), part in zip(made, parts, strict=True):
        provider = places.get((node.op_type, node.name)) or places.get(("", "")) or UNKNOWN
        kind = kind_of(node)
        nodes.append(OptimizedNode(node.name, kind, provider, _float_type(node, kind, types), part))
    return Optimized(runtime, tuple(nodes), frozenset(map(kind_of, given)))


def placements(log: str) -> dict[tuple[str, str], str]:
    """Which of ONNX Runtime's providers runs each node, by its log: (operator, node's name) -> provider, `UNKNOWN`
    where nodes of one name are with two; ("", "") -> the one provider of all nodes, where the log says that."""
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
    """Before ONNX Runtime optimises a graph: gives every node, in bodies too, a name of its own, in place, so that its
    log can be matched with nodes. ``seen``: the names so far, None at first."""
    seen = set() if seen is None else seen
    for node in graph.node:
        if not node.name or node.name in seen:
            node.name = f"{node.name or node.op_type}#{len(seen)}"
        seen.add(node.name)
        for body in bodies_of(node):
            name_nodes(body, seen)


def bodies_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that a node (If, Loop, Scan) of the optimised graph holds."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def kind_of(node: onnx.NodeProto) -> str:
    """The operator of a node of the optimised graph as the operator lists name it."""
    return f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type


def walk_nodes(
    graph: onnx.GraphProto, outer: Mapping[str, int] | None = None
) -> Iterator[tuple[onnx.NodeProto, dict[str, int]]]:
    """Every node of an optimised graph, bodies included, with the element types by name of the values that it sees: one
    dict for all nodes of a graph, which grows. ``outer``: the types around a body."""
    types = dict(outer or {})
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.HasField("tensor_type"):
            types[value.name] = value.type.tensor_type.elem_type
    types.update((tensor.name, tensor.data_type) for tensor in graph.initializer)
    for node in graph.node:
        types.update(infer_output_types(node, kind_of(node), types))
        yield node, types
        for body in bodies_of(node):
            yield from walk_nodes(body, types)


def _float_type(node: onnx.NodeProto, kind: str, types: Mapping[str, int]) -> str:
    """The lowest float type that a node of the optimised graph touches, of a Cast "from->to" ("?" if the first is not
    known, one alone where the other is no float); "" for a node of other types."""
    floats = [FLOATS.get(types.get(name, 0), "") for name in (*node.input, *node.output) if name]
    if has(kind, "casts"):
        made = FLOATS.get(_cast_type(node, kind), "")
        given = types.get(node.input[0])
        source = UNKNOWN if given is None else FLOATS.get(given, "")
        return f"{source}->{made}" if source and made else source.replace(UNKNOWN, "") or made
    return next((name for name in FLOATS.values() if name in floats), "")
