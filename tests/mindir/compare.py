"""Compares two MindIR models: what each compute node computes in, and how many casts there are.

``compare(own, ours)`` takes models (or files) and returns a ``Comparison``; ``python -m mindir.compare A B`` prints it.
A node's signature is its operator, the types of its float operands and the types of its results. Nodes are matched by
normalised scope where both models have the same nodes of one operator in it; the rest, graph by graph in file order.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from ampgraph.formats.mindir import schema, view
from formats.mindir import text

NOT_COMPUTE = {
    *("Constant", "Load", "Depend", "UpdateState", "MakeTuple", "TupleGetItem", "Partial", "Switch", "Cast"),
    *("Return", "make_list", "Shape", "TensorShape", "TupleToTensor", "ScalarToTensor", "MakeList", "ListGetItem"),
    view.CALL,
}
MOVES = {"Reshape", "Transpose", "Flatten", "ExpandDims", "Squeeze", "Concat", "Stack", "StridedSlice", "Split"}
"""Exact operators: whether an export merges two of them depends on what stands between."""

FLOATS = {"f32", "f16", "bf16", "f64"}


@dataclass(frozen=True)
class Node:
    """One compute node: where it stands and what it computes in."""

    graph: int
    scope: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def signature(self) -> tuple:
        return self.operator, self.inputs, self.outputs

    def __str__(self) -> str:
        return f"{self.operator}({', '.join(self.inputs)}) -> {', '.join(self.outputs)}  [{self.scope}]"


@dataclass(frozen=True)
class Comparison:
    nodes: int
    differences: tuple[str, ...]
    casts: tuple[int, int]
    mixed: tuple[str, ...] = ()  # operators that the reference gives two float types and ours one: no difference

    @property
    def agrees(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        lines = [f"{self.nodes} compute nodes, {len(self.differences)} differ, casts {self.casts[0]} / {self.casts[1]}"]
        return "\n".join([*lines, *self.differences])


def normal_scope(domain: str) -> str:
    """The cell path without what MindSpore's own mixed precision adds to it, and without the node's own word."""
    parts = [part for part in domain.split("/")[:-1] if not part.startswith("_backbone-") or "-_Output" not in domain]
    kept = []
    for index, part in enumerate(parts):
        name, _, kind = part.partition("-")
        kind = re.sub(r"Opt(_\d+)?$", "", kind)
        if kind.startswith("_OutputTo"):
            inner = domain.split("/")[index + 1 :]
            wrapped = next((word for word in inner if word.startswith("_backbone-")), "")
            kind = wrapped.removeprefix("_backbone-")
        if name != "_backbone":
            kept.append(f"{name}-{kind}" if kind else name)
    return "/".join(kept)


def _types(item: Any) -> list[str]:
    """The element types in a ``shape`` attribute, or in a constant tensor."""
    if item is None:
        return []
    if item.type in (schema.TUPLE, schema.LIST):
        return [kind for value in item.values for kind in _types(value)]
    return [text.element(tensor) for tensor in item.tensors]


def _graph_types(graph: Any, known: dict[str, list[str]]) -> None:
    for value in graph.input:
        known[value.name] = [text.element(tensor) for tensor in value.tensor]
    for parameter in graph.parameter:
        known[parameter.name] = [text.element(parameter)]
    for node in graph.node:
        name = "value" if node.op_type == "Constant" else "shape"
        known[node.output[0]] = _types(view.attribute(node, name))


def nodes(model: Any, moves: bool = False) -> list[Node]:
    """The compute nodes of the main graph and of the functions; exact data movement only if asked for."""
    known: dict[str, list[str]] = {}
    graphs = [model.graph, *sorted(model.functions, key=lambda graph: _function_key(graph.name))]
    for graph in graphs:
        _graph_types(graph, known)
    primitives = view.primitives(model)
    found = []
    for index, graph in enumerate(graphs):
        for node in graph.node:
            operator = view.kind_of(node, primitives)
            if operator in NOT_COMPUTE or (operator in MOVES and not moves):
                continue
            inputs = tuple(kind for name in node.input for kind in known.get(name, []) if kind in FLOATS)
            results = tuple(known[node.output[0]])
            found.append(Node(index, normal_scope(node.domain), operator, inputs, results))
    return found


def _function_key(name: str) -> tuple:
    """Functions are written in no stable order; their names hold the kind of branch and end in a counter."""
    marks = "".join(mark for mark in name if mark in "✓✗↵↻↓")
    digits = re.findall(r"\d+", name)
    return marks, int(digits[-1]) if digits else 0


def casts(model: Any) -> int:
    known = view.primitives(model)
    return sum(view.kind_of(node, known) == "Cast" for graph in view.graphs(model) for node in graph.node)


def round_trips(model: Any) -> int:
    """Casts that do nothing: low -> float32 -> low. MindSpore's export cancels them in float16, not in bfloat16."""
    known: dict[str, list[str]] = {}
    primitives = view.primitives(model)
    count = 0
    for graph in [model.graph, *model.functions]:
        _graph_types(graph, known)
        found = {n.output[0]: n.input[0] for n in graph.node if view.kind_of(n, primitives) == "Cast"}
        back = {
            name: up
            for name, up in found.items()
            if up in found and known[name] == known[found[up]] != known[up] == ["f32"]
        }
        readers = Counter(source for node in graph.node for source in node.input)
        readers.update(value.name for value in graph.output)
        unread = [up for up, times in Counter(back.values()).items() if readers[up] == times]
        count += len(back) + len(unread)
    return count


