"""Shapes of an ONNX model's values: from the file, or inferred once by onnx when the file has none."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

import onnx
import onnx_ir as ir

from ...core.dataflow import Shape, Value
from .native import value_info
from .types import DTYPES
from .weights import InFile, dims, nbytes, stored_tensor
from .wire import GRAPH_INPUT, INFO_NAME, InfoWriter, text_bytes, with_nodes

KEEP_DATA = 4096  # bytes: shape arithmetic needs small constants, never weights
KEEP_FLOATS = 64  # elements: a factor for each dimension at most

MOST_NODES = 2000  # of a model whose annotated shapes are compared with those that onnx infers


class OnnxShapes:
    """The shapes of an ONNX model's values, as a Dataflow asks for them; onnx's inference runs once, when first needed.
    ``typed``: name -> type of what operators make that onnx has no schema for: its inference would end there."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.typed: dict[str, str] = {}
        self._inferred: dict[str, onnx.ValueInfoProto] | None = None

    def __call__(self, value: Value) -> Shape | None:
        """The shape of an ONNX value: of its tensor, as annotated, or as onnx infers it for the main graph; or None."""
        native: ir.Value = value.native
        if native.const_value is not None:
            return dims(native.const_value)
        if native.shape is not None:
            return sizes(native.shape)
        if value.weight and value.native.producer() is not None:
            tensor = stored_tensor(native)
            return None if tensor is None else tuple(tensor.shape.numpy())
        if value.container:
            return None
        if self._inferred is None:
            self._inferred = infer(self.model, typed=self.typed)
        found = self._inferred.get(value.name) if value.scope == 0 else None
        return None if found is None else _tensor_shape(found)

    def certain(self, value: Value) -> Shape | None:
        """The shape of an ONNX value as far as more than a doubtful annotation says it: annotations of outputs, and in
        bodies, may be wrong, and so may those that onnx's inference contradicts; None then. Stored tensors and inputs
        of the model are certain; of another value of the main graph the annotation is believed where onnx infers
        nothing, and its inferred sizes before the annotated ones."""
        native: ir.Value = value.native
        shape = self(value)
        if value.weight or shape is None or (native.is_graph_input() and value.scope == 0):
            return shape
        if value.scope != 0:
            return None
        known = self._inferred_from_inputs.get(value.name)
        inferred = None if known is None else _tensor_shape(known)
        inferred_only = native.is_graph_output() or (native.shape is None and bool(self._inferred_from_inputs))
        if inferred is None:
            return None if inferred_only else shape
        if len(inferred) != len(shape):
            return None
        return tuple(b if inferred_only or isinstance(b, int) else a for a, b in zip(shape, inferred, strict=True))

    def sized(self, inputs: Mapping[str, Sequence[int]]) -> Mapping[str, Shape]:
        """Name -> shape of an ONNX main graph's values, as far as onnx infers it for ``inputs`` of these shapes."""
        found = infer(self.model, doubted=True, typed=self.typed, inputs=inputs)
        shapes = {name: _tensor_shape(info) for name, info in found.items()}
        return {name: shape for name, shape in shapes.items() if shape is not None}

    @cached_property
    def _inferred_from_inputs(self) -> Mapping[str, onnx.ValueInfoProto]:
        """Name -> what onnx infers of the values of an ONNX model's main graph, whatever the file says of its outputs.
        It is inferred where annotations may mislead: in a model too long for `contradicted_shapes`, and where nodes
        read an output, whose declared shape may be wrong. Else, and for a model with functions, empty."""
        graph = self.model.graph
        made = (value for node in graph for value in node.outputs if not value.is_graph_output())
        long = graph.num_nodes() > MOST_NODES and any(value.shape is not None for value in made)
        if self.model.functions or not (long or any(value.uses() for value in graph.outputs)):
            return {}
        return infer(self.model, doubted=True, typed=self.typed)


def sizes(shape: Iterable[int | ir.SymbolicDimProtocol]) -> Shape:
    """An onnx_ir shape as a dataflow has it: sizes, names, None for an unknown (to ONNX Runtime a negative) size."""
    return tuple((dim if dim >= 0 else None) if isinstance(dim, int) else dim.value for dim in shape)


def contradicted_shapes(model: ir.Model) -> list[tuple[ir.Value, Shape]]:
    """(value, shape that onnx infers) for the values of an ONNX model's main graph whose annotated shape cannot be
    that. Empty for a model with functions, or more than `MOST_NODES`: inference takes long."""
    if model.functions or model.graph.num_nodes() > MOST_NODES:
        return []
    annotated = [value for node in model.graph for value in node.outputs if value.shape is not None]
    if not annotated:
        return []
    known = infer(model, doubted=True)
    pairs = [(value, _tensor_shape(known[value.name])) for value in annotated if value.name in known]
    return [
        (value, shape)
        for value, shape in pairs
        if shape is not None and _are_incompatible(sizes(value.shape or ()), shape)
    ]


