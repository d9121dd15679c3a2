"""Values and operators of an ONNX model in its dataflow: types by propagation, slots by schema. A slot is the operands
and results of one type variable (T, T1); what is float32 in it is one *unit*, whose type is decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx_ir as ir

from ...core.dataflow import FLOAT32, NONE, AttributeValue, Dataflow, Op, Scope, Use, Value
from ...core.graph import LOW
from ...oplists.traits import has
from ..flow_builder import LOW_TYPES, NO_TYPES, FlowBuilder
from .native import is_map, value_info
from .schemas import (
    DTYPE_ATTRIBUTES,
    FOLLOWS_INPUT,
    LINKED,
    ONNX_DOMAINS,
    STASHED,
    NodeSlot,
    NodeSlots,
    kind_of,
    slots_of,
)
from .types import Type, declared_type, dtype_name, element_type, native_type, type_numbered

PLAIN = (type(None), int, float, str, bytes, tuple, list)  # types of most attributes' values


@dataclass(frozen=True, slots=True)
class Form:
    """What nodes of one ONNX operator with the same numbers of inputs and outputs have in common under one opset.
    ``kind``: ``Conv``, ``com.microsoft::Gelu``; ``opset``: of the operator's domain; ``slots``: None for an operator
    without a schema; ``control``: whether it may call a function or have bodies."""

    kind: str
    opset: int
    slots: NodeSlots | None
    control: bool


@dataclass(eq=False)
class Environment:
    """What names mean in the main graph of an ONNX model, in a body, or in a function as called from one place.
    ``opsets``: domain -> imported version; ``attributes``: attribute parameter of the function -> what the call gave
    (empty in the main graph); ``table``: native value -> id of the dataflow's value; ``forms``: (domain, operator,
    number of inputs, of outputs) -> form of nodes that were read."""

    opsets: dict[str, int]
    attributes: dict[str, ir.Attr]
    table: dict[ir.Value, int] = field(default_factory=dict)
    forms: dict[tuple[str, str, int, int], Form] = field(default_factory=dict)

    def resolve(self, attribute: ir.Attr) -> ir.Attr:
        """The attribute that an ONNX function's call gave where ``attribute`` refers to a parameter of the function;
        ``attribute`` itself where it refers to none, and, still a reference, where the call gave none."""
        if attribute.is_ref():
            return self.attributes.get(attribute.ref_attr_name or "", attribute)
        return attribute

    def attribute(self, node: ir.Node, name: str) -> Any:
        """The value of an ONNX node's attribute, as `resolve` finds it; None when it is absent, or not given."""
        found = node.attributes.get(name)
        if found is None:
            return None
        found = self.resolve(found)
        return None if found.is_ref() else found.value


