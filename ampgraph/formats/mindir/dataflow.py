"""Builds the Dataflow of a MindIR model: slots and units by the table of operators, types checked by propagation.

Load, Depend, TupleGetItem, MakeTuple and UpdateState are no operators here: what reads through them reads the value
itself. A function is one scope, however often it is called; what it is given and what it returns has one type.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...core.dataflow import FLOAT32, NONE, Dataflow, Scope, WeightReader
from ...oplists.mindspore_schemas import NO_SLOT, operator
from . import view
from .operators import CALLS, Functions
from .schema import ELEMENT_NUMBERS, Message
from .step import is_step, mark_step
from .values import NUMBER, OUTPUT, MindirValues
from .view import Item, OperandPlace, Written
from .weights import MindirFile

Keys = frozenset[str]  # of parameters: the ref_key, or the name of one without


def read_constants(values: MindirValues, main: Scope) -> None:
    """Adds the Constants of all MindIR graphs to the dataflow and to ``values.constants``, as all graphs know them: a
    tensor is a weight of the scope ``main``, a number a value of type `NUMBER`."""
    for graph in view.graphs(values.model):
        for node in graph.node:
            if node.op_type == "Constant":
                given = view.attribute(node, "value")
                values.constants[node.output[0]] = _read_constant(values, node, node.output[0], given, main)


def _read_constant(values: MindirValues, node: Message, name: str, given: Message | None, main: Scope) -> Item:
    """Adds the values of a MindIR Constant to the dataflow, and returns what it stands for: a stored tensor, a number,
    a tuple of items if it holds a tensor; None for a monad. ``given``: the attribute or an element of it."""
    if given is None or given.type in view.MONADS:
        return None
    found = [tensor for tensor in view.elements(given) if tensor is not None]
    if not found:
        return values.add_stored(name, main, None, given, NUMBER).id
    if given.type in view.SEQUENCES:
        elements = enumerate(given.values)
        return tuple(_read_constant(values, node, f"{name}[{number}]", item, main) for number, item in elements)
    value = values.add_stored(name, main, found[0], found[0])
    main.native.held[value.id] = node, 0
    main.native.names[value.id] = name
    return value.id


def read_parameters(values: MindirValues, main: Scope) -> None:
    """Adds the MindIR parameters to the dataflow and to ``values.parameters``: a value each, or `Written` for one that
    the model writes, of which every Load is a value of its own."""
    written = _written_parameters(values)
    for tensor in values.model.graph.parameter:
        key = tensor.ref_key or tensor.name
        if key in written:
            values.parameters[key] = Written(tensor)
        else:
            value = values.add_stored(key, main, tensor, tensor)
            value.parameter = True
            values.parameters[key] = value.id


def _written_parameters(values: MindirValues) -> set[str]:
    """The keys of the MindIR parameters that are given to an operator with a side effect, or to an unknown one."""
    found: set[str] = set()
    for graph in view.graphs(values.model):
        keys: dict[str, Keys] = {t.name: frozenset([t.ref_key or t.name]) for t in graph.parameter}
        keys |= {i.name: frozenset([i.tensor[0].ref_key]) for i in graph.input if i.tensor and i.tensor[0].ref_key}
        loaded: dict[str, Keys] = {}
        for node in graph.node:
            found |= _written_by(node, values.kind(node), keys, loaded)
    return found


def _written_by(node: Message, kind: str, keys: dict[str, Keys], loaded: dict[str, Keys]) -> Keys:
    """The keys of the parameters that a MindIR node may write. ``keys``: name -> the parameters that it stands for;
    ``loaded``: name -> the parameters whose memory it holds, by a Load. Its result is added to both."""
    entry, nothing = operator(kind), Keys()
    given = nothing.union(*(keys.get(name, nothing) for name in node.input))
    first = loaded.get(node.input[0], nothing) if node.input else nothing
    if kind == "Load":
        loaded[node.output[0]] = given
    elif kind in view.TUPLES or kind in ("Depend", "TupleGetItem") or (entry is not None and entry.view):
        keys[node.output[0]] = given
        loaded[node.output[0]] = first
    elif kind not in CALLS and (entry is None or entry.effect or entry.in_place):
        writes_first = entry is not None and (entry.in_place or entry.slot_of_input(0) == NO_SLOT)
        return given | first if writes_first else given
    return nothing


WRITTEN = "a parameter that is written keeps its type"


def read_dataflow(file: MindirFile, weights: WeightReader, low: str, low_io: frozenset[str]) -> Dataflow:
    """Reads a MindIR file, as it is now, into a dataflow; edits of the file make it out of date. ``weights``: reads its
    stored tensors; ``low``: the type that given casts are compared with; ``low_io``: names of inputs and outputs that
    are to be low. Raises AmpError (AMP201 a value without a type, AMP203 calls that do not fit)."""
    reader = _reader_of(file, weights, low, low_io)
    flow = reader.flow
    flow.attribute, flow.parameters_copied = reader.attribute, False
    flow.cells = lambda op: view.cells(op.name)
    reader.read()
    return flow


def _reader_of(file: MindirFile, weights: WeightReader, low: str = "", low_io: frozenset[str] = Keys()) -> MindirReader:
    """A reader of a MindIR file over an empty dataflow, which knows no attributes until the reader gives it its own."""
    flow = Dataflow(weights, lambda op, name: None, lambda op: view.layer(op.name), lambda value: None)
    return MindirReader(file, flow, low, low_io)


def settle_types(file: MindirFile, flow: Dataflow, types: Mapping[int, str]) -> None:
    """Writes new element types into an edited MindIR file: where each value of ``types`` (id -> type) is made, then, as
    types flow on from there, into every other abstract. ``flow``: from before the edits."""
    for number, dtype in types.items():
        value = flow.values[number]
        held = flow.scopes[value.scope].native.held.get(number)
        if held is not None and not value.weight:
            native, position = held
            if value.producer == NONE:
                abstract = native.attr_info if native.HasField("attr_info") else None
                tensors = list(native.tensor) or list(view.elements(abstract))
            else:
                tensors = list(view.elements(view.attribute(native, "shape")))
            if view.dtype_of(tensors[position]) in ELEMENT_NUMBERS:
                tensors[position].data_type = ELEMENT_NUMBERS[dtype]
    reader = _reader_of(file, flow.weights)
    reader.settles = True
    reader.read()


class MindirReader(Functions):
    """Reads the graphs of a MindIR file into the dataflow, once and in order."""

    def read(self) -> None:
        """Reads all graphs of a MindIR file into the dataflow; marks what a step has outside the network."""
        model = self.model
        main = self.graph_scope("", NONE, model.graph)
        read_constants(self, main)
        read_parameters(self, main)
        names: dict[str, Item] = {}
        for tensor in model.graph.parameter:
            names[tensor.name] = self.parameters[tensor.ref_key or tensor.name]
        for info in model.graph.input:
            names[info.name] = self.add_input(info, main, info.name.split(":", 1)[-1])
        self.declare()
        self._read_graph(main, names)
        for graph in model.functions:
            self._read_graph(self.scopes[graph.name], dict(self.formals[graph.name]))
        self.close()
        self.hold_shared()
        if is_step(model):
            mark_step(self.flow, model)

    def _read_graph(self, scope: Scope, names: dict[str, Item]) -> None:
        """Reads one MindIR graph in order. ``names``: what inputs and parameters stand for; results are added to it."""
        self.names, self.makers = names, {}
        for index, node in enumerate(scope.native.graph.node):
            if node.op_type != "Constant":
                item = self._read_node(index, node, scope)
                names[node.output[0]], self.makers[node.output[0]] = item, node
        self._add_returns(scope)

    def _read_node(self, index: int, node: Message, scope: Scope) -> Item:
        """Reads a MindIR node, and returns what its result stands for. ``index``: the node's in its graph."""
        kind = self.kind(node)
        if kind in CALLS:
            return self.read_call(kind, node, index, scope)
        entry = operator(kind)
        if kind in view.TUPLES or (entry is not None and entry.structural):
            return self._read_structural(kind, node, scope)
        return self.read_operator(kind, entry, node, index, scope)

    def _read_structural(self, kind: str, node: Message, scope: Scope) -> Item:
        """Reads a MindIR node that only orders, loads or packs, and returns what its result stands for, or None."""
        abstract, name = view.attribute(node, "shape"), node.output[0]
        if kind in view.TUPLES:
            made = tuple(self.lookup(given) for given in node.input)
            self.check_abstract(made, abstract, name)
            return made
        if kind not in ("Load", "Depend", "TupleGetItem", "list_getitem"):
            return None
        native, item = scope.native, self.lookup(node.input[0])
        if kind == "Depend" or node.input[0] in native.ordered:
            native.ordered.add(name)
        if kind == "Load" and isinstance(item, Written):
            item = self._add_load(item, name, scope)
        else:
            if kind in ("TupleGetItem", "list_getitem"):
                item = self._element(item, node.input[1])
            if isinstance(item, int) and name not in native.ordered:
                native.names.setdefault(item, name)
        self.check_abstract(item, abstract, name)
        return item

    def _element(self, item: Item, index: str) -> Item:
        """The element that a MindIR TupleGetItem takes, None if not known. ``index``: a constant's name."""
        position = self.constant(index)
        if not isinstance(item, tuple) or not isinstance(position, int) or not -len(item) <= position < len(item):
            return None
        return item[position]

    def _add_load(self, item: Written, name: str, scope: Scope) -> Item:
        """Adds what a written MindIR parameter holds when a Load, whose result has this ``name``, reads it."""
        value = self.add_tensor(name, scope, item.tensor)
        scope.native.names[value.id] = name
        if value.dtype == FLOAT32:
            value.unit = self.fixed_unit(f"parameter {value.name}", WRITTEN)
        return value.id

    def _add_returns(self, scope: Scope) -> None:
        """Adds the reads of what a MindIR graph returns, tuples opened."""
        native = scope.native
        for info in native.graph.output:
            abstract = info.attr_info if info.HasField("attr_info") else None
            self.check_abstract(self.lookup(info.name), abstract, info.name)
            self.compare(self.lookup(info.name), info.tensor, info.name)
        places = (
            part
            for number, info in enumerate(native.graph.output)
            for part in self.parts(self.lookup(info.name), OperandPlace(None, number), info.name, through=True)
        )
        for index, (item, place) in enumerate(places):
            self.escape(item)
            if isinstance(item, int):
                self._add_return(scope, index, item, place)
            else:
                self.note_opaque(scope.path, index)

    def _add_return(self, scope: Scope, index: int, item: int, place: OperandPlace | None) -> None:
        """Adds the read of a MindIR graph's output ``index``, tied to it where no Cast can stand (no ``place``)."""
        value, unit, native = self.flow.values[item], NONE, scope.native
        if value.dtype == FLOAT32 and scope.kind == "main":
            slot = f"output {index}"
            unit = self.boundary_unit(slot, slot in self.low_io, OUTPUT)
        elif scope.kind == "function":
            unit = self.note_result(scope.path, index, value)
        scope.outputs.append(value.id)
        native.outputs.append(place)
        self.add_use(value, NONE, len(native.outputs) - 1, unit, scope.id)
        if place is None and unit != NONE:
            self.tie(value, unit)
