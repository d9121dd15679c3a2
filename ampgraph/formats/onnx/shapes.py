"""Shapes of an ONNX model's values: from the file, or inferred once by onnx when the file has none."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from ...core.dataflow import Shape, Value
from .weights import stored_tensor

KEEP_DATA = 4096  # bytes: shape arithmetic needs small constants, never weights


class OnnxShapes:
    """Callable for Dataflow: the shape of a value, or None."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self._inferred: dict[str, Shape] | None = None

    def __call__(self, value: Value) -> Shape | None:
        native: ir.Value = value.native
        shape = native.shape if native.const_value is None else native.const_value.shape
        if shape is not None:
            return tuple(d if isinstance(d, int) else d.value for d in shape)
        if value.weight and value.native.producer() is not None:
            tensor = stored_tensor(native)
            return None if tensor is None else tuple(tensor.shape.numpy())
        if value.container:
            return None
        if self._inferred is None:
            self._inferred = infer(self.model)
        return self._inferred.get(value.name) if value.scope == 0 else None


def infer(model: ir.Model) -> dict[str, Shape]:
    """Shapes of the main graph's values by onnx's inference, on a copy without weights; empty where it fails."""
    try:
        found = onnx.shape_inference.infer_shapes(weightless(model), strict_mode=False)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return {}  # shapes only weigh costs: a model that inference cannot follow is still converted
    shapes: dict[str, Shape] = {}
    for info in found.graph.value_info:
        if info.type.HasField("tensor_type") and info.type.tensor_type.HasField("shape"):
            dims = info.type.tensor_type.shape.dim
            shapes[info.name] = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in dims)
    return shapes


def weightless(model: ir.Model) -> onnx.ModelProto:
    """The model without its large stored tensors, which are inputs instead."""
    proto = onnx.ModelProto(ir_version=max(model.ir_version or 8, 4))
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    proto.graph.name = "shapes"
    listed = {value.name for value in model.graph.inputs}
    for value in model.graph.inputs:
        proto.graph.input.append(ir.serde.serialize_value(value))
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None:
            continue
        if tensor.nbytes <= KEEP_DATA:
            proto.graph.initializer.append(ir.serde.serialize_tensor(tensor))
        elif value.name not in listed:
            dims = [int(d) for d in tensor.shape]  # type: ignore[arg-type]
            proto.graph.input.append(onnx.helper.make_tensor_value_info(value.name or "", tensor.dtype.value, dims))
    proto.graph.node.extend(ir.serde.serialize_node(node) for node in model.graph)
    proto.graph.output.extend(ir.serde.serialize_value(value) for value in model.graph.outputs)
    proto.functions.extend(ir.serde.serialize_function(f) for f in model.functions.values())
    return proto
