"""Losses in standard operators and float32.

onnx's SoftmaxCrossEntropyLoss has no CUDA kernel, so the logarithm of a class is picked by GatherElements. A label
that is not a class makes the loss and its gradients NaN, on every device: a step with it counts as not finite, and
skipped where the loss scale skips steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ...core.errors import AmpError
from ...formats.onnx.nodes import attribute, kind_of, place_of
from ...oplists.traits import has
from ..gradients.builder import INT64, Builder

FLOAT, BOOL = ir.DataType.FLOAT, ir.DataType.BOOL
KINDS = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
KEEP = "a loss: sums of logarithms and squares, and the seed of all gradients"


def cross_entropy(
    b: Builder, logits: ir.Value, labels: ir.Value, ignore_index: int = -100, axis: int | None = None
) -> ir.Value:
    """The mean over all labels but the ignored, a float32 scalar; 0 where all are ignored.

    Args:
        logits: float, [N, C], [N, C, sizes ...] or [N, L, C].
        labels: int32 or int64, of the shape of the logits without the axis of the classes.
        axis: that of the classes; by default 1 if the labels' shape is that of the logits without it, else the last.

    Raises:
        ValueError: if a rank is not known, or the labels' rank is not one less.
    """
    rank = b.rank(logits)
    if b.rank(labels) != rank - 1:
        raise ValueError(f"labels of rank {b.rank(labels)} do not fit logits of rank {rank}")
    axis = _class_axis(logits, labels) if axis is None else axis % rank
    with b.float32(KEEP):
        dims = list(logits.shape or ())
        logarithms = b.typed(b.op("LogSoftmax", _as_float32(b, logits), axis=axis), FLOAT, *dims)
        return negative_log_likelihood(b, logarithms, labels, axis=axis, ignore_index=ignore_index)


def negative_log_likelihood(
    b: Builder,
    logarithms: ir.Value,
    labels: ir.Value,
    weight: ir.Value | None = None,
    *,
    axis: int = 1,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> ir.Value:
    """Minus the logarithm at each label, times the weight of the class; "mean" divides by the sum of weights."""
    dims = list(labels.shape or ())
    with b.float32(KEEP):
        labels = b.typed(b.op("Cast", labels, to=int(INT64)), INT64, *dims)
        classes, zero = b.size(logarithms, axis), b.number(0)
        inside = b.op("And", b.op("GreaterOrEqual", labels, b.ints(0)), b.op("Less", labels, classes))
        counted = None
        if ignore_index is not None:
            ignored = b.op("Equal", labels, b.ints(ignore_index))
            counted, inside = b.op("Not", ignored), b.op("Or", inside, ignored)
        picks = inside if counted is None else b.op("And", inside, counted)
        safe = b.typed(b.op("Where", picks, labels, b.ints(0)), INT64, *dims)
        column = [*dims[:axis], 1, *dims[axis:]]
        index = b.typed(b.op("Unsqueeze", safe, b.ints(axis)), INT64, *column)
        picked = b.typed(b.op("GatherElements", logarithms, index, axis=axis), FLOAT, *column)
        losses = b.typed(b.op("Neg", b.typed(b.op("Squeeze", picked, b.ints(axis)), FLOAT, *dims)), FLOAT, *dims)
        ones = b.op("Expand", b.number(1), b.shape(labels))
        weights = b.typed(ones if weight is None else b.op("Gather", weight, safe), FLOAT, *dims)
        if weight is not None:
            losses = b.typed(b.op("Mul", losses, weights), FLOAT, *dims)
        # A factor: a NaN that is only chosen has no gradient, and the step would pass for finite
        factor = b.typed(b.op("Where", inside, b.number(1), b.number(float("nan"))), FLOAT, *dims)
        losses = b.typed(b.op("Mul", losses, factor), FLOAT, *dims)
        if counted is not None:
            losses = b.typed(b.op("Where", counted, losses, zero), FLOAT, *dims)
            weights = b.typed(b.op("Where", counted, weights, zero), FLOAT, *dims)
        return _reduced(b, losses, weights, reduction)


def _reduced(b: Builder, losses: ir.Value, weights: ir.Value, reduction: str) -> ir.Value:
    """Losses summed, or divided by the sum of ``weights`` (1 where that is 0), as ``reduction`` says."""
    if reduction == "none":
        return losses
    axes = range(b.rank(losses))
    total = b.typed(b.sum(losses, axes, keep=False), FLOAT)
    if reduction == "sum":
        return total
    share = b.typed(b.sum(weights, axes, keep=False), FLOAT)
    nothing = b.op("Equal", share, b.number(0))
    return b.typed(b.op("Div", total, b.typed(b.op("Where", nothing, b.number(1), share), FLOAT)), FLOAT)


def mse(b: Builder, output: ir.Value, target: ir.Value) -> ir.Value:
    """The mean of squared differences, a float32 scalar. ``target`` has the shape of the output."""
    with b.float32(KEEP):
        dims = list(output.shape or ())
        away = b.typed(b.op("Sub", _as_float32(b, output), _as_float32(b, target)), FLOAT, *dims)
        squares = b.typed(b.op("Mul", away, away), FLOAT, *dims)
        axes = range(b.rank(output))
        return b.typed(b.op("Div", b.typed(b.sum(squares, axes, keep=False), FLOAT), b.count(away, axes)), FLOAT)


def _class_axis(logits: ir.Value, labels: ir.Value) -> int:
    """The axis of the classes: the second one, if the others are those of the labels; else the last."""
    assert logits.shape is not None and labels.shape is not None
    found = list(logits.shape)
    return 1 if _same_sizes([found[0], *found[2:]], list(labels.shape)) else len(found) - 1


def _same_sizes(one: Sequence[int | ir.SymbolicDim], other: Sequence[int | ir.SymbolicDim]) -> bool:
    """Whether no two sizes that are known or named differ."""
    sizes = ([dim if isinstance(dim, int) else dim.value for dim in dims] for dims in (one, other))
    return all(x == y or x is None or y is None for x, y in zip(*sizes, strict=True))


def _as_float32(b: Builder, value: ir.Value) -> ir.Value:
    """The value cast to float32; itself if it is."""
    if value.dtype == FLOAT:
        return value
    return b.typed(b.op("Cast", value, to=int(FLOAT)), FLOAT, *(value.shape or ()))


# -- losses of exported graphs -----------------------------------------------------------------------------------------


def is_loss(node: ir.Node) -> bool:
    """Whether a node computes a loss from scores and numbers of classes."""
    return node.op_type in KINDS and node.domain in ("", "ai.onnx")


def lower_losses(graph: ir.Graph) -> int:
    """Rewrites every loss node (SoftmaxCrossEntropyLoss, NegativeLogLikelihoodLoss) of a flat graph; returns how
    many.

    Raises AmpError AMP212 for one of whose inputs the rank is not known.
    """
    b = Builder(graph, "loss")
    found = [node for node in graph if is_loss(node)]
    for node in found:
        b.before, b.scope = node, node.name or node.op_type
        try:
            _lower_loss(b, node)
        except ValueError as error:
            hint = "give the input shapes when you export it"
            raise AmpError("AMP212", str(error), where=place_of(node), hint=hint) from error
        graph.remove(node, safe=True)
    return len(found)


def _lower_loss(b: Builder, node: ir.Node) -> None:
    """Writes a loss node in simple operators, in float32."""
    scores, labels, weight = (*node.inputs, None)[:3]
    assert scores is not None and labels is not None
    b.rank(labels)
    logarithms = scores
    if node.op_type == "SoftmaxCrossEntropyLoss":
        with b.float32(KEEP):
            logarithms = b.typed(b.op("LogSoftmax", scores, axis=1), scores)
    reduction = attribute(node, "reduction", "mean")
    ignored = attribute(node, "ignore_index")
    made = [
        negative_log_likelihood(b, logarithms, labels, weight, ignore_index=ignored, reduction=reduction),
        logarithms,
    ]
    for old, new in zip(node.outputs, made, strict=False):
        b.replace(old, new)


@dataclass(frozen=True)
class ClassInput:
    """An input of class numbers: 0 .. ``classes`` - 1 (0 where that is not known), or ``ignored`` where that is one."""

    name: str
    classes: int
    ignored: int | None


def read_class_inputs(graph: ir.Graph, loss: ir.Value) -> tuple[ClassInput, ...]:
    """The inputs that a loss reads as labels, every number of them: to be asked before `lower_losses`."""
    inputs, found, needed = set(graph.inputs), [], {loss}
    for node in reversed(graph):
        if not needed.intersection(node.outputs):
            continue
        needed.update(value for value in node.inputs if value is not None)
        if not is_loss(node):
            continue
        scores, labels = node.inputs[:2]
        while labels is not None and (maker := labels.producer()) is not None and _same_numbers(maker):
            labels = maker.inputs[0]
        if labels in inputs and labels.dtype is not None and labels.dtype.is_integer():
            size = scores.shape[1] if scores is not None and scores.shape is not None else None
            row = ClassInput(labels.name or "", size if isinstance(size, int) else 0, attribute(node, "ignore_index"))
            found.append(row)
    return tuple(dict.fromkeys(reversed(found)))


def _same_numbers(node: ir.Node) -> bool:
    """Whether a node hands numbers on, reshaped or in another type."""
    return has(kind_of(node), "casts") or has(kind_of(node), "reshapes")
