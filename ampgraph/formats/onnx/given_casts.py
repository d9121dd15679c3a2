"""Takes a Cast away that does nothing, or that can be done once to what is stored."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from .weights import stored_tensor


def drop_cast(nodes: Sequence[ir.Node]) -> bool:
    """The readers of a Cast read what it reads, which takes its type where it is a stored tensor. False for nodes that
    are no such Cast."""
    node = nodes[0] if len(nodes) == 1 and nodes[0].op_type == "Cast" else None
    source = None if node is None else node.inputs[0]
    if node is None or source is None or node.outputs[0].is_graph_output() or node.graph is None:
        return False
    to, tensor = ir.DataType(node.attributes["to"].as_int()), stored_tensor(source)
    if tensor is not None and tensor.dtype != to:
        if len(source.uses()) != 1 or source.is_graph_output() or source.is_graph_input():
            return False
        _store(source, ir.tensor(tensor.numpy().astype(to.numpy()), name=tensor.name or source.name))
    elif source.dtype is not None and source.dtype != to:
        return False
    node.outputs[0].replace_all_uses_with(source)
    node.graph.remove(node, safe=True)
    return True


def _store(value: ir.Value, tensor: ir.TensorProtocol) -> None:
    node = value.producer()
    value.type = ir.TensorType(tensor.dtype)
    if node is None:
        value.const_value = tensor
    else:
        node.attributes.clear()
        node.attributes["value"] = ir.AttrTensor("value", tensor)
