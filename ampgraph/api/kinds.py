"""The types of what the verbs take and give."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias, TypeVar

import onnx
import onnx_ir as ir

from ..core.arrays import Feeds as Feeds
from ..core.graph import Graph
from ..formats.kinds import Loaded
from ..formats.kinds import Model as Model
from ..formats.kinds import PathLike as PathLike
from ..formats.kinds import is_graph as is_graph
from ..formats.kinds import path_of as path_of

Data: TypeAlias = PathLike | Iterable[Feeds] | None
"""Samples: an .npz file, a folder of them, or mappings from input names to arrays; None generates some."""
FromPath: TypeAlias = onnx.ModelProto | ir.Model | Graph
"""What becomes of a path: onnx.ModelProto, onnx_ir.Model where its weights are external, a graph for .mindir."""

InMemory = TypeVar("InMemory", bound=Loaded)
"""A model in memory, of whatever kind: the same kind comes back."""
OutPath = TypeVar("OutPath", bound=PathLike)
"""Where the result was written: what was given comes back."""
