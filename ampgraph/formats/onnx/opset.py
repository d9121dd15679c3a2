"""Moves a model to another opset, by onnx's version converter."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir

from ...core.errors import AmpError, first_line
from . import io as onnx_io
from .graph import OnnxGraph
from .native import remember, repairs_of


def at_opset(graph: OnnxGraph, opset: int) -> OnnxGraph:
    """A new graph of the ONNX model in another opset of the default domain; ``graph`` stays as it is. Declared types of
    inputs and outputs, exporters' layers and notes on repairs are those of ``graph``. Raises AmpError AMP307 for an
    opset that onnx does not know, a model with functions, and what its converter cannot move."""
    newest = onnx.defs.onnx_opset_version()
    if not 1 <= opset <= newest:
        raise AmpError(
            "AMP307",
            f"opset {opset} does not exist in this version of onnx",
            hint=f"1 to {newest} with the installed onnx",
        )
    if graph.model.functions:
        raise AmpError(
            "AMP307",
            "a model with functions of its own cannot be moved to another opset",
            hint="omit --opset, or inline the functions first (onnx.inliner)",
        )
    old_opset = graph.model.opset_imports.get("", graph.model.opset_imports.get("ai.onnx", newest))
    folder = next((t.base_dir for t in onnx_io.external_tensors(graph.model)), None)
    try:
        proto = onnx.version_converter.convert_version(onnx_io.to_proto(graph.model), opset)
    except Exception as error:  # the converter raises many kinds for operators it cannot move
        raise AmpError(
            "AMP307",
            f"cannot be moved to opset {opset}: {first_line(error)}",
            hint="omit --opset, or export the model at that opset",
        ) from error
    least = onnx.helper.find_min_ir_version_for(proto.opset_import, ignore_unknown=True)
    proto.ir_version = max(proto.ir_version, least)  # a body of IR 3 may hold no tensor, and that of a later one may
    moved = onnx_io.deserialize(proto, None if folder is None else Path(folder))
    remember(moved, repairs_of(graph.model))
    given = (*graph.model.graph.inputs, *graph.model.graph.outputs)
    for old, value in zip(given, (*moved.graph.inputs, *moved.graph.outputs), strict=True):
        value.type, value.shape = old.type, old.shape  # the converter infers sizes anew
    layers = {node.name: node.metadata_props for node in graph.model.graph.all_nodes() if node.name}
    for node in moved.graph.all_nodes():
        if not node.metadata_props and node.name in layers:
            node.metadata_props.update(layers[node.name])  # the converter forgets the exporter's scopes
    if old_opset < 11 <= opset:
        enlarging = {node.outputs[0].name for node in graph.model.graph.all_nodes() if node.op_type == "Upsample"}
        for node in moved.graph.all_nodes():
            if node.op_type == "Resize" and node.domain in ("", "ai.onnx"):
                _keep_old_resize(node, node.outputs[0].name in enlarging)
    return OnnxGraph(moved)


def _keep_old_resize(node: ir.Node, enlarges: bool) -> None:
    """Writes into the attributes of a Resize, moved to opset 11 or later, how it worked before; onnx's converter leaves
    it to the newer defaults, which differ. Coordinates were divided by the scale, and "nearest" was rounded down; ONNX
    Runtime rounds up where it shrinks. ``enlarges``: whether it was an Upsample, for one whose scales are not stored.
    Raises AmpError AMP307 for "nearest" that may both shrink and enlarge."""
    node.attributes["coordinate_transformation_mode"] = ir.AttrString("coordinate_transformation_mode", "asymmetric")
    mode = node.attributes.get("mode")
    if mode is not None and mode.as_string() != "nearest":
        return
    scales = ir.convenience.get_const_tensor(node.inputs[2]) if node.inputs[2] is not None else None
    numbers = None if scales is None else scales.numpy()
    larger = enlarges if numbers is None else (numbers >= 1).all()
    if not larger and (numbers is None or (numbers > 1).any()):
        message = (
            f"Resize, which writes '{node.outputs[0].name}', may shrink and enlarge: newer ones round in one direction"
        )
        raise AmpError("AMP307", message, hint="export the model at opset 11 or later")
    node.attributes["nearest_mode"] = ir.AttrString("nearest_mode", "floor" if larger else "ceil")
