"""Values of a MindIR model in its dataflow: what a name stands for, what arrives, and what lies in one memory."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op, Scope, Ties, Value
from ...core.errors import AmpError
from ..flow_builder import LOW_TYPES, FlowBuilder
from . import schema, view
from .schema import Message
from .view import Closure, Item, MindirScope, OperandPlace, Written
from .weights import MindirFile

INPUT, OUTPUT = "a graph input keeps its type", "a graph output keeps its type"
NUMBER = "number"  # the type of a constant that is not a tensor
NO_PLACE = "a tuple holds it where no cast can stand"
SHARED = "its memory is written in place"


class MindirValues(FlowBuilder):
    """Adds the values of a MindIR model to the dataflow."""

    def __init__(self, file: MindirFile, flow: Dataflow, low: str, low_io: frozenset[str]) -> None:
        super().__init__(flow, low, low_io)
        self.file, self.model = file, file.model
        self.settles = False  # whether what shows another type is written anew, and no conflict
        self.primitives = view.primitives(self.model)
        self.constants: dict[str, Item] = {}
        self.parameters: dict[str, Item] = {}  # ref_key or name -> value, or Written
        self.escaped: dict[str, None] = {}  # functions that go where they cannot be followed
        self.names: dict[str, Item] = {}  # of the graph that is being read: what each stands for
        self.makers: dict[str, Message] = {}  # and the node behind it
        self._functions = {graph.name for graph in self.model.functions}
        self._taken: set[tuple[int, str]] = set()

    # -- names --------------------------------------------------------------------------------------------------------

    def lookup(self, name: str) -> Item:
        """What a name stands for in the graph that is being read."""
        if name in self.names:
            return self.names[name]
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
        maker = self.makers.get(name)
        while maker is not None and (through or isinstance(item, tuple)) and self.kind(maker) == "Depend":
            place, name = OperandPlace(maker, 0, place), maker.input[0]
            maker = self.makers.get(name)
        if not isinstance(item, tuple):
            yield item, place
        elif maker is not None and self.kind(maker) in view.TUPLES:
            for position, part in enumerate(maker.input):
                yield from self.parts(item[position], OperandPlace(maker, position, place), part, through)
        else:
            yield from ((inner, None) for inner in view.flat(item))

    def escape(self, item: Item) -> None:
        """Notes that a function goes where it cannot be followed (into an unknown operator): anything may call it."""
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
        """A value for a stored tensor or number."""
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
        """Whether a type is neither float32 nor the low one: where it meets float32 in one slot, the file contradicts
        itself and stays as it is."""
        return dtype not in (FLOAT32, self.low, NUMBER)

    def hold(self, value: Value, why: str) -> None:
        """Keeps a value's type as it is, for the reason ``why``; one that a given Cast made has it already."""
        if value.unit != NONE and value.low_source == NONE:
            self.flow.merge((value.unit, self.fixed_unit(f"held {len(self.flow.units)}", why)))

    def tie(self, value: Value, unit: int) -> None:
        """Gives one type to a value and a reader in front of which no Cast can stand."""
        if value.weight or value.low_source != NONE:
            self.flow.merge((unit, self.fixed_unit(f"tied {len(self.flow.units)}", NO_PLACE)))
        elif value.unit != NONE:
            self.flow.merge((unit, value.unit))

    # -- what the file shows ------------------------------------------------------------------------------------------

    def show(self, item: Item, abstract: Message | None, name: str) -> None:
        """Notes an abstract that shows another float type than its value has, to be rewritten when types are
        settled."""
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
                if self.settles:
                    tensor.data_type = schema.ELEMENT_NUMBERS[has]
                else:
                    self.conflict(f"'{name}' is {has}, and says {says}")

    def arriving(self, info: Message, scope: Scope, name: str) -> Item:
        """What an input of a graph stands for: a value, a parameter, a tuple."""
        abstract = info.attr_info if info.HasField("attr_info") else None
        tensors = list(info.tensor) or list(view.elements(abstract))
        found: list[Item] = []
        for number, tensor in enumerate(tensors):
            if tensor is None:
                found.append(None)
            elif tensor.ref_key and tensor.ref_key in self.parameters:
                found.append(self.parameters[tensor.ref_key])
                self.compare(found[-1], [tensor], info.name)
            else:
                value = self.tensor(name if len(tensors) == 1 else f"{name}[{number}]", scope, tensor)
                found.append(value.id)
                scope.native.held[value.id] = info, number
                if len(tensors) == 1:
                    scope.native.names[value.id] = info.name
                if value.dtype == FLOAT32 and scope.kind == "main":
                    value.unit = self.boundary_unit(f"input {len(scope.inputs)}", value.name in self.low_io, INPUT)
                elif value.dtype == FLOAT32:
                    slot = f"{scope.path} input {value.name}"
                    value.unit = self.flow.new_unit(NONE, slot, LOW_TYPES, crosses=True)
                scope.inputs.append(value.id)
        return view.nested(abstract, iter(found)) if not info.tensor else found[0] if len(found) == 1 else tuple(found)


class MindirMemory(MindirValues):
    """Notes, while a MindIR model is read, which values lie in one memory and which are written in place."""

    def __init__(self, file: MindirFile, flow: Dataflow, low: str, low_io: frozenset[str]) -> None:
        super().__init__(file, flow, low, low_io)
        self._shared: list[tuple[int, int]] = []  # values in the same memory
        self._seen: set[int] = set()  # values that share their memory
        self._changed: set[int] = set()  # values that are written in place
        self._rewriting: list[Op] = []  # operators that write their first operand and give it back

    def share(self, one: int, other: int) -> None:
        """Notes that two values lie in the same memory."""
        self._shared.append((one, other))
        self._seen |= {one, other}

    def changes(self, value: int) -> None:
        """Notes that a value is written in place."""
        self._changed.add(value)

    def rewrites(self, op: Op) -> None:
        """Notes that an operator writes its first operand and gives it back."""
        self._rewriting.append(op)

    def hold_shared(self) -> None:
        """Keeps the type of all that is written in place: a Cast would be a copy, which is written instead, or read too
        early."""
        given = {source for source, _ in self.flow.passed}
        for op in self._rewriting:  # in order: what one that is seen gives back is seen too
            if op.inputs[0] in given or self._is_seen(op.inputs[0]):
                self._hold_rewriting(op)
        memory = Ties(range(len(self.flow.values)))
        for pair in self._shared:
            memory.tie(pair)
        changed = set(map(memory.find, self._changed))
        for value in self.flow.values if changed else ():
            if memory.find(value.id) in changed:
                self.hold(value, SHARED)

    def _is_seen(self, value: int) -> bool:
        """Whether more than its one reader could see that a value is written in place."""
        single = len(self.flow.uses[value]) <= 1
        return not single or self.flow.values[value].producer == NONE or value in self._seen

    def _hold_rewriting(self, op: Op) -> None:
        """Keeps the types of an operator that writes its first operand in place and gives it back."""
        first, flow = op.inputs[0], self.flow
        self.changes(first)
        for made in op.outputs:
            self.share(made, first)
        for unit in op.slots.values():
            flow.merge((unit, self.fixed_unit(f"rewritten {len(flow.units)}", SHARED)))
