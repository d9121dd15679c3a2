"""Functions that are called with different decisions get a copy for each; one call of each copy is edited."""

from __future__ import annotations

from collections.abc import Hashable

import onnx_ir as ir

from ...core.dataflow import Dataflow, Scope


class Variants:
    """Maps what the dataflow saw to the copy that a call uses. ``signature``: scope path -> what was decided inside."""

    def __init__(self, model: ir.Model, flow: Dataflow, signature: dict[str, Hashable]) -> None:
        self.model, self.flow = model, flow
        self.leader: dict[int, bool] = {}  # scope -> whether edits are made through it
        self._maps: dict[int, dict[object, object]] = {}  # scope -> original node, value or graph -> its copy
        chosen: dict[tuple[Hashable, Hashable], tuple[ir.Function, dict[object, object]]] = {}
        for scope in flow.scopes:
            if scope.kind != "function":
                parent = scope.parent if scope.kind == "body" else scope.id
                self.leader[scope.id] = self.leader.get(parent, True)
                self._maps[scope.id] = self._maps.get(parent, {})
                continue
            self._function(scope, chosen, signature.get(scope.path))

    def _function(self, scope: Scope, chosen: dict, signature: Hashable) -> None:
        """Finds or makes the copy that this call uses, and points the call at it."""
        function: ir.Function = scope.native
        identifier = function.identifier()
        key = (identifier, signature)
        call = self.flow.ops[scope.op]
        leads_caller = self.leader[call.scope]
        if key not in chosen:
            first = all(k[0] != identifier for k in chosen)
            chosen[key] = (function, {}) if first else self._copy(function)
            self.leader[scope.id] = True
        else:
            self.leader[scope.id] = False
        variant, mapping = chosen[key]
        self._maps[scope.id] = mapping
        if leads_caller:  # also where it stays the original: a copied caller calls what its original was pointed at
            node = self.node(call.scope, call.native)
            node.op_type, node.domain, node.overload = variant.name, variant.domain, variant.overload

    def _copy(self, function: ir.Function) -> tuple[ir.Function, dict[object, object]]:
        copy = function.clone()
        number = 1
        while (function.domain, f"{function.name}_{number}", function.overload) in self.model.functions:
            number += 1
        copy.name = f"{function.name}_{number}"
        self.model.functions[copy.identifier()] = copy
        mapping: dict[object, object] = {}
        _pair(function.graph, copy.graph, mapping)
        mapping[function] = copy
        return copy, mapping

    def node(self, scope: int, native: ir.Node) -> ir.Node:
        return self._maps[scope].get(native, native)  # type: ignore[return-value]

    def value(self, scope: int, native: ir.Value) -> ir.Value:
        return self._maps[scope].get(native, native)  # type: ignore[return-value]

    def graph(self, scope: int, native: ir.Graph | ir.Function) -> ir.Graph | ir.Function:
        return self._maps[scope].get(native, native)  # type: ignore[return-value]


def _pair(old: ir.Graph, new: ir.Graph, mapping: dict[object, object]) -> None:
    """Walks an original and its copy side by side."""
    mapping[old] = new
    mapping.update(zip(old.inputs, new.inputs, strict=True))
    for name, value in old.initializers.items():
        mapping[value] = new.initializers[name]
    for node, twin in zip(old, new, strict=True):
        mapping[node] = twin
        mapping.update(zip(node.outputs, twin.outputs, strict=True))
        for name, attribute in node.attributes.items():
            if attribute.is_ref():
                continue
            if attribute.type == ir.AttributeType.GRAPH:
                _pair(attribute.value, twin.attributes[name].value, mapping)
            elif attribute.type == ir.AttributeType.GRAPHS:
                for body, body_twin in zip(attribute.value, twin.attributes[name].value, strict=True):
                    _pair(body, body_twin, mapping)
