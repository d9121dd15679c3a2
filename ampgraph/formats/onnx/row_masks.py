"""Writes a mask less its largest number in each row: a Softmax that reads scores with it added sees no difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from ...oplists.traits import at

AXES_ARE_READ = 18  # the opset from which ReduceMax reads its axes


def shift_rows(nodes: Sequence[ir.Node], fresh: Callable[[str], str], opset: int) -> bool:
    """Puts ReduceMax and Sub between a mask and its readers, ReduceMin for one that is taken away. False for nodes that
    make no single value."""
    if len(nodes) != 1 or len(nodes[0].outputs) != 1:
        return False
    node, mask = nodes[0], nodes[0].outputs[0]
    graph, name = node.graph, node.name or mask.name or "mask"
    assert graph is not None
    read = mask.uses()
    inputs: list[ir.Value] = [mask]
    attributes = [ir.AttrInt64("keepdims", 1)]
    made: list[ir.Node] = []
    taken = all(at(reader.op_type, "subtracts", place) for reader, place in read)
    if opset < AXES_ARE_READ:
        attributes.append(ir.AttrInt64s("axes", [-1]))
    else:
        made.append(_last_axis(fresh(f"{name}_axes")))
        inputs.append(made[0].outputs[0])
    kind, word = ("ReduceMin", "smallest") if taken else ("ReduceMax", "largest")
    most = ir.Node("", kind, inputs, attributes, num_outputs=1, name=fresh(f"{name}_{word}"))
    less = ir.Node("", "Sub", [mask, most.outputs[0]], num_outputs=1, name=fresh(f"{name}_by_rows"))
    for new in (most, less):
        new.metadata_props.update(node.metadata_props)
        new.outputs[0].name, new.outputs[0].type = fresh(f"{mask.name}_{new.op_type}"), mask.type
    less.outputs[0].shape = mask.shape
    graph.insert_after(node, [*made, most, less])
    for reader, place in read:
        reader.replace_input_with(place, less.outputs[0])
    return True


def _last_axis(name: str) -> ir.Node:
    tensor = ir.tensor(np.array([-1], np.int64), name=name)
    node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], num_outputs=1, name=f"{name}_node")
    value = node.outputs[0]
    value.name, value.type, value.shape = name, ir.TensorType(ir.DataType.INT64), ir.Shape((1,))
    return node
