"""Moves a model to another opset, by onnx's version converter."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir

from ..errors import AmpError, first_line
from . import onnx_io
from .onnx_format import OnnxGraph


def at_opset(graph: OnnxGraph, opset: int) -> OnnxGraph:
    """The model in another opset. Raises AmpError AMP307 where there is no way."""
    newest = onnx.defs.onnx_opset_version()
    if not 1 <= opset <= newest:
        raise AmpError("AMP307", f"opset {opset} does not exist here", hint=f"1 to {newest} with the installed onnx")
    if graph.model.functions:
        raise AmpError(
            "AMP307",
            "a model with functions of its own cannot be moved to another opset",
            hint="leave --opset away, or inline the functions first (onnx.inliner)",
        )
    folder = next((t.base_dir for t in onnx_io.external_tensors(graph.model)), None)
    try:
        proto = onnx.version_converter.convert_version(ir.to_proto(graph.model), opset)
    except Exception as error:  # the converter raises many kinds for operators it cannot move
        raise AmpError(
            "AMP307",
            f"cannot be moved to opset {opset}: {first_line(error)}",
            hint="leave --opset away, or export the model at that opset",
        ) from error
    moved = onnx_io.deserialize(proto, None if folder is None else Path(folder))
    layers = {node.name: node.metadata_props for node in graph.model.graph.all_nodes() if node.name}
    for node in moved.graph.all_nodes():
        if not node.metadata_props and node.name in layers:
            node.metadata_props.update(layers[node.name])  # the converter forgets the exporter's scopes
    return OnnxGraph(moved)
