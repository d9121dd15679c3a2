"""What a model of any format offers: two faces, and what files and reports ask of it."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from .arrays import Array
from .dataflow import Dataflow, Op, Value
from .progress import Progress

if TYPE_CHECKING:
    from typing_extensions import Self

LOW = ("float16", "bfloat16")
Attribute = int | float | str | Sequence[int] | Sequence[float] | Array
Handle = TypeVar("Handle")  # how an editor knows a value: as a dataflow does, or as its format does
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

    @classmethod
    def of(cls, nodes: int, casts: int, tensors: Iterable[tuple[str, int]]) -> Census:
        """The census of a graph: so many nodes and Casts, and stored tensors by (type, bytes)."""
        weights: dict[str, Stored] = {}
        for dtype, size in tensors:
            known = weights.get(dtype, Stored())
            weights[dtype] = Stored(known.count + 1, known.bytes + size)
        return cls(nodes, casts, dict(sorted(weights.items())))

    @property
    def weight_bytes(self) -> int:
        """Bytes of all stored tensors of a graph."""
        return sum(stored.bytes for stored in self.weights.values())


class Editor(Protocol):
    """The verbs of every format, on handles of the dataflow that the editor was opened over.

    Used in a `with` statement, which finishes the edits. A dataflow is out of date after them: ask for another."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None: ...

    def edits(self, scope: int) -> bool:
        """Whether this editor edits a scope: where several calls share a function, only the first of them does."""
        ...

    def op(self, scope: str, index: int) -> Op | None:
        """The operator at a place, or None."""
        ...

    def retype(self, value: Value, dtype: str) -> None:
        """Gives a value another element type; attributes of its operator that name the type follow."""
        ...

    def keep_type(self, op: Op, dtype: str) -> None:
        """Pins an output's type by the operator's attribute where it would else follow an input whose type changes."""
        ...

    def cast(self, value: Value, to: str, uses: Iterable[UseKey]) -> None:
        """Reads ``value`` as ``to`` at the given uses, through one Cast for each scope, or a given one."""
        ...

    def round(self, value: Value, dtype: str, uses: Iterable[UseKey]) -> None:
        """Puts a float32 -> low -> float32 pair between a value and the given uses."""
        ...

    def weight(
        self,
        value: Value,
        store: str,
        dtype: str,
        uses: Iterable[UseKey],
        floor: float | None = None,
        factor: float = 1.0,
    ) -> None:
        """Changes a stored tensor: ``low`` makes it ``dtype``, ``both`` adds a copy in that for ``uses``, ``float32``
        only floors.

        ``factor``: it is multiplied by it in float64 before it is rounded, where that stays finite."""
        ...

    def round_together(self, op: Op, dtype: str) -> bool:
        """Rounds the four stored parameters of a norm with stored statistics anew, together, or a convolution's weights
        of each channel, so that their rounding errors cancel in what it computes. False where it has none that were."""
        ...

    def bypass(self, op: Op) -> bool:
        """Removes a one-input operator; its readers read its input. False where a boundary needs its result."""
        ...

    def remove(self, op: Op) -> bool:
        """Removes an operator; False where somebody reads one of its results."""
        ...


@runtime_checkable
class NodeEditor(Editor, Protocol):
    """An editor that also adds and rewires operators."""

    def add(
        self,
        kind: str,
        inputs: Sequence[Value | None],
        dtypes: Sequence[str | Value],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        scope: int = -1,
        behind: Op | Value | None = None,
        name: str = "",
        node: str = "",
        metadata_of: Op | None = None,
        shaped: bool = False,
    ) -> list[Value]:
        """Puts an operator (``Add``, ``com.microsoft::Gelu``) behind all that it reads, and behind ``behind``.

        Its results, which every verb takes, have the types ``dtypes``, or what the file says of a value (``shaped``:
        of its shape too), and are called ``name``, as the operator is ``node``, or what is left of it. ``scope``: where
        it stands; by default where its first input does. ``of``: it has the metadata of that operator."""
        ...

    def rewire(self, value: Value, uses: Iterable[UseKey]) -> None:
        """Has the given uses read ``value`` in the place of what they read."""
        ...

    def rename(self, value: Value, ending: str) -> None:
        """Gives a value a new name that ends with ``ending``, as it holds other numbers than the value of its old
        name."""
        ...

    def replace(
        self, scope: str, nodes: Iterable[int], kind: str, inputs: Iterable[str], attributes: Mapping[str, Attribute]
    ) -> None:
        """Puts one operator in the place of several."""
        ...

    def add_output(self, op: Op, results: Sequence[Value], name: str) -> Value:
        """A further result of an operator with bodies, called ``name`` or what is left of it.

        ``results``: what its bodies give out for it, each made in another of them."""
        ...

    def constant(self, numbers: Array, name: str, behind: Op | Value) -> Value:
        """Adds a constant to the graph, called ``name`` or what is left of it, right behind an operator or value."""
        ...

    def store(self, numbers: Array, name: str, scope: int) -> Value:
        """A new stored tensor of a scope, called ``name`` or what is left of it."""
        ...

    def set_number(self, op: Op, name: str, number: float) -> None:
        """Changes the number in an operator's attribute."""
        ...

    def set_numbers(self, value: Value, numbers: Array) -> None:
        """Gives a stored tensor other numbers; it takes over their type and shape, and keeps its name."""
        ...

    def set_rank(self, value: Value, dimensions: int) -> None:
        """Says of a value how many dimensions it has, whatever their sizes."""
        ...

    def supersede(self, value: Value, old: Value) -> None:
        """Makes all readers of ``old`` read ``value``, which takes over its name, type and shape."""
        ...

    def move(self, op: Op, behind: Op) -> None:
        """Puts an operator right behind another one of its scope."""
        ...

    def drop_unread(self, value: Value) -> None:
        """Takes a stored tensor or Constant away if nothing reads it any more; one that is read, an input or output of
        the model, or what another operator makes stays."""
        ...


