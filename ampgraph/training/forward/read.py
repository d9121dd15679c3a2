"""Reads a forward graph and makes it ready for differentiation: flat, typed, in operators that have gradients."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from ...core.errors import AmpError, is_whole
from ...formats import adapters
from ...formats.onnx.graph import OnnxGraph
from ...formats.onnx.nodes import attribute, kind_of, operand, place_of
from ...formats.onnx.walk import all_graphs
from ..gradients.builder import Builder

OLDEST = 18  # the opset that gradients are written in
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
STACK = "pkg.torch.onnx.stack_trace"  # metadata with paths of the machine that exports, which would differ elsewhere
AS_DATA = "GroupNormalization"  # onnx infers nothing of it: its result is like its first input
FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def read_forward(model: object) -> ir.Model:
    """A forward graph as a flat copy of any kind of ONNX model: functions inlined, at opset 18 or later, every type and
    shape inferred that can be. Raises AmpError AMP1xx and AMP2xx for what cannot be read, AMP205 for a training step.
    """
    graph, _ = adapters.load(model)
    if not isinstance(graph, OnnxGraph):
        hint = (
            "ampgraph.training.mindspore.train_step trains forward and loss; convert and train take whole steps, as "
            "nn.TrainOneStepWithLossScaleCell exports them"
        )
        raise AmpError("AMP104", f"cannot build a training step from {graph.format}", hint=hint)
    graph.refuse_unknown_training()
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
    """Infers, in place, types and shapes of a forward graph's values that have none, where onnx can; GroupNormalization
    gets those of its data, since onnx cannot."""
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
    """The text in which torch's exporter describes a forward graph's inputs and outputs, line by line; "" for none."""
    return model.graph.metadata_props.get(SIGNATURE) or model.metadata_props.get(SIGNATURE) or ""


def type_and_shape(value: ir.Value) -> str:
    """For errors of a forward graph: the type and the shape of a value in words."""
    dims = "of unknown shape" if value.shape is None else f"[{', '.join(str(dim) for dim in value.shape)}]"
    return f"{'of unknown type' if value.dtype is None else value.dtype.name} {dims}"


# -- a batch of one size -----------------------------------------------------------------------------------------------


def check_batch(batch: object) -> int | None:
    """The batch size of a training step as a user gave it, None for an open one. Raises AmpError AMP301 otherwise."""
    if batch is None:
        return None
    if not is_whole(batch) or not isinstance(batch, int) or batch < 1:
        raise AmpError("AMP301", f"batch={batch!r} is not a whole number from 1", hint="for example batch=64")
    return batch


def fix_batch(model: ir.Model, batch: int) -> None:
    """For training: gives the first axis of inputs the size ``batch``, in place; shapes in between are left to be
    inferred.

    A step then computes none of them when it runs: counts from Shape are int64 arithmetic, which ONNX Runtime places on
    the host, with copies between device and host in each step, and no CUDA graph.

    The batch is the axis that the first input leaves open; other inputs follow where theirs has the same name, or none.
    Raises AmpError AMP301 where no input leaves its first axis open, or the size is another one."""
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
    """For training: the size of an input's first axis, which is the batch; the input must have axes."""
    assert value.shape is not None
    return value.shape[0]


def _batch_symbol(value: ir.Value) -> str:
    """For training: the name of an input's first axis; "" where it has a fixed size, or is open without a name."""
    first = _first_size(value)
    return str(first.value or "") if isinstance(first, ir.SymbolicDim) else ""


def _fix_dimension(model: ir.Model, name: str, batch: int) -> None:
    """For training: gives a named dimension the size ``batch`` in inputs and outputs, and removes all open shapes in
    between, which are to be inferred anew; "" names none."""
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.shape is not None and name:
            sizes = [batch if isinstance(d, ir.SymbolicDim) and d.value == name else d for d in value.shape]
            value.shape = ir.Shape(sizes)
    for graph in all_graphs(model):
        for value in (output for node in graph for output in node.outputs):
            if value.shape is not None and not value.is_graph_output() and not value.shape.is_static():
                value.shape = None


# -- operators that torch's exporter leaves where its optimizer did not run --------------------------------------------


def lower_residues(graph: ir.Graph) -> bool:
    """Rewrites nodes of a forward graph that torch's exporter leaves: CastLike to Cast, SplitToSequence with its
    SequenceAt to Split (these have gradients and CUDA kernels), and products of a transposed matrix and a vector;
    returns whether there were any. Types and shapes must have been inferred, and are to be inferred again. Raises
    AmpError AMP210 for what cannot be written so."""
    b = Builder(graph, "lowered")
    for node in b.in_front_of_each(_is_residue):
        _LOWERINGS[node.op_type](b, node)
    return b.before is not None


