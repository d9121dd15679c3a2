"""Which state of a training step's graph may be updated in place: read and written in one buffer.

That is safe if nothing reads the old value after the new one is written: every other reader is an ancestor of the
writer, so that it runs before it in any order of execution. All tests are conservative, as a runtime rewrites the
graph: it removes Casts that cancel, folds moves and constant factors into what reads them, and computes shapes
beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from ...formats.onnx.nodes import kind_of
from ...oplists.traits import Trait, has
from .state_tensors import StateTensor


def in_place(graph: ir.Graph, entries: Iterable[StateTensor]) -> frozenset[str]:
    """The names of the states of a training step (``entries``) that may be updated in place."""
    inputs = {value.name: value for value in graph.inputs}
    outputs = {value.name: value for value in graph.outputs}
    cases = []
    for entry in entries:
        writer = _real_writer(outputs[entry.output]) if entry.output else None
        others = None if writer is None else _other_readers(inputs[entry.name], writer)
        if writer is not None and others is not None:
            cases.append((entry.name, writer, others))
    readers = dict.fromkeys(node for _, _, others in cases for node in others)
    bits = {node: 1 << number for number, node in enumerate(readers)}
    needed = _needed_before(graph, bits)
    return frozenset(
        name for name, writer, others in cases if all(bits[node] & needed.get(writer, 0) for node in others)
    )


def _other_readers(old: ir.Value, writer: ir.Node) -> list[ir.Node] | None:
    """State updated in place: the nodes other than its writer that read ``old``; None where it is unsafe in any order:
    the writer is not elementwise, reads the state through a view that moves elements, or may be fused with a product
    that reads it."""
    if not has(kind_of(writer), "elementwise") or old.is_graph_output():
        return None
    if any(
        _behind_views(value, "views") is old and _behind_views(value, "stays_in_place") is not old
        for value in writer.inputs
    ):
        return None
    # a runtime may fuse a product with the writer behind it: it reads elements again after it has written some
    products = [value.producer() for given in writer.inputs if (value := _behind_views(given, "views")) is not None]
    for node in products:
        if (
            node is not None
            and has(kind_of(node), "products")
            and old in [_behind_views(v, "views") for v in node.inputs]
        ):
            return None
    return _buffer_readers(old, writer)


def _real_writer(new: ir.Value) -> ir.Node | None:
    """State updated in place: the node that computes the next value, behind Identities and a Split, if any."""
    node = new.producer()
    while node is not None and node.op_type == "Identity" and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    if node is not None and node.op_type == "Split" and node.inputs[0] is not None:
        return node.inputs[0].producer()
    return node


def _buffer_readers(state: ir.Value, writer: ir.Node) -> list[ir.Node] | None:
    """State updated in place: every node but the writer that may read the state's buffer, also through views of it;
    None where a view is an output of the graph."""
    found: dict[ir.Node, None] = {}
    waiting = [state]
    while waiting:
        for node in waiting.pop().consumers():
            if node in found or node is writer or has(kind_of(node), "shapes"):
                continue
            found[node] = None
            if _is_view(node, "views"):
                if any(value.is_graph_output() for value in node.outputs):
                    return None
                waiting.extend(node.outputs)
    return list(found)


def _is_view(node: ir.Node, trait: Trait) -> bool:
    """State updated in place: whether a node only hands its input on, so that a runtime may fold it away: it has the
    ``trait`` ("views", or "stays_in_place": no element moves), or multiplies by a constant."""
    kind = kind_of(node)
    return has(kind, trait) or (has(kind, "scalings") and any(_is_constant(value) for value in node.inputs))


def _is_constant(value: ir.Value | None) -> bool:
    """State updated in place: whether a value is a number stored in the graph, an initializer or a Constant."""
    return value is not None and not value.is_graph_input() and ir.convenience.get_const_tensor(value) is not None


def _behind_views(value: ir.Value | None, trait: Trait) -> ir.Value | None:
    """State updated in place: the value behind all views (`_is_view`) that made ``value``, itself if none did; None for
    a value that is made of constants alone."""
    while value is not None:
        node = value.producer()
        if node is None or not _is_view(node, trait):
            return value
        value = next((given for given in node.inputs if not _is_constant(given)), None)
    return None


def _needed_before(graph: ir.Graph, bits: Mapping[ir.Node, int]) -> dict[ir.Node, int]:
    """State updated in place: for each node of a sorted graph, the sum of the ``bits`` of those nodes that run before
    it in any order of execution, because it needs their results, and not only their shapes."""
    needed: dict[ir.Node, int] = {}
    for node in graph:
        total = 0
        for value in node.inputs if not has(kind_of(node), "shapes") else ():
            producer = None if value is None else value.producer()
            if producer is not None:
                total |= needed.get(producer, 0) | bits.get(producer, 0)
        needed[node] = total
    return needed
