"""SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss of exported graphs, in operators that have CUDA kernels."""

from __future__ import annotations

import onnx_ir as ir

from ....core.errors import AmpError
from ...gradients.builder import Builder
from ...gradients.registry import attribute, place_of
from ..losses import KEEP, negative_log_likelihood
from .replace import replace_value

KINDS = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")


def is_loss(node: ir.Node) -> bool:
    """Whether a node computes a loss from scores and numbers of classes."""
    return node.op_type in KINDS and node.domain in ("", "ai.onnx")


def lower_losses(graph: ir.Graph) -> int:
    """Rewrites every such node of a flat graph, and returns how many.

    Raises AmpError AMP212 for one of whose inputs the rank is not known.
    """
    b = Builder(graph, "loss")
    found = [node for node in graph if is_loss(node)]
    for node in found:
        b.before, b.scope = node, node.name or node.op_type
        try:
            _lower(b, node)
        except ValueError as error:
            hint = "give the input shapes when you export it"
            raise AmpError("AMP212", str(error), where=place_of(node), hint=hint) from error
        graph.remove(node, safe=True)
    return len(found)


def _lower(b: Builder, node: ir.Node) -> None:
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
        replace_value(b, old, new)
