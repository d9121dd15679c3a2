"""Where an ONNX model is edited, by handles of its dataflow: the *native* objects of onnx_ir behind them, copies of
functions, places of new nodes, Casts, readers."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from ...core.dataflow import NONE, Dataflow, Op, Scope, Shape, Use, Value
from ...core.graph import UseKey
from ...core.names import FreshNames
from .native import doubted_shapes
from .types import DTYPES


@dataclass(eq=False)
class _FunctionCopy:
    """Originals of one function, each with its copy; empty where the original itself is used."""

    nodes: dict[ir.Node, ir.Node] = field(default_factory=dict)
    values: dict[ir.Value, ir.Value] = field(default_factory=dict)
    graphs: dict[ir.Graph | ir.Function, ir.Graph | ir.Function] = field(default_factory=dict)

    def pair(self, old: ir.Graph, new: ir.Graph) -> None:
        """Notes for every node and value of a function which one it is in the copy, by walking both in step."""
        self.graphs[old] = new
        self.values.update(zip(old.inputs, new.inputs, strict=True))
        for name, value in old.initializers.items():
            self.values[value] = new.initializers[name]
        for node, twin in zip(old, new, strict=True):
            self.nodes[node] = twin
            self.values.update(zip(node.outputs, twin.outputs, strict=True))
            for name, attribute in node.attributes.items():
                if attribute.is_ref():
                    continue
                if attribute.type == ir.AttributeType.GRAPH:
                    self.pair(attribute.value, twin.attributes[name].value)
                elif attribute.type == ir.AttributeType.GRAPHS:
                    for body, body_twin in zip(attribute.value, twin.attributes[name].value, strict=True):
                        self.pair(body, body_twin)


Chosen = dict[tuple[Hashable, Hashable], tuple[ir.Function, _FunctionCopy]]


class Variants:
    """Maps what the dataflow saw to the copy that a call uses. ``signature``: scope path -> what was decided inside.

    ``copied``: whether there is a copy at all."""

    def __init__(self, model: ir.Model, flow: Dataflow, signature: Mapping[str, Hashable]) -> None:
        self.model, self.flow = model, flow
        self.leader: dict[int, bool] = {}  # scope -> whether edits are made through it
        self.copied = False
        self._copies: dict[int, _FunctionCopy] = {}  # by scope
        chosen: Chosen = {}
        for scope in flow.scopes:
            if scope.kind != "function":
                parent = scope.parent if scope.kind == "body" else scope.id
                self.leader[scope.id] = self.leader.get(parent, True)
                self._copies[scope.id] = self._copies.get(parent) or _FunctionCopy()
                continue
            self._choose_copy(scope, chosen, signature.get(scope.path))

    def _choose_copy(self, scope: Scope, chosen: Chosen, signature: Hashable) -> None:
        """Finds or makes the copy of a function for what was decided inside this call, and has the call use it.

        ``chosen``, which it adds to: copies by function and ``signature``. The first signature of a function keeps the
        original. Only the first call of each copy is edited through (`leader`)."""
        function: ir.Function = scope.native
        identifier = function.identifier()
        key = (identifier, signature)
        call = self.flow.ops[scope.op]
        leads_caller = self.leader[call.scope]
        self.leader[scope.id] = key not in chosen
        if key not in chosen:
            first = all(k[0] != identifier for k in chosen)
            chosen[key] = (function, _FunctionCopy()) if first else self._copy(function)
        variant, self._copies[scope.id] = chosen[key]
        if leads_caller:  # also where it stays the original: a copied caller calls what its original was pointed at
            node = self.node(call.scope, call.native)
            node.op_type, node.domain, node.overload = variant.name, variant.domain, variant.overload

    def _copy(self, function: ir.Function) -> tuple[ir.Function, _FunctionCopy]:
        """Another function like this one under a free name, with what its nodes and values are in the copy."""
        self.copied = True
        copy = function.clone()
        number = 1
        while (function.domain, f"{function.name}_{number}", function.overload) in self.model.functions:
            number += 1
        copy.name = f"{function.name}_{number}"
        self.model.functions[copy.identifier()] = copy
        copies = _FunctionCopy()
        copies.pair(function.graph, copy.graph)
        copies.graphs[function] = copy
        return copy, copies

    def node(self, scope: int, native: ir.Node) -> ir.Node:
        """A node of the file as this scope's copy has it."""
        return self._copies[scope].nodes.get(native, native)

    def value(self, scope: int, native: ir.Value) -> ir.Value:
        """A value of the file as this scope's copy has it."""
        return self._copies[scope].values.get(native, native)

    def graph(self, scope: int, native: ir.Graph | ir.Function) -> ir.Graph | ir.Function:
        """A graph of the file as this scope's copy has it."""
        return self._copies[scope].graphs.get(native, native)


