"""What runs on a CPU ask of a graph beyond what conversion does: a flat copy, its file, and strict editing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from .dataflow import Dataflow, Op, Scope, Shape, Value
from .graph import Graph, NodeEditor
from .sites import Site, Switched

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Declared:
    """An input or output as the file declares it; ``stored``: it has a default value."""

    name: str
    container: str
    dtype: str
    shape: Shape
    stored: bool = False


@dataclass(frozen=True)
class Sums:
    """How an operator's kernel adds up in the low type: each sum is rounded; each product too, unless ``fused``.
    ``shapes``: of its operands, before anything is edited; ``stepwise``: so is each step of its own formula;
    ``folded``: the Conv in front, into whose stored numbers a runtime takes this norm."""

    op: Op
    shapes: tuple[Shape | None, ...]
    fused: bool = False
    stepwise: bool = False
    folded: Sums | None = None


class StrictEditor(Protocol):
    """The verbs of strict runs, on handles of the dataflow: what is low becomes float32, rounded where it is made.

    Readers, outputs of graphs among them, read the same names as before. Used in a `with` statement."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None: ...

    def round_all(self, value: Value, *, stays_low: bool = False, sums: Sums | None = None) -> None:
        """Has the operator of a low value compute in float32, and all its readers read the result rounded, in
        float32.

        ``stays_low``: the name, and the output of the graph, are those of the low value between the Casts. ``sums``:
        where its kernel accumulates in the low type.
        """
        ...

    def read_float32(self, value: Value, *, stays_low: bool = True) -> None:
        """Has the readers of a value that stays low read it as float32. ``stays_low`` as in `round_all`; inputs and
        weights always do."""
        ...

    def read_low(self, op: Op, position: int, dtype: str) -> None:
        """Has an operator read the low type itself at a position whose value is float32 by now."""
        ...

    def store_float32(self, value: Value) -> None:
        """Makes a stored tensor float32; nothing for a value without one."""
        ...

    def compute_float32(self, op: Op) -> None:
        """Attributes of an operator that name a low type, or hold low tensors, are float32."""
        ...

    def name_type(self, op: Op, dtype: str) -> None:
        """Has a converting operator name its result's type by an attribute, not by an operand."""
        ...

    def declare_float32(self, value: Value) -> None:
        """Declares an input or output of a graph float32, where it was declared low."""
        ...

    def forget_annotations(self, scope: Scope) -> None:
        """Removes annotations of what a graph makes and stores: a runtime infers types and shapes anew."""
        ...


@runtime_checkable
class RunnableGraph(Graph, Protocol):
    """A graph whose models are run in float32 on a CPU, whole or in parts."""

    def flat(self) -> Self:
        """The graph without functions of its own; itself where it has none."""
        ...

    def copied(self) -> Self:
        """A copy to edit; stored tensors are shared."""
        ...

    def declared(self) -> tuple[Sequence[Declared], Sequence[Declared]]:
        """Inputs and outputs, stored inputs included."""
        ...

    def folder(self) -> str:
        """Where the data files of the model are; empty where it has none."""
        ...

    def outside(self, value: Value) -> bool:
        """Whether the bytes of a stored tensor lie in a file beside the model's."""
        ...

    def content(self) -> bytes:
        """The file as a runtime takes it, without annotations; weights in files beside it stay there."""
        ...

    def editor(self, flow: Dataflow, signature: Mapping[str, Hashable] | None = None) -> NodeEditor:
        """An editor of the graph. See `Graph.editor`."""
        ...

    def part(
        self, ops: Sequence[Op] | None, reads: Sequence[Value], makes: Sequence[Value], fed: Collection[str] = ()
    ) -> bytes:
        """The file of some operators in a row, of all for None, with the weights that they read but for those ``fed``.

        ``reads``: its inputs, ``makes``: its outputs."""
        ...

    def branch(self, op: Op, attribute: str) -> Self:
        """The body of an If as a model of its own: what it reads from outside are its inputs, or weights.

        ``attribute``: ``then_branch`` or ``else_branch``. What the If captures must be tensors of known types.
        """
        ...

    def sites(self, flat: Self) -> tuple[Site, ...]:
        """The nodes of the main graph of ``flat``, under the names that they have here."""
        ...

    def switched(self, reference: Self, make_strict: Callable[[Self], None]) -> Sequence[Switched]:
        """Makes itself strict, with an input `SWITCHES` that says of each node whether its roundings are done.

        ``reference``: the model that it was made from; both are without functions. Returns what each switch is for."""
        ...

    def strict_editor(self, flow: Dataflow) -> StrictEditor:
        """Opens an editor over the newest dataflow of a graph without functions."""
        ...
