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
        """The operator at a place: path of a scope, index in it; None where there is none."""
        ...

    def retype(self, value: Value, dtype: str) -> None:
        """Gives a value another element type; attributes of its operator that name the type follow."""
        ...

    def keep_type(self, op: Op, dtype: str) -> None:
        """Pins the type of an output that would follow an input's, by an attribute; leaves other operators."""
        ...

    def cast(self, value: Value, to: str, uses: Iterable[UseKey]) -> None:
        """Has the given uses read ``value`` as type ``to``: through one Cast (in the value's scope, or in MindIR one in
        each graph that reads it), which is added unless one is there."""
        ...

    def round(self, value: Value, dtype: str, uses: Iterable[UseKey]) -> None:
        """Puts a pair of Casts, from float32 to the low type ``dtype`` and back, between a value and the given uses."""
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
        """Changes a stored tensor as ``store`` says: ``low`` makes it ``dtype``, ``both`` adds a copy of that type for
        ``uses``, ``float32`` keeps its type and only floors.

        ``floor``: finite elements below it become it. ``factor``: elements are multiplied by it in float64 before they
        are rounded to low, where the product stays finite."""
        ...

    def round_together(self, op: Op, dtype: str) -> bool:
        """Rounds stored operands of an operator to ``dtype`` again, so that their rounding errors cancel in what it
        computes: the four parameters of a norm with stored statistics, or the weights of each channel of a convolution.
        Call it behind `weight`: returns False where that has not made all of them ``dtype``."""
        ...

    def bypass(self, op: Op) -> bool:
        """Removes a one-input operator; readers read its input. Returns False, and does nothing, if a boundary needs
        it."""
        ...

    def remove(self, op: Op) -> bool:
        """Removes an operator. Returns False, and changes nothing, where one of its results is read."""
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
        """Adds an operator (``Add``, ``com.microsoft::Gelu``) behind all that it reads, and returns its results.

        Args: inputs: the values that it reads; None for an optional one that is left out. dtypes: for each result its
            type, "" for none in the file, or a value whose type it has. scope: the id of the scope where it stands; -1:
            where its first input does. ``behind``: what it stands behind too. name: of the results, made unique; "":
            after the first input and the kind. node: of the operator, made unique; "": after its results. metadata_of:
            the operator whose metadata it gets too. shaped: whether a result has also the shape of the value in
            ``dtypes``."""
        ...

    def rewire(self, value: Value, uses: Iterable[UseKey]) -> None:
        """Has the given uses read ``value``, whatever they read before."""
        ...

    def rename(self, value: Value, ending: str) -> None:
        """Renames a value that holds other numbers than before: to its old name, "_" and ``ending``, made unique. The
        `Value` of the dataflow keeps its old name. Not for an output of the graph, which goes by its name."""
        ...

    def replace(
        self, scope: str, nodes: Iterable[int], kind: str, inputs: Iterable[str], attributes: Mapping[str, Attribute]
    ) -> None:
        """Puts one operator of ONNX's own domain, ``kind``, in the place of several, and drops constants left unread.

        ``nodes``: their indices in the scope; the new one takes over the result of the last. ``inputs``: names of
        values that they read. Raises AmpError AMP402 if others read what is between, or ``inputs`` are not read."""
        ...

    def add_output(self, op: Op, results: Sequence[Value], name: str) -> Value:
        """Adds a last result, called ``name`` made unique, to an operator with bodies (If, Loop, Scan), and returns it.

        ``results``: for each body the value that becomes a further output of it."""
        ...

    def constant(self, numbers: Array, name: str, behind: Op | Value) -> Value:
        """Adds a Constant right behind an operator, or what makes a value; its result, called ``name`` made unique."""
        ...

    def store(self, numbers: Array, name: str, scope: int) -> Value:
        """Adds a stored tensor, called ``name`` made unique, to a scope that is no function, and returns it."""
        ...

    def set_number(self, op: Op, name: str, number: float) -> None:
        """Sets the float attribute ``name`` of an operator."""
        ...

    def set_numbers(self, value: Value, numbers: Array) -> None:
        """Gives a stored tensor other numbers; it takes over their type and shape, and keeps its name."""
        ...

    def set_rank(self, value: Value, dimensions: int) -> None:
        """Sets a value's shape to so many dimensions of unknown size."""
        ...

    def supersede(self, value: Value, old: Value) -> None:
        """Has all readers of ``old``, graph outputs too, read ``value``, which takes over its name, type and shape;
        handles of ``old`` mean ``value`` from now on."""
        ...

    def move(self, op: Op, behind: Op) -> None:
        """Puts an operator right behind another one of its scope."""
        ...

    def drop_unread(self, value: Value) -> None:
        """Removes a stored tensor or Constant that nothing reads any more; other values and graph outputs stay."""
        ...


@runtime_checkable
class DescribingEditor(Editor, Protocol):
    """An editor of a format whose files say what was done to them."""

    def describe(self, reasons: Iterable[tuple[Op, str, str]], about: Mapping[str, str]) -> None:
        """Writes metadata into the model, and leaves what stands there already.

        ``reasons``: (operator, type that it computes in, why); Casts that this editor made get reasons of their own.
        ``about``: keys and texts for the model."""
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
        """Sorts an unsorted file. MindIR, always sorted: raises AmpError 2xx for what MindSpore could not read."""
        ...

    def repairs(self) -> list[str]:
        """What was put right when the model was read, a sentence each."""
        ...

    def settle_shapes(self) -> None:
        """Repairs annotated shapes that cannot be, and says so among the repairs; to be called before a dataflow."""
        ...

    def fault(self) -> str:
        """What the format's own checker says against the model; an empty string for a valid one."""
        ...

    def conflicts(self, low: str = "float16") -> Sequence[str]:
        """Slots that hold two types, and types that a slot does not admit, a sentence each; ``low``: as of
        `dataflow`."""
        ...

    def refuse_unknown_training(self) -> None:
        """Raises AmpError AMP205 for a graph that updates its own weights in a way that `convert` does not know."""
        ...

    def dataflow(self, low: str = "float16", low_io: frozenset[str] = frozenset()) -> Dataflow:
        """A snapshot for decisions between float32 and ``low``; the same one again, without ties that its readers made,
        where nothing was edited since. ``low_io``: names of inputs and outputs that become low."""
        ...

    def editor(self, flow: Dataflow, signature: Mapping[str, Hashable] | None = None) -> Editor:
        """Opens an editor over the newest dataflow. ``signature``: by the path of a function's scope what is done in
        it, so that calls with equal ones share a function. Raises StaleDataflow for a dataflow from before an edit."""
        ...

    def digest(self) -> str:
        """A digest of the structure, the types and the small constants; large weights count by type and shape."""
        ...

    def version(self) -> str:
        """The version of the format that the model is written in: ``opset 18``, ``mind_ir_version 3``."""
        ...

    def interface(self) -> dict[str, str]:
        """The inputs and outputs that may change their type: name -> type (``a sequence of int64``), "" if none."""
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
        """Writes the model to a file, whole or not at all."""
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
        """Has the step look for overflow in the gradients themselves instead of a register of the device; returns how
        many, 0 where it asks no register. Raises AmpError AMP205 for a check of unknown form."""
        ...


def is_mindir(path: object) -> bool:
    """Whether a path names a MindIR file, by its ending: what every room asks before it opens one."""
    return isinstance(path, (str, os.PathLike)) and os.fspath(path).endswith(".mindir")
