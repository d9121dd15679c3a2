"""Losses written in standard operators and float32, and the scalar that a step differentiates: their weighted sum.

onnx's SoftmaxCrossEntropyLoss has no CUDA kernel, so the logarithm of a class is picked by GatherElements. A label
that is not a class makes the loss and its gradients NaN, on every device: the step counts as not finite, and is skipped
where the loss scale skips steps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ...core.errors import AmpError, is_number, nearest
from ...formats.onnx.nodes import attribute, kind_of, operand, place_of
from ...oplists.traits import has
from ..gradients.builder import INT64, Builder
from .read import FLOATS, type_and_shape

FLOAT, BOOL = ir.DataType.FLOAT, ir.DataType.BOOL
KINDS = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
KEEP = "a loss: sums of logarithms and squares, and the seed of all gradients"


def cross_entropy(b: Builder, logits: ir.Value, labels: ir.Value, axis: int) -> ir.Value:
    """Adds a cross entropy: the mean over all labels but -100, a float32 scalar; 0 where all labels are -100.

    Args:
        logits: float, [N, C], [N, C, sizes ...] or [N, L, C].
        labels: int32 or int64, of the shape of the logits without the axis of the classes.
        axis: the axis of the classes, counted from the front.
    """
    with b.float32(KEEP):
        dims = list(logits.shape or ())
        logarithms = b.typed(b.op("LogSoftmax", b.cast(logits, FLOAT), axis=axis), FLOAT, *dims)
        return negative_log_likelihood(b, logarithms, labels, axis=axis, ignore_index=-100)


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
    """Adds a negative log likelihood: minus the logarithm at each label, times the ``weight`` of its class ([C]; None:
    1). ``logarithms``: of probabilities, float32, with the classes along ``axis``; ``ignore_index``: a label that does
    not count; ``reduction``: "none", "sum", or "mean": the sum divided by the sum of the weights."""
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
        # A factor, not a Where: a NaN that is only chosen has no gradient, and the step would pass for finite
        factor = b.typed(b.op("Where", inside, b.number(1), b.number(float("nan"))), FLOAT, *dims)
        losses = b.typed(b.op("Mul", losses, factor), FLOAT, *dims)
        if counted is not None:
            losses = b.typed(b.op("Where", counted, losses, zero), FLOAT, *dims)
            weights = b.typed(b.op("Where", counted, weights, zero), FLOAT, *dims)
        return _reduce_losses(b, losses, weights, reduction)


def _reduce_losses(b: Builder, losses: ir.Value, weights: ir.Value, reduction: str) -> ir.Value:
    """Of a loss: the losses of all labels as they are ("none"), summed ("sum"), or summed and divided by the sum of
    ``weights``, by 1 where that is 0 ("mean")."""
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
    """Adds a mean squared error, a float32 scalar. ``target`` has the shape of the output."""
    with b.float32(KEEP):
        dims = list(output.shape or ())
        difference = b.typed(b.op("Sub", b.cast(output, FLOAT), b.cast(target, FLOAT)), FLOAT, *dims)
        squares = b.typed(b.op("Mul", difference, difference), FLOAT, *dims)
        axes = range(b.rank(output))
        total = b.typed(b.sum(squares, axes, keep=False), FLOAT)
        return b.typed(b.op("Div", total, b.count(difference, axes)), FLOAT)


# -- losses of exported graphs -----------------------------------------------------------------------------------------


def is_loss(node: ir.Node) -> bool:
    """Whether a node of a forward graph is one of ONNX's losses of scores and numbers of classes."""
    return node.op_type in KINDS and node.domain in ("", "ai.onnx")


def lower_losses(graph: ir.Graph) -> None:
    """Rewrites every loss node (SoftmaxCrossEntropyLoss, NegativeLogLikelihoodLoss) of a flat forward graph in simple
    operators. Raises AmpError AMP212 for one with an input whose rank is not known."""
    b = Builder(graph, "loss")
    for node in b.in_front_of_each(is_loss):
        try:
            made = _write_loss(b, node)
        except ValueError as error:
            hint = "give the input shapes when you export it"
            raise AmpError("AMP212", str(error), where=place_of(node), hint=hint) from error
        b.replace_node(node, made)


