"""The kinds of things that verbs take."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeAlias

import numpy.typing as npt
import onnx
import onnx_ir as ir

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


def path_of(model: Model) -> PathLike | None:
    """The model's file, None for one in memory."""
    return model if isinstance(model, (str, os.PathLike)) else None
