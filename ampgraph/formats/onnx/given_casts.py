"""Takes Casts away that do nothing, or that can be done once to what is stored."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ...oplists.traits import has
from .weights import stored_tensor


def drop_casts(nodes: Sequence[ir.Node]) -> bool:
    """The readers of a Cast read what it reads, which takes its type where it is a stored tensor; with it go the Casts
    back to the type before it, behind moves. False for nodes that are no such Casts."""
    if not nodes or any(node.op_type != "Cast" or node.domain or node.graph is None for node in nodes):
        return False
    first, back = nodes[0], nodes[1:]
    source, to = first.inputs[0], _to(back[0] if back else first)
    if source is None or any(node.outputs[0].is_graph_output() for node in nodes):
        return False
    if not (_retypes(first, set(back), to) if back else _fits(source, to)):
        return False
    for node in nodes:
        given = node.inputs[0]
        assert given is not None and node.graph is not None
        node.outputs[0].replace_all_uses_with(given)
        node.graph.remove(node, safe=True)
    return True


def _to(node: ir.Node) -> ir.DataType:
    return ir.DataType(node.attributes["to"].as_int())


def _fits(source: ir.Value, to: ir.DataType) -> bool:
    """Whether a value has a type, or takes it, as stored tensors do that one node reads."""
    tensor = stored_tensor(source)
    if tensor is None or tensor.dtype == to:
        return source.dtype is None or source.dtype == to
    if len(source.uses()) != 1 or source.is_graph_output() or source.is_graph_input():
        return False
    stored = ir.tensor(tensor.numpy().astype(to.numpy()), name=tensor.name or source.name)
    node, source.type = source.producer(), ir.TensorType(to)
    if node is None:
        source.const_value = stored
    else:
        node.attributes.clear()
        node.attributes["value"] = ir.AttrTensor("value", stored)
    return True


def _retypes(first: ir.Node, back: set[ir.Node], to: ir.DataType) -> bool:
    """Gives what moves make between a Cast and those back the type before it. False where anything else reads it."""
    given, moved = first.inputs[0], [first.outputs[0]]
    if given is None or given.dtype not in (None, to) or any(_to(node) != to for node in back):
        return False
    for value in moved:
        for node, place in value.uses():
            if node in back:
                continue
            if place != 0 or node.domain or not has(node.op_type, "moves") or len(node.outputs) != 1:
                return False
            moved.append(node.outputs[0])
    if any(value.is_graph_output() for value in moved):
        return False
    for value in moved:
        value.type = ir.TensorType(to)
    return True
