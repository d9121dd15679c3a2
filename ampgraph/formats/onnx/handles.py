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
    """The copy of an ONNX function: original -> its twin in the copy; all empty where the original itself is used."""

    nodes: dict[ir.Node, ir.Node] = field(default_factory=dict)
    values: dict[ir.Value, ir.Value] = field(default_factory=dict)
    graphs: dict[ir.Graph | ir.Function, ir.Graph | ir.Function] = field(default_factory=dict)

    def pair(self, old: ir.Graph, new: ir.Graph) -> None:
        """Notes the twin of each graph, node and value of ``old``, by walking it and its copy ``new`` in step."""
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


MadeCopies = dict[tuple[Hashable, Hashable], tuple[ir.Function, _FunctionCopy]]
"""(function's identifier, signature) -> the function that calls with these use, and the twins in it."""


class Variants:
    """Copies of an ONNX model's functions: calls in which the same was decided share one, and this maps what the
    dataflow saw (originals) to the copy that a call uses. ``signature``: path of a function's scope -> what was decided
    inside, None for a path that it does not have. Making the object makes the copies, and has the calls name them."""

    def __init__(self, model: ir.Model, flow: Dataflow, signature: Mapping[str, Hashable]) -> None:
        self.model, self.flow = model, flow
        self.leader: dict[int, bool] = {}  # scope's id -> whether edits are made through it: once in each copy
        self.copied = False  # whether there is a copy at all
        self._copies: dict[int, _FunctionCopy] = {}  # by scope's id
        made: MadeCopies = {}
        for scope in flow.scopes:  # parents and callers come first
            if scope.kind == "function":
                self._choose_copy(scope, made, signature.get(scope.path))
            elif scope.kind == "body":  # it belongs to the copy that it stands in
                self.leader[scope.id] = self.leader[scope.parent]
                self._copies[scope.id] = self._copies[scope.parent]
            else:
                self.leader[scope.id] = True
                self._copies[scope.id] = _FunctionCopy()

    def _choose_copy(self, scope: Scope, made: MadeCopies, signature: Hashable) -> None:
        """Finds the copy of an ONNX function for what was decided inside this call, or adds it to ``made``, and has the
        call name it. The first signature keeps the original; the first call of each copy is its `leader`."""
        function: ir.Function = scope.native
        identifier = function.identifier()
        key = (identifier, signature)
        call = self.flow.ops[scope.op]
        self.leader[scope.id] = key not in made
        if key not in made:
            is_first = all(known != identifier for known, _ in made)
            made[key] = (function, _FunctionCopy()) if is_first else self._copy_function(function)
        variant, self._copies[scope.id] = made[key]
        if self.leader[call.scope]:  # also for the original: a copied caller may still name a copy
            node = self.node(call.scope, call.native)
            node.op_type, node.domain, node.overload = variant.name, variant.domain, variant.overload

    def _copy_function(self, function: ir.Function) -> tuple[ir.Function, _FunctionCopy]:
        """Adds a copy of an ONNX function to the model, under a free name, and returns it with the twins in it."""
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
        """The node of the ONNX file that stands for ``native`` in the function copy that a scope uses, or itself."""
        return self._copies[scope].nodes.get(native, native)

    def value(self, scope: int, native: ir.Value) -> ir.Value:
        """The value of the ONNX file that stands for ``native`` in the function copy that a scope uses, or itself."""
        return self._copies[scope].values.get(native, native)

    def graph(self, scope: int, native: ir.Graph | ir.Function) -> ir.Graph | ir.Function:
        """The graph of the ONNX file that stands for ``native`` in the function copy that a scope uses, or itself."""
        return self._copies[scope].graphs.get(native, native)