def _is_residue(node: ir.Node) -> bool:
    """Whether `lower_residues` rewrites a node; of products those of a transposed matrix and a vector."""
    pair = [value for value in node.inputs if value is not None and value.shape is not None]
    if kind_of(node) != "MatMul" or len(pair) < 2:
        return kind_of(node) in _LOWERINGS and kind_of(node) != "MatMul"
    makers = [value.producer() for value in pair]
    transposed = any(maker is not None and maker.op_type == "Transpose" for maker in makers)
    return transposed and min(len(value.shape or ()) for value in pair) == 1


def _lower_cast_like(b: Builder, node: ir.Node) -> None:
    """Rewrites a CastLike as a Cast. Raises AmpError AMP210 where the type is not known."""
    x, like = operand(node), operand(node, 1)
    if like.dtype is None:
        raise _residue_error(node, f"the type of '{like.name}' is not known")
    made = b.op("Cast", x, to=int(like.dtype))
    made.type, made.shape = ir.TensorType(like.dtype), x.shape
    _replace_result(b, node, made)


def _lower_split_to_sequence(b: Builder, node: ir.Node) -> None:
    """Rewrites a SplitToSequence and the SequenceAt that read it as one Split. Raises AmpError AMP210 for other
    readers, and where the sizes of the pieces are not known."""
    x, axis, sequence = node.inputs[0], attribute(node, "axis", 0), node.outputs[0]
    sizes = b.known_numbers(node.inputs[1]) if len(node.inputs) > 1 else np.array(1)
    if x is None or sizes is None or x.shape is None or not attribute(node, "keepdims", 1):
        raise _residue_error(node, "its pieces are not known")
    if len(node.inputs) == 1 or sizes.ndim == 0:
        length = b.dim(x, axis)
        if length is None:
            raise _residue_error(node, f"axis {axis} of '{x.name}' has no known size")
        step = int(sizes)
        sizes = np.array([min(step, length - start) for start in range(0, length, step)])
    pieces = b.ops("Split", len(sizes), x, b.ints(*sizes.tolist()), axis=axis)
    for piece, size in zip(pieces, sizes.tolist(), strict=True):
        dims = list(x.shape)
        dims[axis] = size
        piece.type, piece.shape = x.type, ir.Shape(dims)
    for reader, _ in list(sequence.uses()):
        index = b.known_numbers(reader.inputs[1]) if reader.op_type == "SequenceAt" else None
        if index is None:
            raise _residue_error(reader, "reads a sequence")
        _replace_result(b, reader, pieces[int(index.reshape(()))])
    if sequence.is_graph_output():
        raise _residue_error(node, "its sequence is an output")
    b.graph.remove(node, safe=True)


def _replace_result(b: Builder, node: ir.Node, new: ir.Value) -> None:
    """For `lower_residues`: makes readers of a node's only result read ``new``, and removes the node."""
    old = node.outputs[0]
    if old.is_graph_output():  # a piece may be several outputs
        new = b.copy(new)
    b.replace(old, new)
    b.graph.remove(node, safe=True)


def _residue_error(node: ir.Node, message: str) -> AmpError:
    """The AmpError AMP210 for a node that `lower_residues` cannot rewrite, with how to export instead."""
    hint = "export with ampgraph.export_for_training, which writes Cast and Split"
    return AmpError("AMP210", f"{node.op_type}: {message}", where=place_of(node), hint=hint)


def _lower_transposed_product(b: Builder, node: ir.Node) -> None:
    """Rewrites a product of a transposed matrix and a vector as one of matrices: ONNX Runtime 1.31 errs in it."""
    x, y = node.inputs
    assert x is not None and y is not None and x.shape is not None and y.shape is not None
    first = len(x.shape) == 1
    vector = x if first else y
    matrix = b.op("Unsqueeze", vector, b.ints(0 if first else 1))
    b.typed(matrix, vector.dtype or ir.DataType.FLOAT, *((1, x.shape[0]) if first else (y.shape[0], 1)))
    made = b.op("MatMul", *((matrix, y) if first else (x, matrix)))
    _replace_result(b, node, b.op("Squeeze", made, b.ints(-2 if first else -1)))


_LOWERINGS = {
    "CastLike": _lower_cast_like,
    "SplitToSequence": _lower_split_to_sequence,
    "MatMul": _lower_transposed_product,
}
