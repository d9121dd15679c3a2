"""Values of a MindIR model in its dataflow: what a name stands for, and where a read of it can be replaced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ...core.dataflow import FLOAT32, NONE, Dataflow, Scope, Value
from ...core.errors import AmpError
from ..flow_builder import FlowBuilder
from . import schema, view
from .schema import Message
from .view import Closure, Item, MindirScope, OperandPlace, Written
from .weights import MindirFile

NUMBER = "number"  # the type of a constant that is not a tensor
NO_PLACE = "a tuple holds it where no cast can stand"
SHARED = "its memory is written in place"


@dataclass
class _Here:
    """The graph that is being read: what its names stand for, and the node behind each."""

    names: dict[str, Item] = field(default_factory=dict)
    makers: dict[str, Message] = field(default_factory=dict)


class MindirValues(FlowBuilder):
    """Adds to the dataflow what the model's values are."""

    def __init__(self, file: MindirFile, flow: Dataflow, low: str, low_io: frozenset[str]) -> None:
        super().__init__(flow, low, low_io)
        self.file, self.model = file, file.model
        self.primitives = view.primitives(self.model)
        self.constants: dict[str, Item] = {}
        self.parameters: dict[str, Item] = {}  # ref_key or name -> value, or Written
        self.escaped: dict[str, None] = {}  # functions that go where they cannot be followed
        self.here = _Here()
        self._functions = {graph.name for graph in self.model.functions}
        self._taken: set[tuple[int, str]] = set()

    def enter(self, graph: Message, names: dict[str, Item]) -> None:
        """From now on names are those of a graph."""
        self.here = _Here(names)

    def made(self, node: Message, item: Item) -> None:
        """What a node of the graph stands for."""
        self.here.names[node.output[0]], self.here.makers[node.output[0]] = item, node

    # -- names --------------------------------------------------------------------------------------------------------

    def lookup(self, name: str) -> Item:
        """What a name stands for in the graph that is being read."""
        if name in self.here.names:
            return self.here.names[name]
        if name in self.constants:
            return self.constants[name]
        return Closure(frozenset([(name, 0)])) if name in self._functions else None

    def constant(self, name: str) -> view.Plain:
        """The Python value of a Constant that is not a tensor; None for a tensor."""
        item = self.constants.get(name)
        value = self.flow.values[item] if isinstance(item, int) else None
        return view.number(value.native) if value is not None and value.dtype == NUMBER else None

    def kind(self, node: Message) -> str:
        """The operator of a node; ``call`` for a function or a function value."""
        return view.kind_of(node, self.primitives)

    def parts(
        self, item: Item, place: OperandPlace, name: str, through: bool = False
    ) -> Iterator[tuple[Item, OperandPlace | None]]:
        """The elements of an operand with the places where each can be replaced, None where there is none.

        ``through``: a place is looked for in front of a Depend too."""
        makers = self.here.makers
        maker = makers.get(name)
        while maker is not None and (through or isinstance(item, tuple)) and self.kind(maker) == "Depend":
            place, name = OperandPlace(maker, 0, place), maker.input[0]
            maker = makers.get(name)
        if not isinstance(item, tuple):
            yield item, place
        elif maker is not None and self.kind(maker) in view.TUPLES:
            for position, part in enumerate(maker.input):
                yield from self.parts(item[position], OperandPlace(maker, position, place), part, through)
        else:
            yield from ((inner, None) for inner in view.flat(item))

    def escape(self, item: Item) -> None:
        """A function that goes where it cannot be followed: it may be called with anything."""
        for part in view.flat(item):
            if isinstance(part, Closure):
                self.escaped.update(dict.fromkeys(function for function, _ in sorted(part.targets)))

    # -- values -------------------------------------------------------------------------------------------------------

    def graph_scope(self, path: str, parent: int, graph: Message) -> Scope:
        """The main graph, or a function: one scope, however often it is called."""
        return self.scope(path, parent, NONE, "main" if parent == NONE else "function", 1, MindirScope(graph))

    def tensor(self, name: str, scope: Scope, tensor: Message | None, dtype: str = "", producer: int = NONE) -> Value:
        """A new value, under a name that no other value of its scope has; of the type that the file shows."""
        dtype = dtype or self.element_type(tensor, name)
        while (scope.id, name) in self._taken:
            name += "'"
        self._taken.add((scope.id, name))
        return self.value(name, scope.id, dtype, shape=view.shape_of(tensor), producer=producer)

    def stored(self, name: str, scope: Scope, tensor: Message | None, native: Message, dtype: str = "") -> Value:
        """A stored tensor or number."""
        value = self.tensor(name, scope, tensor, dtype)
        value.weight, value.native = True, native
        return value

    def element_type(self, tensor: Message, name: str) -> str:
        """The element type of a Tensor message. Raises AmpError AMP201 where it has none."""
        found = view.dtype_of(tensor)
        if not tensor.data_type:
            problem = f"'{view.shown(name)}' has no element type"
            raise AmpError("AMP201", problem, where=self.file.where, hint="export it again with mindspore.export")
        return found or f"type {tensor.data_type}"

    def is_other(self, dtype: str) -> bool:
        """Whether float32 may not change where it meets this type: the file is at odds with itself, and stays so."""
        return dtype not in (FLOAT32, self.low, NUMBER)

    def hold(self, value: Value, why: str) -> None:
        """A value keeps its type; one that a given Cast made has it already."""
        if value.unit != NONE and value.low_source == NONE:
            self.flow.merge((value.unit, self.fixed_unit(f"held {len(self.flow.units)}", why)))

    def tie(self, value: Value, unit: int) -> None:
        """One type for a value and a reader that no cast can stand in front of."""
        if value.weight or value.low_source != NONE:
            self.flow.merge((unit, self.fixed_unit(f"tied {len(self.flow.units)}", NO_PLACE)))
        elif value.unit != NONE:
            self.flow.merge((unit, value.unit))

    # -- what the file shows ------------------------------------------------------------------------------------------

    def show(self, item: Item, abstract: Message | None, name: str) -> None:
        """Notes an abstract that shows another float type than what it stands for has."""
        if abstract is None:
            return
        if abstract.type in view.SEQUENCES:
            for part, inner in zip(item, abstract.values, strict=False) if isinstance(item, tuple) else ():
                self.show(part, inner, name)
        elif abstract.type in (schema.TENSORS, schema.TENSOR):
            self.compare(item, abstract.tensors, name)

    def compare(self, item: Item, tensors: Message, name: str) -> None:
        """Notes Tensor messages that show another float type than what they stand for has."""
        for part, tensor in zip(item if isinstance(item, tuple) else (item,), tensors, strict=False):
            known = part.tensor if isinstance(part, Written) else None
            has = self.flow.values[part].dtype if isinstance(part, int) else view.dtype_of(known)
            says = view.dtype_of(tensor)
            if has != says and has in schema.ELEMENT_NUMBERS and says in schema.ELEMENT_NUMBERS:
                self.conflict(f"'{name}' is {has}, and says {says}")
