"""What tells a whole training step, exported with its gradients and its optimizer, from a forward graph."""

from __future__ import annotations

import re

from ...core.errors import AmpError
from . import view
from .schema import Message

UPDATE = re.compile(
    r"(Sparse|Fused)?Apply(?!Rotary)|(FusedSparse|Cached)?(Lazy)?Adam|FusedSparse|SGD$|Lamb$|LARSUpdate$"
)
"""Operators that update parameters by gradients."""


def refuse_whole_step(model: Message, where: str = "") -> None:
    """Raises AmpError AMP205 where gradients or an optimizer are in the file."""
    found = _sign(model)
    if found:
        message = f"holds a whole training step ({found}): its gradients are in it already"
        hint = "export forward and loss alone, in training mode; ampgraph.training.mindspore.train_step trains it"
        raise AmpError("AMP205", message, where=where, hint=hint)


def _sign(model: Message) -> str:
    """The optimizer, or ``gradients``, or nothing."""
    known = view.primitives(model)
    gradients = False
    for graph in (model.graph, *model.functions):
        for node in graph.node:
            cells = node.domain.split("/")
            for cell in cells:
                if cell.startswith("optimizer-"):
                    return str(cell).removeprefix("optimizer-")
            kind = view.kind_of(node, known)
            if UPDATE.match(kind):
                return kind
            gradients |= cells[0] == "Gradients"
    return "gradients" if gradients else ""
