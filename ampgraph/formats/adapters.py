"""The kinds of model that the Python API takes; the same kind comes back. The caller's object is never changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from ..errors import AmpError
from . import onnx_io
from .onnx_format import OnnxGraph


def load(model: Any) -> tuple[OnnxGraph, Callable[[OnnxGraph], Any]]:
    """The graph of a model, and a function that turns a graph back into the caller's kind.

    Takes a path, onnx.ModelProto, onnx_ir.Model, onnx_graphsurgeon.Graph or torch.onnx.ONNXProgram. A path gives an
    onnx.ModelProto back, or an onnx_ir.Model where the weights are external. Raises AmpError AMP104 for anything else.
    """
    if isinstance(model, (str, os.PathLike)):
        return OnnxGraph.load(model), lambda graph: _as_proto_or_ir(graph.model)
    if isinstance(model, onnx.ModelProto):
        onnx_io.check_tensors(model, Path("."), "model")
        return OnnxGraph(onnx_io.deserialize(_copy(model), None)), lambda graph: ir.to_proto(graph.model)
    if isinstance(model, ir.Model):
        return OnnxGraph(model.clone()), lambda graph: graph.model
    module = type(model).__module__.split(".")[0]
    if module == "onnx_graphsurgeon":
        return _from_graphsurgeon(model)
    if type(model).__name__ == "ONNXProgram":
        return _from_torch(model)
    raise AmpError(
        "AMP104",
        f"cannot convert a {type(model).__name__}",
        hint="give a path, onnx.ModelProto, onnx_ir.Model, onnx_graphsurgeon.Graph or torch ONNXProgram",
    )


def _copy(proto: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy


def _as_proto_or_ir(model: ir.Model) -> Any:
    external = any(
        isinstance(getattr(v.const_value, "source", v.const_value), ir.ExternalTensor)
        for g in onnx_io.all_graphs(model)
        for v in g.initializers.values()
    )
    return model if external else ir.to_proto(model)


def _from_graphsurgeon(model: Any) -> tuple[OnnxGraph, Callable[[OnnxGraph], Any]]:
    import onnx_graphsurgeon as gs

    proto = gs.export_onnx(model.copy())
    return OnnxGraph(onnx_io.deserialize(proto, None)), lambda graph: gs.import_onnx(ir.to_proto(graph.model))


def _from_torch(program: Any) -> tuple[OnnxGraph, Callable[[OnnxGraph], Any]]:
    def back(graph: OnnxGraph) -> Any:
        return type(program)(graph.model, program.exported_program)

    return OnnxGraph(program.model.clone()), back