class Handles:
    """For an ONNX editor: the onnx_ir (*native*) objects behind handles, in the function copy that a call uses."""

    def __init__(self, model: ir.Model, flow: Dataflow, variants: Variants) -> None:
        self.model, self.flow, self._variants = model, flow, variants
        self.fresh = FreshNames(all_names(model, flow))
        self._scopes = {scope.path: scope.id for scope in flow.scopes}
        self._ops = {(op.scope, op.index): op for op in flow.ops}
        self._made = 0  # handles of values that edits made
        self._types: dict[ir.Value, str] = {}  # element types of what was retyped or made by the editor
        self._instead: dict[ir.Value, ir.Value] = {}  # values that nobody reads now -> what is read in their place

    def edits(self, scope: int) -> bool:
        """Whether the ONNX editor edits a scope: of calls that share a function only the first."""
        return self._variants.leader[scope]

    def value(self, value: Value) -> ir.Value:
        """The onnx_ir value of a handle, in its scope's function copy, and after edits what is read in its place."""
        native: ir.Value = value.native
        native = self._variants.value(value.scope, native) if self._variants.copied else native
        while native in self._instead:
            native = self._instead[native]
        return native

    def supersede_native(self, value: ir.Value, old: ir.Value) -> None:
        """Has all readers of the onnx_ir value ``old``, outputs of graphs too, read ``value``, which takes over its
        name, type and shape; handles of ``old`` mean ``value`` from now on."""
        old.replace_all_uses_with(value, replace_graph_outputs=True)
        value.type, value.shape, value.name, old.name = old.type, old.shape, old.name, None
        self._instead[old] = value

    def node(self, op: Op) -> ir.Node:
        """The onnx_ir node of an operator, in the function copy that its scope uses."""
        native: ir.Node = op.native
        return self._variants.node(op.scope, native) if self._variants.copied else native

    def graph(self, scope: int) -> ir.Graph | ir.Function:
        """The onnx_ir graph of a scope, in the function copy that it uses."""
        return self._variants.graph(scope, self.flow.scopes[scope].native)

    def op(self, scope: str, index: int) -> Op | None:
        """The operator of the ONNX dataflow with an index in the scope of a path; None where there is none."""
        return self._ops.get((self._scopes[scope], index)) if scope in self._scopes else None

    def locate_use(self, use: UseKey) -> tuple[int, Op | None, int]:
        """Of a use in an ONNX dataflow: (scope's id, reading operator or None for an output of the scope, position)."""
        scope, index, position = use
        return self._scopes[scope], self._ops.get((self._scopes[scope], index)), position

    def uses(self, value: Value) -> list[Use]:
        """The uses of a value in the ONNX file; none for a value that an edit made."""
        return self.flow.uses[value.id] if value.id < len(self.flow.values) else []

    def shape(self, value: Value) -> Shape | None:
        """The shape of a value of the ONNX file; None where it is not known, and for a value that an edit made."""
        return self.flow.shape(value.id) if value.id < len(self.flow.values) else None

    def handle(self, native: ir.Value, scope: int, dtype: str) -> Value:
        """Makes the handle of an onnx_ir value that an edit made; its id is beyond those of the dataflow."""
        self._made += 1
        self.note_type(native, dtype)
        return Value(len(self.flow.values) + self._made, native.name or "", scope, dtype, native=native)

    def note_type(self, native: ir.Value, dtype: str) -> None:
        """Remembers the element type of an onnx_ir value, which the file may not annotate."""
        self._types[native] = dtype

    def type_of(self, native: ir.Value) -> ir.TypeProtocol | None:
        """The type of an onnx_ir value: as annotated, else as noted by the editor; None if neither knows it."""
        known = self._types.get(native)
        return native.type or (ir.TensorType(DTYPES[known]) if known else None)


def all_names(model: ir.Model, flow: Dataflow) -> set[str]:
    """The names of all values and nodes of an ONNX model, also in functions that nothing calls."""
    names = {value.name for value in flow.values}
    names.update(op.name for op in flow.ops)
    graphs = [getattr(scope.native, "graph", scope.native) for scope in flow.scopes]
    for graph in graphs:
        names.update(graph.initializers)
    called = {id(graph) for graph in graphs}
    for function in model.functions.values():
        if id(function.graph) not in called:
            names.update(_names_in(function.graph))
    names.discard("")
    return names


def _names_in(graph: ir.Graph) -> Iterator[str]:
    """The names of the values and nodes of one ONNX graph; those of its bodies are left out."""
    yield from (value.name or "" for value in graph.inputs)
    yield from graph.initializers
    for node in graph:
        yield node.name or ""
        yield from (value.name or "" for value in node.outputs)