class OnnxValues(FlowBuilder):
    """Adds the values of an ONNX model to its dataflow. ``low``, ``low_io``: see `FlowBuilder`."""

    def __init__(self, model: ir.Model, flow: Dataflow, low: str, low_io: frozenset[str]) -> None:
        super().__init__(flow, low, low_io)
        self.model = model
        self.environments: list[Environment] = []  # by scope id
        self._functions = {(domain, name) for domain, name, _ in model.functions}

    def enter(
        self, path: str, parent: int, op: int, kind: str, times: int, native: ir.Graph | ir.Function, env: Environment
    ) -> Scope:
        """While an ONNX file is read: adds a scope, whose names mean what ``env`` says; the rest is as in `Scope`."""
        self.environments.append(env)
        return self.add_scope(path, parent, op, kind, times, native)

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
        """While an ONNX file is read: adds a value of a scope to the dataflow, under the name of ``native``, by which
        ``env`` finds it from then on; the other arguments are fields of `Value`."""
        value = self.add_value(
            native.name or "", scope, dtype, container=container, producer=producer, unit=unit, native=native
        )
        env.table[native] = value.id
        return value

    def add_results(self, op: Op, natives: Sequence[ir.Value], env: Environment) -> None:
        """While an ONNX file is read: adds a node's results, of unknown type, until `_read_slot` types them."""
        values, uses, table, outputs = self.flow.values, self.flow.uses, env.table, op.outputs
        for native in natives:
            number = table[native] = len(values)
            name = native.name or ""
            values.append(Value(number, name, op.scope, "", producer=op.id, native=native))
            uses.append([])
            outputs.append(number)

    def lookup(self, native: ir.Value, scope: Scope, env: Environment) -> Value:
        """The dataflow's value for a native value that an ONNX graph reads, of its own scope or of one around it. One
        that is not known yet is added: nothing defines it, or the graph is unsorted."""
        found = env.table.get(native)
        if found is not None:
            return self.flow.values[found]
        container, dtype = declared_type(native)
        value = self.make(native, scope.id, env, dtype, container)
        if dtype == FLOAT32:
            value.unit = self.fixed_unit(f"undefined {value.name}", "nothing in the model defines it")
        return value

    def add_initializers(self, graph: ir.Graph, scope: Scope, env: Environment) -> None:
        """Adds the stored tensors of an ONNX graph to the dataflow, as weights that are parameters. One that is listed
        as an input too is an input, as callers may replace it: inputs must be added before."""
        for native in graph.initializers.values():
            if native not in env.table and native.const_value is not None:
                value = self.make(native, scope.id, env, dtype_name(native.const_value.dtype))
                value.weight = value.parameter = True

    def add_input(self, native: ir.Value, scope: Scope, env: Environment) -> None:
        """Adds an input of the ONNX model to the dataflow, with its unit if it is float32."""
        container, dtype = declared_type(native)
        value = self.make(native, scope.id, env, dtype, container)
        value.default = native.const_value is not None
        scope.inputs.append(value.id)
        if dtype == FLOAT32:
            low = value.name in self.low_io and not container
            value.unit = self.boundary_unit(f"input {value.name}", low, "a graph input keeps its type")

    def add_output(self, native: ir.Value, index: int, scope: Scope, env: Environment) -> None:
        """Adds to the dataflow the read by output ``index`` of the ONNX model, with its unit if it is float32."""
        value = self.lookup(native, scope, env)
        scope.outputs.append(value.id)
        unit = NONE
        if value.dtype == FLOAT32:
            low = value.name in self.low_io and not value.container
            unit = self.boundary_unit(f"output {index}", low, "a graph output keeps its type")
        self.add_use(value, NONE, index, unit, scope.id)

    def attribute(self, op: Op, name: str) -> Any:
        """The value of an ONNX operator's attribute as onnx_ir has it, references resolved; None when absent."""
        return self.environments[op.scope].attribute(op.native, name)

    def plain_attribute(self, op: Op, name: str) -> AttributeValue:
        """An ONNX operator's `attribute` for readers that know no format: a tensor is a numpy array."""
        value = self.attribute(op, name)
        if isinstance(value, PLAIN) or not isinstance(value, ir.TensorProtocol):  # the second is slow to say no
            plain: AttributeValue = value
            return plain
        array: AttributeValue = value.numpy()
        return array