def _write_loss(b: Builder, node: ir.Node) -> list[ir.Value]:
    """The outputs of a loss node in simple operators, in float32: the loss, and the logarithms of the probabilities.
    Raises ValueError where the rank of the labels is not known."""
    scores, labels = operand(node), operand(node, 1)
    weight = node.inputs[2] if len(node.inputs) > 2 else None
    b.rank(labels)
    logarithms = scores
    if node.op_type == "SoftmaxCrossEntropyLoss":
        with b.float32(KEEP):
            logarithms = b.typed(b.op("LogSoftmax", scores, axis=1), scores)
    reduction = attribute(node, "reduction", "mean")
    ignored = attribute(node, "ignore_index")
    loss = negative_log_likelihood(b, logarithms, labels, weight, ignore_index=ignored, reduction=reduction)
    return [loss, logarithms]


@dataclass(frozen=True)
class ClassInput:
    """An input of a step that holds numbers of classes: 0 .. ``classes`` - 1 (``classes`` is 0 where it is not known),
    or ``ignored``, a label that does not count (None for none)."""

    name: str
    classes: int
    ignored: int | None


def read_class_inputs(graph: ir.Graph, loss: ir.Value) -> tuple[ClassInput, ...]:
    """The inputs of a forward graph all of whose numbers are labels of the loss nodes that ``loss`` is computed from;
    to be asked before `lower_losses` rewrites these."""
    inputs, found, needed = set(graph.inputs), [], {loss}
    for node in reversed(graph):
        if not needed.intersection(node.outputs):
            continue
        needed.update(value for value in node.inputs if value is not None)
        if not is_loss(node):
            continue
        scores, labels = node.inputs[:2]
        while labels is not None and (maker := labels.producer()) is not None:
            if not has(kind_of(maker), "casts") and not has(kind_of(maker), "reshapes"):
                break
            labels = maker.inputs[0]
        if labels in inputs and labels.dtype is not None and labels.dtype.is_integer():
            size = scores.shape[1] if scores is not None and scores.shape is not None else None
            row = ClassInput(labels.name or "", size if isinstance(size, int) else 0, attribute(node, "ignore_index"))
            found.append(row)
    return tuple(dict.fromkeys(reversed(found)))


# -- the scalar that a step differentiates -----------------------------------------------------------------------------

LOSSES = ("cross_entropy", "mse")
REASON = "the sum of losses"  # why it is float32


@dataclass(frozen=True)
class AddedLoss:
    """A loss that was added behind a forward graph: its value, its labels, which are a new input of the graph, and the
    number of classes (0: not known, or no classes)."""

    value: ir.Value
    labels: ir.Value
    classes: int


def add_loss(b: Builder, name: str, outputs: Mapping[str, ir.Value]) -> AddedLoss:
    """Adds the loss ``name``, one of `LOSSES`, behind a forward graph, of its first output and a new input for the
    labels; ``outputs`` are the graph's by name. Raises AmpError AMP213 for a name or an output that does not suit."""
    if name not in LOSSES:
        known = [*LOSSES, *outputs]
        hint = nearest(name, known) or f"there are: {', '.join(known)}"
        raise AmpError("AMP213", f"--loss {name} is neither a loss nor an output", hint=hint)
    result = next(iter(outputs.values()))
    if result.shape is None or result.dtype not in FLOATS or (name == "cross_entropy" and len(result.shape) < 2):
        message = f"cannot take {name} of output '{result.name}', {type_and_shape(result)}"
        raise AmpError("AMP213", message, hint="name an output that is the loss")
    dims, dtype, classes = list(result.shape), result.dtype, 0
    axis = 1 if len(dims) > 3 else len(dims) - 1
    if name == "cross_entropy":
        size = dims.pop(axis)
        classes, dtype = size if isinstance(size, int) else 0, ir.DataType.INT64
        if classes == 1:
            message = f"cross_entropy of output '{result.name}', {type_and_shape(result)}, is 0: it has one class"
            raise AmpError("AMP213", message, hint="compute BCEWithLogitsLoss in the module, and name its output")
    labels = ir.Value(name=b.fresh("labels"), type=ir.TensorType(dtype or FLOATS[0]), shape=ir.Shape(dims))
    b.graph.inputs.append(labels)
    b.scope = "loss"
    made = cross_entropy(b, result, labels, axis=axis) if name == "cross_entropy" else mse(b, result, labels)
    return AddedLoss(b.typed(made, ir.DataType.FLOAT), labels, classes)


