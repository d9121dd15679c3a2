"""Values of an ONNX model in its dataflow: what a name stands for in a graph, a body, or a function as called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from ...core.dataflow import FLOAT32, NONE, AttributeValue, Dataflow, Op, Scope, Value
from ..flow_builder import FlowBuilder
from .slots import NodeSlots
from .types import declared_type, dtype_name

PLAIN = (type(None), int, float, str, bytes, tuple, list)
"""What most attributes hold."""


@dataclass(frozen=True, slots=True)
class Form:
    """What nodes of one operator with as many inputs and outputs have in common, where one opset is in force.

    ``slots``: None for an operator without a schema; ``control``: it may be a call, or one with bodies."""

    kind: str
    opset: int
    slots: NodeSlots | None
    control: bool


@dataclass(eq=False)
class Environment:
    """One function as called from one place, or the main graph: its opset imports, attributes and values.

    ``forms``: by domain, operator and numbers of inputs and outputs, those of nodes that were met."""

    opsets: dict[str, int]
    attributes: dict[str, ir.Attr]
    table: dict[ir.Value, int] = field(default_factory=dict)
    forms: dict[tuple[str, str, int, int], Form] = field(default_factory=dict)

    def resolve(self, attribute: ir.Attr) -> ir.Attr:
        """What the caller gave where an attribute refers to a parameter of its function."""
        if attribute.is_ref():
            return self.attributes.get(attribute.ref_attr_name or "", attribute)
        return attribute

    def attribute(self, node: ir.Node, name: str) -> Any:
        """The value of an attribute; None when it is absent, and when the caller gave none."""
        found = node.attributes.get(name)
        if found is None:
            return None
        found = self.resolve(found)
        return None if found.is_ref() else found.value


class OnnxValues(FlowBuilder):
    """Adds to the dataflow what the model's values are."""

    def __init__(self, model: ir.Model, flow: Dataflow, low: str, low_io: frozenset[str]) -> None:
        super().__init__(flow, low, low_io)
        self.model = model
        self.environments: list[Environment] = []  # by scope id

    def enter(
        self, path: str, parent: int, op: int, kind: str, times: int, native: ir.Graph | ir.Function, env: Environment
    ) -> Scope:
        """A new scope, whose names mean what ``env`` says."""
        self.environments.append(env)
        return self.scope(path, parent, op, kind, times, native)

    def make(
        self,
        native: ir.Value,
        scope: int,
        env: Environment,
        dtype: str,
        container: str = "",
        producer: int = NONE,
        unit: int = NONE,
    ) -> Value:
        """A value that comes to be here."""
        values = self.flow.values
        number = env.table[native] = len(values)
        value = Value(
            number, native.name or "", scope, dtype, container, None, producer, unit, False, False, NONE, native
        )
        values.append(value)
        self.flow.uses.append([])
        return value

    def results(self, op: Op, natives: Sequence[ir.Value], env: Environment) -> None:
        """The results of an operator, whose types are yet to be found."""
        values, uses, table, outputs = self.flow.values, self.flow.uses, env.table, op.outputs
        for native in natives:
            number = table[native] = len(values)
            name = native.name or ""
            values.append(Value(number, name, op.scope, "", "", None, op.id, NONE, False, False, NONE, native))
            uses.append([])
            outputs.append(number)

    def lookup(self, native: ir.Value, scope: Scope, env: Environment) -> Value:
        """The value that a graph reads."""
        found = env.table.get(native)
        if found is not None:
            return self.flow.values[found]
        # a name that nothing defines: outside this model, or written later in an unsorted graph
        container, dtype = declared_type(native)
        value = self.make(native, scope.id, env, dtype, container)
        if dtype == FLOAT32:
            value.unit = self.fixed_unit(f"undefined {value.name}", "nothing in the model defines it")
        return value

    def initializers(self, graph: ir.Graph, scope: Scope, env: Environment) -> None:
        """Stored tensors. One that is listed as an input can be overridden: it is an input."""
        for native in graph.initializers.values():
            if native not in env.table and native.const_value is not None:
                value = self.make(native, scope.id, env, dtype_name(native.const_value.dtype))
                value.weight = value.parameter = True

    def arriving(self, native: ir.Value, scope: Scope, env: Environment) -> None:
        """An input of the model."""
        container, dtype = declared_type(native)
        value = self.make(native, scope.id, env, dtype, container)
        value.default = native.const_value is not None
        scope.inputs.append(value.id)
        if dtype == FLOAT32:
            low = value.name in self.low_io and not container
            value.unit = self.border_unit(f"input {value.name}", low, "a graph input keeps its type")

    def leaving(self, native: ir.Value, index: int, scope: Scope, env: Environment) -> None:
        """An output of the model."""
        value = self.lookup(native, scope, env)
        scope.outputs.append(value.id)
        unit = NONE
        if value.dtype == FLOAT32:
            low = value.name in self.low_io and not value.container
            unit = self.border_unit(f"output {index}", low, "a graph output keeps its type")
        self.use(value, NONE, index, unit, scope.id)

    def attribute(self, op: Op, name: str) -> Any:
        """The value of an attribute, with references to a function's parameters resolved; None when absent."""
        return self.environments[op.scope].attribute(op.native, name)

    def plain_attribute(self, op: Op, name: str) -> AttributeValue:
        """The same for readers that know no format: a tensor is a numpy array."""
        value = self.attribute(op, name)
        if isinstance(value, PLAIN) or not isinstance(value, ir.TensorProtocol):  # the second is slow to say no
            plain: AttributeValue = value
            return plain
        array: AttributeValue = value.numpy()
        return array