def inferred_types(node: ir.Node, inputs: Sequence[Type], opsets: Mapping[str, int]) -> list[Type]:
    """(container, element type) of each output of an ONNX node, as onnx infers it from the types ``inputs`` of its
    inputs; ``("", "")`` for an output of which it infers none. ``opsets``: domain -> version."""
    unknown = [("", "")] * len(node.outputs)
    domain = "" if node.domain == "ai.onnx" else node.domain
    if node.domain not in ONNX_DOMAINS:
        return unknown
    try:
        version = opsets.get(domain, opsets.get("ai.onnx", 1))
        schema = onnx.defs.get_schema(node.op_type, version, domain)
        read = zip(node.inputs, inputs, strict=True)
        known = {value.name or "": _type_proto(value, kind) for value, kind in read if value is not None}
        imports = [onnx.helper.make_opsetid(name, number) for name, number in opsets.items()]
        proto = ir.serde.serialize_node(node)
        found = onnx.shape_inference.infer_node_outputs(schema, proto, known, opset_imports=imports)
    except (onnx.defs.SchemaError, onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        return unknown  # a node that onnx cannot follow: its annotation is asked
    return [_type_of_proto(found[value.name]) if value.name in found else ("", "") for value in node.outputs]


def _type_proto(value: ir.Value, kind: Type) -> onnx.TypeProto:
    """What onnx's inference is told of a value: the type ``kind`` with the shape that the file annotates, as inference
    may ask for the rank. What the file annotates where the element type of ``kind`` is unknown."""
    if not kind[1]:
        return value_info(value).type
    native = value.type if value.type is not None and declared_type(value) == kind else native_type(*kind)
    proto = onnx.TypeProto()
    ir.serde.serialize_type_into(proto, native)
    if value.shape is not None and isinstance(native, ir.TensorType):
        ir.serde.serialize_shape_into(proto, value.shape)
    return proto


def _type_of_proto(proto: onnx.TypeProto) -> Type:
    """(container, element type) of an ONNX TypeProto; ("other", "") for a map."""
    return ("other", "") if is_map(proto) else element_type(ir.serde.deserialize_type_proto_for_type(proto))


CALLER = "its value comes from the caller"
BODIES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)  # types of attributes that hold bodies


def body_types(op: Op) -> str:
    """The reason why, in an ONNX dataflow, an operator with bodies that is no If, Loop or Scan keeps its types."""
    return f"the types of its body are part of {op.kind}"


def _types_by_list(op: Op) -> frozenset[str]:
    """The low types that a user's list may admit for an operator without a schema; none if its domain is ONNX's."""
    return NO_TYPES if op.native.domain in ONNX_DOMAINS else LOW_TYPES


def _holds_bodies(node: ir.Node) -> bool:
    """Whether an attribute of an ONNX node holds graphs, or refers to a function's parameter that does."""
    for attribute in node.attributes.data.values():  # noqa: SIM110  asked of every node: any() would make a generator
        if attribute.type in BODIES:
            return True
    return False