class Handles:
    """Finds nodes, values and graphs, in the copy of a function that a call uses."""

    def __init__(self, model: ir.Model, flow: Dataflow, variants: Variants) -> None:
        self.model, self.flow, self._variants = model, flow, variants
        self.fresh = FreshNames(all_names(model, flow))
        self._scopes = {scope.path: scope.id for scope in flow.scopes}
        self._ops = {(op.scope, op.index): op for op in flow.ops}
        self._made = 0
        self._types: dict[ir.Value, str] = {}  # what was retyped or made by the editor
        self._instead: dict[ir.Value, ir.Value] = {}  # values that nobody reads now -> what is read in their place

    def edits(self, scope: int) -> bool:
        """Whether edits of a scope are made through it."""
        return self._variants.leader[scope]

    def value(self, value: Value) -> ir.Value:
        """The native value of a handle: in the copy that its scope uses, and after edits that put another in its
        place."""
        native: ir.Value = value.native
        native = self._variants.value(value.scope, native) if self._variants.copied else native
        while native in self._instead:
            native = self._instead[native]
        return native

    def instead(self, old: ir.Value, new: ir.Value) -> None:
        """Notes that readers of ``old`` read ``new``, which takes over its name, type and shape."""
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        new.type, new.shape, new.name, old.name = old.type, old.shape, old.name, None
        self._instead[old] = new

    def node(self, op: Op) -> ir.Node:
        """The native node of an operator, in the copy that its scope uses."""
        native: ir.Node = op.native
        return self._variants.node(op.scope, native) if self._variants.copied else native

    def graph(self, scope: int) -> ir.Graph | ir.Function:
        """The native graph of a scope, in the copy that it uses."""
        return self._variants.graph(scope, self.flow.scopes[scope].native)

    def op(self, scope: str, index: int) -> Op | None:
        """The operator at a place, or None."""
        return self._ops.get((self._scopes[scope], index)) if scope in self._scopes else None

    def at(self, use: UseKey) -> tuple[int, Op | None, int]:
        """(scope, operator or None for an output of the scope, position) of a use."""
        scope, index, position = use
        return self._scopes[scope], self._ops.get((self._scopes[scope], index)), position

    def uses(self, value: Value) -> list[Use]:
        """The uses of a value in the file; none of one that an edit made."""
        return self.flow.uses[value.id] if value.id < len(self.flow.values) else []

    def shape(self, value: Value) -> Shape | None:
        """The shape of a value of the file; None where it is not known, and for what was made here."""
        return self.flow.shape(value.id) if value.id < len(self.flow.values) else None

    def handle(self, native: ir.Value, scope: int, dtype: str) -> Value:
        """A value of the dataflow for an onnx_ir value that an edit made, by which further edits name it."""
        self._made += 1
        self.note_type(native, dtype)
        return Value(len(self.flow.values) + self._made, native.name or "", scope, dtype, native=native)

    def note_type(self, native: ir.Value, dtype: str) -> None:
        """Remembers the element type of a value, which the file may not annotate."""
        self._types[native] = dtype

    def type_of(self, native: ir.Value) -> ir.TypeProtocol | None:
        """The type of a value as far as it is annotated or known."""
        known = self._types.get(native)
        return native.type or (ir.TensorType(DTYPES[known]) if known else None)


def all_names(model: ir.Model, flow: Dataflow) -> set[str]:
    """Every value and node name of every scope, and of functions that nothing calls."""
    names = {value.name for value in flow.values}
    names.update(op.name for op in flow.ops)
    read = {id(graph): graph for scope in flow.scopes for graph in (getattr(scope.native, "graph", scope.native),)}
    for graph in read.values():
        names.update(graph.initializers)
    for function in model.functions.values():
        if id(function.graph) not in read:
            names.update(_unseen_names(function.graph))
    names.discard("")
    return names


def _unseen_names(graph: ir.Graph) -> Iterator[str]:
    """The names in a file's graph that no dataflow has, so that new ones are free."""
    yield from (value.name or "" for value in graph.inputs)
    yield from graph.initializers
    for node in graph:
        yield node.name or ""
        yield from (value.name or "" for value in node.outputs)