@runtime_checkable
class DescribingEditor(Editor, Protocol):
    """An editor of a format whose files say what was done to them."""

    def describe(self, reasons: Iterable[tuple[Op, str, str]], about: Mapping[str, str]) -> None:
        """Writes type and reason of operators into the model, those of the Casts that this editor made, and ``about``,
        what is said of the model. What stands there already stays."""
        ...


class Graph(Protocol):
    """The native model, never rebuilt."""

    @property
    def format(self) -> str:
        """``ONNX`` or ``MindIR``."""
        ...

    @property
    def suffix(self) -> str:
        """What the names of its files end in."""
        ...

    @property
    def revision(self) -> int:
        """A number that grows with every edit of the graph."""
        ...

    def prepare(self) -> None:
        """Sorts what is unsorted in the model."""
        ...

    def repairs(self) -> list[str]:
        """What was put right when the model was read."""
        ...

    def settle_shapes(self) -> None:
        """Repairs annotated shapes that cannot be, and says so among the repairs; to be called before a dataflow."""
        ...

    def fault(self) -> str:
        """What the format's own checker says against the model; an empty string for a valid one."""
        ...

    def conflicts(self, low: str = "float16") -> Sequence[str]:
        """Slots that hold two types, and types that a slot does not admit."""
        ...

    def refuse_training(self) -> None:
        """Raises AmpError AMP205 for a graph that updates its own weights in a way that `convert` does not know."""
        ...

    def dataflow(self, low: str = "float16", low_io: frozenset[str] = frozenset()) -> Dataflow:
        """A snapshot; no work where nothing was edited since the last one. Ties made in it stay in it."""
        ...

    def editor(self, flow: Dataflow, signature: Mapping[str, Hashable] | None = None) -> Editor:
        """Opens an editor over the newest dataflow. ``signature``: what is done in each function scope, so that calls
        with equal ones share a function. Raises StaleDataflow for a dataflow from before an edit."""
        ...

    def digest(self) -> str:
        """Changes with the structure, the types and the small constants; large weights count by type and shape."""
        ...

    def version(self) -> str:
        """The version of the format that the model is written in: ``opset 18``, ``mind_ir_version 3``."""
        ...

    def interface(self) -> dict[str, str]:
        """Names of the inputs and outputs that may change their type, with the type; empty where the file says none."""
        ...

    def dimensions(self) -> set[str]:
        """Names of the model's symbolic dimensions."""
        ...

    def census(self) -> Census:
        """What the model holds: nodes, Casts and bytes of stored tensors by type."""
        ...

    def data_files(self) -> list[Path]:
        """Files beside the model's that hold its weights."""
        ...

    def save(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        """Writes the model, whole or not at all."""
        ...

    def copy_unchanged(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        """Copies the file that the model came from, with its data files."""
        ...


@runtime_checkable
class DescribedGraph(Protocol):
    """A graph of a format whose files say things of the model."""

    def metadata(self) -> Mapping[str, str]:
        """What the model's file says of itself, by key."""
        ...


@runtime_checkable
class StepGraph(Protocol):
    """A graph of a format whose files may hold a whole training step."""

    def is_step(self) -> bool:
        """Whether the graph that a verb was given is a training step, so that each run changes its parameters."""
        ...

    def scale_doubts(self) -> list[str]:
        """What speaks against a step in float16 as its loss is scaled; nothing for a file without a step."""
        ...

    def check_gradients(self) -> int:
        """Looks for overflow in the gradients themselves instead of a register of the device's; how many are looked at,
        0 where no register is asked. Raises AmpError AMP205 for a check of unknown form."""
        ...


def is_mindir(path: object) -> bool:
    """Whether a path names a MindIR file, by its ending: what every room asks before it opens one."""
    return isinstance(path, (str, os.PathLike)) and os.fspath(path).endswith(".mindir")
