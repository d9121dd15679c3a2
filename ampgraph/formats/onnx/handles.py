"""What the handles of a dataflow are in an ONNX model that is edited, and names that nothing in it has."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ...core.dataflow import Dataflow, Op, Shape, Use, Value
from ...core.graph import UseKey
from ...core.names import FreshNames
from .types import DTYPES
from .variants import Variants


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
        native: ir.Value = value.native
        native = self._variants.value(value.scope, native) if self._variants.copied else native
        while native in self._instead:
            native = self._instead[native]
        return native

    def stand_in(self, old: ir.Value, new: ir.Value) -> None:
        """Readers of one value read another one, which has its name, type and shape from now on."""
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        new.type, new.shape, new.name, old.name = old.type, old.shape, old.name, None
        self.gone(old, new)

    def gone(self, old: ir.Value, new: ir.Value) -> None:
        """Whoever asks for a value that nothing makes any more gets another one."""
        self._instead[old] = new

    def node(self, op: Op) -> ir.Node:
        native: ir.Node = op.native
        return self._variants.node(op.scope, native) if self._variants.copied else native

    def graph(self, scope: int) -> ir.Graph | ir.Function:
        return self._variants.graph(scope, self.flow.scopes[scope].native)

    def op(self, scope: str, index: int) -> Op | None:
        """The operator at a place, or None."""
        return self._ops.get((self._scopes[scope], index)) if scope in self._scopes else None

    def at(self, use: UseKey) -> tuple[int, Op | None, int]:
        """(scope, operator or None for an output of the scope, position) of a use."""
        scope, index, position = use
        return self._scopes[scope], self._ops.get((self._scopes[scope], index)), position

    def uses(self, value: Value) -> list[Use]:
        """Who reads a value in the file; nobody reads what was made here."""
        return self.flow.uses[value.id] if value.id < len(self.flow.values) else []

    def shape(self, value: Value) -> Shape | None:
        """The shape of a value of the file; None where it is not known, and for what was made here."""
        return self.flow.shape(value.id) if value.id < len(self.flow.values) else None

    def handle(self, native: ir.Value, scope: int, dtype: str) -> Value:
        """A handle of a value that was made here."""
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
            names.update(_names(function.graph))
    names.discard("")
    return names


def _names(graph: ir.Graph) -> Iterator[str]:
    """The names in a graph that no dataflow has."""
    yield from (value.name or "" for value in graph.inputs)
    yield from graph.initializers
    for node in graph:
        yield node.name or ""
        yield from (value.name or "" for value in node.outputs)
