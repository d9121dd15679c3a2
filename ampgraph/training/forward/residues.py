"""What torch's exporter leaves where its optimizer did not run: CastLike, and sequences that are split and indexed; and
products that ONNX Runtime gets wrong.

Cast and Split have gradients and CUDA kernels, sequences have neither.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ...core.errors import AmpError
from ...formats.onnx.nodes import attribute, place_of
from ..gradients.builder import Builder


def lower_residues(graph: ir.Graph) -> int:
    """Rewrites CastLike to Cast, SplitToSequence with its SequenceAt to Split, and products of transposed matrices and
    vectors; returns how many nodes went.

    Types and shapes must have been inferred; they are to be inferred again.

    Raises AmpError AMP210 for what cannot be written so.
    """
    b = Builder(graph, "lowered")
    found = [node for node in graph if node.domain in ("", "ai.onnx") and node.op_type in _LOWERED]
    found = [node for node in found if node.op_type != "MatMul" or _is_transposed_by_vector(node)]
    for node in found:
        b.before, b.scope = node, node.name or node.op_type
        _LOWERED[node.op_type](b, node)
    return len(found)


def _lower_cast_like(b: Builder, node: ir.Node) -> None:
    """CastLike as the Cast that it is; AmpError AMP210 where the type is unknown."""
    x, like = node.inputs
    assert x is not None and like is not None
    if like.dtype is None:
        raise _refused(node, f"the type of '{like.name}' is not known")
    shape = x.shape
    made = b.op("Cast", x, to=int(like.dtype))
    made.type, made.shape = ir.TensorType(like.dtype), shape
    _replace(b, node, made)


def _lower_split_to_sequence(b: Builder, node: ir.Node) -> None:
    """SplitToSequence, whose pieces are read by SequenceAt, as one Split; AmpError AMP210 for other readers."""
    x, axis, sequence = node.inputs[0], attribute(node, "axis", 0), node.outputs[0]
    sizes = b.given(node.inputs[1]) if len(node.inputs) > 1 else np.array(1)
    if x is None or sizes is None or x.shape is None or not attribute(node, "keepdims", 1):
        raise _refused(node, "its pieces are not known")
    if len(node.inputs) == 1 or sizes.ndim == 0:
        length = b.dim(x, axis)
        if length is None:
            raise _refused(node, f"axis {axis} of '{x.name}' has no known size")
        step = int(sizes)
        sizes = np.array([min(step, length - start) for start in range(0, length, step)])
    pieces = b.ops("Split", len(sizes), x, b.ints(*sizes.tolist()), axis=axis)
    for piece, size in zip(pieces, sizes.tolist(), strict=True):
        dims = list(x.shape)
        dims[axis] = size
        piece.type, piece.shape = x.type, ir.Shape(dims)
    for reader, _ in list(sequence.uses()):
        index = b.given(reader.inputs[1]) if reader.op_type == "SequenceAt" else None
        if index is None:
            raise _refused(reader, "reads a sequence")
        _replace(b, reader, pieces[int(index.reshape(()))])
    if sequence.is_graph_output():
        raise _refused(node, "its sequence is an output")
    b.graph.remove(node, safe=True)


def _replace(b: Builder, node: ir.Node, new: ir.Value) -> None:
    """Has readers of the node's result read ``new``, and removes the node."""
    old = node.outputs[0]
    if old.is_graph_output():  # a piece may be several outputs
        new = b.typed(b.op("Identity", new), new)
    b.replace(old, new)
    b.graph.remove(node, safe=True)


def _refused(node: ir.Node, message: str) -> AmpError:
    """The error for a form that cannot be rewritten, with how to export instead."""
    hint = "export with ampgraph.export_for_training, which writes Cast and Split"
    return AmpError("AMP210", f"{node.op_type}: {message}", where=place_of(node), hint=hint)


def _lower_transposed_product(b: Builder, node: ir.Node) -> None:
    """Writes a product of a transposed matrix and a vector with the vector as a matrix: ONNX Runtime 1.31 computes the
    other form wrongly."""
    x, y = node.inputs
    assert x is not None and y is not None and x.shape is not None and y.shape is not None
    first, axis = len(x.shape) == 1, -2 if len(x.shape) == 1 else -1
    vector = x if first else y
    matrix = b.op("Unsqueeze", vector, b.ints(0 if first else 1))
    b.typed(matrix, vector.dtype or ir.DataType.FLOAT, *((1, vector.shape[0]) if first else (vector.shape[0], 1)))  # type: ignore[index]
    made = b.op("MatMul", *((matrix, y) if first else (x, matrix)))
    _replace(b, node, b.op("Squeeze", made, b.ints(axis)))


def _is_transposed_by_vector(node: ir.Node) -> bool:
    """Whether a MatMul multiplies a transposed matrix and a vector."""
    pair = [value for value in node.inputs if value is not None and value.shape is not None]
    if node.op_type != "MatMul" or len(pair) < 2 or min(len(value.shape or ()) for value in pair) != 1:
        return False
    makers = [value.producer() for value in pair]
    return any(maker is not None and maker.op_type == "Transpose" for maker in makers)


_LOWERED = {
    "CastLike": _lower_cast_like,
    "SplitToSequence": _lower_split_to_sequence,
    "MatMul": _lower_transposed_product,
}
