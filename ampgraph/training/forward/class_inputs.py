"""Which inputs of a graph its loss reads as numbers of classes."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ...oplists.traits import has
from ..gradients.registry import attribute, kind_of
from .lowerings.losses import is_loss


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
    return has(kind_of(node), "casts") or has(kind_of(node), "reshapes")
