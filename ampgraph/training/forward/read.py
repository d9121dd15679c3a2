"""A forward graph made ready for differentiation: flat and typed."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from ...core.errors import AmpError
from ...formats import adapters
from ...formats.onnx.graph import OnnxGraph
from .lowerings.residues import lower_residues

OLDEST = 18  # the opset that gradients are written in
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
AS_DATA = "GroupNormalization"  # onnx infers nothing of it: its result is like its first input
FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def read_forward(model: object) -> ir.Model:
    """A flat copy of a model: functions inlined, at opset 18 or later, every type and shape inferred that can be.

    Raises AmpError AMP1xx and AMP2xx for what cannot be read, AMP205 for a graph that is a training step already.
    """
    graph, _ = adapters.load(model)
    if not isinstance(graph, OnnxGraph):
        hint = (
            "ampgraph.training.mindspore.train_step trains forward and loss; convert and train take whole steps, as "
            "nn.TrainOneStepWithLossScaleCell exports them"
        )
        raise AmpError("AMP104", f"cannot build a training step from {graph.format}", hint=hint)
    graph.refuse_training()
    opset = graph.model.opset_imports.get("", graph.model.opset_imports.get("ai.onnx", OLDEST))
    if opset < OLDEST:
        converted = adapters.at_opset(graph, OLDEST)
        assert isinstance(converted, OnnxGraph)
        graph = converted
    graph.prepare()
    graph.settle_shapes()
    common.InlinePass()(graph.model)
    infer(graph.model)
    if lower_residues(graph.model.graph):
        infer(graph.model)
    return graph.model


def infer(model: ir.Model) -> None:
    """Types and shapes of what has none, where onnx can infer them, or where the type is that of the data."""
    fill_in = common.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)
    fill_in(model)
    again = [node for node in model.graph if node.op_type == AS_DATA and node.outputs[0].dtype is None]
    for node in again:
        x, y = node.inputs[0], node.outputs[0]
        if x is not None:
            y.type, y.shape = x.type, x.shape
    if again:
        fill_in(model)


def signature(model: ir.Model) -> str:
    """What torch's exporter says of inputs and outputs, line by line; empty where it says nothing."""
    return model.graph.metadata_props.get(SIGNATURE) or model.metadata_props.get(SIGNATURE) or ""


def described(value: ir.Value) -> str:
    """Type and shape in words."""
    dims = "of unknown shape" if value.shape is None else f"[{', '.join(str(dim) for dim in value.shape)}]"
    return f"{'of unknown type' if value.dtype is None else value.dtype.name} {dims}"
