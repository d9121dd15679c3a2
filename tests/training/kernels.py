"""What of a step graph could not stay on a CUDA device."""

from __future__ import annotations

from ampgraph.oplists.kernels import load_kernels
from ampgraph.training.gradients.registry import kind_of
from ampgraph.training.step.training_step import TrainingStep

WHOLE = {"And", "Not", "Or", "Xor", "Shape", "Size", "GreaterOrEqual", "LessOrEqual"}
"""Operators without a float type in them, or whose table of floats has none: the table of kernels lists floats only."""
SLOW = {"If", "Loop", "Scan", "SequenceAt", "SoftmaxCrossEntropyLoss", "Dropout", "ReduceProd"}
"""What has a kernel that waits for the host, or none for the types that gradients need."""


def without_cuda_kernel(step: TrainingStep) -> set[str]:
    """Operators without a CUDA kernel, or with one that leaves the device; Constants are stored ahead."""
    table, nodes = (
        load_kernels("cuda").entries,
        [node for node in step.model.graph.all_nodes() if node.op_type != "Constant"],
    )
    found = {kind for kind in map(kind_of, nodes) if kind not in table and kind not in WHOLE or kind in SLOW}
    return found | {"BatchNormalization in training mode" for node in nodes if "training_mode" in node.attributes}
