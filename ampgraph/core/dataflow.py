"""The format-neutral, read-only snapshot that the planner sees.

A *unit* is what is decided: normally one (operator, slot); several where the graph forces one type on them (the
state of a loop, the elements of a sequence). Every float32 tensor that an operator reads or writes belongs to a unit;
every other tensor is a fact and has none (``NONE``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

from .arrays import Array

FLOAT32 = "float32"
NONE = -1  # in the place of an id: no value, operator, scope or unit; a value without a unit has a type that is a fact
HELD = "ampgraph.float32"
"""The key of a node's mark on why it must compute in float32, as our own gradients must. Marks are in memory alone."""
KEPT = "ampgraph.kept"
"""The key of the same mark of a node that may be low at a level whose norms are low."""

BRANCHES = "ampgraph.branches"
"""The key of the mark of an addition that joins branches, in a forward that is differentiated and in its backward."""
MARKED = "ampgraph.marked"
"""The key of the mark of a graph whose nodes may have marks."""

Shape = tuple["int | str | None", ...]
AttributeValue: TypeAlias = "None | bool | int | float | str | Sequence[AttributeValue] | Array"
"""What an attribute holds, whatever the format; None where it is absent."""


@dataclass(slots=True, eq=False)
class Value:
    """A tensor (or a container of tensors) in one scope. ``id`` is its place in `Dataflow.values`; ``dtype`` is the
    element type, ``""`` when it is unknown; ``shape`` is None until `Dataflow.shape` is asked for it."""

    id: int
    name: str
    scope: int
    dtype: str
    container: str = ""  # "", "seq", "optional" or "other": a container has no Cast
    shape: Shape | None = None
    producer: int = NONE  # the op that writes it; NONE for an input and a stored tensor
    unit: int = NONE  # the unit that decides its type
    weight: bool = False  # a stored tensor, readable by Dataflow.weights
    parameter: bool = False  # a stored tensor that is a parameter of the model, not a constant of its graph
    low_source: int = NONE  # the low value that a given Cast made this one from
    native: Any = None
    default: bool = False  # an input with a stored tensor, which a caller may override


@dataclass(slots=True)
class Use:
    """A read of ``value`` with its ``unit``: input ``index`` of ``op``, or for NONE output ``index`` of ``scope``."""

    value: int
    op: int
    index: int
    unit: int
    scope: int
    given_cast: bool = False  # the reader is a Cast to low in the file: it asks for low and brings its own cast


@dataclass(slots=True)
class Op:
    """A node. ``kind`` is what the file calls it: ``Conv``, ``com.microsoft::Gelu``, ``Conv2D``; ``role`` the standard
    (ONNX) operator that it computes, the word that lists and guards use; ``index`` its place among those of its scope.
    """

    id: int
    kind: str
    scope: int
    index: int
    name: str
    inputs: list[int]
    outputs: list[int]
    slots: dict[str, int]  # slot name -> unit, float32 slots only
    native: Any
    role: str
    held: str = ""  # why it computes in float32 whatever a list says
    kept: str = ""  # the same, but at a level whose norms are low
    adds_branches: bool = False
    follows: int = NONE  # in a file that has gradients: the forward operator whose gradient it computes
    adds_for: int = NONE  # and the value whose gradients it adds


@dataclass(slots=True)
class Unit:
    """One undecided type. ``admits`` are the types that the schema allows; ``fixed`` says why nothing is decided."""

    id: int
    op: int
    slot: str
    admits: frozenset[str]
    fixed: str = ""  # why it stays float32 whatever a list says
    fixed_low: bool = False  # a boundary that the user asked to be low
    version: int = 0  # since_version of the operator's schema
    opset: int = 0  # of the operator's domain, where the operator stands
    freed_at: int = 0  # where its opset has no Cast for it: the first one that has
    crosses: bool = False  # it crosses the boundary of a body or a function: it follows its neighbours


@dataclass(slots=True)
class Scope:
    """The main graph (path ""), the body of a control-flow node, or a function as called from one place."""

    id: int
    path: str
    parent: int  # the scope in which ``op`` stands; NONE for the main graph
    op: int  # the control-flow node or call; NONE for the main graph
    kind: str  # "main", "body" or "function"
    times: int  # how often it runs, estimated
    label: str = ""  # layer that encloses it
    native: Any = None
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Origin:
    """What a node was exported from: ``group`` names the call, which other nodes may have come from too; ``names`` are
    what was called, outermost first: ``torch::torch.nn.modules.linear.Linear``, ``aten::linear``; ``scopes`` are where
    each stands; ``reads``: the parameters, buffers and stored tensors that were handed to it, with underscores for
    dots."""

    group: str
    names: tuple[str, ...]
    scopes: tuple[str, ...] = ()
    reads: frozenset[str] = frozenset()


