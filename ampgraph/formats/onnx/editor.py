"""Edits an ONNX model in place, by handles of its dataflow. New names are unique in every scope, and repeatable."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op, Value
from . import norm_tensors
from .bounds import write_bounds
from .dataflow import declared_type
from .layout import DTYPE_ATTRIBUTES, FOLLOWS_INPUT
from .variants import Variants
from .weights import IR_TYPES, RoundedTensor, stored_tensor

LAYER_KEYS = ("pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy", "namespace")
UseKey = tuple[str, int, int]


class OnnxEditor:
    """The verbs that passes use. ``keep``: scopes to edit; calls of one function variant share one of them."""

    def __init__(self, model: ir.Model, flow: Dataflow, variants: Variants) -> None:
        self.model, self.flow, self.variants = model, flow, variants
        self._names = _all_names(model, flow)
        self._scopes = {scope.path: scope.id for scope in flow.scopes}
        self._ops = {(op.scope, op.index): op for op in flow.ops}
        self._first: dict[int, ir.Node | None] = {}
        self._outputs = [value.name for value in model.graph.outputs]
        self._types: dict[ir.Value, str] = {}  # what was retyped or made here

    def edits(self, scope: int) -> bool:
        """Whether edits of a scope are made through it: of calls that share a function, one does it for all."""
        return self.variants.leader[scope]

    def finish(self) -> None:
        """Nothing is left to do: every edit is complete in itself."""

    # -- handles ----------------------------------------------------------------------------------------------------

    def value(self, value: Value) -> ir.Value:
        return self.variants.value(value.scope, value.native)

    def node(self, op: Op) -> ir.Node:
        return self.variants.node(op.scope, op.native)

    def op(self, scope: str, index: int) -> Op | None:
        return self._ops.get((self._scopes[scope], index)) if scope in self._scopes else None

    def fresh(self, name: str) -> str:
        """``name``, or the first of name_1, name_2 ... that nothing is called."""
        candidate, number = name, 0
        while candidate in self._names:
            number += 1
            candidate = f"{name}_{number}"
        self._names.add(candidate)
        return candidate

    # -- verbs ------------------------------------------------------------------------------------------------------

    def retype(self, value: Value, dtype: str) -> None:
        """The value now has this element type; attributes that name the type of its operator's output follow."""
        native = self.value(value)
        self._types[native] = dtype
        if native.producer() is not None or self.flow.scopes[value.scope].kind != "function":
            native.type = _with_element(native.type, IR_TYPES[dtype], value.container)  # a formal has none in a file
        if value.producer != NONE:
            self._type_attribute(self.flow.ops[value.producer], dtype)

    def keep_type(self, op: Op, dtype: str) -> None:
        """Pins an output type that would otherwise follow an input that changes."""
        if op.kind in FOLLOWS_INPUT:
            self._type_attribute(op, dtype, pin=True)

    def _type_attribute(self, op: Op, dtype: str, pin: bool = False) -> None:
        node = self.node(op)
        if op.kind == "ConstantOfShape":
            given = self.flow.attribute(op, "value")
            fill = given if given is not None else [0.0]
            tensor = ir.tensor(fill, dtype=IR_TYPES[FLOAT32])
            node.attributes["value"] = ir.AttrTensor("value", RoundedTensor(tensor, dtype))
        elif op.kind == "Optional" and "type" in node.attributes:
            kind = _with_element(node.attributes["type"].value.type, IR_TYPES[dtype])
            shape = node.attributes["type"].value.shape
            node.attributes["type"] = ir.AttrTypeProto("type", ir.TypeAndShape(kind, shape))
        elif op.kind in DTYPE_ATTRIBUTES:
            name = DTYPE_ATTRIBUTES[op.kind]
            follows = op.kind in FOLLOWS_INPUT or op.kind in ("DequantizeLinear", "QuantizeLinear")
            if not follows or pin or self.flow.attribute(op, name):
                node.attributes[name] = self._target_type(name, dtype)

    def _target_type(self, name: str, dtype: str) -> ir.Attr:
        """The attribute that names a type: a word before opset 6, a number since."""
        kind = IR_TYPES[dtype]
        return ir.AttrString(name, kind.name) if 0 < self.flow.opset < 6 else ir.AttrInt64(name, kind.value)

    def cast(self, value: Value, to: str, uses: Iterable[UseKey]) -> None:
        """Reads ``value`` as ``to`` at the given uses, through one Cast in the value's own scope, or a given one."""
        native = self.value(value)
        result = self._existing_cast(value, to)
        if result is None:
            result = self._new_cast(value, native, to)
        self._types[result] = to
        for scope, index, position in uses:
            self.rewire(self._scopes[scope], index, position, result)

    def rewire(self, scope: int, index: int, position: int, result: ir.Value) -> None:
        """Input ``position`` of a node, or output ``position`` of a scope when ``index`` is -1, becomes ``result``."""
        if index != NONE:
            self.node(self._ops[scope, index]).replace_input_with(position, result)
            return
        graph = self.variants.graph(scope, self.flow.scopes[scope].native)
        if scope == 0:
            result = self._as_output(graph, position, result)
        elif not _is_made_in(graph, result):  # no runtime takes a value from outside as the result of a body
            result = self._identity(graph, result, result.shape)
        graph.outputs[position] = result

    def _as_output(self, graph: ir.Graph | ir.Function, position: int, result: ir.Value) -> ir.Value:
        """``result`` with the name and the declared shape of an output of the model."""
        old, name = graph.outputs[position], self._outputs[position]
        if result.name == name:
            return result  # an output that is listed twice
        if result.is_graph_input() or result.is_graph_output():  # it has a name of its own
            result = self._identity(graph, result, old.shape)
        if old.name == name:
            old.name = self.fresh(f"{name}_{old.dtype.name.lower()}")  # type: ignore[union-attr]
        result.name, result.type, result.shape = name, self._type(result), old.shape
        return result

    def _identity(self, graph: ir.Graph | ir.Function, source: ir.Value, shape: ir.Shape | None) -> ir.Value:
        name = self.fresh(f"{source.name}_result")
        node = ir.Node("", "Identity", [source], num_outputs=1, name=self.fresh(f"{name}_node"))
        result = node.outputs[0]
        result.name, result.type, result.shape = name, self._type(source), shape
        graph.append(node)
        return result

    def _type(self, value: ir.Value) -> ir.TypeProtocol | None:
        """The type of a value that the file may not annotate."""
        return value.type or (ir.TensorType(IR_TYPES[self._types[value]]) if value in self._types else None)

    def _existing_cast(self, value: Value, to: str) -> ir.Value | None:
        if value.low_source != NONE:
            return self.value(self.flow.values[value.low_source])
        for use in self.flow.uses[value.id]:
            if (
                use.given_cast
                and use.scope == value.scope
                and self.flow.values[self.flow.ops[use.op].outputs[0]].dtype == to
            ):
                given = self.node(self.flow.ops[use.op])
                self._place(value, given)  # other readers may come before it
                return given.outputs[0]
        return None

    def _new_cast(self, value: Value, native: ir.Value, to: str) -> ir.Value:
        node = ir.Node(
            "",
            "Cast",
            [native],
            [self._target_type("to", to)],
            num_outputs=1,
            name=self.fresh(f"{value.name}_to_{to}"),
        )
        result = node.outputs[0]
        result.name = self.fresh(f"{value.name}_{to}")
        result.type, result.shape = ir.TensorType(IR_TYPES[to]), native.shape
        producer = native.producer()
        for key in LAYER_KEYS:
            if producer is not None and key in producer.metadata_props:
                node.metadata_props[key] = producer.metadata_props[key]
        self._place(value, node)
        return result

    def reads(self, op: Op) -> str:
        """The element type that an operator's first input has now."""
        source = self.node(op).inputs[0]
        assert source is not None
        return self._types.get(source) or declared_type(source)[1]

    def _graph_of(self, value: Value) -> ir.Graph | ir.Function:
        return self.variants.graph(value.scope, self.flow.scopes[value.scope].native)

    def _place(self, value: Value, node: ir.Node) -> None:
        """Behind what makes ``value``; else before the first node that was there, after casts made earlier."""
        graph, producer = self._graph_of(value), self.value(value).producer()
        first = self._first.setdefault(value.scope, next(iter(graph), None)) if producer is None else None
        if node is first:
            return
        if node.graph is not None:
            graph.remove(node)
        if producer is not None:
            graph.insert_after(producer, node)
        elif first is not None:
            graph.insert_before(first, node)
        else:
            graph.append(node)

    def bypass(self, op: Op) -> bool:
        """Removes a one-input operator that does nothing any more; its readers read its input.

        It stays, and costs nothing, where a border needs its name or a body a result of its own.
        """
        node = self.node(op)
        source, target = node.inputs[0], node.outputs[0]
        assert source is not None
        graph = self._graph_of(self.flow.values[op.outputs[0]])
        if any(output is target for output in graph.outputs):
            if not _is_made_in(graph, source) or (op.scope == 0 and source.is_graph_output()):
                return False
            if op.scope == 0:
                name, source.shape = target.name, target.shape
                target.name = self.fresh(f"{name}_given")
                source.name = name
        target.replace_all_uses_with(source, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        return True

    def drop_unread(self, op: Op) -> bool:
        """Removes an operator whose only result is read by nobody."""
        node = self.node(op)
        if node.outputs[0].uses() or node.outputs[0].is_graph_output():
            return False
        self._graph_of(self.flow.values[op.outputs[0]]).remove(node, safe=True)
        return True

    def round(self, value: Value, dtype: str, uses: Iterable[UseKey]) -> None:
        """Puts a float32 -> low -> float32 pair between a value and the given uses."""
        native = self.value(value)
        low = self._existing_cast(value, dtype) or self._new_cast(value, native, dtype)
        wide = self._new_cast(value, low, FLOAT32)
        rounded, widened = low.producer(), wide.producer()
        assert rounded is not None and widened is not None
        self._graph_of(value).remove(widened)  # it was placed behind the value: before its source
        self._graph_of(value).insert_after(rounded, widened)
        for scope, index, position in uses:
            self.rewire(self._scopes[scope], index, position, wide)

    def replace(
        self, scope: str, nodes: Iterable[int], kind: str, inputs: Iterable[str], attributes: dict[str, int | float]
    ) -> None:
        """Puts one operator in the place of several; ``nodes`` ends with the one whose result it takes over."""
        ops = [self._ops[self._scopes[scope], index] for index in nodes]
        last = self.node(ops[-1])
        graph = self._graph_of(self.flow.values[ops[-1].outputs[0]])
        known = {v.name: self.value(v) for op in ops for i in op.inputs if i != NONE for v in [self.flow.values[i]]}
        new = ir.Node(
            "",
            kind,
            [known[name] for name in inputs],
            [ir.Attr(k, _attribute_type(v), v) for k, v in attributes.items()],
            num_outputs=1,
            name=self.fresh(f"{last.name or last.outputs[0].name}_{kind}"),
        )
        for key in LAYER_KEYS:
            if key in last.metadata_props:
                new.metadata_props[key] = last.metadata_props[key]
        old, result = last.outputs[0], new.outputs[0]
        result.type, result.shape = old.type, old.shape
        graph.insert_after(last, new)
        old.replace_all_uses_with(result, replace_graph_outputs=True)
        old.name, result.name = None, old.name
        gone = [self.node(op) for op in reversed(ops)]
        read = [value for node in gone for value in node.inputs if value is not None]
        graph.remove(gone, safe=True)
        for value in dict.fromkeys(read):
            _drop_constant(value)

    def write_bounds(self, scope: str, index: int) -> None:
        """Writes a Clip as Max and Min."""
        node = self.node(self._ops[self._scopes[scope], index])
        read = [value for value in node.inputs[1:] if value is not None]
        write_bounds(node, self.fresh)
        for value in read:
            _drop_constant(value)

    def weight(self, value: Value, store: str, dtype: str, uses: Iterable[UseKey], floor: float | None) -> None:
        """Changes a stored tensor: ``low`` replaces it, ``both`` adds a low copy, ``float32`` only floors."""
        native = self.value(value)
        source = stored_tensor(native)
        assert source is not None
        if store == "both":
            copy = self._stored_copy(value, native, RoundedTensor(source, dtype, floor), dtype)
            for scope, index, position in uses:
                self.rewire(self._scopes[scope], index, position, copy)
        if store != "both" or floor is not None:
            final = dtype if store == "low" else FLOAT32
            self._store(native, RoundedTensor(source, final, floor), final)

    def round_together(self, op: Op, dtype: str) -> None:
        """Rounds the stored parameters of a norm again, so that their errors cancel."""
        norm_tensors.round_together(self.node(op), dtype)

    def _store(self, native: ir.Value, tensor: RoundedTensor, dtype: str) -> None:
        norm_tensors.store(native, tensor)
        native.type = ir.TensorType(IR_TYPES[dtype])

    def _stored_copy(self, value: Value, native: ir.Value, tensor: RoundedTensor, dtype: str) -> ir.Value:
        name = self.fresh(f"{value.name}_{dtype}")
        tensor.name = name
        producer = native.producer()
        if producer is not None:
            node = ir.Node(
                "", "Constant", [], [ir.AttrTensor("value", tensor)], num_outputs=1, name=self.fresh(f"{name}_node")
            )
            self._graph_of(value).insert_after(producer, node)
            copy = node.outputs[0]
            copy.name = name
        else:
            copy = ir.Value(name=name, const_value=tensor)
            native.graph.register_initializer(copy)  # type: ignore[union-attr]
        copy.type, copy.shape = ir.TensorType(IR_TYPES[dtype]), tensor.shape
        return copy


def _drop_constant(value: ir.Value) -> None:
    """Takes a constant away that nothing reads any more."""
    if value.uses() or value.is_graph_output() or value.is_graph_input():
        return
    producer = value.producer()
    if value.is_initializer():
        value.graph.initializers.pop(value.name)  # type: ignore[union-attr, arg-type]
    elif producer is not None and producer.op_type == "Constant" and producer.graph is not None:
        producer.graph.remove(producer, safe=True)


def _is_made_in(graph: ir.Graph | ir.Function, value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and producer.graph is getattr(graph, "graph", graph)


def _attribute_type(value: int | float) -> ir.AttributeType:
    return ir.AttributeType.FLOAT if isinstance(value, float) else ir.AttributeType.INT


def _with_element(kind: ir.TypeProtocol | None, dtype: ir.DataType, container: str = "") -> ir.TypeProtocol:
    """The same type with another element; ``container`` where the file does not annotate it."""
    if isinstance(kind, ir.SequenceType) or (kind is None and container == "seq"):
        return ir.SequenceType(_with_element(getattr(kind, "elem_type", None), dtype))
    if isinstance(kind, ir.OptionalType) or (kind is None and container == "optional"):
        return ir.OptionalType(_with_element(getattr(kind, "elem_type", None), dtype))
    return ir.TensorType(dtype)


def _all_names(model: ir.Model, flow: Dataflow) -> set[str]:
    """Every value and node name of every scope, and of functions that nothing calls."""
    names: set[str] = set()
    graphs = {id(g): g for g in (getattr(scope.native, "graph", scope.native) for scope in flow.scopes)}
    graphs |= {id(f.graph): f.graph for f in model.functions.values()}
    for graph in graphs.values():
        names.update(v.name for v in graph.inputs if v.name)
        names.update(graph.initializers)
        for node in graph:
            if node.name:
                names.add(node.name)
            names.update(v.name for v in node.outputs if v.name)
    return names
