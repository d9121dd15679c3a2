"""Writes a Clip as Max and Min: the same numbers by operators that every opset has in float16."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from ...oplists.traits import has
from .stored import drop_constant
from .weights import stored_tensor

UNBOUND = 3.4e38  # beyond it a bound is none


def write_bounds(nodes: Sequence[ir.Node], fresh: Callable[[str], str]) -> bool:
    """Puts Max, Min or both in the place of a Clip whose bounds are stored; the result keeps its name. False for nodes
    that are no Clip."""
    if len(nodes) != 1 or nodes[0].domain or not has(nodes[0].op_type, "bounds"):
        return False
    node = nodes[0]
    read = [given for given in node.inputs[1:] if given is not None]
    graph, old, value = node.graph, node.outputs[0], node.inputs[0]
    assert graph is not None
    name = node.name or old.name or "Clip"
    for kind, attribute, place in (("Max", "min", 1), ("Min", "max", 2)):
        bound = node.inputs[place] if len(node.inputs) > place else None
        if bound is None and attribute in node.attributes:
            bound = _constant(node, node.attributes[attribute].as_float(), fresh(f"{name}_{attribute}"))
        if bound is None or not _binds(bound):
            continue
        new = ir.Node("", kind, [value, bound], num_outputs=1, name=fresh(f"{name}_{kind}"))
        new.metadata_props.update(node.metadata_props)
        value = new.outputs[0]
        value.name, value.type, value.shape = fresh(f"{old.name}_{kind}"), old.type, old.shape
        graph.insert_before(node, new)
    assert value is not None
    old.replace_all_uses_with(value, replace_graph_outputs=True)
    value.name, old.name = old.name, None
    graph.remove(node, safe=True)
    for given in read:
        drop_constant(given)
    return True


def _constant(node: ir.Node, number: float, name: str) -> ir.Value:
    tensor = ir.tensor(np.float32(number), name=name)
    new = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], num_outputs=1, name=f"{name}_node")
    value = new.outputs[0]
    value.name, value.type, value.shape = name, ir.TensorType(ir.DataType.FLOAT), ir.Shape(())
    assert node.graph is not None
    node.graph.insert_before(node, new)
    return value


def _binds(bound: ir.Value) -> bool:
    tensor = stored_tensor(bound)
    return tensor is None or float(np.abs(tensor.numpy()).max(initial=0)) < UNBOUND
