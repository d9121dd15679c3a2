"""Adds nodes to a graph: operators by name, constants once each, shapes as constants where they are known.

New nodes go behind all others (or in front of the node `before`), so that a builder's order is the order of its calls.
Each keeps float32 if it is made inside ``with b.float32(reason)``: the planner reads the reason from the node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir

from ...core.arrays import Array
from ...core.dataflow import HELD
from ...core.names import FreshNames

INT64 = ir.DataType.INT64


class Builder:
    """Appends to ``graph``; names start with ``prefix`` and are unique in it."""

    def __init__(self, graph: ir.Graph, prefix: str = "grad") -> None:
        self.graph, self.prefix = graph, prefix
        self.scope = ""  # the forward node that is being worked on
        self.trained: set[ir.Value] = set()  # initializers that are no constants
        self.before: ir.Node | None = None  # a lowering, which goes through the nodes in order, adds in front of it
        self.fresh = FreshNames(_names(graph))
        self._constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}
        self._shapes: dict[ir.Value, ir.Value] = {}
        self._kept = ""

    # -- nodes --------------------------------------------------------------------------------------------------------

    def op(self, kind: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """One node with one output. ``kind`` as in `registry.kind_of`; attributes as Python values."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, outputs: int, *inputs: ir.Value | None, **attributes: Any) -> list[ir.Value]:
        """One node with several outputs."""
        domain, _, op_type = kind.rpartition("::")
        name = self.fresh(f"{self.prefix}/{self.scope}/{op_type}" if self.scope else f"{self.prefix}/{op_type}")
        values = [ir.Value(name=name if outputs == 1 else f"{name}:{n}") for n in range(outputs)]
        given = [ir.convenience.convert_attribute(key, value) for key, value in attributes.items() if value is not None]
        node = ir.Node(domain, op_type, list(inputs), given, outputs=values, name=name)
        if self._kept:
            node.metadata_props[HELD] = self._kept
        if self.before is None:
            self.graph.append(node)
        else:
            self.graph.insert_before(self.before, node)
        return values

    def typed(self, value: ir.Value, like: ir.Value | ir.DataType, *dims: Any) -> ir.Value:
        """The value, with type and shape told: those of ``like``, or ``dims``. Rules want both of forward values."""
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
        """Nodes made inside compute in float32 at every level."""
        before, self._kept = self._kept, reason
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

    # -- shapes -------------------------------------------------------------------------------------------------------

    def rank(self, value: ir.Value) -> int:
        """Raises ValueError where the rank is not known; `driver` makes an AmpError of it."""
        if value.shape is None:
            raise ValueError(f"the rank of '{value.name}' is not known")
        return len(value.shape)

    def dim(self, value: ir.Value, axis: int) -> int | None:
        """The size along an axis where it is known."""
        size = None if value.shape is None else value.shape[axis]
        return size if isinstance(size, int) else None

    def shape(self, value: ir.Value) -> ir.Value:
        """The int64 shape: a constant if it is known, else one Shape node."""
        if value not in self._shapes:
            dims = None if value.shape is None else list(value.shape)
            known = dims is not None and all(isinstance(dim, int) for dim in dims)
            self._shapes[value] = self.ints(*dims) if known and dims is not None else self.op("Shape", value)  # type: ignore[arg-type]
        return self._shapes[value]

    def size(self, value: ir.Value, axis: int) -> ir.Value:
        """The size along an axis as an int64 vector of one element."""
        known = self.dim(value, axis)
        if known is not None:
            return self.ints(known)
        return self.typed(self.op("Gather", self.shape(value), self.ints(axis)), INT64, 1)

    def plus(self, size: ir.Value, number: int) -> ir.Value:
        """A size of `size` and a number."""
        known = self.given(size)
        return self.op("Add", size, self.ints(number)) if known is None else self.ints(int(known[0]) + number)

    def count(self, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """How many elements a sum over axes adds up, as a float scalar of the value's type."""
        known = [self.dim(value, axis) for axis in axes]
        if all(size is not None for size in known):
            return self.number(float(np.prod([size for size in known if size is not None], dtype=np.int64)), value)
        total = self.size(value, axes[0])
        for axis in axes[1:]:
            total = self.typed(self.op("Mul", total, self.size(value, axis)), INT64, 1)
        number = self.typed(self.op("Squeeze", total, self.ints(0)), INT64)
        dtype = value.dtype or ir.DataType.FLOAT
        return self.typed(self.op("Cast", number, to=int(dtype)), dtype)

    def axis(self, node: ir.Node, value: ir.Value, default: int, name: str = "axis") -> int:
        """An axis attribute, counted from the front."""
        found = node.attributes.get(name)
        axis = default if found is None else found.as_int()
        return axis + self.rank(value) if axis < 0 else axis

    def zeros(self, like: ir.Value) -> ir.Value:
        """Zeros of the shape and the type of a value."""
        return self.op("Expand", self.number(0, like), self.shape(like))

    def reshaped(self, gradient: ir.Value, like: ir.Value) -> ir.Value:
        """The gradient in the shape of a value that has as many elements; one unknown size is left to Reshape."""
        dims = [] if like.shape is None else [dim if isinstance(dim, int) else -1 for dim in like.shape]
        if dims.count(-1) == 1 and 0 not in dims:
            return self.op("Reshape", gradient, self.ints(*dims))
        return self.op("Reshape", gradient, self.shape(like), allowzero=1)

    def padded(self, value: ir.Value, rank: int, begin: ir.Value, end: ir.Value, axes: ir.Value) -> ir.Value:
        """Zeros in front of and behind a value along some axes; what is negative cuts off.

        Pad could name the axes itself, but ONNX Runtime moves Transposes through it as if the amounts were for all.
        """
        before, behind, chosen = (self.given(vector) for vector in (begin, end, axes))
        if before is not None and behind is not None and chosen is not None:
            amounts = np.zeros((2, rank), np.int64)
            amounts[:, chosen % rank] = before, behind
            return self.op("Pad", value, self.ints(*amounts.reshape(-1).tolist()))
        if chosen is not None:
            pieces = [self.ints(0)] * (2 * rank)
            for n, axis in enumerate((chosen % rank).tolist()):
                for offset, vector in ((0, begin), (rank, end)):
                    pieces[axis + offset] = vector if chosen.size == 1 else self.op("Gather", vector, self.ints(n))
            return self.op("Pad", value, self.op("Concat", *pieces, axis=0))
        axes = self.op("Cast", axes, to=int(INT64))
        front = self.op("Where", self.op("Less", axes, self.ints(0)), self.op("Add", axes, self.ints(rank)), axes)
        places = self.op("Concat", front, self.op("Add", front, self.ints(rank)), axis=0)
        sides = self.op("Concat", begin, end, axis=0)
        return self.op("Pad", value, self.op("ScatterElements", self.ints(*[0] * (2 * rank)), places, sides, axis=0))

    def sum(self, value: ir.Value, axes: Sequence[int], keep: bool = True) -> ir.Value:
        """The sum over axes; nothing for no axes."""
        if not axes:
            return value
        return self.op("ReduceSum", value, self.ints(*axes), keepdims=int(keep))


def _names(graph: ir.Graph) -> Iterator[str | None]:
    yield from (value.name for value in graph.inputs)
    yield from graph.initializers
    for node in graph.all_nodes():
        yield node.name
        yield from (value.name for value in node.outputs)