class WeightReader(Protocol):
    """By what a `Dataflow` reads stored tensors: piece by piece, so that no weight has to fit into memory."""

    def size(self, value: Value) -> int: ...  # elements; 0 where nothing is stored
    def array(self, value: Value, limit: int = ...) -> Array | None: ...  # whole, of ``limit`` elements at most
    def chunks(self, value: Value) -> Iterator[Array]: ...  # its elements in one dimension, in pieces
    def key(self, value: Value) -> object: ...  # equal for values that share one stored tensor


class StaleDataflow(RuntimeError):
    """The error where a dataflow is used after an edit of its model, which is a mistake of the program."""

    def __init__(self) -> None:
        super().__init__("the model was edited since this dataflow was made: ask the graph for another")


class Ties:
    """A union-find over the numbers from 0 on: the lowest of those that are tied to one another represents them.

    ``parents``: by number, a lower one that it is tied to, or itself."""

    def __init__(self, parents: Iterable[int]) -> None:
        self.parents = list(parents)

    def find(self, number: int) -> int:
        """The number that represents this one and all that it is tied to; paths are halved on the way."""
        parents = self.parents
        while parents[number] != number:
            parents[number] = number = parents[parents[number]]
        return number

    def tie(self, numbers: Iterable[int]) -> int:
        """Ties numbers, at least one, and returns the lowest, which represents them and all that they were tied to."""
        roots = {self.find(number) for number in numbers}
        first = min(roots)
        for root in roots:
            self.parents[root] = first
        return first


