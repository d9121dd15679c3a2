"""Stored tensors that are inputs of the model too: defaults, in the place of which a caller may give other values.

Before IR version 4 every stored tensor had to be one.
"""

from __future__ import annotations

import onnx_ir as ir

from ...core.dataflow import FLOAT32
from .graph import OnnxGraph
from .types import dtype_name

FREE = 4
"""The IR version since which a stored tensor need not be an input."""


def defaults(graph: OnnxGraph) -> dict[str, int]:
    """The bytes of those that are float32, by name."""
    tensors = {value.name or "": value.const_value for value in _listed(graph)}
    return {name: t.nbytes for name, t in tensors.items() if t is not None and dtype_name(t.dtype) == FLOAT32}


def freeze(graph: OnnxGraph) -> int:
    """Makes constants of them, of every type: how many there were."""
    found = _listed(graph)
    for value in found:
        graph.model.graph.inputs.remove(value)
    if found:
        graph.model.ir_version = max(graph.model.ir_version, FREE)
        graph.edited()
    return len(found)


def _listed(graph: OnnxGraph) -> list[ir.Value]:
    return [value for value in graph.model.graph.inputs if value.is_initializer()]
