"""BatchNormalization as it trains: by the mean and the variance of the batch, running values updated.

ONNX Runtime's CUDA kernel refuses training_mode, and exporters drop the mode. So every BatchNormalization is given the
statistics of its own data as its mean and variance, and stays a node of inference; a mark on it tells the gradient rule
that these depend on the data.
"""

from __future__ import annotations

import onnx_ir as ir

from ..dataflow import HELD
from ..errors import AmpError
from .onnx_backward.builder import Builder
from .onnx_backward.registry import attribute
from .onnx_backward.rules.norms import BATCH, KEEP

FLOAT = ir.DataType.FLOAT


def lower_batch_norm(graph: ir.Graph, *, exported_mode: bool = False) -> list[tuple[ir.Value, ir.Value]]:
    """Rewrites every BatchNormalization of a flat graph.

    Args:
        exported_mode: those that were exported for inference stay: a backward that is there is made for that.

    Returns:
        for each running mean and variance the value that holds the next one: as in torch, whose momentum is one minus
        ONNX's, old + (1 - momentum) (batch - old), with the variance over n - 1. What several nodes share is updated
        by one after the other.

    Raises:
        AmpError: AMP212 if the rank of the data is not known.
    """
    b = Builder(graph, "train")
    running: dict[ir.Value, ir.Value] = {}
    for node in list(graph):
        if node.op_type != "BatchNormalization" or node.domain not in ("", "ai.onnx"):
            continue
        if not exported_mode or attribute(node, "training_mode", 0):
            b.before, b.scope = node, node.name or node.op_type
            with b.float32(KEEP):
                _lower(b, node, running)
    return list(running.items())


def _lower(b: Builder, node: ir.Node, running: dict[ir.Value, ir.Value]) -> None:
    x, _scale, _bias, old_mean, old_variance = node.inputs
    assert x is not None and old_mean is not None and old_variance is not None
    if x.shape is None:
        told, hint = f"the rank of '{x.name}' is not known", "give the input shapes when you export it"
        raise AmpError("AMP212", told, where=f"node '{node.name}'", hint=hint)
    axes = [0, *range(2, b.rank(x))]
    count = b.typed(b.count(x, axes), FLOAT)
    mean = b.typed(b.op("Div", b.sum(x, axes, keep=False), count), old_mean)
    along = b.op("Unsqueeze", mean, b.ints(*axes)) if len(axes) > 1 else mean
    centered = b.op("Sub", x, along)
    squares = b.sum(b.op("Mul", centered, centered), axes, keep=False)
    variance = b.typed(b.op("Div", squares, count), old_variance)
    others = b.op("Max", b.op("Sub", count, b.number(1)), b.number(1))
    momentum = float(attribute(node, "momentum", 0.9))
    new = [_next(b, running, old_mean, mean, momentum)]
    new.append(_next(b, running, old_variance, b.op("Div", squares, others), momentum))
    for value, old in zip(new, node.outputs[1:], strict=False):
        old.replace_all_uses_with(value, replace_graph_outputs=True)
    node.resize_outputs(1)
    node.replace_input_with(3, mean)
    node.replace_input_with(4, variance)
    node.attributes.pop("training_mode", None)
    node.metadata_props[BATCH] = "1"
    node.metadata_props[HELD] = KEEP


def _next(b: Builder, running: dict[ir.Value, ir.Value], old: ir.Value, batch: ir.Value, momentum: float) -> ir.Value:
    start = running.get(old, old)
    step = b.op("Mul", b.op("Sub", batch, start), b.number(1 - momentum))
    running[old] = b.typed(b.op("Add", start, step), old)
    return running[old]
