"""What a model of any format offers: two faces, and what files and reports ask of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from .dataflow import Dataflow, Op, Value

LOW = ("float16", "bfloat16")
Progress = Callable[[str, int, int], None]  # what is written, how much of it is done, of how much
UseKey = tuple[str, int, int]  # scope, index of the node or -1 for an output of the scope, position


@dataclass(frozen=True, slots=True)
class Stored:
    """Stored tensors of one type."""

    count: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Census:
    """What a file holds."""

    nodes: int
    casts: int
    weights: dict[str, Stored] = field(default_factory=dict)

    @property
    def weight_bytes(self) -> int:
        """Of all stored tensors."""
        return sum(stored.bytes for stored in self.weights.values())


class Editor(Protocol):
    """The verbs that passes use, on handles of the dataflow that the editor was made over."""

    def edits(self, scope: int) -> bool:
        """Whether edits of a scope are made through it: of calls that share a function, one does it for all."""
        ...

    def op(self, scope: str, index: int) -> Op | None: ...
    def reads(self, op: Op) -> str:
        """The element type that an operator's first input has now."""
        ...

    def retype(self, value: Value, dtype: str) -> None: ...
    def keep_type(self, op: Op, dtype: str) -> None:
        """Pins an output type that would otherwise follow an input that changes."""
        ...

    def cast(self, value: Value, to: str, uses: Iterable[UseKey]) -> None:
        """Reads ``value`` as ``to`` at the given uses, through one Cast for each scope, or a given one."""
        ...

    def round(self, value: Value, dtype: str, uses: Iterable[UseKey]) -> None:
        """Puts a float32 -> low -> float32 pair between a value and the given uses."""
        ...

    def weight(self, value: Value, store: str, dtype: str, uses: Iterable[UseKey], floor: float | None) -> None:
        """Changes a stored tensor: ``low`` replaces it, ``both`` adds a low copy, ``float32`` only floors."""
        ...

    def round_together(self, op: Op, dtype: str) -> None:
        """Rounds the low parameters of a norm with stored statistics again, so that their errors cancel."""
        ...

    def bypass(self, op: Op) -> bool:
        """Removes a one-input operator that does nothing any more; its readers read its input."""
        ...

    def drop_unread(self, op: Op) -> bool:
        """Removes an operator whose only result is read by nobody."""
        ...

    def replace(
        self, scope: str, nodes: Iterable[int], kind: str, inputs: Iterable[str], attributes: dict[str, int | float]
    ) -> None:
        """Puts one operator in the place of several."""
        ...

    def write_bounds(self, scope: str, index: int) -> None:
        """Writes a Clip as Max and Min."""
        ...

    def finish(self) -> None:
        """Called once, after the last edit."""
        ...


class Graph(Protocol):
    """The native model, never rebuilt."""

    format: str  # "ONNX" or "MindIR"
    suffix: str  # of its files

    def prepare(self) -> None:
        """Sorts what is unsorted."""
        ...

    def refuse_training(self) -> None:
        """Raises AmpError AMP205 for a graph that updates its own weights: it is not for `convert`."""
        ...

    def before_edits(self) -> None:
        """Makes the model fit to hold a Cast."""
        ...

    def dataflow(self, low: str = ..., low_io: frozenset[str] = ...) -> Dataflow: ...
    def editor(self, flow: Dataflow, signature: dict[str, Hashable]) -> Editor: ...
    def digest(self) -> str:
        """Changes with the structure, the types and the small constants; large weights count by type and shape."""
        ...

    def version(self) -> str:
        """The version of the format that the model is written in: ``opset 18``, ``mind_ir_version 3``."""
        ...

    def interface(self) -> list[str]:
        """Names of the inputs and outputs that may change their type."""
        ...

    def dimensions(self) -> set[str]:
        """Names of symbolic dimensions."""
        ...

    def census(self) -> Census: ...
    def data_files(self) -> list[Path]:
        """Files beside the model's that hold its weights."""
        ...

    def save(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        """Writes the model, whole or not at all."""
        ...

    def copy_unchanged(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        """Copies the file that the model came from, with its data files."""
        ...


def is_mindir(path: Any) -> bool:
    """Whether a path names a MindIR file."""
    return isinstance(path, (str, os.PathLike)) and os.fspath(path).endswith(".mindir")
