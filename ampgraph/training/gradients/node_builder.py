"""Adds nodes to a graph: operators by name, constants once each.

New nodes go behind all others (or in front of the node `before`), so that a builder's order is the order of its calls.
Each keeps float32 if it is made inside ``with b.float32(reason)``: the planner reads the reason from the node. Inside
``with b.float32_as_norms(reason)`` it does so at levels whose norms are float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import onnx_ir as ir

from ...core.arrays import Array
from ...core.dataflow import HELD, KEPT
from ...core.names import FreshNames

Attribute = float | str | Sequence[int] | Sequence[float] | Sequence[str] | ir.TensorProtocol | ir.Graph | None
Dim = int | str | ir.SymbolicDim | None


class NodeBuilder:
    """Appends to ``graph``; names start with ``prefix`` and are unique in it."""

    def __init__(self, graph: ir.Graph, prefix: str = "grad") -> None:
        self.graph, self.prefix = graph, prefix
        self.scope = ""  # the forward node that is being worked on
        self.trained: set[ir.Value] = set()  # initializers that are no constants
        self.rectified: set[ir.Value] = set()  # gradients that are 0 already where a Relu in front lets nothing through
        self.before: ir.Node | None = None  # a lowering, which goes through the nodes in order, adds in front of it
        self.fresh = FreshNames(_names(graph))
        self._constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}
        self._kept = HELD, ""

    # -- nodes --------------------------------------------------------------------------------------------------------

    def op(self, kind: str, *inputs: ir.Value | None, **attributes: Attribute) -> ir.Value:
        """One node with one output. ``kind`` as in `registry.kind_of`; attributes as Python values."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, outputs: int, *inputs: ir.Value | None, **attributes: Attribute) -> list[ir.Value]:
        """One node with several outputs."""
        domain, _, op_type = kind.rpartition("::")
        name = self.fresh(f"{self.prefix}/{self.scope}/{op_type}" if self.scope else f"{self.prefix}/{op_type}")
        values = [ir.Value(name=name if outputs == 1 else f"{name}:{n}") for n in range(outputs)]
        given = [ir.convenience.convert_attribute(key, value) for key, value in attributes.items() if value is not None]
        node = ir.Node(domain, op_type, list(inputs), given, outputs=values, name=name)
        key, reason = self._kept
        if reason:
            node.meta[key] = reason
        if self.before is None:
            self.graph.append(node)
        else:
            self.graph.insert_before(self.before, node)
        return values

    def typed(self, value: ir.Value, like: ir.Value | ir.DataType, *dims: Dim) -> ir.Value:
        """The value, with type and shape: those of ``like``, or ``dims``. Rules want both of forward values."""
        if isinstance(like, ir.Value):
            value.type, value.shape = like.type, like.shape
        else:
            value.type, value.shape = ir.TensorType(like), ir.Shape(dims)
        return value

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """The value in another type; itself if it has that."""
        if value.dtype == dtype:
            return value
        made = self.op("Cast", value, to=int(dtype))
        made.type, made.shape = ir.TensorType(dtype), value.shape
        return made

    def output(self, node: ir.Node, index: int, dtype: ir.DataType, shape: ir.Shape | None) -> ir.Value:
        """An output that an operator may leave out: added to the forward node if it is not there."""
        if len(node.outputs) <= index:
            node.resize_outputs(index + 1)
        value = node.outputs[index]
        for found in node.outputs:
            if not found.name:
                found.name = self.fresh(f"{self.prefix}/{node.name or node.op_type}")
        if value.dtype is None:
            value.type, value.shape = ir.TensorType(dtype), shape
        return value

    @contextmanager
    def float32(self, reason: str) -> Iterator[None]:
        """Nodes made inside compute in float32 at every level; without a reason, as those outside."""
        before, self._kept = self._kept, (HELD, reason) if reason else self._kept
        try:
            yield
        finally:
            self._kept = before

    @contextmanager
    def float32_as_norms(self, reason: str) -> Iterator[None]:
        """Nodes made inside compute in float32 where norms do."""
        before = self._kept
        self._kept = before if before[1] else (KEPT, reason)
        try:
            yield
        finally:
            self._kept = before

    # -- constants ----------------------------------------------------------------------------------------------------

    def constant(self, array: Array) -> ir.Value:
        """An initializer; equal ones are one."""
        array = np.asarray(array, order="C")  # ascontiguousarray makes a vector of a scalar
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            name = self.fresh(f"{self.prefix}/constant")
            value = ir.Value(
                name=name,
                type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
                shape=ir.Shape(array.shape),
                const_value=ir.tensor(array, name=name),
            )
            self.graph.register_initializer(value)
            self._constants[key] = value
        return self._constants[key]

    def drop_unused_constants(self, kept: set[ir.Value]) -> None:
        """Those that no node reads and nobody keeps."""
        for key, value in list(self._constants.items()):
            if value not in kept and not value.uses() and value.name is not None:
                del self._constants[key], self.graph.initializers[value.name]

    def ints(self, *numbers: int) -> ir.Value:
        """An int64 vector."""
        return self.constant(np.array(numbers, np.int64))

    def number(self, number: float, like: ir.Value | None = None) -> ir.Value:
        """A scalar of the element type of ``like``, float32 by default."""
        dtype = np.dtype(np.float32) if like is None or like.dtype is None else like.dtype.numpy()
        return self.constant(np.array(number, dtype))

    def given(self, value: ir.Value | None) -> Array | None:
        """The numbers of an initializer or a Constant, None for anything else: what is trained is none."""
        if value is None or value.is_graph_input() or value in self.trained:
            return None
        tensor = ir.convenience.get_const_tensor(value)
        return None if tensor is None else tensor.numpy()


def _names(graph: ir.Graph) -> Iterator[str | None]:
    yield from (value.name for value in graph.inputs)
    yield from graph.initializers
    for node in graph.all_nodes():
        yield node.name
        yield from (value.name for value in node.outputs)
