"""A forward graph made ready for differentiation: flat and typed."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from ...core.errors import AmpError, is_whole
from ...formats import adapters
from ...formats.onnx.graph import OnnxGraph
from ...formats.onnx.walk import all_graphs
from .residues import lower_residues

OLDEST = 18  # the opset that gradients are written in
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
STACK = "pkg.torch.onnx.stack_trace"  # paths of the machine that exports: the same module gives the same bytes
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


# -- a batch of one size -----------------------------------------------------------------------------------------------


def check_batch(batch: object) -> int | None:
    """A batch as somebody gave it. Raises AmpError AMP301 for what is no size."""
    if batch is None:
        return None
    if not is_whole(batch) or not isinstance(batch, int) or batch < 1:
        raise AmpError("AMP301", f"batch={batch!r} is not a whole number from 1", hint="for example batch=64")
    return batch


def fix_batch(model: ir.Model, batch: int) -> None:
    """Gives the first axis of the inputs the size ``batch``, in place; shapes in between are left to be inferred.

    A step then computes none of them when it runs: counts from Shape are int64 arithmetic, which ONNX Runtime places on
    the host, with copies between device and host in each step, and no CUDA graph.

    The batch is the axis that the first input leaves open; other inputs follow where theirs has the same name, or none.
    Raises AmpError AMP301 where no input leaves its first axis open, or the size is another one.
    """
    fed = [value for value in model.graph.inputs if not value.is_initializer() and value.shape and len(value.shape)]
    open_ones = [value for value in fed if not isinstance(_first_size(value), int)]
    if not open_ones:
        sizes = {_first_size(value) for value in fed}
        if batch in sizes:
            return
        said = ", ".join(map(str, sorted(size for size in sizes if isinstance(size, int)))) or "no inputs"
        hint = "omit it, or export the model with an open batch"
        raise AmpError("AMP301", f"batch={batch} does not fit a model whose batch is fixed: {said}", hint=hint)
    name = _batch_symbol(open_ones[0])
    for value in open_ones:
        if _batch_symbol(value) in (name, ""):
            assert value.shape is not None
            value.shape = ir.Shape([batch, *value.shape[1:]])
    _fix_dimension(model, name, batch)


def _first_size(value: ir.Value) -> int | ir.SymbolicDim:
    """The size of the first axis."""
    assert value.shape is not None
    return value.shape[0]


def _batch_symbol(value: ir.Value) -> str:
    """The name of the first axis where it is open; "" for a number."""
    first = _first_size(value)
    return str(first.value or "") if isinstance(first, ir.SymbolicDim) else ""


def _fix_dimension(model: ir.Model, name: str, batch: int) -> None:
    """Gives a named dimension a size in inputs and outputs; shapes in between that had it are inferred anew."""
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.shape is not None and name:
            sizes = [batch if isinstance(d, ir.SymbolicDim) and d.value == name else d for d in value.shape]
            value.shape = ir.Shape(sizes)
    for graph in all_graphs(model):
        for value in (output for node in graph for output in node.outputs):
            if value.shape is not None and not value.is_graph_output() and not value.shape.is_static():
                value.shape = None
