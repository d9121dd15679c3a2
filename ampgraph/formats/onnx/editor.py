"""Edits an ONNX model in place, by handles of its dataflow. New names are unique in every scope, and repeatable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from ...core.arrays import Array
from ...core.dataflow import FLOAT32, NONE, Dataflow, Op, Value
from ...core.graph import Attribute, UseKey
from ...core.pass_ import plan_mismatch
from ...oplists.traits import has
from .handles import Handles, Readers, Variants, copy_layer, type_attribute
from .origins import CAST, describe
from .schemas import DTYPE_ATTRIBUTES, FOLLOWS_INPUT
from .types import DTYPES, attributes_of, dtype_name, with_element
from .weights import RoundedTensor, put, round_channels, round_together, stored_tensor

if TYPE_CHECKING:
    from typing_extensions import Self


def name_type(handles: Handles, op: Op, dtype: str) -> None:
    """Makes the attribute of an ONNX operator that says the type of its output say ``dtype``: a type's number or name,
    the number that a ConstantOfShape repeats, an Optional's type. Nothing for an operator without one;
    (De)QuantizeLinear keep theirs absent, so that the output follows the scale."""
    attributes = handles.node(op).attributes
    if op.kind == "ConstantOfShape":
        given = handles.flow.attribute(op, "value")
        fill = np.asarray(given if given is not None else [0.0], np.float32)
        attributes["value"] = ir.AttrTensor("value", RoundedTensor(ir.tensor(fill), dtype))
    elif op.kind == "Optional" and "type" in attributes:
        said: ir.TypeAndShape = attributes["type"].value
        kind = with_element(said.type, DTYPES[dtype])
        attributes["type"] = ir.AttrTypeProto("type", ir.TypeAndShape(kind, said.shape))
    elif op.kind in DTYPE_ATTRIBUTES:
        name = DTYPE_ATTRIBUTES[op.kind]
        if op.kind not in ("DequantizeLinear", "QuantizeLinear") or handles.flow.attribute(op, name):
            attributes[name] = type_attribute(name, dtype, handles.flow.opset)


def store_copy(handles: Handles, value: Value, tensor: RoundedTensor, dtype: str) -> ir.Value:
    """Adds a stored tensor to the ONNX graph in which ``value``, a stored tensor, stands: an initializer beside an
    initializer, a Constant behind a Constant. ``tensor``: its numbers, of type ``dtype``, which gets the new name."""
    native = handles.value(value)
    name = tensor.name = handles.fresh(f"{value.name}_{dtype}")
    producer = native.producer()
    if producer is not None:
        attribute = ir.AttrTensor("value", tensor)
        node = ir.Node("", "Constant", [], [attribute], num_outputs=1, name=handles.fresh(f"{name}_node"))
        handles.graph(value.scope).insert_after(producer, node)
        copy = node.outputs[0]
        copy.name = name
    else:
        copy = ir.Value(name=name, const_value=tensor)
        native.graph.register_initializer(copy)  # type: ignore[union-attr]
    copy.type, copy.shape = ir.TensorType(DTYPES[dtype]), tensor.shape
    return copy


def change_weight(
    handles: Handles, value: Value, mode: str, dtype: str, floor: float | None, factor: float
) -> ir.Value | None:
    """Changes a stored tensor of an ONNX model, or the number that a ConstantOfShape repeats, as `Editor.weight` says
    for ``mode``. Returns the new copy that some readers get for mode ``both``, else None."""
    native = handles.value(value)
    source, filler = stored_tensor(native), native.producer()
    if source is None and filler is not None:  # one number, repeated
        number = np.array([0.0 if floor is None else floor], np.float32)
        kind = dtype if mode == "low" else FLOAT32
        filler.attributes["value"] = ir.AttrTensor("value", RoundedTensor(ir.tensor(number), kind))
        return None
    assert source is not None
    copy = store_copy(handles, value, RoundedTensor(source, dtype, floor, factor), dtype) if mode == "both" else None
    if copy is None or floor is not None:
        kind = dtype if mode == "low" else FLOAT32
        put(native, RoundedTensor(source, kind, floor, factor if mode == "low" else 1.0))
        native.type = ir.TensorType(DTYPES[kind])
    return copy


def drop_constant(value: ir.Value) -> None:
    """Removes an ONNX initializer or Constant that nothing reads and that is no input or output; other values stay."""
    if value.uses() or value.is_graph_output() or value.is_graph_input():
        return
    producer = value.producer()
    if value.is_initializer():
        value.graph.initializers.pop(value.name)  # type: ignore[union-attr, arg-type]
    elif producer is not None and producer.op_type == "Constant" and producer.graph is not None:
        producer.graph.remove(producer, safe=True)


class OnnxEditor(Readers):
    """The verbs of `core.graph.NodeEditor` for ONNX models; edits are made at once, also if an error ends the `with`.
    ``done``: called at the end of the `with` if something was edited, or a function copied."""

    def __init__(self, model: ir.Model, flow: Dataflow, variants: Variants, done: Callable[[], None]) -> None:
        super().__init__(model, flow, variants)
        self._done, self._edited = done, variants.copied

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._edited:
            self._done()

    # -- types ------------------------------------------------------------------------------------------------------

    def retype(self, value: Value, dtype: str) -> None:
        """Gives an ONNX value another element type, inside containers too; its operator's attributes follow."""
        self._edited = True
        native = self.value(value)
        self.note_type(native, dtype)
        if native.producer() is not None or self.flow.scopes[value.scope].kind != "function":
            native.type = with_element(native.type, DTYPES[dtype], value.container)  # a function's input has none
        if value.producer != NONE:
            name_type(self, self.flow.ops[value.producer], dtype)

    def keep_type(self, op: Op, dtype: str) -> None:
        """Has an attribute say an ONNX output's ``dtype``, where it would follow the first input without one."""
        if op.kind in FOLLOWS_INPUT:
            self._edited = True
            name_type(self, op, dtype)

    # -- values -----------------------------------------------------------------------------------------------------

    def cast(self, value: Value, to: str, uses: Iterable[UseKey]) -> None:
        """Has the given uses of an ONNX value read it as type ``to``, through one Cast in its scope, or a given one."""
        self._edited = True
        result = self.as_type(value, to)
        self.note_type(result, to)
        self.rewire_native(result, uses)

    def round(self, value: Value, dtype: str, uses: Iterable[UseKey]) -> None:
        """Puts a pair of Casts, float32 to ``dtype`` and back, between an ONNX value and the given uses."""
        self._edited = True
        low = self.as_type(value, dtype)
        self.rewire_native(self.new_cast(value, low, FLOAT32), uses)

    def weight(
        self,
        value: Value,
        store: str,
        dtype: str,
        uses: Iterable[UseKey],
        floor: float | None = None,
        factor: float = 1.0,
    ) -> None:
        """Changes a stored tensor of an ONNX model to ``low``, ``both`` or ``float32``: see `Editor.weight`."""
        self._edited = True
        copy = change_weight(self, value, store, dtype, floor, factor)
        if copy is not None:
            self.rewire_native(copy, uses)

    def round_together(self, op: Op, dtype: str) -> bool:
        """Rounds an ONNX node's stored operands again from what they were rounded from, so that their errors cancel: a
        product's by channels, a norm's four together. False where it has none that were rounded to ``dtype``."""
        self._edited = True
        if has(op.role, "channels_by_rows"):
            return round_channels(self.node(op), dtype)
        return round_together(self.node(op), dtype)

    def rewire(self, value: Value, uses: Iterable[UseKey]) -> None:
        """Has the given uses in an ONNX model read ``value`` in the place of what they read."""
        self._edited = True
        self.rewire_native(self.value(value), uses)

    def rename(self, value: Value, ending: str) -> None:
        """Gives an ONNX value a new name, its old one with ``_`` and ``ending``, as it holds other numbers now."""
        self._edited = True
        self.value(value).name = self.fresh(f"{value.name}_{ending}")

    # -- operators --------------------------------------------------------------------------------------------------

    def add(
        self,
        kind: str,
        inputs: Sequence[Value | None],
        dtypes: Sequence[str | Value],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        scope: int = NONE,
        behind: Op | Value | None = None,
        name: str = "",
        node: str = "",
        metadata_of: Op | None = None,
        shaped: bool = False,
    ) -> list[Value]:
        """Adds an operator to an ONNX model behind all that it reads; returns its results. See `NodeEditor.add`."""
        self._edited = True
        given = [value for value in inputs if value is not None]
        scope = given[0].scope if scope == NONE else scope
        reads = [None if value is None else self.value(value) for value in inputs]
        domain, _, op_type = kind.rpartition("::")
        name = name or f"{given[0].name if given else 'made'}_{op_type}"
        new = ir.Node(domain, op_type, reads, attributes_of(attributes or {}), num_outputs=len(dtypes))
        new.name = self.fresh(node or f"{name}_node")
        if metadata_of is not None:
            new.metadata_props.update(self.node(metadata_of).metadata_props)
        anchors = [node for value in given for node in self._node_behind(value)]
        self.place_behind(scope, self.last(scope, [*anchors, *self._node_behind(behind)]), new)
        results = []
        for result, dtype in zip(new.outputs, dtypes, strict=True):
            result.name = self.fresh(name)
            if isinstance(dtype, Value):
                like, dtype = self.value(dtype), dtype.dtype
                result.type, result.shape = like.type, like.shape if shaped else None
            else:
                result.type = ir.TensorType(DTYPES[dtype]) if dtype else None
            results.append(self.handle(result, scope, dtype))
        return results

    def _node_behind(self, handle: Op | Value | None) -> list[ir.Node]:
        """The onnx_ir node of an operator, or that makes a value, in a list; empty for inputs, initializers, None."""
        if isinstance(handle, Value):
            producer = self.value(handle).producer()
            return [] if producer is None else [producer]
        return [] if handle is None else [self.node(handle)]

    def replace(
        self, scope: str, nodes: Iterable[int], kind: str, inputs: Iterable[str], attributes: Mapping[str, Attribute]
    ) -> None:
        """Puts one ONNX operator in the place of several, with constants that only they read. ``nodes``: indices in
        ``scope``, the last that of the node whose one result it takes over; ``inputs``: present names of what they
        read. Raises AmpError AMP402 where others read what is between them, or they not ``inputs``."""
        self._edited = True
        ops = [op for index in nodes if (op := self.op(scope, index)) is not None]
        last, graph = self.node(ops[-1]), self.graph(ops[-1].scope)
        read = (value for op in ops for value in self.node(op).inputs if value is not None)
        known = {value.name: value for value in read}  # as they are now: one may be the result of another replacement
        gone = [self.node(op) for op in reversed(ops)]
        between = [value for node in gone[1:] for value in node.outputs]
        only_here = all(not value.is_graph_output() and {*value.consumers()} <= {*gone} for value in between)
        if not only_here or not {*inputs} <= known.keys():
            raise plan_mismatch(f"writes nodes {[op.index for op in ops]} of scope '{scope}' as one {kind}")
        new = ir.Node("", kind, [known[name] for name in inputs], attributes_of(attributes), num_outputs=1)
        new.name = self.fresh(f"{last.name or last.outputs[0].name}_{kind}")
        copy_layer(last, new)
        old, result = last.outputs[0], new.outputs[0]
        graph.insert_after(last, new)
        self.supersede_native(result, old)
        operands = [value for node in gone for value in node.inputs if value is not None]
        graph.remove(gone, safe=True)
        for native in dict.fromkeys(operands):
            drop_constant(native)

    def bypass(self, op: Op) -> bool:
        """Removes an operator of an ONNX model, and the constants that it alone reads; its readers read its first
        input. Changes nothing and returns False where an output of the graph needs its result."""
        node = self.node(op)
        others = [value for value in node.inputs[1:] if value is not None]
        gone = self.bypass_node(node, op.scope)
        for native in dict.fromkeys(others) if gone else ():
            drop_constant(native)
        self._edited |= gone
        return gone

    def remove(self, op: Op) -> bool:
        """Removes an operator of an ONNX model; False, and no change, where a result is read or is an output."""
        node = self.node(op)
        if any(output.uses() or output.is_graph_output() for output in node.outputs):
            return False
        self._edited = True
        self.graph(op.scope).remove(node, safe=True)
        return True