class OnnxOperators(OnnxValues):
    """Reads the nodes of an ONNX model, but for bodies, one at a time: their slots, units and results."""

    def form(self, domain: str, op_type: str, inputs: int, outputs: int, env: Environment) -> Form:
        """Makes the `Form` of ONNX nodes of an operator with so many inputs and outputs, and notes it in ``env``."""
        kind, opset = kind_of(domain, op_type), env.opsets.get(domain, self.flow.opset or 1)
        control = has(kind, "control_flow") or (domain, op_type) in self._functions
        slots = slots_of(domain, op_type, opset, inputs, outputs)
        made = env.forms[domain, op_type, inputs, outputs] = Form(kind, opset, slots, control)
        return made

    def read_operator(self, op: Op, node: ir.Node, form: Form, scope: Scope, env: Environment) -> bool:
        """Reads one ONNX node into ``op``, whose inputs are there already: its results, slots and units, and who reads
        its inputs. True where it has bodies, which the caller has yet to read."""
        found = form.slots
        if found is None:
            self.flow.unknown_kinds.add(op.kind)
            self._read_opaque(op, node, scope, env, f"no schema is known for {op.kind}")
            return False
        if op.kind == "Constant":
            self._read_constant(op, node, scope, env)
            return False
        if node.attributes.data and _holds_bodies(node):  # most have none, and calls take time
            self._read_opaque(op, node, scope, env, body_types(op), found)
            return True
        self.add_results(op, node.outputs, env)
        for slot in found.slots:
            self._read_slot(op, node, slot, found.version, form.opset)
        if op.kind in LINKED:
            units = [op.slots[name] for name in LINKED[op.kind] if name in op.slots]
            if len(units) == 2:
                self.flow.merge(units)
        if op.kind == "Cast":
            self.flow.mark_given_cast(op, self.low)
        return False

    def _read_slot(self, op: Op, node: ir.Node, slot: NodeSlot, version: int, opset: int) -> None:
        """Reads one slot of an ONNX node: its type, its unit if that is float32, the reads of its inputs, the type of
        its outputs. Notes a conflict where it does not admit a low type that it has. The first input of known type
        gives the type, else `_output_type`. ``version``: since_version of the schema."""
        values, uses, inputs = self.flow.values, self.flow.uses, op.inputs
        for position in slot.inputs:
            if inputs[position] != NONE and values[inputs[position]].dtype:
                typed = values[inputs[position]]
                container, dtype = typed.container, typed.dtype
                break
        else:
            container, dtype = self._output_type(op, node, slot)
        unit = NONE
        if dtype == FLOAT32:
            admits, fixed = slot.low.get(container, NO_TYPES), ""
            if op.kind == "ConstantOfShape" and any(a.is_ref() for a in node.attributes.values()):
                fixed = CALLER
            unit = self.flow.new_unit(op.id, slot.slot, admits, fixed=fixed, version=version, opset=opset)
            op.slots[slot.slot] = unit
        for position in slot.inputs:
            number = inputs[position]
            if number == NONE:
                continue
            value = values[number]
            if value.dtype == dtype and not value.container:  # as nearly all are
                uses[number].append(Use(number, op.id, position, unit, op.scope))
            else:
                self._add_odd_read(op, slot, value, position, dtype, unit)
        if dtype in LOW and dtype not in slot.low.get(container, NO_TYPES):
            self.note_conflict(f"{op.kind} '{op.name}': {slot.slot} does not admit {dtype}")
        for position in slot.outputs:
            value = values[op.outputs[position]]
            value.dtype, value.container, value.unit = dtype, container, unit

    def _add_odd_read(self, op: Op, slot: NodeSlot, value: Value, position: int, dtype: str, unit: int) -> None:
        """Adds the read of a value that is a container or is not of its ONNX slot's type ``dtype``: a value of unknown
        type becomes float32 where the slot is, as must stay; another type is a conflict. ``unit``: of the slot."""
        if not value.dtype and dtype == FLOAT32:  # an unknown operator's output shows its type here
            value.dtype = FLOAT32
            maker, why = self.flow.writer(value.id), "its operator is unknown"
            if maker is not None and maker.kind in self.flow.unknown_kinds:
                value.unit = self.fixed_slot(maker, f"out{maker.outputs.index(value.id)}", why, _types_by_list(maker))
            else:
                value.unit = self.fixed_unit(value.name, why)
        elif value.dtype != dtype and value.dtype and not slot.literal:
            self.note_conflict(f"{op.kind} '{op.name}': {slot.slot} holds {dtype} and {value.dtype}")
        self.add_use(value, op.id, position, unit if value.dtype == FLOAT32 else NONE, op.scope)

    def _output_type(self, op: Op, node: ir.Node, slot: NodeSlot) -> Type:
        """(container, element type) of the outputs of an ONNX node's slot in which no input has a known type: by the
        schema, an attribute, onnx's inference or the file's annotation, ("", "") where none of them says it."""
        if slot.literal is not None:
            return slot.literal
        if op.kind in LINKED and op.inputs and op.inputs[0] != NONE:
            makes_container = LINKED[op.kind][1] in ("S", "O")
            container = next((c for c, _ in slot.admits if c), "") if makes_container else ""
            return container or self._inferred(op, node)[0][0], self.flow.values[op.inputs[0]].dtype
        if op.kind in STASHED and slot.slot == "U":
            return "", type_numbered(self.attribute(op, "stash_type") or 1)
        if op.kind in DTYPE_ATTRIBUTES:
            named = self._named_type(op)
            if named is not None:
                return named
        if op.kind == "ConstantOfShape":
            tensor = self.attribute(op, "value")
            return "", FLOAT32 if tensor is None else dtype_name(tensor.dtype)
        if len(slot.admits) == 1:
            return next(iter(slot.admits))
        inferred = self._inferred(op, node) if slot.outputs else []
        for position in slot.outputs:
            for container, dtype in (inferred[position], declared_type(node.outputs[position])):
                if dtype:
                    return container, dtype
        return "", ""

    def _named_type(self, op: Op) -> Type | None:
        """(container, element type) that an attribute of an ONNX operator in `DTYPE_ATTRIBUTES` names. Where it is
        absent: that of the operand that it follows, else float32; None for a QuantizeLinear: its zero point has it."""
        named = self.attribute(op, DTYPE_ATTRIBUTES[op.kind])
        container = "seq" if op.kind == "SequenceEmpty" else ""
        if isinstance(named, str):  # Cast before opset 6
            return container, dtype_name(ir.DataType[named.upper()])
        if named:
            return container, type_numbered(named)
        if op.kind in FOLLOWS_INPUT:
            return "", self.flow.values[op.inputs[0]].dtype
        if op.kind == "DequantizeLinear":
            return "", self.flow.values[op.inputs[1]].dtype
        return None if op.kind == "QuantizeLinear" else (container, FLOAT32)

    def _read_constant(self, op: Op, node: ir.Node, scope: Scope, env: Environment) -> None:
        """Reads an ONNX Constant: a weight, or a value that stays as it is, as a function's caller gives it."""
        tensor = node.attributes.get("value")
        if tensor is not None and not tensor.is_ref():
            dtype, weight = dtype_name(tensor.value.dtype), True
        else:
            dtype = FLOAT32  # value_float, value_floats
            if {"value_int", "value_ints"} & set(node.attributes):
                dtype = "int64"
            if {"value_string", "value_strings"} & set(node.attributes):
                dtype = "string"
            given = self.attribute(op, "value") if tensor is not None else None
            if given is not None:
                dtype = dtype_name(given.dtype)
            weight = not any(a.is_ref() for a in node.attributes.values())
        value = self.make(node.outputs[0], scope.id, env, dtype, producer=op.id)
        value.weight = weight
        op.outputs.append(value.id)
        if dtype == FLOAT32 and not weight:
            value.unit = self.fixed_slot(op, "T", CALLER)

    def _read_opaque(
        self, op: Op, node: ir.Node, scope: Scope, env: Environment, why: str, found: NodeSlots | None = None
    ) -> None:
        """Reads an ONNX operator whose float32 inputs and outputs stay so, for the reason ``why``: one without a schema
        (``found`` is None), or one whose bodies have its types (``found``: its slots)."""
        named = NO_TYPES if found is not None else _types_by_list(op)
        for position, source in enumerate(op.inputs):
            if source != NONE:
                value, unit = self.flow.values[source], NONE
                if value.dtype == FLOAT32:
                    unit = self.fixed_slot(op, f"in{position}", why, named)
                self.add_use(value, op.id, position, unit, scope.id)
        known = self._known_types(op, node, found)
        for position, native in enumerate(node.outputs):
            container, dtype = known[position] if known[position][1] else declared_type(native)
            value = self.make(native, scope.id, env, dtype, container, producer=op.id)
            op.outputs.append(value.id)
            if dtype == FLOAT32:
                value.unit = self.fixed_slot(op, f"out{position}", why, named)

    def _known_types(self, op: Op, node: ir.Node, found: NodeSlots | None) -> list[Type]:
        """(container, element type) of the outputs of an ONNX node with bodies or without a schema: by what their slots
        (``found``, None without a schema) read or the schema says; by onnx's inference if that leaves one unknown."""
        known = [("", "")] * len(node.outputs)
        for slot in found.slots if found is not None else ():
            read = [self.flow.values[op.inputs[i]] for i in slot.inputs if op.inputs[i] != NONE]
            types = [(value.container, value.dtype) for value in read if value.dtype]
            for position in slot.outputs:
                known[position] = types[0] if types else slot.literal or ("", "")
        return known if all(dtype for _, dtype in known) else self._inferred(op, node)

    def _inferred(self, op: Op, node: ir.Node) -> list[Type]:
        """(container, element type) of an ONNX node's outputs as onnx infers them from the types of its inputs."""
        read = [self.flow.values[i] if i != NONE else None for i in op.inputs]
        opsets = self.environments[op.scope].opsets
        return inferred_types(node, [(v.container, v.dtype) if v else ("", "") for v in read], opsets)
