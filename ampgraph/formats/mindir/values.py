"""Values of a MindIR model in its dataflow: what a name stands for (its *item*), what arrives, what shares memory."""

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
    """Adds the values of a MindIR model to its dataflow. ``low``, ``low_io``: see `FlowBuilder`."""

    def __init__(self, file: MindirFile, flow: Dataflow, low: str, low_io: frozenset[str]) -> None:
        super().__init__(flow, low, low_io)
        self.file, self.model = file, file.model
        self.settles = False  # whether messages that show another type are changed; else they are conflicts
        self.primitives = view.primitives(self.model)
        self.constants: dict[str, Item] = {}  # by name; they are known in all graphs
        self.parameters: dict[str, Item] = {}  # ref_key or name -> a value's id, or Written
        self.escaped: dict[str, None] = {}  # functions that go where they cannot be followed
        self.names: dict[str, Item] = {}  # of the graph that is being read: what each name stands for
        self.makers: dict[str, Message] = {}  # of the same graph: the node that makes it
        self._functions = {graph.name for graph in self.model.functions}
        self._taken: set[tuple[int, str]] = set()  # (scope's id, name) of the values so far

    # -- names --------------------------------------------------------------------------------------------------------

    def lookup(self, name: str) -> Item:
        """What a name stands for in the .mindir graph that is being read; None for a state or an unknown name."""
        if name in self.names:
            return self.names[name]
        if name in self.constants:
            return self.constants[name]
        return Closure(frozenset([(name, 0)])) if name in self._functions else None

    def constant(self, name: str) -> view.Plain:
        """The Python value of a MindIR Constant that is no tensor; None for a tensor, and for other names."""
        item = self.constants.get(name)
        value = self.flow.values[item] if isinstance(item, int) else None
        return view.number(value.native) if value is not None and value.dtype == NUMBER else None

    def kind(self, node: Message) -> str:
        """The operator of a MindIR node, as ``MatMul``; ``call`` for the call of a function or a function value."""
        return view.kind_of(node, self.primitives)

    def parts(
        self, item: Item, place: OperandPlace, name: str, through: bool = False
    ) -> Iterator[tuple[Item, OperandPlace | None]]:
        """(element, place where it can be replaced, or None where it cannot) for each element of a MindIR operand.
        ``item``: what the operand stands for. Elements of a tuple are replaced in the MakeTuple that makes it, also
        behind a Depend; with ``through`` any operand in front of a Depend."""
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
            yield from ((part, None) for part in view.flat_items(item))

    def escape(self, item: Item) -> None:
        """Notes that functions in a MindIR item go where they cannot be followed: anything may call them."""
        for part in view.flat_items(item):
            if isinstance(part, Closure):
                self.escaped.update(dict.fromkeys(function for function, _ in sorted(part.targets)))

    # -- values -------------------------------------------------------------------------------------------------------

    def graph_scope(self, path: str, parent: int, graph: Message) -> Scope:
        """While a MindIR file is read: adds the scope of the main graph (``parent`` is NONE) or of a function."""
        return self.add_scope(path, parent, NONE, "main" if parent == NONE else "function", 1, MindirScope(graph))

    def add_tensor(
        self, name: str, scope: Scope, tensor: Message | None, dtype: str = "", producer: int = NONE
    ) -> Value:
        """While a MindIR file is read: adds a value, under ``name``, with a ' behind it while another of its scope has
        that. ``tensor``: shows its shape, and its type where ``dtype`` is ""."""
        dtype = dtype or self.element_type(tensor, name)
        while (scope.id, name) in self._taken:
            name += "'"
        self._taken.add((scope.id, name))
        return self.add_value(name, scope.id, dtype, shape=view.shape_of(tensor), producer=producer)

    def add_stored(self, name: str, scope: Scope, tensor: Message | None, native: Message, dtype: str = "") -> Value:
        """While a MindIR file is read: adds a value for what is stored in ``native``, as `add_tensor` does."""
        value = self.add_tensor(name, scope, tensor, dtype)
        value.weight, value.native = True, native
        return value

    def element_type(self, tensor: Message, name: str) -> str:
        """The type of a .mindir Tensor message, ``type 42`` for an unknown one. Raises AmpError AMP201 without one."""
        found = view.dtype_of(tensor)
        if not tensor.data_type:
            problem = f"'{view.short_name(name)}' has no element type"
            raise AmpError("AMP201", problem, where=self.file.where, hint="export it again with mindspore.export")
        return found or f"type {tensor.data_type}"

    def is_other(self, dtype: str) -> bool:
        """Whether a type in a MindIR dataflow is neither float32 nor the low one, nor a number's: where it meets
        float32 in one slot, MindSpore promotes, and the slot stays as it is."""
        return dtype not in (FLOAT32, self.low, NUMBER)

    def hold(self, value: Value, why: str) -> None:
        """Keeps a MindIR value float32, for the reason ``why``, unless a given Cast made it."""
        if value.unit != NONE and value.low_source == NONE:
            self.flow.merge((value.unit, self.fixed_unit(f"held {len(self.flow.units)}", why)))

    def tie(self, value: Value, unit: int) -> None:
        """Gives one type to a MindIR value and ``unit``, that of a reader in front of which no Cast can stand: float32
        for a stored value, and one that a given Cast made."""
        if value.weight or value.low_source != NONE:
            self.flow.merge((unit, self.fixed_unit(f"tied {len(self.flow.units)}", NO_PLACE)))
        elif value.unit != NONE:
            self.flow.merge((unit, value.unit))

    # -- what the file shows ------------------------------------------------------------------------------------------

    def check_abstract(self, item: Item, abstract: Message | None, name: str) -> None:
        """Compares a MindIR abstract, or None, with the item that it describes, tuples opened, as `compare` does."""
        if abstract is None:
            return
        if abstract.type in view.SEQUENCES and isinstance(item, tuple):
            for part, described in zip(item, abstract.values, strict=False):
                self.check_abstract(part, described, name)
        elif abstract.type in (schema.TENSORS, schema.TENSOR):
            self.compare(item, abstract.tensors, name)

    def compare(self, item: Item, tensors: Message, name: str) -> None:
        """Compares .mindir Tensor messages with what they describe: one that says another float type than that has is
        noted as a conflict, or, while types are settled (`settles`), changed. ``item``: one, or as many."""
        for part, tensor in zip(item if isinstance(item, tuple) else (item,), tensors, strict=False):
            if isinstance(part, int):
                has = self.flow.values[part].dtype
            else:
                has = view.dtype_of(part.tensor) if isinstance(part, Written) else ""
            says = view.dtype_of(tensor)
            if has != says and has in schema.ELEMENT_NUMBERS and says in schema.ELEMENT_NUMBERS:
                if self.settles:
                    tensor.data_type = schema.ELEMENT_NUMBERS[has]
                else:
                    self.note_conflict(f"'{name}' is {has}, and says {says}")

    def add_input(self, info: Message, scope: Scope, name: str) -> Item:
        """Adds the values of an input of a MindIR graph, tuples opened, with their units, and returns the input's item:
        a value, a parameter of the model, a tuple, None for a state. ``name``: of the value."""
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
                value = self.add_tensor(name if len(tensors) == 1 else f"{name}[{number}]", scope, tensor)
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
        if not info.tensor:
            return view.nested_item(abstract, iter(found))
        return found[0] if len(found) == 1 else tuple(found)


