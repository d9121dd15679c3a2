"""The scalar that a step differentiates: an output of the graph, or a loss added behind its first output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ...core.errors import AmpError, nearest
from ..forward.losses import cross_entropy, mse
from ..forward.read import FLOATS, described
from ..gradients.builder import Builder

LOSSES = ("cross_entropy", "mse")
REASON = "the sum of losses"


@dataclass(frozen=True)
class AddedLoss:
    """A loss, its labels, which are a new input of the graph, and how many classes they name (0: not known, none)."""

    value: ir.Value
    labels: ir.Value
    classes: int


def add_loss(b: Builder, name: str, outputs: Mapping[str, ir.Value]) -> AddedLoss:
    """A loss of the first output, with an input for its labels.

    Raises AmpError AMP213 for a name that is no loss, and for an output that has none.
    """
    if name not in LOSSES:
        known = [*LOSSES, *outputs]
        hint = nearest(name, known) or f"there are: {', '.join(known)}"
        raise AmpError("AMP213", f"--loss {name} is neither a loss nor an output", hint=hint)
    result = next(iter(outputs.values()))
    if result.shape is None or result.dtype not in FLOATS or (name == "cross_entropy" and len(result.shape) < 2):
        message = f"cannot take {name} of output '{result.name}', {described(result)}"
        raise AmpError("AMP213", message, hint="name an output that is the loss")
    dims, dtype, classes = list(result.shape), result.dtype, 0
    axis = 1 if len(dims) > 3 else len(dims) - 1
    if name == "cross_entropy":
        size = dims.pop(axis)
        classes, dtype = size if isinstance(size, int) else 0, ir.DataType.INT64
        if classes == 1:
            message = f"cross_entropy of output '{result.name}', {described(result)}, is 0: it has one class"
            raise AmpError("AMP213", message, hint="compute BCEWithLogitsLoss in the module, and name its output")
    labels = ir.Value(name=b.fresh("labels"), type=ir.TensorType(dtype or FLOATS[0]), shape=ir.Shape(dims))
    b.graph.inputs.append(labels)
    b.scope = "loss"
    made = cross_entropy(b, result, labels, axis=axis) if name == "cross_entropy" else mse(b, result, labels)
    return AddedLoss(b.typed(made, ir.DataType.FLOAT), labels, classes)


def as_scalar(b: Builder, value: ir.Value) -> ir.Value:
    """A float32 value of one element as a scalar. Raises AmpError AMP213 for anything else."""
    dims = None if value.shape is None else list(value.shape)
    if value.dtype != ir.DataType.FLOAT or dims is None or any(dim != 1 for dim in dims):
        message = f"output '{value.name}' is no float32 scalar but {value.dtype} {dims}"
        raise AmpError("AMP213", message, hint="export the mean of the loss, or take cross_entropy or mse")
    if not dims:
        return value
    return b.typed(b.op("Reshape", value, b.ints()), ir.DataType.FLOAT)


def weighted(b: Builder, terms: Mapping[str, ir.Value], weights: Mapping[str, float]) -> ir.Value:
    """The weighted sum of scalars, in float32; one alone that counts whole is itself."""
    with b.float32(REASON):
        parts = [_times(b, value, weights[name]) for name, value in terms.items()]
        total = parts[0]
        for part in parts[1:]:
            total = b.typed(b.op("Add", total, part), ir.DataType.FLOAT)
    return total


def _times(b: Builder, value: ir.Value, weight: float) -> ir.Value:
    return value if weight == 1 else b.typed(b.op("Mul", value, b.number(weight)), ir.DataType.FLOAT)
