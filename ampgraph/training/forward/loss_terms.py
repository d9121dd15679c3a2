"""The scalar that a step differentiates: an output of the graph, or a loss added behind its first output."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ...core.errors import AmpError, is_number, nearest
from ..gradients.builder import Builder
from .losses import cross_entropy, mse
from .read import FLOATS, described

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
        message = f"output '{value.name}' is not a float32 scalar but {value.dtype} {dims}"
        raise AmpError("AMP213", message, hint="export the mean of the loss, or take cross_entropy or mse")
    if not dims:
        return value
    return b.typed(b.op("Reshape", value, b.ints()), ir.DataType.FLOAT)


def weighted_sum(b: Builder, terms: Mapping[str, ir.Value], weights: Mapping[str, float]) -> ir.Value:
    """The weighted sum of scalars, in float32; one alone that counts whole is itself."""
    with b.float32(REASON):
        parts = [_times_weight(b, value, weights[name]) for name, value in terms.items()]
        total = parts[0]
        for part in parts[1:]:
            total = b.typed(b.op("Add", total, part), ir.DataType.FLOAT)
    return total


def _times_weight(b: Builder, value: ir.Value, weight: float) -> ir.Value:
    """``value`` times a term's weight in float32; no node for a weight of 1."""
    return value if weight == 1 else b.typed(b.op("Mul", value, b.number(weight)), ir.DataType.FLOAT)


FORM = f"{', '.join(LOSSES)}, or the name of an output that is a float32 scalar; or several: a=1.0 b=0.5"


def loss_terms(given: object) -> dict[str, float] | None:
    """Name -> weight, of a name, of words ``NAME`` and ``NAME=WEIGHT``, or of a mapping; None for None.

    Raises AmpError AMP213 for anything else, a weight that is 0 or no number, and two losses that want labels.
    """
    if given is None:
        return None
    if isinstance(given, str):
        return {given: 1.0}
    if isinstance(given, Mapping):
        rows = list(given.items())
    else:
        rows = [_loss_and_weight(word) for word in given] if isinstance(given, Sequence) else []
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


def spelled(terms: Mapping[str, float]) -> str:
    """Terms of a loss as the command line writes them, ``a=1.0, b=0.5``; one that counts whole is its name."""
    [name, *more] = terms
    return name if not more and terms[name] == 1 else ", ".join(f"{n}={weight}" for n, weight in terms.items())


def read_spelled(text: str) -> dict[str, float]:
    """The terms of a loss, name -> weight, from the text that `spelled` makes."""
    try:
        return dict(map(_name_and_weight, text.split(", ")))
    except ValueError:  # a name alone
        return {text: 1.0}


def parse_losses(words: Sequence[str]) -> str | list[str] | None:
    """The options of a command line: the last of those without a weight, or terms."""
    if not any("=" in word for word in words):
        return words[-1] if words else None
    return list(words)


def _name_and_weight(word: str) -> tuple[str, float]:
    """Name and weight of a term of the loss, from its text NAME=WEIGHT."""
    name, _, weight = word.rpartition("=")
    return name, float(weight)


def _loss_and_weight(word: object) -> tuple[object, float]:
    """What a user names as a loss, and its weight: "name=0.5" is 0.5, anything else is 1."""
    if not isinstance(word, str):
        return word, 1.0
    name, _, weight = word.rpartition("=")
    try:
        return (name, float(weight)) if name else (word, 1.0)
    except ValueError:
        return word, 1.0