def _are_incompatible(one: Shape, other: Shape) -> bool:
    """Whether two shapes of an ONNX value cannot both be right: another rank, or another size where both are known."""
    fixed = [(a, b) for a, b in zip(one, other, strict=False) if isinstance(a, int) and isinstance(b, int)]
    return len(one) != len(other) or any(a != b for a, b in fixed)


def infer(
    model: ir.Model, doubted: bool = False, typed: Mapping[str, str] = MappingProxyType({}),
    inputs: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> dict[str, onnx.ValueInfoProto]:  # fmt: skip
    """Name -> what onnx infers of the values of an ONNX model's main graph, by inputs, outputs and small constants, not
    by annotations inside; empty where inference fails. Outputs are among them if ``doubted``. ``doubted``: shapes that
    the file declares for outputs are not believed. ``typed``: name -> element type, for what onnx knows no operator of.
    ``inputs``: name -> sizes, from which shapes are computed too that the graph computes."""
    proto = _model_outline(model)
    outputs = {value.name for value in proto.graph.output}
    for name in sorted(typed.keys() - outputs):
        proto.graph.value_info.append(onnx.helper.make_tensor_value_info(name, DTYPES[typed[name]].value, None))
    for info in proto.graph.output:
        if doubted and info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    for info in proto.graph.input:
        if info.name in inputs and info.type.HasField("tensor_type"):
            for dim, size in zip(info.type.tensor_type.shape.dim, inputs[info.name], strict=True):
                dim.dim_value = size
    try:
        found = onnx.shape_inference.infer_shapes(_without_weights(proto, model), data_prop=bool(inputs))
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError):
        return {}  # shapes only weigh costs: a model that inference cannot follow is still converted
    return {info.name: info for info in (*found.graph.value_info, *(found.graph.output if doubted else ()))}


def _tensor_shape(info: onnx.ValueInfoProto) -> Shape | None:
    """The shape in a ValueInfoProto, as a dataflow has it; None where it says none, and for containers."""
    tensor = info.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    found: list[int | str | None] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value"):
            found.append(dim.dim_value if dim.dim_value >= 0 else None)
        else:
            found.append(dim.dim_param or None)
    return tuple(found)


def weightless(model: ir.Model) -> bytes:
    """The .onnx file of a model whose large stored tensors are inputs instead."""
    return _without_weights(_model_outline(model), model)


def _without_weights(outline: onnx.ModelProto, model: ir.Model) -> bytes:
    """The bytes of ``outline`` with an ONNX model's nodes and small tensors; its large tensors are inputs instead."""
    listed, infos, kept = {value.name for value in model.graph.inputs}, InfoWriter(), _Kept()
    large = []
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None:
            continue
        key = tensor.dtype, dims(tensor)
        if kept[key] and nbytes(tensor) <= KEEP_DATA:
            proto = tensor.raw if type(tensor) is InFile else ir.serde.serialize_tensor(tensor)
            outline.graph.initializer.append(proto)
        elif value.name not in listed:
            large.append(infos.entry(GRAPH_INPUT, text_bytes(INFO_NAME, value.name or ""), *key))
    return with_nodes(outline, model.graph, large)


class _Kept(dict[tuple[ir.DataType, tuple[int, ...]], bool]):
    """(type, dimensions) -> whether shapes may be computed from such an ONNX tensor: of integers, or few numbers."""

    def __missing__(self, key: tuple[ir.DataType, tuple[int, ...]]) -> bool:
        """Finds out whether shapes may be computed from tensors of a type and shape that is new."""
        dtype, shape = key
        found = self[key] = math.prod(shape) <= KEEP_FLOATS or not dtype.is_floating_point()
        return found


def _model_outline(model: ir.Model) -> onnx.ModelProto:
    """The ModelProto of an ONNX model without nodes and stored tensors: opsets, inputs, outputs, functions. Negative
    sizes of inputs, on which onnx's inference fails, are unknown ones."""
    proto = onnx.ModelProto(ir_version=max(model.ir_version or 8, 4))
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    proto.graph.name = "shapes"
    for value in model.graph.inputs:
        info = proto.graph.input.add()
        info.CopyFrom(value_info(value))
        for dim in info.type.tensor_type.shape.dim if info.type.HasField("tensor_type") else ():
            if dim.dim_value < 0:
                dim.ClearField("dim_value")
    proto.graph.output.extend(value_info(value) for value in model.graph.outputs)
    proto.functions.extend(ir.serde.serialize_function(f) for f in model.functions.values())
    return proto