class Placing(Handles):
    """For an ONNX editor: puts nodes into graphs and knows their order, so one can go behind the last of several."""

    def __init__(self, model: ir.Model, flow: Dataflow, variants: Variants) -> None:
        super().__init__(model, flow, variants)
        self._first: dict[int, ir.Node | None] = {}  # by scope: the first node of the file; None for an empty graph
        self._placed: dict[ir.Node, tuple[ir.Node | None, int]] = {}  # node -> what it stands behind, when it came
        self._time = 0  # how many nodes were placed
        self._index: dict[ir.Node, int] = {}  # nodes of the file -> their index in their scope

    def place_behind(self, scope: int, anchor: ir.Node | None, node: ir.Node) -> None:
        """Places a node of an ONNX scope right behind ``anchor``, or moves it there if it stands in a graph already.
        Where ``anchor`` is None or stands in a graph around this one: in front of all nodes of the file, behind those
        that were placed there before; the first node of the file stays where it is then."""
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
        """The one of some onnx_ir nodes that stands last in a scope; None where none of them stands in its graph."""
        graph = self.graph(scope)
        own = getattr(graph, "graph", graph)  # of a function, its graph
        return max((node for node in nodes if node.graph is own), key=self._rank, default=None)

    def _rank(self, node: ir.Node) -> tuple[int, ...]:
        """Sort key for onnx_ir nodes of one graph by their place in it: the index of the node of the file behind which
        it was placed (-1 for the top), then for each node placed behind that when it came. Of those behind one node,
        what came later stands closer to it; at the top, what came later stands lower."""
        steps: list[int] = []
        at: ir.Node | None = node
        while at is not None and at in self._placed:
            at, time = self._placed[at]
            steps.append(-time if at is not None else time)
        return (self._place_in_file(at) if at is not None else -1, *reversed(steps))

    def _place_in_file(self, node: ir.Node) -> int:
        """The index of a node of the ONNX file in its scope; the table is made when it is first asked for."""
        if not self._index:
            self._index = {self.node(op): op.index for op in self.flow.ops}
        return self._index[node]


LAYER_KEYS = ("pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy", "namespace")
"""Metadata in which exporters say which layer a node belongs to."""


class Casts(Placing):
    """The Casts of an ONNX model under edit: finds or makes one that reads a value as another type."""

    def __init__(self, model: ir.Model, flow: Dataflow, variants: Variants) -> None:
        super().__init__(model, flow, variants)
        self.casts_made: list[tuple[ir.Node, str]] = []  # new Casts, each with the type that it casts to

    def as_type(self, value: Value, to: str) -> ir.Value:
        """The onnx_ir value that holds ``value`` as type ``to``: by a Cast of the file, which moves up, or new."""
        return self._given_as_type(value, to) or self.new_cast(value, self.value(value), to)

    def _given_as_type(self, value: Value, to: str) -> ir.Value | None:
        """What in the ONNX file already holds ``value`` as type ``to``, None if nothing does: the low value that it was
        cast from (so ``to`` is the low type), or the result of a Cast, which is moved up to what makes ``value``."""
        flow = self.flow
        if value.low_source != NONE:
            return self.value(flow.values[value.low_source])
        for use in self.uses(value):
            if use.given_cast and use.scope == value.scope and flow.values[flow.ops[use.op].outputs[0]].dtype == to:
                given = self.node(flow.ops[use.op])
                anchor = self.value(value).producer()
                self.place_behind(value.scope, anchor, given)  # other readers may come before it
                return given.outputs[0]
        return None

    def new_cast(self, value: Value, source: ir.Value, to: str) -> ir.Value:
        """Adds a Cast to type ``to`` to an ONNX graph, right behind what makes ``source``, and returns its result.
        ``source``: what it reads, which is ``value`` or is made of it; ``value`` gives the scope and the names."""
        attribute = type_attribute("to", to, self.flow.opset)
        name = self.fresh(f"{value.name}_to_{to}")
        node = ir.Node("", "Cast", [source], [attribute], num_outputs=1, name=name)
        result = node.outputs[0]
        result.name = self.fresh(f"{value.name}_{to}")
        result.type, result.shape = ir.TensorType(DTYPES[to]), source.shape
        producer = source.producer()
        if producer is not None:
            copy_layer(producer, node)
        self.place_behind(value.scope, producer, node)
        self.casts_made.append((node, to))
        return result


