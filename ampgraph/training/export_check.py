"""Runs an exported graph beside its module: an exporter may leave something out and say nothing."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ..formats import onnx_io
from ..runtime.onnxruntime import QUIET
from .lower_random import is_random

TOLERANCE = 1e-3  # of the largest element: float32 kernels differ by far less, a forgotten argument by more


def warn_of_differences(module: Any, args: Sequence[Any], model: ir.Model) -> None:
    """Warns where the graph and the module, both in evaluation mode, compute something else from the examples.

    Not looked at: a module that is random in either mode, one that returns more or less in evaluation than the graph,
    weights that do not fit into one message, and an environment without ONNX Runtime.
    """
    try:
        import onnxruntime
    except ImportError:
        return
    weights = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
    if weights > onnx_io.INLINE_LIMIT or any(is_random(node) for node in model.graph.all_nodes()):
        return
    options = onnxruntime.SessionOptions()
    options.log_severity_level = QUIET
    session = onnxruntime.InferenceSession(_in_evaluation_mode(model), options, providers=["CPUExecutionProvider"])
    tensors = [np.asarray(value.detach().cpu().numpy()) for value in _tensors(args)]
    names = [port.name for port in session.get_inputs()]
    if len(tensors) != len(names):
        return
    found = session.run(None, dict(zip(names, tensors, strict=True)))
    wanted = [value.detach().cpu().numpy() for value in _tensors(_evaluated(module, args))]
    if len(found) != len(wanted):
        return
    for port, here, there in zip(session.get_outputs(), found, wanted, strict=True):
        told = _difference(np.asarray(here), there)
        if told:
            told = f"output '{port.name}' of the exported graph {told} by the module: the exporter left something out"
            warnings.warn(f"{told} (F.cross_entropy's label_smoothing is one thing)", stacklevel=3)


def _difference(here: np.ndarray, there: np.ndarray) -> str:
    if here.shape != there.shape:
        return f"has the shape {list(here.shape)}, and {list(there.shape)}"
    if here.dtype.kind != "f" or not here.size or not np.isfinite(there).all():
        return ""
    away, largest = np.abs(here.astype(np.float64) - there), np.abs(there).max()
    if away.max() <= TOLERANCE * largest:
        return ""
    worst = np.unravel_index(int(away.argmax()), here.shape)
    return f"is {here[worst]:.5g} at {[int(n) for n in worst]}, and {there[worst]:.5g}"


def _in_evaluation_mode(model: ir.Model) -> bytes:
    copy = model.clone()
    for node in copy.graph.all_nodes():
        if node.op_type == "Dropout":
            node.resize_inputs(1)
    return ir.to_proto(copy).SerializeToString()


def _evaluated(module: Any, args: Sequence[Any]) -> Any:
    import torch

    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            return module(*args)
    finally:
        for part, mode in modes:
            part.training = mode


def _tensors(tree: Any) -> list[Any]:
    import torch

    return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