class Placing(Handles):
    """Puts nodes into graphs. It knows the order of what it placed, so a node can go behind the last of several."""

    def __init__(self, model: ir.Model, flow: Dataflow, variants: Variants) -> None:
        super().__init__(model, flow, variants)
        self._first: dict[int, ir.Node | None] = {}  # by scope: the first node that was there
        self._placed: dict[ir.Node, tuple[ir.Node | None, int]] = {}  # node -> what it stands behind, when it came
        self._time = 0
        self._index: dict[ir.Node, int] = {}  # nodes of the file -> their place in it

    def behind(self, scope: int, anchor: ir.Node | None, node: ir.Node) -> None:
        """Places a node right behind ``anchor``; without one, in front of all nodes of the file, behind those placed so
        before.

        One that is there already moves.
        """
        graph = self.graph(scope)
        if anchor is not None and anchor.graph is not getattr(graph, "graph", graph):
            anchor = None  # it stands around this graph
        first = self._first.setdefault(scope, next(iter(graph), None)) if anchor is None else None
        if node is first:
            return
        if node.graph is not None:
            graph.remove(node)
        if anchor is not None:
            graph.insert_after(anchor, node)
        elif first is not None:
            graph.insert_before(first, node)
        else:
            graph.append(node)
        self._time += 1
        self._placed[node] = anchor, self._time

    def last(self, scope: int, nodes: Iterable[ir.Node]) -> ir.Node | None:
        """Which of some nodes stands last in a scope; None where none of them stands there."""
        graph = self.graph(scope)
        inside = getattr(graph, "graph", graph)
        return max((node for node in nodes if node.graph is inside), key=self._rank, default=None)

    def _rank(self, node: ir.Node) -> tuple[int, ...]:
        """Sort key for nodes by their place in the graph: behind one node, what was placed later stands closer to
        it."""
        steps: list[int] = []
        at: ir.Node | None = node
        while at is not None and at in self._placed:
            at, time = self._placed[at]
            steps.append(-time if at is not None else time)
        return (self._place_in_file(at) if at is not None else -1, *reversed(steps))

    def _place_in_file(self, node: ir.Node) -> int:
        """The index that a node of the file has in its graph; the table is made when it is first asked for."""
        if not self._index:
            self._index = {self.node(op): op.index for op in self.flow.ops}
        return self._index[node]


LAYER_KEYS = ("pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy", "namespace")
"""Metadata in which exporters say which layer a node belongs to."""


class Casts(Placing):
    """Casts of a model under edit: finds or makes what reads a value as another type."""

    def __init__(self, model: ir.Model, flow: Dataflow, variants: Variants) -> None:
        super().__init__(model, flow, variants)
        self.casts_made: list[tuple[ir.Node, str]] = []  # with the type that they cast to

    def as_type(self, value: Value, to: str) -> ir.Value:
        """For an edit: ``value`` as ``to``, through a given Cast or a new one."""
        return self._given(value, to) or self.new_cast(value, self.value(value), to)

    def _given(self, value: Value, to: str) -> ir.Value | None:
        """What already holds ``value`` as type ``to``: the low value that it was cast from, or a Cast of the file,
        which is moved to the front of its other readers. None if there is none."""
        flow = self.flow
        if value.low_source != NONE:
            return self.value(flow.values[value.low_source])
        for use in self.uses(value):
            if use.given_cast and use.scope == value.scope and flow.values[flow.ops[use.op].outputs[0]].dtype == to:
                given = self.node(flow.ops[use.op])
                anchor = self.value(value).producer()
                self.behind(value.scope, anchor, given)  # other readers may come before it
                return given.outputs[0]
        return None

    def new_cast(self, value: Value, source: ir.Value, to: str) -> ir.Value:
        """A Cast of ``source``, which is ``value`` or what is made of it, right behind what makes it."""
        attribute = type_attribute("to", to, self.flow.opset)
        name = self.fresh(f"{value.name}_to_{to}")
        node = ir.Node("", "Cast", [source], [attribute], num_outputs=1, name=name)
        result = node.outputs[0]
        result.name = self.fresh(f"{value.name}_{to}")
        result.type, result.shape = ir.TensorType(DTYPES[to]), source.shape
        producer = source.producer()
        if producer is not None:
            copy_layer(producer, node)
        self.behind(value.scope, producer, node)
        self.casts_made.append((node, to))
        return result


def copy_layer(source: ir.Node, target: ir.Node) -> None:
    """Gives a new node of the file the layer of the node that it serves."""
    for key in LAYER_KEYS:
        if key in source.metadata_props:
            target.metadata_props[key] = source.metadata_props[key]


