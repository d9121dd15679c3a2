"""Operators of an ONNX model in its dataflow: slots by schema, types by propagation (annotations can be stale)."""

from __future__ import annotations

import onnx_ir as ir

from ...core.dataflow import FLOAT32, NONE, Op, Scope, Use, Value
from ...core.graph import LOW
from ...oplists.traits import operators
from ..flow_builder import NO_TYPES
from .inference import inferred_types
from .schemas import kind_of
from .slots import DTYPE_ATTRIBUTES, FOLLOWS_INPUT, LINKED, STASHED, NodeSlot, NodeSlots, slots_of
from .types import Type, declared_type, dtype_name, type_numbered
from .values import Environment, Form, OnnxValues

CALLER = "its value comes from the caller"
BODIES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def body_types(op: Op) -> str:
    """Why an operator with bodies that is no If, Loop or Scan stays as it is."""
    return f"the types of its body are part of {op.kind}"


def _holds_bodies(node: ir.Node) -> bool:
    """Whether an attribute is a graph, or stands for one."""
    for attribute in node.attributes.data.values():  # noqa: SIM110  asked of every node: any() would make a generator
        if attribute.type in BODIES:
            return True
    return False


class OnnxOperators:
    """Reads nodes without bodies, one at a time: their slots, units and results."""

    def __init__(self, values: OnnxValues) -> None:
        self._values, self._flow = values, values.flow
        self._called = {(domain, name) for domain, name, _ in values.model.functions}

    def form(self, domain: str, op_type: str, inputs: int, outputs: int, env: Environment) -> Form:
        """What nodes of an operator with so many inputs and outputs have in common."""
        kind, opset = kind_of(domain, op_type), env.opsets.get(domain, self._flow.opset or 1)
        control = kind in operators("control_flow") or (domain, op_type) in self._called
        slots = slots_of(domain, op_type, opset, inputs, outputs)
        found = env.forms[domain, op_type, inputs, outputs] = Form(kind, opset, slots, control)
        return found

    def read(self, op: Op, node: ir.Node, form: Form, scope: Scope, env: Environment) -> bool:
        """Reads the operator of a node; its inputs are in ``op`` already. True where its bodies are yet to be read."""
        found = form.slots
        if found is None:
            self._flow.unknown_kinds.add(op.kind)
            self._opaque(op, node, scope, env, f"no schema is known for {op.kind}")
            return False
        if op.kind == "Constant":
            self._constant(op, node, scope, env)
            return False
        if _holds_bodies(node):
            self._opaque(op, node, scope, env, body_types(op), found)
            return True
        self._values.results(op, node.outputs, env)
        for slot in found.slots:
            self._slot(op, node, slot, found.version, form.opset)
        if op.kind in LINKED:
            units = [op.slots[name] for name in LINKED[op.kind] if name in op.slots]
            if len(units) == 2:
                self._flow.merge(units)
        if op.kind == "Cast":
            self._flow.given_cast(op, self._values.low)
        return False

    def _slot(self, op: Op, node: ir.Node, slot: NodeSlot, version: int, opset: int) -> None:
        """Types the outputs of one slot, and makes its unit if the slot is float32."""
        values, uses, inputs = self._flow.values, self._flow.uses, op.inputs
        for position in slot.inputs:
            if inputs[position] != NONE and (dtype := values[inputs[position]].dtype):
                container = values[inputs[position]].container
                break
        else:
            container, dtype = self._output_type(op, node, slot)
        unit = NONE
        if dtype == FLOAT32:
            admits, fixed = slot.low.get(container, NO_TYPES), ""
            if op.kind == "ConstantOfShape" and any(a.is_ref() for a in node.attributes.values()):
                fixed = CALLER
            unit = self._flow.new_unit(op.id, slot.slot, admits, fixed=fixed, version=version, opset=opset)
            op.slots[slot.slot] = unit
        for position in slot.inputs:
            number = inputs[position]
            if number == NONE:
                continue
            value = values[number]
            if value.dtype == dtype and not value.container:  # as nearly all are
                uses[number].append(Use(number, op.id, position, unit, op.scope))
            else:
                self._odd_read(op, slot, value, position, dtype, unit)
        if dtype in LOW and dtype not in slot.low.get(container, NO_TYPES):
            self._values.conflict(f"{op.kind} '{op.name}': {slot.slot} does not admit {dtype}")
        for position in slot.outputs:
            value = values[op.outputs[position]]
            value.dtype, value.container, value.unit = dtype, container, unit

    def _odd_read(self, op: Op, slot: NodeSlot, value: Value, position: int, dtype: str, unit: int) -> None:
        """An input of a slot of type ``dtype`` that is a container or has another type, which is noted."""
        if not value.dtype and dtype == FLOAT32:  # an unknown operator's output shows its type here
            value.dtype = FLOAT32
            value.unit = self._values.fixed_unit(value.name, "its operator is unknown")
        elif value.dtype != dtype and value.dtype and not slot.literal:
            self._values.conflict(f"{op.kind} '{op.name}': {slot.slot} holds {dtype} and {value.dtype}")
        self._values.use(value, op.id, position, unit if value.dtype == FLOAT32 else NONE, op.scope)

    def _output_type(self, op: Op, node: ir.Node, slot: NodeSlot) -> Type:
        """(container, element type) of outputs that no input of the slot types."""
        if slot.literal is not None:
            return slot.literal
        if op.kind in LINKED and op.inputs and op.inputs[0] != NONE:
            container = next((c for c, _ in slot.admits if c), "") if LINKED[op.kind][1] in "SO" else ""
            return container or self._inferred(op, node)[0][0], self._flow.values[op.inputs[0]].dtype
        if op.kind in STASHED and slot.slot == "U":
            return "", type_numbered(self._values.attribute(op, "stash_type") or 1)
        if op.kind in DTYPE_ATTRIBUTES:
            named = self._named_type(op)
            if named is not None:
                return named
        if op.kind == "ConstantOfShape":
            tensor = self._values.attribute(op, "value")
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
        """(container, element type) that an attribute names, or what stands for it where it is absent."""
        named = self._values.attribute(op, DTYPE_ATTRIBUTES[op.kind])
        container = "seq" if op.kind == "SequenceEmpty" else ""
        if isinstance(named, str):  # Cast before opset 6
            return container, dtype_name(ir.DataType[named.upper()])
        if named:
            return container, type_numbered(named)
        if op.kind in FOLLOWS_INPUT:
            return "", self._flow.values[op.inputs[0]].dtype
        if op.kind == "DequantizeLinear":
            return "", self._flow.values[op.inputs[1]].dtype
        return None if op.kind == "QuantizeLinear" else (container, FLOAT32)

    def _constant(self, op: Op, node: ir.Node, scope: Scope, env: Environment) -> None:
        tensor = node.attributes.get("value")
        if tensor is not None and not tensor.is_ref():
            dtype, weight = dtype_name(tensor.value.dtype), True
        else:
            dtype = "int64" if {"value_int", "value_ints"} & set(node.attributes) else FLOAT32
            dtype = "string" if {"value_string", "value_strings"} & set(node.attributes) else dtype
            given = self._values.attribute(op, "value") if tensor is not None else None
            dtype = dtype_name(given.dtype) if given is not None else dtype
            weight = not any(a.is_ref() for a in node.attributes.values())
        value = self._values.make(node.outputs[0], scope.id, env, dtype, producer=op.id)
        value.weight = weight
        op.outputs.append(value.id)
        if dtype == FLOAT32 and not weight:
            value.unit = self._values.fixed_slot(op, "T", CALLER)

    def _opaque(
        self, op: Op, node: ir.Node, scope: Scope, env: Environment, why: str, found: NodeSlots | None = None
    ) -> None:
        """An operator that nothing is known of, or whose types are its own business: float32 in and out."""
        for position, source in enumerate(op.inputs):
            if source != NONE:
                value, unit = self._flow.values[source], NONE
                if value.dtype == FLOAT32:
                    unit = self._values.fixed_slot(op, f"in{position}", why)
                self._values.use(value, op.id, position, unit, scope.id)
        known = self._known_types(op, node, found)
        for position, native in enumerate(node.outputs):
            container, dtype = known[position] if known[position][1] else declared_type(native)
            value = self._values.make(native, scope.id, env, dtype, container, producer=op.id)
            op.outputs.append(value.id)
            if dtype == FLOAT32:
                value.unit = self._values.fixed_slot(op, f"out{position}", why)

    def _known_types(self, op: Op, node: ir.Node, found: NodeSlots | None) -> list[Type]:
        """(container, element type) of the outputs: by what their slots read, else by onnx's inference."""
        known = [("", "")] * len(node.outputs)
        for slot in found.slots if found is not None else ():
            read = [self._flow.values[op.inputs[i]] for i in slot.inputs if op.inputs[i] != NONE]
            for position in slot.outputs:
                known[position] = next(((v.container, v.dtype) for v in read if v.dtype), slot.literal or ("", ""))
        return known if all(dtype for _, dtype in known) else self._inferred(op, node)

    def _inferred(self, op: Op, node: ir.Node) -> list[Type]:
        read = [self._flow.values[i] if i != NONE else None for i in op.inputs]
        opsets = self._values.environments[op.scope].opsets
        return inferred_types(node, [(v.container, v.dtype) if v else ("", "") for v in read], opsets)
