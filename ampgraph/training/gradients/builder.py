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
        self._sizes: dict[tuple[ir.Value, int], ir.Value] = {}

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
        if value.shape is None and axis < 0:
            return self.typed(self.op("Gather", self.shape(value), self.ints(axis)), INT64, 1)
        axis = axis if value.shape is None else axis % len(value.shape)
        if (value, axis) not in self._sizes:
            made = self.op("Shape", value, start=axis, end=axis + 1)
            self._sizes[value, axis] = self.typed(made, INT64, 1)
        return self._sizes[value, axis]

    def plus(self, size: ir.Value, number: int) -> ir.Value:
        """A size of `size` and a number."""
        known = self.given(size)
        return self.op("Add", size, self.ints(number)) if known is None else self.ints(int(known[0]) + number)

    def count(self, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """How many elements a sum over axes adds up, as a float scalar of the value's type.

        A size that only a run shows is a sum of ones: numbers that are made of sizes lie on the host, and would have to
        be copied. It is exact up to 2^24.
        """
        known = [self.dim(value, axis) for axis in axes]
        whole = float(np.prod([size for size in known if size is not None], dtype=np.int64))
        open_axes = [axis for axis, size in zip(axes, known, strict=True) if size is None]
        if not open_axes:
            return self.number(whole, value)
        wide = ir.DataType.DOUBLE if value.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
        one = self.constant(np.array(1, wide.numpy()))
        with self.float32("counts have more digits than float16"):
            total = None if whole == 1 else self.constant(np.array(whole, wide.numpy()))
            for axis in open_axes:
                dim = None if value.shape is None else value.shape[axis]
                ones = self.typed(self.op("Expand", one, self.size(value, axis)), wide, dim)
                number = self.typed(self.op("ReduceSum", ones, keepdims=0), wide)
                total = number if total is None else self.typed(self.op("Mul", total, number), wide)
        assert total is not None
        return self.cast(total, value.dtype or wide)

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

    def mean(self, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """The mean over axes, which stay."""
        listed = {"axes": list(axes)} if self.graph.opset_imports.get("", 18) < 18 else {}
        return self.op("ReduceMean", value, *([] if listed else [self.ints(*axes)]), keepdims=1, **listed)