class OnnxGraphEditor(OnnxEditor):
    """The rest of `core.graph.NodeEditor` for ONNX models: stored tensors, places, metadata, results of bodies."""

    def add_output(self, op: Op, results: Sequence[Value], name: str) -> Value:
        """Adds a result to an ONNX operator with bodies, called ``name`` or what is left of it, and returns its handle.
        ``results``: what each body gives out for it, in their order; a Scan stacks it along the first axis."""
        self._edited = True
        node = self.node(op)
        for value in results:
            self.graph(value.scope).outputs.append(self.value(value))
        for key in ("scan_output_axes", "scan_output_directions"):
            if key in node.attributes:
                node.attributes[key] = ir.AttrInt64s(key, [*node.attributes[key].as_ints(), 0])
        node.resize_outputs(len(node.outputs) + 1)
        node.outputs[-1].name = self.fresh(name)
        return self.handle(node.outputs[-1], op.scope, results[0].dtype)

    # -- stored tensors and places ----------------------------------------------------------------------------------

    def constant(self, numbers: Array, name: str, behind: Op | Value) -> Value:
        """Adds a Constant to an ONNX model, right behind an operator, or the one that makes a value; its handle."""
        self._edited = True
        name = self.fresh(name)
        made = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(numbers, name=name))], num_outputs=1)
        made.name, made.outputs[0].name = self.fresh(f"{name}_node"), name
        (anchor,) = self._node_behind(behind)
        assert anchor.graph is not None
        self.place_behind(behind.scope, anchor, made)
        return self._stored(made.outputs[0], numbers, behind.scope)

    def store(self, numbers: Array, name: str, scope: int) -> Value:
        """Adds an initializer to the graph of an ONNX scope, which is no function; returns its handle."""
        self._edited = True
        name = self.fresh(name)
        native = ir.Value(name=name, const_value=ir.tensor(numbers, name=name))
        graph = self.graph(scope)
        assert isinstance(graph, ir.Graph)  # a function has none
        stored = self._stored(native, numbers, scope)
        graph.register_initializer(native)
        return stored

    def _stored(self, native: ir.Value, numbers: Array, scope: int) -> Value:
        """Annotates a new ONNX initializer or Constant with its numbers' type and shape, and returns its handle."""
        kind = ir.DataType.from_numpy(numbers.dtype)
        native.type, native.shape = ir.TensorType(kind), ir.Shape(numbers.shape)
        return self.handle(native, scope, dtype_name(kind))

    def set_number(self, op: Op, name: str, number: float) -> None:
        """Sets a float attribute of an ONNX operator."""
        self._edited = True
        self.node(op).attributes[name] = ir.AttrFloat32(name, number)

    def set_numbers(self, value: Value, numbers: Array) -> None:
        """Gives an ONNX stored tensor other numbers; it takes over their type and shape, and keeps its name."""
        self._edited = True
        native = self.value(value)
        tensor = stored_tensor(native)
        put(native, ir.tensor(numbers, name=(tensor.name if tensor is not None else "") or native.name))
        native.type = ir.TensorType(ir.DataType.from_numpy(numbers.dtype))
        native.shape = ir.Shape(numbers.shape)

    def set_rank(self, value: Value, dimensions: int) -> None:
        """Annotates an ONNX value with so many dimensions of unknown sizes."""
        self._edited = True
        self.value(value).shape = ir.Shape([None] * dimensions)

    def supersede(self, value: Value, old: Value) -> None:
        """Has all readers of ``old`` in an ONNX model, graph outputs too, read ``value``, which takes over its name,
        type and shape; handles of ``old`` mean ``value`` from now on."""
        self._edited = True
        self.supersede_native(self.value(value), self.value(old))

    def move(self, op: Op, behind: Op) -> None:
        """Puts an ONNX operator right behind another of its scope; it must stand in front of its readers still."""
        self._edited = True
        node, graph = self.node(op), self.graph(op.scope)
        graph.remove(node)
        graph.insert_after(self.node(behind), node)

    def drop_unread(self, value: Value) -> None:
        """Removes a stored tensor from an ONNX model; what is read, an input or output, and other values stay."""
        self._edited = True
        drop_constant(self.value(value))

    # -- metadata ---------------------------------------------------------------------------------------------------

    def describe(self, reasons: Iterable[tuple[Op, str, str]], about: Mapping[str, str]) -> None:
        """Writes into the metadata of an ONNX model: (operator, type, reason) of ``reasons``, the same of the Casts
        that this editor made, and ``about``, entries of the model itself. Entries that are there stay as they are."""
        rows = [(self.node(op), dtype, reason) for op, dtype, reason in reasons]
        describe(self.model, [*rows, *((node, to, CAST) for node, to in self.casts_made)], about)
