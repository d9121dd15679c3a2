"""Which nodes of a file one node of the optimised graph computes: those between what it makes and what it reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import onnx

from ..oplists.traits import has


def fused_parts(
    before: Sequence[onnx.NodeProto], after: Sequence[onnx.NodeProto], stored: Iterable[str]
) -> list[tuple[str, ...]]:
    """For each node of ``after``, in order, the nodes of ``before`` that went into it, by the first output of each.

    A runtime that fuses keeps the names of what a fused node reads and makes, and elsewhere names of nodes; what it
    made up is empty here.

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
        parts = _between(node, makers, known, kept)
        found.append(parts or (firsts[here] if here in kept else ()))
    _to_who_computes(after, found, {node.output[0]: node.op_type for node in before if node.output})
    return found


def _to_who_computes(after: Sequence[onnx.NodeProto], found: list[tuple[str, ...]], kinds: dict[str, str]) -> None:
    """Nodes that end in a move which the runtime put behind what it made of them belong to what it made, in place.

    MatMul and Add on three axes are Reshape, Gemm and Reshape, of which the last has the name that the file knows.
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


def _between(
    node: onnx.NodeProto, makers: dict[str, onnx.NodeProto], known: set[str], kept: set[tuple[str, str]]
) -> tuple[str, ...]:
    """Back from what a node makes to what is known, through nodes that are not themselves ``kept``."""
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
