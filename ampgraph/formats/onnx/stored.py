"""Stored tensors of an ONNX model that change: replaced, copied in another type, or gone."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ...core.dataflow import FLOAT32, Value
from .handles import Handles
from .types import DTYPES
from .weights import RoundedTensor, ScaledTensor, stored_tensor


def put(native: ir.Value, tensor: ir.TensorProtocol) -> None:
    """Puts a tensor behind an initializer or a Constant."""
    node = native.producer()
    if node is None:
        native.const_value = tensor
    else:
        node.attributes.clear()
        node.attributes["value"] = ir.AttrTensor("value", tensor)


def rounded(source: ir.TensorProtocol, dtype: str, floor: float | None, factor: float) -> RoundedTensor:
    """A tensor in ``dtype``, times a factor."""
    return RoundedTensor(source, dtype, floor) if factor == 1.0 else ScaledTensor(source, dtype, factor)


def store_copy(handles: Handles, value: Value, tensor: RoundedTensor, dtype: str) -> ir.Value:
    """Another stored tensor where ``value`` stands."""
    native = handles.value(value)
    name = tensor.name = handles.fresh(f"{value.name}_{dtype}")
    producer = native.producer()
    if producer is not None:
        attribute = ir.AttrTensor("value", tensor)
        node = ir.Node("", "Constant", [], [attribute], num_outputs=1, name=handles.fresh(f"{name}_node"))
        handles.graph(value.scope).insert_after(producer, node)
        copy = node.outputs[0]
        copy.name = name
    else:
        copy = ir.Value(name=name, const_value=tensor)
        native.graph.register_initializer(copy)  # type: ignore[union-attr]
    copy.type, copy.shape = ir.TensorType(DTYPES[dtype]), tensor.shape
    return copy


def change_weight(
    handles: Handles, value: Value, mode: str, dtype: str, floor: float | None, factor: float
) -> ir.Value | None:
    """Does what `Editor.weight` says; the copy that ``both`` makes for some readers."""
    native = handles.value(value)
    source, filler = stored_tensor(native), native.producer()
    if source is None and filler is not None:  # one number, repeated
        number = np.array([0.0 if floor is None else floor], np.float32)
        kind = dtype if mode == "low" else FLOAT32
        filler.attributes["value"] = ir.AttrTensor("value", RoundedTensor(ir.tensor(number), kind))
        return None
    assert source is not None
    copy = store_copy(handles, value, rounded(source, dtype, floor, factor), dtype) if mode == "both" else None
    if copy is None or floor is not None:
        kind = dtype if mode == "low" else FLOAT32
        put(native, rounded(source, kind, floor, factor if mode == "low" else 1.0))
        native.type = ir.TensorType(DTYPES[kind])
    return copy


def drop_constant(value: ir.Value) -> None:
    """Takes a constant away that nothing reads any more."""
    if value.uses() or value.is_graph_output() or value.is_graph_input():
        return
    producer = value.producer()
    if value.is_initializer():
        value.graph.initializers.pop(value.name)  # type: ignore[union-attr, arg-type]
    elif producer is not None and producer.op_type == "Constant" and producer.graph is not None:
        producer.graph.remove(producer, safe=True)