def copy_layer(source: ir.Node, target: ir.Node) -> None:
    """Gives ``target``, a new node of an ONNX file, the layer that exporters noted at the node ``source``."""
    for key in LAYER_KEYS:
        if key in source.metadata_props:
            target.metadata_props[key] = source.metadata_props[key]


def type_attribute(name: str, dtype: str, opset: int) -> ir.Attr:
    """An ONNX attribute that names an element type: by a word before opset 6, by a number since, and for opset 0."""
    kind = DTYPES[dtype]
    return ir.AttrString(name, kind.name) if 0 < opset < 6 else ir.AttrInt64(name, kind.value)


class Readers(Casts):
    """The readers of values in an ONNX model under edit, which may be nodes or outputs of graphs."""

    def __init__(self, model: ir.Model, flow: Dataflow, variants: Variants) -> None:
        super().__init__(model, flow, variants)
        self.output_names = {  # scope's id -> the names that its outputs must keep
            scope: [value.name for value in self.graph(scope).outputs] for scope in _scopes_with_named_outputs(flow)
        }

    def rewire_native(self, result: ir.Value, uses: Iterable[UseKey]) -> None:
        """Has the given uses in an ONNX model read ``result``, a value of their graph or of one around it."""
        for use in uses:
            scope, op, position = self.locate_use(use)
            if op is not None:
                node = self.node(op)
                if position >= len(node.inputs):
                    node.resize_inputs(position + 1)
                node.replace_input_with(position, result)
            else:
                self._rewire_output(scope, position, result)

    def _rewire_output(self, scope: int, position: int, result: ir.Value) -> None:
        """Makes ``result`` output ``position`` of an ONNX scope's graph, under the declared name if outputs are known
        by it, through an Identity where runtimes need one."""
        graph = self.graph(scope)
        if scope in self.output_names:
            result = self._as_named_output(graph, self.output_names[scope][position], position, result)
        elif not is_made_in(graph, result) or any(output is result for output in graph.outputs):
            # no runtime takes a value from outside as the result of a body, nor one for two of a function
            result = self.identity(graph, result, result.shape)
        if scope != 0 and isinstance(graph, ir.Graph):
            self._describe(result, graph.outputs[position])
        graph.outputs[position] = result

    def _describe(self, result: ir.Value, old: ir.Value) -> None:
        """Annotates a value that becomes a body's output in an ONNX file: with its known type, and, where it has no
        shape, with that of the output ``old`` in whose place it comes."""
        result.type = self.type_of(result)
        result.shape = result.shape or old.shape

    def _as_named_output(
        self, graph: ir.Graph | ir.Function, name: str | None, position: int, result: ir.Value
    ) -> ir.Value:
        """Gives ``result`` the name and the declared shape of output ``position`` of an ONNX graph, to take its place;
        returns it, or an Identity of it where it needs a name of its own. The old output gets another name. A shape
        that is declared wrongly is not left on the old output."""
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
        """Appends an Identity of ``source`` to an ONNX graph, and returns its result, of this shape and a new name."""
        name = self.fresh(f"{source.name}_result")
        node = ir.Node("", "Identity", [source], num_outputs=1, name=self.fresh(f"{name}_node"))
        result = node.outputs[0]
        result.name, result.type, result.shape = name, self.type_of(source), shape
        graph.append(node)
        return result

    def bypass_node(self, op: ir.Node, scope: int) -> bool:
        """Has the readers of an onnx_ir node's only result read its first input, and removes the node. False, and no
        change, where an output is the result and cannot be the input: an output too, or not made in this graph."""
        source, target, graph = op.inputs[0], op.outputs[0], self.graph(scope)
        assert source is not None
        if any(output is target for output in graph.outputs):
            if not is_made_in(graph, source) or source.is_graph_output():
                return False
            if scope in self.output_names:
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
    """The ids of ONNX scopes whose outputs are known by their names: the main graph, and bodies of operators that are
    not ONNX's own, as the decoder of a BeamSearch."""
    bodies = [scope for scope in flow.scopes if scope.kind == "body"]
    return [0, *(scope.id for scope in bodies if "::" in flow.ops[scope.op].kind)]


def is_made_in(graph: ir.Graph | ir.Function, value: ir.Value) -> bool:
    """Whether a node of this onnx_ir graph writes a value: it is no input or initializer, nor from a graph around."""
    producer = value.producer()
    return producer is not None and producer.graph is getattr(graph, "graph", graph)
