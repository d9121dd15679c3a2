"""The editor of an ONNX model: also what crosses the border of a graph, state and what bodies give out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx_ir as ir

from ...core.arrays import Array
from ...core.dataflow import Dataflow, Op, Value
from .descriptions import CAST, describe
from .editor import OnnxEditor
from .states import States
from .stored import drop_constant, put
from .types import dtype_name
from .variants import Variants
from .weights import stored_tensor


class OnnxGraphEditor(OnnxEditor):
    """`core.graph.NodeEditor`, and `core.graph.StateEditor` on handles of the dataflow."""

    def __init__(self, model: ir.Model, flow: Dataflow, variants: Variants, done: Callable[[], None]) -> None:
        super().__init__(model, flow, variants, done)
        self._states = States(model.graph, self.handles.fresh, self._op)

    def give_out(self, op: Op, results: Sequence[Value], name: str) -> Value:
        """A further result of an operator with bodies; what a Scan gives out is stacked along the first axis."""
        self._edited = True
        node = self.handles.node(op)
        for value in results:
            self.handles.graph(value.scope).outputs.append(self.handles.value(value))
        for key in ("scan_output_axes", "scan_output_directions"):
            if key in node.attributes:
                node.attributes[key] = ir.AttrInt64s(key, [*node.attributes[key].as_ints(), 0])
        node.resize_outputs(len(node.outputs) + 1)
        node.outputs[-1].name = self.handles.fresh(name)
        return self.handles.handle(node.outputs[-1], op.scope, results[0].dtype)

    # -- stored tensors and places ----------------------------------------------------------------------------------

    def constant(self, numbers: Array, name: str, behind: Op | Value) -> Value:
        """A constant behind an operator or value. See `NodeEditor.constant`."""
        self._edited = True
        name = self.handles.fresh(name)
        made = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(numbers, name=name))], num_outputs=1)
        made.name, made.outputs[0].name = self.handles.fresh(f"{name}_node"), name
        (anchor,) = self._maker(behind)
        assert anchor.graph is not None
        self._placing.behind(behind.scope, anchor, made)
        return self._stored(made.outputs[0], numbers, behind.scope)

    def store(self, numbers: Array, name: str, scope: int) -> Value:
        """A new initializer of a scope's graph. See `NodeEditor.store`."""
        self._edited = True
        name = self.handles.fresh(name)
        native = ir.Value(name=name, const_value=ir.tensor(numbers, name=name))
        graph = self.handles.graph(scope)
        assert isinstance(graph, ir.Graph)  # a function has none
        stored = self._stored(native, numbers, scope)
        graph.register_initializer(native)
        return stored

    def _stored(self, native: ir.Value, numbers: Array, scope: int) -> Value:
        kind = ir.DataType.from_numpy(numbers.dtype)
        native.type, native.shape = ir.TensorType(kind), ir.Shape(numbers.shape)
        return self.handles.handle(native, scope, dtype_name(kind))

    def put(self, value: Value, numbers: Array) -> None:
        """A stored tensor holds other numbers, of their type."""
        self._edited = True
        native = self.handles.value(value)
        tensor = stored_tensor(native)
        put(native, ir.tensor(numbers, name=(tensor.name if tensor is not None else "") or native.name))
        native.type = ir.TensorType(ir.DataType.from_numpy(numbers.dtype))

    def stand_in(self, value: Value, old: Value) -> None:
        """``value`` is read wherever ``old`` was, under its name."""
        self._edited = True
        self.handles.stand_in(self.handles.value(old), self.handles.value(value))

    def move(self, op: Op, behind: Op) -> None:
        """Puts an operator right behind another one of its scope."""
        self._edited = True
        node, graph = self.handles.node(op), self.handles.graph(op.scope)
        graph.remove(node)
        graph.insert_after(self.handles.node(behind), node)

    def drop(self, value: Value) -> None:
        """Takes a stored tensor away that nothing reads any more."""
        self._edited = True
        drop_constant(self.handles.value(value))

    # -- metadata and state -----------------------------------------------------------------------------------------

    def describe(self, reasons: Iterable[tuple[Op, str, str]], about: Mapping[str, str]) -> None:
        """Type and reason of operators and of new Casts, and what is said of the model, into the metadata."""
        rows = [(self.handles.node(op), dtype, reason) for op, dtype, reason in reasons]
        describe(self.handles.model, [*rows, *((node, to, CAST) for node, to in self._casts.made)], about)

    def state(self, name: str, init: Array) -> Value:
        """A new input of the main graph with a first value."""
        self._edited = True
        return self._handle(self._states.state(name, init))

    def keep(self, value: Value) -> Value:
        """A stored tensor of the main graph becomes an input whose first value it is."""
        self._edited = True
        self._states.keep(self.handles.value(value))
        return value

    def commit(self, after: Mapping[Value, Value], when: Value | None = None) -> dict[str, str]:
        """The next values come out; the old ones again where ``when`` is false."""
        self._edited = True
        natives = {self.handles.value(old): self.handles.value(new) for old, new in after.items()}
        return self._states.commit(natives, None if when is None else self.handles.value(when))

    def _op(self, kind: str, *inputs: ir.Value) -> ir.Value:
        """An operator of the main graph behind what it reads; its result has the type of its last input."""
        found = [self._handle(value) for value in inputs]
        return self.handles.value(self.add(kind, found, [found[-1].dtype], scope=0)[0])

    def _handle(self, native: ir.Value) -> Value:
        return self.handles.handle(native, 0, dtype_name(native.dtype))
