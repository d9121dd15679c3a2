"""What training must know of a file: whether it is a whole step already, which parameters its graph writes itself, and
which operators MindSpore 2.10 differentiates only where Python calls them, not in a file that it has loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...core.errors import AmpError
from . import view
from .schema import Message

UPDATE = re.compile(
    r"(Sparse|Fused)?Apply(?!Rotary)|(FusedSparse|Cached)?(Lazy)?Adam|FusedSparse|SGD$|Lamb$|LARSUpdate$"
)
"""Operators that update parameters by gradients."""
WRITES = {"BatchNorm": (3, 4), "Assign": (0,), "AssignAdd": (0,), "AssignSub": (0,)}
"""Operator -> operands that it writes: statistics and counters, which no optimizer may touch."""
NOT_IN_A_FILE = ("BatchNorm", "Conv2D", "MaxPool")
"""Operators that MindSpore differentiates in Python alone."""
STANDS_FOR = {"Load": 0, "Depend": 0, "UpdateState": 0}
"""Operator -> the operand that its result stands for."""


WHOLE_STEP = (
    "export forward and loss alone, in training mode, for ampgraph.training.mindspore.train_step; or, for "
    "convert and train, the step of nn.TrainOneStepWithLossScaleCell(nn.WithLossCell(network, loss), ...)"
)


def refuse_whole_step(model: Message, where: str = "", hint: str = WHOLE_STEP) -> None:
    """Raises AmpError AMP205 where gradients or an optimizer are in the file."""
    found = _sign(model)
    if found:
        message = f"holds a whole training step ({found}): its gradients are in it already"
        raise AmpError("AMP205", message, where=where, hint=hint)


def written_parameters(model: Message) -> set[str]:
    """The names of the parameters that the graph itself writes."""
    return {tensor.ref_key or tensor.name for tensor in _written(model, WRITES)}


def assigned_parameters(model: Message) -> set[str]:
    """What the graph calls the parameters that it assigns: a loss scale, counters."""
    return {tensor.name for tensor in _written(model, {"Assign": (0,), "AssignAdd": (0,), "AssignSub": (0,)})}


def _written(model: Message, writers: Mapping[str, tuple[int, ...]]) -> list[Message]:
    """The parameters that some operators write, by the places of their operands."""
    known = view.primitives(model)
    found: set[str] = set()
    for node in model.graph.node:
        places = writers.get(view.kind_of(node, known), ())
        found |= {node.input[i] for i in places if i < len(node.input)}
    return [tensor for tensor in model.graph.parameter if tensor.name in found]


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
