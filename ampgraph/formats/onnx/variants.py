"""Functions that are called with different decisions get a copy for each; one call of each copy is edited."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from ...core.dataflow import Dataflow, Scope


@dataclass(eq=False)
class _Copies:
    """Originals of one function, each with its copy; empty where the original itself is used."""

    nodes: dict[ir.Node, ir.Node] = field(default_factory=dict)
    values: dict[ir.Value, ir.Value] = field(default_factory=dict)
    graphs: dict[ir.Graph | ir.Function, ir.Graph | ir.Function] = field(default_factory=dict)

    def pair(self, old: ir.Graph, new: ir.Graph) -> None:
        """Walks an original and its copy side by side."""
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


Chosen = dict[tuple[Hashable, Hashable], tuple[ir.Function, _Copies]]


class Variants:
    """Maps what the dataflow saw to the copy that a call uses. ``signature``: scope path -> what was decided inside.

    ``copied``: whether there is a copy at all."""

    def __init__(self, model: ir.Model, flow: Dataflow, signature: Mapping[str, Hashable]) -> None:
        self.model, self.flow = model, flow
        self.leader: dict[int, bool] = {}  # scope -> whether edits are made through it
        self.copied = False
        self._copies: dict[int, _Copies] = {}  # by scope
        chosen: Chosen = {}
        for scope in flow.scopes:
            if scope.kind != "function":
                parent = scope.parent if scope.kind == "body" else scope.id
                self.leader[scope.id] = self.leader.get(parent, True)
                self._copies[scope.id] = self._copies.get(parent) or _Copies()
                continue
            self._function(scope, chosen, signature.get(scope.path))

    def _function(self, scope: Scope, chosen: Chosen, signature: Hashable) -> None:
        """Finds or makes the copy that this call uses, and points the call at it."""
        function: ir.Function = scope.native
        identifier = function.identifier()
        key = (identifier, signature)
        call = self.flow.ops[scope.op]
        leads_caller = self.leader[call.scope]
        self.leader[scope.id] = key not in chosen
        if key not in chosen:
            first = all(k[0] != identifier for k in chosen)
            chosen[key] = (function, _Copies()) if first else self._copy(function)
        variant, self._copies[scope.id] = chosen[key]
        if leads_caller:  # also where it stays the original: a copied caller calls what its original was pointed at
            node = self.node(call.scope, call.native)
            node.op_type, node.domain, node.overload = variant.name, variant.domain, variant.overload

    def _copy(self, function: ir.Function) -> tuple[ir.Function, _Copies]:
        self.copied = True
        copy = function.clone()
        number = 1
        while (function.domain, f"{function.name}_{number}", function.overload) in self.model.functions:
            number += 1
        copy.name = f"{function.name}_{number}"
        self.model.functions[copy.identifier()] = copy
        copies = _Copies()
        copies.pair(function.graph, copy.graph)
        copies.graphs[function] = copy
        return copy, copies

    def node(self, scope: int, native: ir.Node) -> ir.Node:
        return self._copies[scope].nodes.get(native, native)

    def value(self, scope: int, native: ir.Value) -> ir.Value:
        return self._copies[scope].values.get(native, native)

    def graph(self, scope: int, native: ir.Graph | ir.Function) -> ir.Graph | ir.Function:
        return self._copies[scope].graphs.get(native, native)
