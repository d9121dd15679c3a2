"""The kinds of model that the Python API takes; the same kind comes back. The caller's object is never changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from ..core.errors import AmpError
from ..core.graph import Graph, is_mindir
from .onnx import io as onnx_io
from .onnx.graph import OnnxGraph

Back = Callable[[Any, bool], Any]
"""Turns a graph into the caller's kind of model; told whether anything changed."""


def load(model: Any) -> tuple[Graph, Back]:
    """The graph of a model, and a function that turns a graph back into the caller's kind.

    Takes a path, onnx.ModelProto, onnx_ir.Model, onnx_graphsurgeon.Graph or torch.onnx.ONNXProgram. A path gives an
    onnx.ModelProto back, or an onnx_ir.Model where the weights are external. Where nothing changed it comes back
    as it was. Raises AmpError AMP104 for anything else.
    """
    if is_mindir(model):
        from .mindir.graph import MindirGraph

        return MindirGraph.load(model), lambda graph, changed: graph
    if isinstance(model, (str, os.PathLike)):
        return OnnxGraph.load(model), lambda graph, changed: _of_path(graph.model, Path(model), changed)
    if isinstance(model, onnx.ModelProto):
        onnx_io.check_tensors(model, Path("."), "model")
        graph = OnnxGraph(onnx_io.deserialize(_copy(model), None))
        return graph, lambda graph, changed: ir.to_proto(graph.model) if changed else _copy(model)
    if isinstance(model, ir.Model):
        return OnnxGraph(model.clone()), lambda graph, changed: graph.model if changed else model.clone()
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


def at_opset(graph: Graph, opset: int) -> Graph:
    """An ONNX model in another opset. Raises AmpError AMP307 where there is no way."""
    if not isinstance(graph, OnnxGraph):
        raise AmpError("AMP307", f"{graph.format} has no opsets", hint="leave --opset away")
    from .onnx.opset import at_opset

    return at_opset(graph, opset)


def copied(graph: Graph) -> Graph:
    """An ONNX model to try something on; stored tensors are shared. Raises AmpError AMP307 for another format."""
    if not isinstance(graph, OnnxGraph):
        raise AmpError("AMP307", f"{graph.format} has no opsets", hint="leave --opset away")
    return OnnxGraph(graph.model.clone())


def _copy(proto: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy


def _of_path(model: ir.Model, path: Path, changed: bool) -> Any:
    if any(True for _ in onnx_io.external_tensors(model)):
        return model
    return ir.to_proto(model) if changed else onnx.load(path)


def _from_graphsurgeon(model: Any) -> tuple[OnnxGraph, Back]:
    import onnx_graphsurgeon as gs

    proto = gs.export_onnx(model.copy())

    def back(graph: OnnxGraph, changed: bool) -> Any:
        return gs.import_onnx(ir.to_proto(graph.model)) if changed else model.copy()

    return OnnxGraph(onnx_io.deserialize(proto, None)), back


def _from_torch(program: Any) -> tuple[OnnxGraph, Back]:
    def back(graph: OnnxGraph, changed: bool) -> Any:
        return type(program)(graph.model if changed else program.model.clone(), program.exported_program)

    return OnnxGraph(program.model.clone()), back
