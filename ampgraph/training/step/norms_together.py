"""Norms that gradients compute again: those of one kind and shape are run together, by one node on their data side by
side, which are cast once.

LayerNormalization's gradient reads its data normalised without scale and bias: a Cast to float32 where they are low,
and the operator. All data are there before the backward begins. The cost is bytes, for a Concat and a Split.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ...formats.onnx.nodes import operand
from ...oplists.traits import has
from ..gradients.builder import Builder
from .vectors import LAUNCH, dims, size

Value = ir.Value


def run_norms_together(graph: ir.Graph, longest: int) -> None:
    """In a step's gradients: has one node compute the norms of each kind and shape, where the launches saved are worth
    the bytes moved; norms whose data have more than ``longest`` numbers in all stay as they are. The results are the
    same to the bit."""
    alike: dict[tuple[object, ...], list[ir.Node]] = {}
    for node in graph:
        key = _alike_key(node)
        if key is not None:
            alike.setdefault(key, []).append(node)
    for norms in alike.values():
        if _pays(norms) and sum(size(_uncast_data(norm)) for norm in norms) <= longest:
            before = _first_reader(graph, norms)
            if before is not None:
                _join_norms(graph, norms, before)


def _first_reader(graph: ir.Graph, norms: Sequence[ir.Node]) -> ir.Node | None:
    """Norms of gradients together: the first node that reads one of their results, before which they are to run; None
    where that is before all data are there, where one norm reads another, or where a reader is in a body."""
    place = {node: number for number, node in enumerate(graph)}
    readers = [reader for norm in norms for reader in norm.outputs[0].consumers()]
    if any(reader not in place for reader in readers):
        return None  # in a body
    first = min(readers, key=place.__getitem__)
    makers = [maker for norm in norms if (maker := _uncast_data(norm).producer()) is not None]
    if any(norm in makers for norm in norms):
        return None
    return first if all(place.get(maker, place[first]) < place[first] for maker in makers) else None


def _alike_key(node: ir.Node) -> tuple[object, ...] | None:
    """Norms of gradients together: what nodes must have in common to be run as one: operator, attributes, shape, types
    and constant scale. None for a node that is no such norm: of known sizes, not over the first axis."""
    if not has(node.op_type, "norms") or len(node.inputs) != 2 or len(node.outputs) != 1:
        return None
    data, scale = _uncast_data(node), node.inputs[1]
    sizes = None if data.shape is None else list(data.shape)
    if scale is None or not scale.is_initializer() or scale.is_graph_input() or not node.outputs[0].uses():
        return None
    if not sizes or not all(isinstance(one, int) for one in sizes):
        return None
    axis = node.attributes.get_int("axis", -1)
    given = tuple(sorted((name, str(attribute.value)) for name, attribute in node.attributes.items()))
    if axis % len(sizes) == 0 or node.outputs[0].is_graph_output() or len(dims(scale)) > len(sizes) - axis % len(sizes):
        return None  # a scale of more axes than are normalised may differ from row to row
    types = data.dtype, data is node.inputs[0], node.outputs[0].dtype
    return node.domain, node.op_type, scale, tuple(sizes), *types, given


def _uncast_data(node: ir.Node) -> Value:
    """Norms of gradients together: the data of a norm; before a Cast that nothing else reads."""
    data = operand(node)
    cast = data.producer()
    alone = cast is not None and has(cast.op_type, "casts") and len(data.uses()) == 1 and not data.is_graph_output()
    before = cast.inputs[0] if cast is not None and alone else None
    return data if before is None else before


def _pays(norms: Sequence[ir.Node]) -> bool:
    """Norms of gradients together: whether the launches that these save are worth a Concat and a Split of all data."""
    cast = _uncast_data(norms[0]) is not norms[0].inputs[0]
    nodes, bytes_moved = (2, 12) if cast else (1, 16)
    saved = nodes * len(norms) - (nodes + 2)
    return saved * LAUNCH > bytes_moved * sum(size(_uncast_data(norm)) for norm in norms)


def _join_norms(graph: ir.Graph, norms: Sequence[ir.Node], before: ir.Node) -> None:
    """Norms of gradients together: replaces them by a Concat of their data, a Cast, one norm and a Split, which stand
    in front of the node ``before``."""
    b = Builder(graph, "grad")
    b.scope, b.before = "norms", before
    first, data = norms[0], [_uncast_data(norm) for norm in norms]
    wide = first.outputs[0].dtype or ir.DataType.FLOAT
    rows = [dims(value)[0] for value in data]
    whole = b.typed(b.op("Concat", *data, axis=0), data[0].dtype or wide, sum(rows), *dims(data[0])[1:])
    raised = b.cast(whole, wide)
    normal = b.typed(b.repeat_with(first, [raised, first.inputs[1]]), raised)
    pieces = b.ops("Split", len(norms), normal, b.ints(*rows), axis=0)
    for norm, source, piece in zip(norms, data, pieces, strict=True):
        ir.convenience.replace_all_uses_with(norm.outputs[0], b.typed(piece, norm.outputs[0]))
        cast = operand(norm).producer() if operand(norm) is not source else None
        graph.remove(norm, safe=True)
        if cast is not None:
            graph.remove(cast, safe=True)
