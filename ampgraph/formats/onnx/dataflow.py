"""Builds the Dataflow of an ONNX model: slots, units, and types by propagation (annotations in a file can be stale)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx_ir as ir

from ...core.dataflow import BRANCHES, FLOAT32, HELD, NONE, Dataflow, Op, Scope, Use, Value
from ...core.errors import AmpError
from .layout import DTYPE_ATTRIBUTES, FOLLOWS_INPUT, LINKED, STASHED, Group, layout
from .schemas import first_opset_admitting, kind_of, opset_of_ir, schema

LOW = ("float16", "bfloat16")
MAX_OPS = 4_000_000  # functions called from functions multiply
_NO_TYPES: frozenset[str] = frozenset()


def dtype_name(dtype: ir.DataType | None) -> str:
    """``float32`` for ir.DataType.FLOAT; an empty string for no type."""
    if dtype is None or dtype == ir.DataType.UNDEFINED:
        return ""
    return _DTYPE_NAMES[dtype]


_DTYPE_NAMES = {member: member.name.lower() for member in ir.DataType}
_DTYPE_NAMES[ir.DataType.FLOAT] = FLOAT32
_DTYPE_NAMES[ir.DataType.DOUBLE] = "float64"


def declared_type(value: ir.Value) -> tuple[str, str]:
    """(container, element type) as the file annotates a value."""
    kind = value.type
    if kind is None:
        return "", ""
    container = ""
    while isinstance(kind, (ir.SequenceType, ir.OptionalType)):
        container = container or ("seq" if isinstance(kind, ir.SequenceType) else "optional")
        kind = kind.elem_type
    if isinstance(kind, (ir.TensorType, ir.SparseTensorType)):
        return container or ("other" if isinstance(kind, ir.SparseTensorType) else ""), dtype_name(kind.dtype)
    return "other", ""


class _Environment:
    """One function as called from one place, or the main graph: its values, attributes and opset imports."""

    def __init__(self, opsets: dict[str, int], attributes: dict[str, ir.Attr]) -> None:
        self.opsets, self.attributes = opsets, attributes
        self.table: dict[ir.Value, int] = {}


class DataflowBuilder:
    """Walks the graphs once, in order. ``low`` is the type that given casts are compared with."""

    def __init__(self, model: ir.Model, dataflow: Dataflow, low: str, low_io: frozenset[str]) -> None:
        self.model, self.flow, self.low, self.low_io = model, dataflow, low, low_io
        self.environments: list[_Environment] = []  # by scope id
        self.static_admits: dict[tuple[Any, str], frozenset[str]] = {}

    def build(self) -> Dataflow:
        graph = self.model.graph
        env = _Environment(dict(self.model.opset_imports), {})
        self.flow.opset = env.opsets.get("", env.opsets.get("ai.onnx", 0))
        scope = self._scope("", NONE, NONE, "main", 1, graph, env)
        for value in graph.inputs:
            self._boundary_input(value, scope, env)
        self._initializers(graph, scope, env)
        self._nodes(graph, scope, env)
        for index, output in enumerate(graph.outputs):
            self._boundary_output(output, index, scope, env)
        self._refuse_without_cast()
        return self.flow

    def _refuse_without_cast(self) -> None:
        """Before a Cast to the low type came, nothing can be low, whatever operators of other domains take."""
        since = first_opset_admitting("Cast", "T2", 0, self.low)
        main = self.flow.opset or opset_of_ir(self.model.ir_version or 0)
        for unit in self.flow.units:
            own = self.environments[self.flow.ops[unit.op].scope if unit.op != NONE else 0].opsets
            version = own.get("", own.get("ai.onnx", main))
            if version < since and self.low in unit.admits and not (unit.fixed or unit.fixed_low):
                unit.fixed = f"opset {version} has no Cast to {self.low}; opset {since} does"

    # -- values and uses --------------------------------------------------------------------------------------------

    def _scope(self, path: str, parent: int, op: int, kind: str, times: int, native: Any, env: _Environment) -> Scope:
        scope = Scope(len(self.flow.scopes), path, parent, op, kind, times, native=native)
        self.flow.scopes.append(scope)
        self.environments.append(env)
        return scope

    def _value(self, native: ir.Value, scope: int, env: _Environment, dtype: str, **more: Any) -> Value:
        value = Value(len(self.flow.values), native.name or "", scope, dtype, native=native, **more)
        self.flow.values.append(value)
        self.flow.uses.append([])
        env.table[native] = value.id
        return value

    def _boundary_input(self, native: ir.Value, scope: Scope, env: _Environment) -> None:
        container, dtype = declared_type(native)
        value = self._value(native, scope.id, env, dtype, container=container)
        scope.inputs.append(value.id)
        if dtype == FLOAT32:
            low = value.name in self.low_io and not container
            value.unit = self._boundary_unit(f"input {value.name}", low, "a graph input keeps its type")

    def _boundary_output(self, native: ir.Value, index: int, scope: Scope, env: _Environment) -> None:
        value = self._lookup(native, scope, env)
        scope.outputs.append(value.id)
        unit = NONE
        if value.dtype == FLOAT32:
            low = value.name in self.low_io and not value.container
            unit = self._boundary_unit(f"output {index}", low, "a graph output keeps its type")
        self._use(value, NONE, index, unit, scope.id)

    def _boundary_unit(self, slot: str, low: bool, why: str) -> int:
        if low:
            return self.flow.new_unit(NONE, slot, frozenset(LOW), fixed_low=True)
        return self.flow.new_unit(NONE, slot, _NO_TYPES, fixed=why)

    def _initializers(self, graph: ir.Graph, scope: Scope, env: _Environment) -> None:
        for native in graph.initializers.values():
            if native in env.table or native.const_value is None:
                continue  # an initializer that is listed as an input can be overridden: an input
            self._value(native, scope.id, env, dtype_name(native.const_value.dtype), weight=True, parameter=True)

    def _lookup(self, native: ir.Value, scope: Scope, env: _Environment) -> Value:
        found = env.table.get(native)
        if found is not None:
            return self.flow.values[found]
        # a name that nothing defines: outside this model, or written later in an unsorted graph
        container, dtype = declared_type(native)
        value = self._value(native, scope.id, env, dtype, container=container)
        if dtype == FLOAT32:
            value.unit = self.flow.new_unit(
                NONE, f"undefined {value.name}", _NO_TYPES, fixed="nothing in the model defines it"
            )
        return value

    def _use(self, value: Value, op: int, index: int, unit: int, scope: int, given: bool = False) -> None:
        if unit != NONE and value.container and value.unit != NONE:
            self.flow.merge((unit, value.unit))  # no Cast exists for a container
        self.flow.uses[value.id].append(Use(value.id, op, index, unit, scope, given))

    # -- nodes ------------------------------------------------------------------------------------------------------

    def _nodes(self, graph: ir.Graph | ir.Function, scope: Scope, env: _Environment) -> None:
        flow, table, functions = self.flow, env.table, self.model.functions
        for index, node in enumerate(graph):
            inputs = [NONE] * len(node.inputs)
            for position, native in enumerate(node.inputs):
                if native is not None:
                    found = table.get(native)
                    inputs[position] = self._lookup(native, scope, env).id if found is None else found
            domain = node.domain
            op = Op(
                len(flow.ops), kind_of(domain, node.op_type), scope.id, index, node.name or "", inputs, [], native=node
            )
            op.held = node.metadata_props.get(HELD, "")
            op.adds_branches = BRANCHES in node.metadata_props
            flow.ops.append(op)
            if functions and (domain, node.op_type, node.overload) in functions:
                _call(self, op, node, scope, env)
            elif op.kind in _CONTROL:
                _CONTROL[op.kind](self, op, node, scope, env)
            else:
                self._plain(op, node, scope, env)
            if len(flow.ops) > MAX_OPS:
                raise AmpError(
                    "AMP203",
                    f"more than {MAX_OPS:,} nodes once functions are expanded",
                    hint="functions that call functions multiply: flatten or simplify the model first",
                )

    def _plain(self, op: Op, node: ir.Node, scope: Scope, env: _Environment) -> None:
        opset = env.opsets.get(node.domain, self.flow.opset or 1)
        found = layout(node.domain, node.op_type, opset, len(op.inputs), len(node.outputs))
        if found is None:
            return self._opaque(op, node, scope, env, f"no schema is known for {op.kind}")
        if op.kind == "Constant":
            return self._constant(op, node, scope, env)
        if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
            self._opaque(op, node, scope, env, f"the types of its body are part of {op.kind}")
            return self._bodies(op, node, scope, env)
        for native in node.outputs:
            op.outputs.append(self._value(native, scope.id, env, "", producer=op.id).id)
        for group in found.groups:
            self._group(op, node, group, found.version, opset, scope)
        if op.kind in LINKED:
            self._link(op, found.groups)
        if op.kind == "Cast":
            self.flow.given_cast(op, self.low)
        return None

    def _group(self, op: Op, node: ir.Node, group: Group, version: int, opset: int, scope: Scope) -> None:
        """Types the outputs of one slot, and makes its unit if the slot is float32."""
        values = self.flow.values
        container = dtype = ""
        for position in group.inputs:
            if op.inputs[position] != NONE and values[op.inputs[position]].dtype:
                dtype, container = values[op.inputs[position]].dtype, values[op.inputs[position]].container
                break
        if not dtype:
            container, dtype = self._output_type(op, node, group)
        unit = NONE
        if dtype == FLOAT32:
            admits, fixed = self._admitted(group, container), ""
            if op.kind == "ConstantOfShape" and any(a.is_ref() for a in node.attributes.values()):
                fixed = "its value comes from the caller"
            unit = self.flow.new_unit(op.id, group.slot, admits, fixed=fixed, version=version, opset=opset)
            op.slots[group.slot] = unit
        for position in group.inputs:
            if op.inputs[position] != NONE:
                value = values[op.inputs[position]]
                if not value.dtype and dtype == FLOAT32:  # an unknown operator's output shows its type here
                    value.dtype = FLOAT32
                    value.unit = self.flow.new_unit(NONE, value.name, _NO_TYPES, fixed="its operator is unknown")
                elif value.dtype != dtype and value.dtype and not group.literal:
                    self.flow.conflicts.append(f"{op.kind} '{op.name}': {group.slot} holds {dtype} and {value.dtype}")
                self._use(value, op.id, position, unit if value.dtype == FLOAT32 else NONE, scope.id)
        if dtype in LOW and dtype not in self._admitted(group, container):
            self.flow.conflicts.append(f"{op.kind} '{op.name}': {group.slot} does not admit {dtype}")
        for position in group.outputs:
            value = values[op.outputs[position]]
            value.dtype, value.container, value.unit = dtype, container, unit

    def _admitted(self, group: Group, container: str) -> frozenset[str]:
        key = (group.admits, container)
        if key not in self.static_admits:
            self.static_admits[key] = frozenset(low for low in LOW if (container, low) in group.admits)
        return self.static_admits[key]

    def _output_type(self, op: Op, node: ir.Node, group: Group) -> tuple[str, str]:
        """(container, element type) of outputs that no input of the slot types."""
        if group.literal is not None:
            return group.literal
        if op.kind in LINKED and op.inputs and op.inputs[0] != NONE:
            container = next((c for c, _ in group.admits if c), "") if LINKED[op.kind][1] in "SO" else ""
            return container, self.flow.values[op.inputs[0]].dtype
        if op.kind in STASHED and group.slot == "U":
            return "", _DTYPE_NAMES[ir.DataType(self.attribute(op, "stash_type") or 1)]
        if op.kind in DTYPE_ATTRIBUTES:
            number = self.attribute(op, DTYPE_ATTRIBUTES[op.kind])
            container = "seq" if op.kind == "SequenceEmpty" else ""
            if isinstance(number, str):  # Cast before opset 6
                return container, dtype_name(ir.DataType[number.upper()])
            if number:
                return container, _DTYPE_NAMES.get(number, "")
            if op.kind in FOLLOWS_INPUT:
                return "", self.flow.values[op.inputs[0]].dtype
            if op.kind == "DequantizeLinear":
                return "", self.flow.values[op.inputs[1]].dtype
            if op.kind != "QuantizeLinear":
                return container, FLOAT32
        if op.kind == "ConstantOfShape":
            tensor = self.attribute(op, "value")
            return "", FLOAT32 if tensor is None else dtype_name(tensor.dtype)
        if len(group.admits) == 1:
            return next(iter(group.admits))
        for position in group.outputs:
            container, dtype = declared_type(node.outputs[position])
            if dtype:
                return container, dtype
        return "", ""

    def _link(self, op: Op, groups: Iterable[Group]) -> None:
        units = [op.slots[name] for name in LINKED[op.kind] if name in op.slots]
        if len(units) == 2:
            self.flow.merge(units)

    def _constant(self, op: Op, node: ir.Node, scope: Scope, env: _Environment) -> None:
        tensor = node.attributes.get("value")
        if tensor is not None and not tensor.is_ref():
            dtype, weight = dtype_name(tensor.value.dtype), True
        else:
            dtype = "int64" if {"value_int", "value_ints"} & set(node.attributes) else FLOAT32
            dtype = "string" if {"value_string", "value_strings"} & set(node.attributes) else dtype
            given = self.attribute(op, "value") if tensor is not None else None
            dtype = dtype_name(given.dtype) if given is not None else dtype
            weight = not any(a.is_ref() for a in node.attributes.values())
        value = self._value(node.outputs[0], scope.id, env, dtype, producer=op.id, weight=weight)
        op.outputs.append(value.id)
        if dtype == FLOAT32 and not weight:
            value.unit = op.slots["T"] = self.flow.new_unit(
                op.id, "T", _NO_TYPES, fixed="its value comes from the caller"
            )

    def _opaque(self, op: Op, node: ir.Node, scope: Scope, env: _Environment, why: str) -> None:
        """An operator that nothing is known of, or whose types are its own business: float32 in and out."""
        if why.startswith("no schema"):
            self.flow.unknown_kinds.add(op.kind)
        for position, source in enumerate(op.inputs):
            if source != NONE:
                value, unit = self.flow.values[source], NONE
                if value.dtype == FLOAT32:
                    unit = op.slots[f"in{position}"] = self.flow.new_unit(op.id, f"in{position}", _NO_TYPES, fixed=why)
                self._use(value, op.id, position, unit, scope.id)
        for position, native in enumerate(node.outputs):
            container, dtype = declared_type(native)
            value = self._value(native, scope.id, env, dtype, container=container, producer=op.id)
            op.outputs.append(value.id)
            if dtype == FLOAT32:
                unit = self.flow.new_unit(op.id, f"out{position}", _NO_TYPES, fixed=why)
                value.unit = op.slots[f"out{position}"] = unit

    # -- bodies and functions ---------------------------------------------------------------------------------------

    def _body(
        self,
        op: Op,
        name: str,
        graph: ir.Graph,
        scope: Scope,
        env: _Environment,
        times: int,
        formals: list[tuple[str, str, int]],
    ) -> Scope:
        """Builds a body whose formal inputs have the given (container, type, unit)."""
        path = f"{scope.path}/{op.index}:{op.kind}.{name}"
        body = self._scope(path, scope.id, op.id, "body", scope.times * times, graph, env)
        for position, native in enumerate(graph.inputs):
            container, dtype, unit = formals[position] if position < len(formals) else (*declared_type(native), NONE)
            value = self._value(native, body.id, env, dtype, container=container, unit=unit)
            body.inputs.append(value.id)
        self._initializers(graph, body, env)
        self._nodes(graph, body, env)
        for native in graph.outputs:
            body.outputs.append(self._lookup(native, body, env).id)
        return body

    def _bodies(self, op: Op, node: ir.Node, scope: Scope, env: _Environment) -> None:
        """Bodies of an opaque operator: their interface stays as it is."""
        for name, attribute in node.attributes.items():
            if attribute.is_ref() or attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
                continue
            graphs = [attribute.value] if attribute.type == ir.AttributeType.GRAPH else attribute.value
            for number, graph in enumerate(graphs):
                why = f"the types of its body are part of {op.kind}"
                formals = []
                for native in graph.inputs:
                    container, dtype = declared_type(native)
                    held = self.flow.new_unit(op.id, "body", _NO_TYPES, fixed=why) if dtype == FLOAT32 else NONE
                    formals.append((container, dtype, held))
                label = name if len(graphs) == 1 else f"{name}[{number}]"
                body = self._body(op, label, graph, scope, env, 1, formals)
                for index, value in enumerate(body.outputs):
                    held = NONE
                    if self.flow.values[value].dtype == FLOAT32:
                        held = self.flow.new_unit(op.id, "body", _NO_TYPES, fixed=why)
                    self._use(self.flow.values[value], NONE, index, held, body.id)

    def interface_unit(self, op: Op, slot: str, dtype: str, container: str = "") -> int:
        """The unit of a value that crosses a border (a loop state, a branch's output, a function's formal)."""
        if dtype != FLOAT32:
            return NONE
        if op.kind in ("If", "Loop", "Scan"):
            env = self.environments[op.scope]
            found = schema("", op.kind, env.opsets.get("", self.flow.opset or 1))
            variable = "V" if found and "V" in found.constraints else next(iter(found.constraints)) if found else ""
            from .schemas import allowed

            types = allowed(found.constraints[variable]) if found else frozenset()
            admits = frozenset(low for low in LOW if (container, low) in types)
            version = found.since_version if found else 0
        else:
            admits, version = frozenset(LOW), 0
        unit = op.slots[slot] = self.flow.new_unit(op.id, slot, admits, version=version, border=True)
        return unit

    # -- attributes -------------------------------------------------------------------------------------------------

    def _resolve(self, attribute: ir.Attr, env: _Environment) -> ir.Attr:
        if attribute.is_ref():
            return env.attributes.get(attribute.ref_attr_name or "", attribute)
        return attribute

    def attribute(self, op: Op, name: str) -> Any:
        """The value of an attribute, with references to a function's parameters resolved; None when absent."""
        found = op.native.attributes.get(name)
        if found is None:
            return None
        found = self._resolve(found, self.environments[op.scope])
        return None if found.is_ref() else found.value

    def plain_attribute(self, op: Op, name: str) -> Any:
        """The same for readers that know no format: a tensor is a numpy array."""
        value = self.attribute(op, name)
        return value.numpy() if isinstance(value, ir.TensorProtocol) else value


from .control_flow import CONTROL as _CONTROL  # noqa: E402
from .control_flow import call as _call  # noqa: E402
