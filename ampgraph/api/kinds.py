"""The kinds of things that verbs take."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy.typing as npt
import onnx
import onnx_ir as ir

from ..core.graph import Graph

if TYPE_CHECKING:
    from typing_extensions import TypeIs

PathLike: TypeAlias = str | os.PathLike[str]
Feeds: TypeAlias = Mapping[str, npt.NDArray[Any]]
Data: TypeAlias = PathLike | Iterable[Feeds] | None


class GraphsurgeonGraph(Protocol):
    """onnx_graphsurgeon.Graph, which has no types of its own."""

    nodes: Any
    tensors: Any

    def toposort(self) -> object:
        """Sorts its nodes."""
        ...


class OnnxProgram(Protocol):
    """torch.onnx.ONNXProgram."""

    model: Any
    exported_program: Any


Model: TypeAlias = PathLike | onnx.ModelProto | ir.Model | GraphsurgeonGraph | OnnxProgram


def path_of(model: object) -> PathLike | None:
    """The model's file, None for one in memory."""
    return model if isinstance(model, (str, os.PathLike)) else None


def is_graph(model: Model | Graph) -> TypeIs[Graph]:
    """Whether a model is loaded already."""
    return hasattr(model, "dataflow")