def as_scalar(b: Builder, value: ir.Value) -> ir.Value:
    """A loss, a float32 value of one element, as a scalar. Raises AmpError AMP213 for any other value."""
    dims = None if value.shape is None else list(value.shape)
    if value.dtype != ir.DataType.FLOAT or dims is None or any(dim != 1 for dim in dims):
        message = f"output '{value.name}' is not a float32 scalar but {value.dtype} {dims}"
        raise AmpError("AMP213", message, hint="export the mean of the loss, or take cross_entropy or mse")
    if not dims:
        return value
    return b.typed(b.op("Reshape", value, b.ints()), ir.DataType.FLOAT)


def weighted_sum(b: Builder, terms: Mapping[str, ir.Value], weights: Mapping[str, float]) -> ir.Value:
    """The loss that is differentiated: the sum of ``terms`` (name -> scalar) times their weights, in float32."""
    with b.float32(REASON):
        parts = [
            value if weights[name] == 1 else b.typed(b.op("Mul", value, b.number(weights[name])), FLOAT)
            for name, value in terms.items()
        ]
        return functools.reduce(lambda total, part: b.typed(b.op("Add", total, part), FLOAT), parts)


FORM = f"{', '.join(LOSSES)}, or the name of an output that is a float32 scalar; or several: a=1.0 b=0.5"


def loss_terms(given: object) -> dict[str, float] | None:
    """The terms of a loss as a user gives them (a name, a row of texts ``NAME`` and ``NAME=WEIGHT``, or a mapping), as
    name -> weight; None for None. Raises AmpError AMP213 for other forms, a weight of 0, two losses with labels."""
    if given is None:
        return None
    if isinstance(given, str):
        return {given: 1.0}
    if isinstance(given, Mapping):
        rows = list(given.items())
    else:
        words = given if isinstance(given, Sequence) else ()
        rows = [_loss_and_weight(word) if isinstance(word, str) else (word, 1.0) for word in words]
    names = [name for name, _ in rows]
    if not rows or not all(isinstance(name, str) and name for name in names):
        raise AmpError("AMP213", f"loss={given!r} is neither a name nor a list of names", hint=FORM)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise AmpError("AMP213", f"loss '{twice}' is given twice", hint="give each its weight once")
    for name, weight in rows:
        if not is_number(weight) or not math.isfinite(weight) or not weight:
            raise AmpError("AMP213", f"the weight of loss '{name}' is {weight!r}", hint=f"{name}=0.5")
    if sum(name in LOSSES for name in names) > 1:
        message = f"{' and '.join(LOSSES)} would read the same labels"
        raise AmpError("AMP213", message, hint="compute one of them in the module, and name its output")
    return {name: float(weight) for name, weight in rows}


def spelled_terms(terms: Mapping[str, float]) -> str:
    """The terms of a loss, name -> weight, as one text: ``a=1.0, b=0.5``, or one name alone for a weight of 1."""
    [name, *more] = terms
    return name if not more and terms[name] == 1 else ", ".join(f"{n}={weight}" for n, weight in terms.items())


def read_spelled(text: str) -> dict[str, float]:
    """The terms of a loss, name -> weight, from the text that `spelled_terms` makes."""
    rows = [_loss_and_weight(word) for word in text.split(", ")]
    return dict(rows) if "=" in text else {text: 1.0}


def parse_losses(words: Sequence[str]) -> str | list[str] | None:
    """The losses that a command line names by ``words``: all of them if one has a weight (NAME=WEIGHT), else the last
    name; None for no word."""
    if not any("=" in word for word in words):
        return words[-1] if words else None
    return list(words)


def _loss_and_weight(word: str) -> tuple[str, float]:
    """The name and the weight of a loss in text: "NAME=WEIGHT", or else all of it as a name, and 1."""
    name, _, weight = word.rpartition("=")
    try:
        return (name, float(weight)) if name else (word, 1.0)
    except ValueError:
        return word, 1.0
