"""Builds the Dataflow of a MindIR model: slots and units by the table of operators, types checked by propagation.

Load, Depend, TupleGetItem, MakeTuple and UpdateState are no operators here: what reads through them reads the value
itself. A function is one scope, however often it is called; what it is given and what it returns has one type.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op, Scope, Use, Value
from ...core.errors import AmpError
from ...core.graph import LOW
from ...oplists.mindspore_schemas import NO_SLOT, operator
from . import schema, view
from .functions import CALLS, Functions
from .slots import Operators
from .view import Item, MindirScope, Place, Written
from .weights import MindirFile

NUMBER = "number"  # the type of a constant that is no tensor
WRITTEN = "a parameter that is written keeps its type"
NO_PLACE = "a tuple holds it where no cast can stand"
SHARED = "its memory is written in place"
_ADMITS = frozenset(LOW)


class DataflowBuilder:
    """Walks the graphs once, in order. ``low`` is the type that given casts are compared with."""

    def __init__(self, file: MindirFile, flow: Dataflow, low: str, low_io: frozenset[str]) -> None:
        self.file, self.model, self.flow, self.low, self.low_io = file, file.model, flow, low, low_io
        self.graphs = [self.model.graph, *self.model.functions]
        self.primitives = view.primitives(self.model)
        self.constants: dict[str, Item] = {}
        self.parameters: dict[str, Item] = {}  # ref_key or name -> value, or Written
        self.written = self._written()
        self._taken: set[tuple[int, str]] = set()
        self._shares: dict[int, int] = {}  # value -> another in the same memory
        self._changed: set[int] = set()  # values that are written in place
        self.functions = Functions(self)
        self.operators = Operators(self)

    def build(self) -> Dataflow:
        main = self.new_scope("", NONE, self.model.graph)
        self._constants(main)
        self._parameters(main)
        env: dict[str, Item] = {}
        for tensor in self.model.graph.parameter:
            env[tensor.name] = self.parameters[tensor.ref_key or tensor.name]
        for info in self.model.graph.input:
            env[info.name] = self.arriving(info, main, info.name.split(":", 1)[-1])
        self.functions.declare()
        self._graph(main, env)
        for graph in self.model.functions:
            self._graph(self.functions.scopes[graph.name], dict(self.functions.formals[graph.name]))
        self.functions.close()
        self._hold_shared()
        return self.flow

    def _graph(self, scope: Scope, env: dict[str, Item]) -> None:
        self.names = env
        self.makers: dict[str, Any] = {}
        for index, node in enumerate(scope.native.graph.node):
            if node.op_type != "Constant":
                env[node.output[0]] = self._node(index, node, scope)
                self.makers[node.output[0]] = node
        self._results(scope)

    # -- values and uses ----------------------------------------------------------------------------------------------

    def new_scope(self, path: str, parent: int, graph: Any) -> Scope:
        kind = "main" if parent == NONE else "function"
        scope = Scope(len(self.flow.scopes), path, parent, NONE, kind, 1, native=MindirScope(graph))
        self.flow.scopes.append(scope)
        return scope

    def value(self, name: str, scope: Scope, dtype: str, tensor: Any = None, **more: Any) -> Value:
        """A new value, under a name that no other value of its scope has."""
        while (scope.id, name) in self._taken:
            name += "'"
        self._taken.add((scope.id, name))
        value = Value(len(self.flow.values), name, scope.id, dtype, shape=view.shape_of(tensor), **more)
        self.flow.values.append(value)
        self.flow.uses.append([])
        return value

    def use(self, value: Value, op: int, index: int, unit: int, scope: int) -> None:
        self.flow.uses[value.id].append(Use(value.id, op, index, unit, scope))

    def fixed_unit(self, slot: str, why: str, op: int = NONE) -> int:
        return self.flow.new_unit(op, slot, frozenset(), fixed=why)

    def is_other(self, dtype: str) -> bool:
        """Whether float32 may not change where it meets this type: the file is at odds with itself, and stays so."""
        return dtype not in (FLOAT32, self.low, NUMBER)

    def hold(self, value: Value, why: str) -> None:
        """A value keeps its type; one that a given Cast made has it already."""
        if value.unit != NONE and value.low_source == NONE:
            self.flow.merge((value.unit, self.fixed_unit(f"held {len(self.flow.units)}", why)))

    def element_type(self, tensor: Any, name: str) -> str:
        """The element type of a Tensor message. Raises AmpError AMP201 where it has none."""
        found = view.dtype_of(tensor)
        if not tensor.data_type:
            problem = f"'{view.shown(name)}' has no element type"
            raise AmpError("AMP201", problem, where=self.file.where, hint="export it again with mindspore.export")
        return found or f"type {tensor.data_type}"

    def _constants(self, scope: Scope) -> None:
        """Constants have one name in all graphs. A tensor is a weight, a number a value without a float type."""
        for graph in self.graphs:
            for node in graph.node:
                if node.op_type == "Constant":
                    given = view.attribute(node, "value")
                    self.constants[node.output[0]] = self._constant(node, node.output[0], given, scope)

    def _constant(self, node: Any, name: str, given: Any, scope: Scope) -> Item:
        if given is None or given.type in view.MONADS:
            return None
        found = [tensor for tensor in view.elements(given) if tensor is not None]
        if not found:
            return self.value(name, scope, NUMBER, weight=True, native=given).id
        if given.type in view.SEQUENCES:
            return tuple(self._constant(node, f"{name}[{n}]", item, scope) for n, item in enumerate(given.values))
        value = self.value(name, scope, self.element_type(found[0], name), found[0], weight=True, native=found[0])
        scope.native.held[value.id] = node, 0
        scope.native.names[value.id] = name
        return value.id

    def _parameters(self, scope: Scope) -> None:
        for tensor in self.model.graph.parameter:
            key = tensor.ref_key or tensor.name
            if key in self.written:
                self.parameters[key] = Written(tensor)
            else:
                dtype = self.element_type(tensor, key)
                value = self.value(key, scope, dtype, tensor, weight=True, parameter=True, native=tensor)
                self.parameters[key] = value.id

    def _written(self) -> set[str]:
        """Parameters that an operator with a side effect, or one that nothing is known of, is given directly."""
        found: set[str] = set()
        nothing: frozenset[str] = frozenset()
        for graph in self.graphs:
            keys = {t.name: frozenset([t.ref_key or t.name]) for t in graph.parameter}
            keys |= {i.name: frozenset([i.tensor[0].ref_key]) for i in graph.input if i.tensor and i.tensor[0].ref_key}
            loaded: dict[str, frozenset[str]] = {}
            for node in graph.node:
                kind = self.kind(node)
                entry = operator(kind)
                given = nothing.union(*(keys.get(name, nothing) for name in node.input))
                first = loaded.get(node.input[0], nothing) if node.input else nothing
                if kind == "Load":
                    loaded[node.output[0]] = given
                elif kind in view.TUPLES or kind in ("Depend", "TupleGetItem") or (entry is not None and entry.view):
                    keys[node.output[0]] = given
                    loaded[node.output[0]] = first
                elif kind not in CALLS and (entry is None or entry.effect):
                    found |= given
                    found |= first if entry is not None and entry.slot_of_input(0) == NO_SLOT else nothing
        return found

    def kind(self, node: Any) -> str:
        """The operator of a node; ``call`` for a function or a function value."""
        return view.kind_of(node, self.primitives)

    # -- borders ------------------------------------------------------------------------------------------------------

    def arriving(self, info: Any, scope: Scope, name: str) -> Item:
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
                single = name if len(tensors) == 1 else f"{name}[{number}]"
                value = self.value(single, scope, self.element_type(tensor, single), tensor)
                found.append(value.id)
                scope.native.held[value.id] = info, number
                if len(tensors) == 1:
                    scope.native.names[value.id] = info.name
                self._arrival_unit(value, scope)
                scope.inputs.append(value.id)
        return view.nested(abstract, iter(found)) if not info.tensor else found[0] if len(found) == 1 else tuple(found)

    def _arrival_unit(self, value: Value, scope: Scope) -> None:
        if value.dtype == FLOAT32 and scope.kind == "main":
            slot = f"input {len(scope.inputs)}"
            value.unit = self._boundary_unit(slot, value.name, "a graph input keeps its type")
        elif value.dtype == FLOAT32:
            value.unit = self.flow.new_unit(NONE, f"{scope.path} input {value.name}", _ADMITS, border=True)

    def _boundary_unit(self, slot: str, name: str, why: str) -> int:
        if name in self.low_io:
            return self.flow.new_unit(NONE, slot, _ADMITS, fixed_low=True)
        return self.fixed_unit(slot, why)

    def _results(self, scope: Scope) -> None:
        """Reads of what a graph returns, tuples opened."""
        native = scope.native
        for info in native.graph.output:
            self._show(self.lookup(info.name), info.attr_info if info.HasField("attr_info") else None, info.name)
            self.compare(self.lookup(info.name), info.tensor, info.name)
        places = (
            part
            for number, info in enumerate(native.graph.output)
            for part in self.parts(self.lookup(info.name), Place(None, number), info.name, through=True)
        )
        for index, (item, place) in enumerate(places):
            self.functions.escape(item)
            if not isinstance(item, int):
                self.functions.opaque(scope.path, index)
                continue
            value, unit = self.flow.values[item], NONE
            if value.dtype == FLOAT32 and scope.kind == "main":
                unit = self._boundary_unit(f"output {index}", f"output {index}", "a graph output keeps its type")
            elif scope.kind == "function":
                unit = self.functions.result(scope.path, index, value)
            scope.outputs.append(value.id)
            native.outputs.append(place)
            self.use(value, NONE, len(native.outputs) - 1, unit, scope.id)
            if place is None and unit != NONE:
                self.tie(value, unit)

    def parts(self, item: Item, place: Place, name: str, through: bool = False) -> Iterator[tuple[Item, Place | None]]:
        """The elements of an operand with the places where each can be replaced, None where there is none.

        ``through``: a place is looked for in front of a Depend too."""
        maker = self.makers.get(name)
        while maker is not None and (through or isinstance(item, tuple)) and self.kind(maker) == "Depend":
            place, name = Place(maker, 0, place), maker.input[0]
            maker = self.makers.get(name)
        if not isinstance(item, tuple):
            yield item, place
        elif maker is not None and self.kind(maker) in view.TUPLES:
            for position, part in enumerate(maker.input):
                yield from self.parts(item[position], Place(maker, position, place), part, through)
        else:
            yield from ((inner, None) for inner in view.flat(item))

    def tie(self, value: Value, unit: int) -> None:
        """One type for a value and a reader that no cast can stand in front of."""
        if value.weight or value.low_source != NONE:
            self.flow.merge((unit, self.fixed_unit(f"tied {len(self.flow.units)}", NO_PLACE)))
        elif value.unit != NONE:
            self.flow.merge((unit, value.unit))

    # -- nodes --------------------------------------------------------------------------------------------------------

    def lookup(self, name: str) -> Item:
        if name in self.names:
            return self.names[name]
        return self.constants[name] if name in self.constants else self.functions.value(name)

    def constant(self, name: str) -> Any:
        """The Python value of a Constant that is no tensor; None for anything else."""
        item = self.constants.get(name)
        value = self.flow.values[item] if isinstance(item, int) else None
        return view.number(value.native) if value is not None and value.dtype == NUMBER else None

    def _node(self, index: int, node: Any, scope: Scope) -> Item:
        kind = self.kind(node)
        if kind in CALLS:
            return self.functions.call(kind, node, index, scope)
        entry = operator(kind)
        if kind in view.TUPLES or (entry is not None and entry.structural):
            return self._structural(kind, node, scope)
        return self.operators.read(kind, entry, node, index, scope)

    def _structural(self, kind: str, node: Any, scope: Scope) -> Item:
        if kind in view.TUPLES:
            made = tuple(self.lookup(name) for name in node.input)
            self._show(made, view.attribute(node, "shape"), node.output[0])
            return made
        if kind not in ("Load", "Depend", "TupleGetItem", "list_getitem"):
            return None
        native, item, name = scope.native, self.lookup(node.input[0]), node.output[0]
        shown = view.attribute(node, "shape")
        if kind == "Depend" or node.input[0] in native.ordered:
            native.ordered.add(name)
        if kind == "Load" and isinstance(item, Written):
            loaded = self._load(item, node, scope)
            self._show(loaded, shown, name)
            return loaded
        if kind in ("TupleGetItem", "list_getitem"):
            at = self.constant(node.input[1])
            known = isinstance(item, tuple) and isinstance(at, int) and -len(item) <= at < len(item)
            item = item[at] if known else None
        if isinstance(item, int) and name not in native.ordered:
            native.names.setdefault(item, name)
        self._show(item, shown, name)
        return item

    def _show(self, item: Item, abstract: Any, name: str) -> None:
        """Tells of an abstract that shows another float type than what it stands for has."""
        if abstract is None:
            return
        if abstract.type in view.SEQUENCES:
            for part, inner in zip(item, abstract.values, strict=False) if isinstance(item, tuple) else ():
                self._show(part, inner, name)
        elif abstract.type in (schema.TENSORS, schema.TENSOR):
            self.compare(item, abstract.tensors, name)

    def compare(self, item: Item, tensors: Any, name: str) -> None:
        """Tells of Tensor messages that show another float type than what they stand for has."""
        for part, tensor in zip(item if isinstance(item, tuple) else (item,), tensors, strict=False):
            known = part.tensor if isinstance(part, Written) else None
            has = self.flow.values[part].dtype if isinstance(part, int) else view.dtype_of(known)
            says = view.dtype_of(tensor)
            if has != says and has in schema.ELEMENT_NUMBERS and says in schema.ELEMENT_NUMBERS:
                self.flow.conflicts.append(f"'{name}' is {has}, and says {says}")

    def _load(self, item: Written, node: Any, scope: Scope) -> Item:
        """What a parameter holds at one moment."""
        value = self.value(node.output[0], scope, self.element_type(item.tensor, node.output[0]), item.tensor)
        scope.native.names[value.id] = node.output[0]
        if value.dtype == FLOAT32:
            value.unit = self.fixed_unit(f"parameter {value.name}", WRITTEN)
        return value.id

    # -- memory -------------------------------------------------------------------------------------------------------

    def share(self, one: int, other: int) -> None:
        """Two values lie in the same memory."""
        self._shares[self._memory(one)] = self._memory(other)

    def changes(self, value: int) -> None:
        """A value is written in place."""
        self._changed.add(value)

    def _memory(self, value: int) -> int:
        while value in self._shares and self._shares[value] != value:
            value = self._shares[value]
        return value

    def _hold_shared(self) -> None:
        """What is written in place is never cast: the copy would be written, or read too early."""
        changed = {self._memory(value) for value in self._changed}
        for value in self.flow.values if changed else ():
            if self._memory(value.id) in changed:
                self.hold(value, SHARED)

    def attribute(self, op: Op, name: str) -> Any:
        """What the role calls an attribute, from an operand or the primitive; None when absent."""
        return self.operators.attribute(op, name)
