"""A batch of one size: shapes that hang on it become numbers, so that a step computes none of them when it runs.

Counts from Shape are int64 arithmetic, which ONNX Runtime places on the host: copies between device and host in each
step, and no CUDA graph.
"""

from __future__ import annotations

import onnx_ir as ir

from ...core.errors import AmpError, is_whole
from ...formats.onnx.walk import all_graphs


def check_batch(batch: object) -> int | None:
    """A batch as somebody gave it. Raises AmpError AMP301 for what is no size."""
    if batch is None:
        return None
    if not is_whole(batch) or not isinstance(batch, int) or batch < 1:
        raise AmpError("AMP301", f"batch={batch!r} is not a whole number from 1", hint="for example batch=64")
    return batch


def fix_batch(model: ir.Model, batch: int) -> None:
    """Gives the first axis of the inputs the size ``batch``, in place; shapes in between are left to be inferred.

    The batch is the axis that the first input leaves open; other inputs follow where theirs has the same name, or none.
    Raises AmpError AMP301 where no input leaves its first axis open, or the size is another one.
    """
    fed = [value for value in model.graph.inputs if not value.is_initializer() and value.shape and len(value.shape)]
    open_ones = [value for value in fed if not isinstance(_first(value), int)]
    if not open_ones:
        sizes = {_first(value) for value in fed}
        if batch in sizes:
            return
        said = ", ".join(map(str, sorted(size for size in sizes if isinstance(size, int)))) or "no inputs"
        hint = "leave it away, or export the model with an open batch"
        raise AmpError("AMP301", f"batch={batch} does not fit a model whose batch is fixed: {said}", hint=hint)
    name = _symbol(open_ones[0])
    for value in open_ones:
        if _symbol(value) in (name, ""):
            assert value.shape is not None
            value.shape = ir.Shape([batch, *value.shape[1:]])
    _settle(model, name, batch)


def _first(value: ir.Value) -> int | ir.SymbolicDim:
    assert value.shape is not None
    return value.shape[0]


def _symbol(value: ir.Value) -> str:
    first = _first(value)
    return str(first.value or "") if isinstance(first, ir.SymbolicDim) else ""


def _settle(model: ir.Model, name: str, batch: int) -> None:
    """The name becomes the size in inputs and outputs, and what is open in between is forgotten."""
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.shape is not None and name:
            sizes = [batch if isinstance(d, ir.SymbolicDim) and d.value == name else d for d in value.shape]
            value.shape = ir.Shape(sizes)
    for graph in all_graphs(model):
        for value in (output for node in graph for output in node.outputs):
            if value.shape is not None and not value.is_graph_output() and not value.shape.is_static():
                value.shape = None
