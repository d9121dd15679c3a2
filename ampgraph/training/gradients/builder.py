"""What gradient rules and lowerings write with: nodes and constants, and shapes, as constants where they are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from .node_builder import NodeBuilder

INT64 = ir.DataType.INT64


class Builder(NodeBuilder):
    """Adds to `NodeBuilder` what asks for the type and the shape of values."""

    def __init__(self, graph: ir.Graph, prefix: str = "grad") -> None:
        super().__init__(graph, prefix)
        self._shapes: dict[ir.Value, ir.Value] = {}

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