class MindirMemory(MindirValues):
    """Notes which MindIR values lie in one memory and which are written in place; `hold_shared` keeps their types."""

    def __init__(self, file: MindirFile, flow: Dataflow, low: str, low_io: frozenset[str]) -> None:
        super().__init__(file, flow, low, low_io)
        self._shared: list[tuple[int, int]] = []  # pairs of values in the same memory
        self._sharing: set[int] = set()  # the values in these pairs
        self._changed: set[int] = set()  # values that are written in place
        self._rewriting: list[Op] = []  # operators that write their first operand and give it back

    def note_shared(self, one: int, other: int) -> None:
        """Notes that two MindIR values lie in the same memory."""
        self._shared.append((one, other))
        self._sharing |= {one, other}

    def note_change(self, value: int) -> None:
        """Notes that a MindIR value is written in place, and so must keep its type."""
        self._changed.add(value)

    def note_rewrite(self, op: Op) -> None:
        """Notes that a MindIR operator writes its first operand and gives it back, which matters only where another
        reader could see that: `hold_shared` finds out when all is read."""
        self._rewriting.append(op)

    def hold_shared(self) -> None:
        """Keeps the type of all MindIR values in a memory that is written in place: a Cast would be a copy, which is
        written instead, or read too early. To be called when all graphs are read."""
        passed_on = {source for source, _ in self.flow.passed}
        for op in self._rewriting:  # in order: holding one makes what it gives back shared
            if op.inputs[0] in passed_on or self._is_seen_elsewhere(op.inputs[0]):
                self._hold_rewriting(op)
        memory = Ties(range(len(self.flow.values)))
        for pair in self._shared:
            memory.tie(pair)
        changed = set(map(memory.find, self._changed))
        for value in self.flow.values if changed else ():
            if memory.find(value.id) in changed:
                self.hold(value, SHARED)

    def _is_seen_elsewhere(self, value: int) -> bool:
        """Whether not one reader alone sees a MindIR value's memory: others do, or it is an input, stored or shared."""
        several = len(self.flow.uses[value]) > 1
        return several or self.flow.values[value].producer == NONE or value in self._sharing

    def _hold_rewriting(self, op: Op) -> None:
        """Keeps the types of a MindIR operator that gives its first operand back: its results lie in that memory."""
        first, flow = op.inputs[0], self.flow
        self.note_change(first)
        for made in op.outputs:
            self.note_shared(made, first)
        for unit in op.slots.values():
            flow.merge((unit, self.fixed_unit(f"rewritten {len(flow.units)}", SHARED)))