class Dataflow:
    """Values, operators and units of one model. Using it after an edit of the model raises StaleDataflow."""

    def __init__(
        self,
        weights: WeightReader,
        attribute: Callable[[Op, str], AttributeValue],
        layer: Callable[[Op], str],
        read_shape: Callable[[Value], Shape | None],
    ) -> None:
        """An empty dataflow, which a `FlowBuilder` fills. ``attribute``, ``layer``, ``read_shape``: how the format
        reads an operator's attribute (None where it is absent), its layer ("" where the file names none) and a value's
        shape (None where it is not known), when they are asked for."""
        self.values: list[Value] = []
        self.ops: list[Op] = []
        self.units: list[Unit] = []
        self.scopes: list[Scope] = []
        self.uses: list[list[Use]] = []  # by value id
        self.opset: int = 0  # of the default domain
        self.unknown_kinds: set[str] = set()  # operators without a schema
        self.conflicts: list[str] = []  # slots that hold two types, types that a slot does not admit
        self.parameters_copied = True  # whether a parameter can be stored in both types
        self.passed: list[tuple[int, int]] = []
        """(value, the value that holds the same data beyond the boundary of a body or function), either may be NONE."""
        self.weights = weights
        self.attribute = attribute
        self.later_version: Callable[[str, str, int, str], int] = lambda kind, slot, version, low: 0
        """(operator, slot, version, low) -> the first later version of the format that admits low there, 0 for none."""
        self.newest = 0  # the last version of the format's operators that is known here
        self.layer = layer
        self.cells: Callable[[Op], list[tuple[str, str]]] = lambda op: []
        """(name, class) of the modules around an operator, outermost first, where the file says them."""
        self.origin: Callable[[Op], Origin | None] = lambda op: None
        """What a node was exported from, where the file says it."""
        self._read_shape = read_shape
        self.certain_shape: Callable[[Value], Shape | None] = lambda value: value.shape or read_shape(value)
        """The shape of a value as far as it is more than what a file says of it."""
        self.sized: Callable[[Mapping[str, Sequence[int]]], Mapping[str, Shape]] = lambda inputs: {}
        """By name, shapes that values of the main graph have where its inputs have these, as far as known."""
        self.memo: dict[object, Any] = {}
        """What readers have computed of it, gone with it."""
        self._ties = Ties(())
        self._by_place: dict[tuple[str, int], Op] = {}
        self._scalars: dict[int, float | None] = {}  # of stored tensors, by value: many nodes read one

    def fork(self) -> Dataflow:
        """A second view of the dataflow with ties and a memo of its own, so that neither reader sees what the other
        ties from now on; values, operators, units and uses are the same objects in both."""
        view = Dataflow.__new__(Dataflow)
        view.__dict__.update(self.__dict__, _ties=Ties(self._ties.parents), memo={})
        return view

    def expire(self) -> None:
        """Marks the dataflow as out of date after an edit: reading it raises StaleDataflow from now on."""
        self.__dict__.clear()

    if not TYPE_CHECKING:  # a name that the class does not have is a mistake of the caller's

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("__") or "values" in self.__dict__:
                raise AttributeError(name)
            raise StaleDataflow

    def new_unit(
        self,
        op: int,
        slot: str,
        admits: frozenset[str],
        *,
        fixed: str = "",
        fixed_low: bool = False,
        version: int = 0,
        opset: int = 0,
        crosses: bool = False,
    ) -> int:
        """Adds a unit with these fields of `Unit`, tied to no other, and returns its number."""
        unit = len(self.units)
        self.units.append(Unit(unit, op, slot, admits, fixed, fixed_low, version, opset, crosses=crosses))
        self._ties.parents.append(unit)
        return unit

    def find(self, unit: int) -> int:
        """The unit that represents all those tied to ``unit``, the lowest of them: they share one decision."""
        return self._ties.find(unit)

    def merge(self, units: Iterable[int]) -> int:
        """Ties units to one decision, and returns the lowest, which represents them."""
        return self._ties.tie(units)

    def mark_given_cast(self, op: Op, low: str) -> None:
        """Takes a Cast of the file between float32 and the low type as a cast edge that exists: its float32 slot is
        fixed low, and the read of a Cast to low is marked, for which the newest use of its operand must be the Cast's
        own. A Cast from float32 to float32 ties its two slots; any other is left as it is."""
        source, target = self.values[op.inputs[0]], self.values[op.outputs[0]]
        if source.dtype == FLOAT32 and target.dtype == low:
            self.units[op.slots["T1"]].fixed_low = True
            self.uses[source.id][-1].given_cast = True
        elif source.dtype == low and target.dtype == FLOAT32:
            self.units[op.slots["T2"]].fixed_low = True
            target.low_source = source.id
        elif source.dtype == target.dtype == FLOAT32:
            self.merge((op.slots["T1"], op.slots["T2"]))  # it is an Identity

    def place(self, use: Use) -> tuple[str, int, int]:
        """A use in the dataflow as plans write it: (path of the scope, index of the operator in it or -1 for an output
        of the scope, position among its inputs or the outputs)."""
        return self.scopes[use.scope].path, self.ops[use.op].index if use.op != NONE else -1, use.index

    @cached_property
    def _by_role(self) -> dict[str, list[Op]]:
        """Operators by role, in the order of the model."""
        found: dict[str, list[Op]] = {}
        for op in self.ops:
            found.setdefault(op.role, []).append(op)
        return found

    def with_roles(self, roles: Collection[str]) -> list[Op]:
        """The operators of some roles, in the order of the model; not before it is read, as the first call indexes."""
        groups = [ops for role, ops in self._by_role.items() if role in roles]
        return groups[0] if len(groups) == 1 else sorted(chain(*groups), key=attrgetter("id"))

    def at(self, scope: str, index: int) -> Op:
        """The operator at a place of a plan: path of a scope, index in it. Raises LookupError where there is none."""
        if not self._by_place:
            self._by_place.update({(self.scopes[op.scope].path, op.index): op for op in self.ops})
        return self._by_place[scope, index]

    def readers(self, value: int) -> Iterator[Op]:
        """The operators that read a value, each as often as it reads it; graph outputs are no operators."""
        return (self.ops[use.op] for use in self.uses[value] if use.op != NONE)

    def writer(self, value: int) -> Op | None:
        """The operator that makes a value; None for inputs and stored tensors."""
        producer = self.values[value].producer
        return self.ops[producer] if producer != NONE else None

    def scalar(self, value: int, *, overridable: bool = False) -> float | None:
        """The number in a stored tensor of one element, else None. ``overridable``: or in an input's default."""
        if value == NONE or not (self.values[value].weight or (overridable and self.values[value].default)):
            return None
        if value not in self._scalars:
            item = self.values[value]
            array = self.weights.array(item) if self.weights.size(item) == 1 else None
            self._scalars[value] = None if array is None or array.dtype.kind in "USO" else float(array.reshape(-1)[0])
        return self._scalars[value]

    def number(self, op: Op, name: str) -> float | None:
        """The number in an operator's attribute; None where it is absent or no number."""
        given = self.attribute(op, name)
        return given if isinstance(given, (int, float)) else None

    def integers(self, op: Op, name: str) -> list[int] | None:
        """The whole numbers in an operator's attribute, a single one as a list too; None where it has no such thing."""
        given = self.attribute(op, name)
        if isinstance(given, int):
            return [given]
        return [n for n in given if isinstance(n, int)] if isinstance(given, (list, tuple)) else None

    def shape(self, value: int) -> Shape | None:
        """The shape of a value, None when neither the file nor inference gives one."""
        item = self.values[value]
        if item.shape is None:
            item.shape = self._read_shape(item)
        return item.shape

    def dims(self, value: int, assumed: dict[str, int] | None = None) -> list[int]:
        """A value's dimensions; unknown ones by name from ``assumed``, else guessed: the first 1 (batch-like), others
        128 (sequence-like); [1, 128, 128] where not even the rank is known."""
        shape = self.shape(value)
        if shape is None:
            return [1, 128, 128]
        named = assumed or {}
        return [
            dim if isinstance(dim, int) and dim >= 0 else named.get(str(dim), 1 if place == 0 else 128)
            for place, dim in enumerate(shape)
        ]