def type_attribute(name: str, dtype: str, opset: int) -> ir.Attr:
    """The attribute that names a type: a word before opset 6, a number since."""
    kind = DTYPES[dtype]
    return ir.AttrString(name, kind.name) if 0 < opset < 6 else ir.AttrInt64(name, kind.value)


class Readers(Casts):
    """Readers of a model under edit: gives values to the places that read them."""

    def __init__(self, model: ir.Model, flow: Dataflow, variants: Variants) -> None:
        super().__init__(model, flow, variants)
        self.outputs = {
            scope: [value.name for value in self.graph(scope).outputs] for scope in _scopes_with_named_outputs(flow)
        }

    def give_native(self, result: ir.Value, uses: Iterable[UseKey]) -> None:
        """Has the given uses read ``result``."""
        for use in uses:
            scope, op, position = self.at(use)
            if op is not None:
                node = self.node(op)
                if position >= len(node.inputs):
                    node.resize_inputs(position + 1)
                node.replace_input_with(position, result)
            else:
                self._give_output(scope, position, result)

    def _give_output(self, scope: int, position: int, result: ir.Value) -> None:
        """Makes ``result`` output ``position`` of the scope's graph, under the declared name, by an Identity where
        runtimes need one."""
        graph = self.graph(scope)
        if scope in self.outputs:
            result = self._as_output(graph, self.outputs[scope][position], position, result)
        elif not is_made_in(graph, result) or any(output is result for output in graph.outputs):
            # no runtime takes a value from outside as the result of a body, nor one for two of a function
            result = self.identity(graph, result, result.shape)
        if scope != 0 and isinstance(graph, ir.Graph):
            self._describe(result, graph.outputs[position])
        graph.outputs[position] = result

    def _describe(self, result: ir.Value, old: ir.Value) -> None:
        """Gives a value that becomes a body's output its known type, and the old output's shape where it has none of
        its own."""
        result.type = self.type_of(result)
        result.shape = result.shape or old.shape

    def _as_output(self, graph: ir.Graph | ir.Function, name: str | None, position: int, result: ir.Value) -> ir.Value:
        """``result`` with the name and the declared shape of an output that is known by its name."""
        old = graph.outputs[position]
        if result.name == name:
            return result  # an output that is listed twice
        if result.is_graph_input() or result.is_graph_output():  # it has a name of its own
            result = self.identity(graph, result, old.shape)
        if old.name == name:
            old.name = self.fresh(f"{name}_{old.dtype.name.lower()}")  # type: ignore[union-attr]
        result.name, result.type, result.shape = name, self.type_of(result), old.shape
        if name in doubted_shapes(self.model):
            old.shape = None
        return result

    def identity(self, graph: ir.Graph | ir.Function, source: ir.Value, shape: ir.Shape | None) -> ir.Value:
        """Appends an Identity of ``source`` to the graph and gives its result, under a name of its own."""
        name = self.fresh(f"{source.name}_result")
        node = ir.Node("", "Identity", [source], num_outputs=1, name=self.fresh(f"{name}_node"))
        result = node.outputs[0]
        result.name, result.type, result.shape = name, self.type_of(source), shape
        graph.append(node)
        return result

    def bypass_node(self, op: ir.Node, scope: int) -> bool:
        """Readers of a node's only result read its first input, and the node goes.

        It stays, and costs nothing, where a boundary needs its name or a body a result of its own.
        """
        source, target, graph = op.inputs[0], op.outputs[0], self.graph(scope)
        assert source is not None
        if any(output is target for output in graph.outputs):
            if not is_made_in(graph, source) or source.is_graph_output():
                return False
            if scope in self.outputs:
                name, source.shape = target.name, target.shape
                target.name = self.fresh(f"{name}_given")
                source.name = name
            else:
                self._describe(source, target)
        target.replace_all_uses_with(source, replace_graph_outputs=True)
        self._instead[target] = source
        graph.remove(op, safe=True)
        return True


def _scopes_with_named_outputs(flow: Dataflow) -> list[int]:
    """Scopes whose outputs are known by their names: the model, and bodies of operators that are not ONNX's own, as the
    decoder of a BeamSearch is."""
    bodies = [scope for scope in flow.scopes if scope.kind == "body"]
    return [0, *(scope.id for scope in bodies if "::" in flow.ops[scope.op].kind)]


def is_made_in(graph: ir.Graph | ir.Function, value: ir.Value) -> bool:
    """Whether a node of an onnx_ir graph writes a value, so that it is no input or initializer."""
    producer = value.producer()
    return producer is not None and producer.graph is getattr(graph, "graph", graph)
