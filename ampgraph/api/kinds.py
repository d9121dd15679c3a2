"""The kinds of things that verbs take."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

import onnx
import onnx_ir as ir

from ..core.arrays import Array
from ..core.graph import Graph

if TYPE_CHECKING:
    from typing_extensions import TypeIs

PathLike: TypeAlias = str | os.PathLike[str]
Feeds: TypeAlias = Mapping[str, Array]
Data: TypeAlias = PathLike | Iterable[Feeds] | None


class GraphsurgeonGraph(Protocol):
    """onnx_graphsurgeon.Graph, which has no types of its own."""

    def toposort(self) -> object:
        """Sorts its nodes."""
        ...

    def tensors(self) -> Mapping[str, object]:
        """Its tensors by name."""
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
FromPath: TypeAlias = onnx.ModelProto | ir.Model | Graph
"""What becomes of a path: onnx.ModelProto, onnx_ir.Model where its weights are external, a graph for .mindir."""

InMemory = TypeVar("InMemory", bound=Loaded)
"""A model in memory, of whatever kind: the same kind comes back."""
OutPath = TypeVar("OutPath", bound=PathLike)
"""Where the result was written: what was given comes back."""


def path_of(model: object) -> PathLike | None:
    """The model's file, None for one in memory."""
    return model if isinstance(model, (str, os.PathLike)) else None


def is_graph(model: Model | Graph) -> TypeIs[Graph]:
    """Whether a model is loaded already."""
    return hasattr(model, "dataflow")
