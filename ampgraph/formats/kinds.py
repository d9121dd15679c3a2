"""The kinds of model that the verbs of the Python API take, as types."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias

import onnx
import onnx_ir as ir

from ..core.graph import Graph

if TYPE_CHECKING:
    from typing_extensions import TypeIs

PathLike: TypeAlias = str | os.PathLike[str]


class GraphsurgeonGraph(Protocol):
    """onnx_graphsurgeon.Graph, which has no types of its own."""

    def toposort(self) -> object:
        """Sorts its nodes (onnx_graphsurgeon's own method)."""
        ...

    def tensors(self) -> Mapping[str, object]:
        """The graph's tensors by name."""
        ...


class OnnxProgram(Protocol):
    """torch.onnx.ONNXProgram."""

    model: ir.Model

    @property
    def exported_program(self) -> object:
        """What torch.export has made."""
        ...


Loaded: TypeAlias = onnx.ModelProto | ir.Model | GraphsurgeonGraph | OnnxProgram
Model: TypeAlias = PathLike | Loaded


def is_graph(model: Model | Graph) -> TypeIs[Graph]:
    """Whether a caller's model is a Graph, and so loaded already: it has the method ``dataflow``."""
    return hasattr(model, "dataflow")


def path_of(model: object) -> PathLike | None:
    """The path of a caller's model, as it was given; None for one in memory."""
    return model if isinstance(model, (str, os.PathLike)) else None
