"""What ONNX Runtime takes in a file and onnx_ir does not: put right on the way in, and said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, MutableSet

import onnx_ir as ir
from onnx import GraphProto, ModelProto, NodeProto

from .proto import Holder, densify, holders
from .slice_bounds import bounds_as_vectors

REPAIRS = "ampgraph.repairs"
"""Where the main graph of onnx_ir remembers them."""


DOUBTED = "ampgraph.doubted"
"""Where it remembers the outputs whose shape is annotated wrongly."""


def doubted_shapes(model: ir.Model) -> MutableSet[str]:
    """Names of outputs whose declared shape cannot be: inside the graph it is not repeated."""
    found: set[str] = model.graph.meta.setdefault(DOUBTED, set())
    return found


def repair(proto: ModelProto, held: list[Holder], where: str) -> tuple[list[str], list[Holder]]:
    """Repairs a proto in place, whose graphs are ``held``; what was done, and these as they are now. Raises AmpError
    AMP102 for what makes no sense."""
    said = _settle_duplicates(proto.graph, held[0].standard("Constant"))
    held = holders(proto) if said else held
    count = densify(held, where)
    tensors = "sparse tensor is" if count == 1 else "sparse tensors are"
    said += [f"{count} {tensors} stored dense, as ONNX Runtime holds them"] if count else []
    slices = bounds_as_vectors(proto.graph, held[0].standard("Slice"))
    several = "Slice has" if slices == 1 else "Slices have"
    said += [f"{slices} {several} scalars for bounds: they are vectors now, as ONNX has them"] if slices else []
    return said, holders(proto) if count or slices else held


def remember(model: ir.Model, said: Iterable[str]) -> None:
    """Keeps what was said with the model."""
    if said := list(dict.fromkeys([*repairs_of(model), *said])):
        model.graph.meta[REPAIRS] = said


def repairs_of(model: ir.Model) -> list[str]:
    """What was said when a model was read."""
    return list(model.graph.meta.get(REPAIRS, ()))


def _settle_duplicates(graph: GraphProto, constants: list[NodeProto]) -> list[str]:
    """One definition for each constant: the one that ONNX Runtime uses, which reads initializers, then Constant nodes,
    then sparse initializers, and lets the last one win."""
    names = [
        *(tensor.name for tensor in graph.initializer),
        *(node.output[0] for node in constants if node.output),
        *(sparse.values.name for sparse in graph.sparse_initializer),
    ]
    doubled = len(set(names)) < len(names)
    counts = {name: count for name, count in Counter(names).items() if count > 1 and name} if doubled else {}
    if counts:
        last = {name: position for position, name in enumerate(names)}
        kept = [last[name] == position or name not in counts for position, name in enumerate(names)]
        _keep(graph, [id(node) for node in constants if node.output], kept)
    return [
        f"constant '{name}' is defined {count} times: the last is used, as ONNX Runtime does"
        for name, count in counts.items()
    ]


def _keep(graph: GraphProto, constants: list[int], kept: list[bool]) -> None:
    """Removes the definitions that are not kept; ``kept``: of initializers, Constant nodes and sparse initializers."""
    dense = len(graph.initializer)
    gone = {node for node, stays in zip(constants, kept[dense:], strict=False) if not stays}
    flags = kept[dense + len(constants) :]
    for place in reversed([i for i, stays in enumerate(flags) if not stays]):
        del graph.sparse_initializer[place]
    for place in reversed([i for i, node in enumerate(graph.node) if id(node) in gone]):
        del graph.node[place]
    for place in reversed([i for i, stays in enumerate(kept[:dense]) if not stays]):
        del graph.initializer[place]