def compare(own: Any, ours: Any, moves: bool = False) -> Comparison:
    """``own`` is the reference. Models, or the files they are in."""
    own, ours = (text.load(item) if isinstance(item, str | Path) else item for item in (own, ours))
    left, right = nodes(own, moves), nodes(ours, moves)
    mixed: list[str] = []
    differences = _by_scope(left, right, mixed)
    if differences is None:
        differences = _by_order(left, right)
    return Comparison(len(left), tuple(differences), (casts(own), casts(ours)), tuple(mixed))


def _promotes(own: Node, ours: Node) -> bool:
    """Whether ``own`` leaves to the kernel what ``ours`` casts: two types go in, and the same comes out."""
    types = {*own.inputs}
    return own.outputs == ours.outputs and len(types) == 2 and len({*ours.inputs}) == 1 and {*ours.inputs} < types


def _by_scope(left: list[Node], right: list[Node], mixed: list[str]) -> list[str] | None:
    """The differences if both sides hold the same operators, each in the same scopes; else None. Fills ``mixed``."""
    groups: dict[tuple, tuple[list[Node], list[Node]]] = defaultdict(lambda: ([], []))
    for side, found in enumerate((left, right)):
        for node in found:
            groups[node.graph, node.scope, node.operator][side].append(node)
    if any(len(mine) != len(yours) for mine, yours in groups.values()):
        return None
    pairs = [pair for mine, yours in groups.values() for pair in zip(mine, yours, strict=True)]
    unequal = [(a, b) for a, b in pairs if a.signature != b.signature]
    mixed += [f"- {a}\n+ {b}" for a, b in unequal if _promotes(a, b)]
    return [f"- {a}\n+ {b}" for a, b in unequal if not _promotes(a, b)]


def _by_order(left: list[Node], right: list[Node]) -> list[str]:
    """The differences of two sequences of signatures, unless they are equal as multisets."""
    mine, yours = Counter(node.signature for node in left), Counter(node.signature for node in right)
    if mine == yours:
        return []
    matcher = SequenceMatcher(a=[n.signature for n in left], b=[n.signature for n in right], autojunk=False)
    lines = []
    for tag, a1, a2, b1, b2 in matcher.get_opcodes():
        if tag != "equal":
            lines += [f"- {node}" for node in left[a1:a2]] + [f"+ {node}" for node in right[b1:b2]]
    return lines


if __name__ == "__main__":
    print(compare(sys.argv[1], sys.argv[2]))
