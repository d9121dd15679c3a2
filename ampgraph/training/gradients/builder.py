"""What gradient rules and lowerings write with: nodes, constants, formulas, and shapes, constants where they are known.

New nodes go behind all others (or in front of the node `before`), so that a builder's order is the order of its calls.
Each keeps float32 if it is made inside ``with b.float32(reason)``: the planner reads the reason from the node. Inside
``with b.float32_as_norms(reason)`` it does so at levels whose norms are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ...core.arrays import Array
from ...core.dataflow import HELD, KEPT
from ...core.names import FreshNames

Numbers = Sequence[int] | Sequence[float] | Sequence[str]
Attribute = float | str | Numbers | ir.Attr | ir.TensorProtocol | ir.Graph | None
Dim = int | str | ir.SymbolicDim | None
Size = int | ir.SymbolicDim
FLOAT, INT64 = ir.DataType.FLOAT, ir.DataType.INT64
LOW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
FLOATS = frozenset({FLOAT, ir.DataType.DOUBLE, *LOW})
REASON = "a sum over what was broadcast: 4,096 rows of mean 20 overflow float16"


class NodeBuilder:
    """Appends nodes to ``graph``; their names start with ``prefix`` and are unique in it."""

    def __init__(self, graph: ir.Graph, prefix: str = "grad") -> None:
        self.graph, self.prefix = graph, prefix
        self.scope = ""  # the forward node that is being worked on
        self.trained: set[ir.Value] = set()  # initializers that are no constants
        self.rectified: set[ir.Value] = set()  # gradients that are 0 already where a Relu in front lets nothing through
        self.before: ir.Node | None = None  # a lowering, which goes through the nodes in order, adds in front of it
        self.fresh = FreshNames(_names_in_graph(graph))
        self._constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}
        self._kept = HELD, ""

    # -- nodes --------------------------------------------------------------------------------------------------------

    def op(self, kind: str, *inputs: Term | ir.Value | None, **attributes: Attribute) -> ir.Value:
        """Of gradients: one node with one output. ``kind`` as `formats.onnx.nodes.kind_of` names it; attributes as
        Python values."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, outputs: int, *inputs: Term | ir.Value | None, **attributes: Attribute) -> list[ir.Value]:
        """Of gradients: adds one node with several outputs, and returns these."""
        domain, _, op_type = kind.rpartition("::")
        name = self.fresh(f"{self.prefix}/{self.scope}/{op_type}" if self.scope else f"{self.prefix}/{op_type}")
        values = [ir.Value(name=name if outputs == 1 else f"{name}:{n}") for n in range(outputs)]
        given = [ir.convenience.convert_attribute(key, value) for key, value in attributes.items() if value is not None]
        read = [value.value if isinstance(value, Term) else value for value in inputs]
        node = ir.Node(domain, op_type, read, given, outputs=values, name=name)
        key, reason = self._kept
        if reason:
            node.meta[key] = reason
        if self.before is None:
            self.graph.append(node)
        else:
            self.graph.insert_before(self.before, node)
        return values

    def again(self, node: ir.Node, inputs: Sequence[ir.Value | None]) -> ir.Value:
        """Of gradients: a node of the same operator and attributes with other inputs; its output."""
        kind = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        return self.op(kind, *inputs, **node.attributes)

    def typed(self, value: ir.Value, like: ir.Value | ir.DataType, *dims: Dim) -> ir.Value:
        """Of gradients: the value, with type and shape: those of ``like``, or ``dims``. Rules want both of forward
        values."""
        if isinstance(like, ir.Value):
            value.type, value.shape = like.type, like.shape
        else:
            value.type, value.shape = ir.TensorType(like), ir.Shape(dims)
        return value

    def copy(self, value: ir.Value) -> ir.Value:
        """Of gradients: the value of a graph under another name, by an Identity."""
        return self.typed(self.op("Identity", value), value)

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Of gradients: the value in another type; itself if it has that."""
        if value.dtype == dtype:
            return value
        made = self.op("Cast", value, to=int(dtype))
        made.type, made.shape = ir.TensorType(dtype), value.shape
        return made

    def replace(self, old: ir.Value, new: ir.Value) -> None:
        """Readers of ``old`` read ``new``, a result of a new node of the training graph; an output keeps its name."""
        if old.is_graph_output():
            new.name, old.name = old.name, self.fresh("replaced")
        old.replace_all_uses_with(new, replace_graph_outputs=True)

    def in_front_of_each(self, wanted: Callable[[ir.Node], bool]) -> Iterator[ir.Node]:
        """The wanted ones of the nodes that the graph has at first; nodes made meanwhile go in front of the last one
        given, under its name."""
        for node in [node for node in self.graph if wanted(node)]:
            self.before, self.scope = node, node.name or node.op_type
            yield node

    def replace_node(self, node: ir.Node, made: Sequence[ir.Value]) -> None:
        """Readers of a node's results in the training graph read ``made``, and the node is removed."""
        for old, new in zip(node.outputs, made, strict=False):
            self.replace(old, new)
        self.graph.remove(node, safe=True)

    def output(self, node: ir.Node, index: int, dtype: ir.DataType, shape: ir.Shape | None) -> ir.Value:
        """Of gradients: an output that an operator may leave out: added to the forward node if it is not there."""
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
        """Nodes of gradients made inside compute in float32 at every level; without a reason, as those outside."""
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
        """Of gradients: an initializer of the graph with these numbers; equal ones are one."""
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

    def drop_unused(self, before: int, kept: set[ir.Value]) -> None:
        """Removes what nobody reads but for ``kept``: of nodes those behind the first ``before`` ones, as rules make
        them for operands that need no gradient (the data's, frozen weights'), and constants that were made here."""
        for node in reversed(list(self.graph)[before:]):
            if not any(value in kept or value.uses() or value.is_graph_output() for value in node.outputs):
                self.graph.remove(node, safe=True)
        for key, value in list(self._constants.items()):
            if value not in kept and not value.uses() and value.name is not None:
                del self._constants[key], self.graph.initializers[value.name]

    def ints(self, *numbers: int) -> ir.Value:
        """Of gradients: a constant of the graph: an int64 vector."""
        return self.constant(np.array(numbers, np.int64))

    def int64(self, number: int) -> ir.Value:
        """Of gradients: a constant of the graph: an int64 scalar."""
        return self.constant(np.array(number, np.int64))

    def number(self, number: float, like: ir.Value | None = None) -> ir.Value:
        """Of gradients: a scalar of the element type of ``like``, float32 by default."""
        dtype = np.dtype(np.float32) if like is None or like.dtype is None else like.dtype.numpy()
        return self.constant(np.array(number, dtype))

    def given(self, value: ir.Value | None) -> Array | None:
        """Of gradients: the numbers of a constant; None for anything else, a trained initializer too."""
        if value is None or value.is_graph_input() or value in self.trained:
            return None
        tensor = ir.convenience.get_const_tensor(value)
        return None if tensor is None else tensor.numpy()


def _binary(kind: str, swapped: bool = False) -> Callable[[Term, Operand], Term]:
    """For the formula of a gradient: a method for a Python operator that adds the node ``kind``; ``swapped``: for the
    reflected one (2 - x)."""
    return lambda one, other: one.made(kind, other, one) if swapped else one.made(kind, one, other)


class Term:
    """A value in the formula of a gradient: Python's operators add nodes, and numbers become constants of its type."""

    def __init__(self, b: NodeBuilder, value: ir.Value, like: ir.Value | ir.DataType) -> None:
        self.b, self.value = b, value
        self.dtype = like if isinstance(like, ir.DataType) else like.dtype or FLOAT

    def made(self, kind: str, *operands: Operand, **attributes: Attribute) -> Term:
        """The result of a node that reads ``operands`` in their order; numbers become constants of this term's type.
        This term is no operand unless it is among them. The result counts as of this term's type, a comparison's too:
        so numbers that it chooses between (`where`) have that type."""
        given = [self.number(one) if isinstance(one, (int, float, np.ndarray)) else one for one in operands]
        return Term(self.b, self.b.op(kind, *given, **attributes), self.dtype)

    def number(self, number: float | Array) -> Term:
        """A constant of this type; an array has its own."""
        array = number if isinstance(number, np.ndarray) else np.array(number, self.dtype.numpy())
        return Term(self.b, self.b.constant(array), self.dtype)

    def cast(self, dtype: ir.DataType) -> Term:
        """The value in another type; itself if it has that."""
        return self if dtype == self.dtype else Term(self.b, self.b.op("Cast", self, to=int(dtype)), dtype)

    def op(self, kind: str, *others: Operand, **attributes: Attribute) -> Term:
        """Adds a node that reads this value first; its result."""
        return self.made(kind, self, *others, **attributes)

    def where(self, chosen: Operand, other: Operand) -> Term:
        """In the formula of a gradient: ``chosen`` where this truth value holds, else ``other``."""
        return self.op("Where", chosen, other)

    def __neg__(self) -> Term:
        return self.op("Neg")

    __add__, __radd__ = _binary("Add"), _binary("Add", swapped=True)
    __sub__, __rsub__ = _binary("Sub"), _binary("Sub", swapped=True)
    __mul__, __rmul__ = _binary("Mul"), _binary("Mul", swapped=True)
    __truediv__, __rtruediv__ = _binary("Div"), _binary("Div", swapped=True)
    __lt__, __le__ = _binary("Less"), _binary("LessOrEqual")
    __gt__, __ge__ = _binary("Greater"), _binary("GreaterOrEqual")


Operand = Term | ir.Value | float | Array | None


class Eager:
    """What numpy computes for the operators of a formula."""

    Add, Sub, Mul, Div = np.add, np.subtract, np.multiply, np.divide
    Min, Max, Abs, Floor, Ceil = np.minimum, np.maximum, np.abs, np.floor, np.ceil
    Less, Greater, IsInf, And = np.less, np.greater, np.isinf, np.logical_and
    Where, Gather, Identity = np.where, np.take, np.asarray


class EagerTerm(Term):
    """A number in the formula of a gradient: the same operators as `Term`, computed by numpy at once."""

    def __init__(self, array: Array, dtype: ir.DataType | None = None) -> None:
        self.array, self.dtype = array, dtype or ir.DataType.from_numpy(array.dtype)

    def made(self, kind: str, *operands: Operand, **attributes: Attribute) -> EagerTerm:
        """In the formula of a gradient: computes the operator by numpy, at once."""
        given = [self.number(one) if isinstance(one, (int, float, np.ndarray)) else one for one in operands]
        return EagerTerm(getattr(Eager, kind)(*(one.array for one in given if isinstance(one, EagerTerm))), self.dtype)

    def number(self, number: float | Array) -> EagerTerm:
        """In the formula of a gradient: a constant of this term's type."""
        return EagerTerm(number if isinstance(number, np.ndarray) else np.array(number, self.dtype.numpy()), self.dtype)

    def cast(self, dtype: ir.DataType) -> EagerTerm:
        """In the formula of a gradient: the numbers of this term as another type."""
        return EagerTerm(self.array.astype(dtype.numpy()), dtype)


class Placed(NamedTuple):
    """What lies between so many zeros along one axis."""

    piece: ir.Value
    axis: int
    before: int
    behind: int


class Builder(NodeBuilder):
    """A `NodeBuilder` that also asks for types and shapes of values, as gradient rules do."""

    def __init__(self, graph: ir.Graph, prefix: str = "grad") -> None:
        super().__init__(graph, prefix)
        self._shapes: dict[ir.Value, ir.Value] = {}
        self._sizes: dict[tuple[ir.Value, int], ir.Value] = {}
        self.placed: dict[ir.Value, Placed] = {}  # gradients of pieces that were cut out along one axis

    def terms(self, *values: ir.Value | None) -> list[Term]:
        """Values to compute with, without those that are None, so that what follows one moves up; numbers beside them
        have the type of the first one."""
        given = [value for value in values if value is not None]
        return [Term(self, value, given[0]) for value in given]

    def inside(self, name: str = "", graph: ir.Graph | None = None) -> Builder:
        """A builder of a graph inside of this one, a new one by default: names are unique in both."""
        if graph is None:
            opsets = dict(self.graph.opset_imports)
            graph = ir.Graph([], [], nodes=[], opset_imports=opsets, name=self.fresh(f"{self.prefix}/{name}"))
        inner = Builder(graph, self.prefix)
        inner.fresh, inner.scope = self.fresh, self.scope
        return inner

    def input(self, like: ir.Value, dims: Sequence[int | ir.SymbolicDim] | None = None) -> ir.Value:
        """A new input of the graph; its type and, without ``dims``, its shape are those of ``like``."""
        shape = like.shape if dims is None else ir.Shape(dims)
        value = ir.Value(name=self.fresh(f"{self.prefix}/row"), type=like.type, shape=shape)
        self.graph.inputs.append(value)
        return value

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
        """A size, as `size` gives it, plus a number."""
        known = self.given(size)
        return self.op("Add", size, self.ints(number)) if known is None else self.ints(int(known[0]) + number)

    def counted(self, count: ir.Value) -> ir.Value:
        """The int64 vector 0, 1, ... below the scalar ``count``."""
        return self.typed(self.op("Range", self.int64(0), count, self.int64(1)), INT64, None)

    def count(self, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """How many elements a sum over axes adds up, as a scalar of the value's float type.

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

    def axis(self, node: ir.Node, value: ir.Value, default: int) -> int:
        """The attribute ``axis`` of a node that reads ``value``, counted from the front."""
        axis = node.attributes.get_int("axis", default)
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
        """A value with zeros added in front of it and behind it along some axes; a negative amount cuts off.

        Pad could name the axes itself, but ONNX Runtime moves Transposes through it as if the amounts were for all.
        """
        before, behind, chosen = (self.given(vector) for vector in (begin, end, axes))
        if before is not None and behind is not None and chosen is not None:
            amounts = np.zeros((2, rank), np.int64)
            amounts[:, chosen % rank] = before, behind
            padded = self.op("Pad", value, self.ints(*amounts.reshape(-1).tolist()))
            if chosen.size == 1 and min(before[0], behind[0]) >= 0:
                self.placed[padded] = Placed(value, int(chosen[0] % rank), int(before[0]), int(behind[0]))
            return padded
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

    def joined(self, values: Sequence[ir.Value], axis: int = 0) -> ir.Value:
        """Values side by side along an axis; one alone as it is."""
        return values[0] if len(values) == 1 else self.op("Concat", *values, axis=axis)

    def total(self, values: Sequence[ir.Value]) -> ir.Value:
        """The sum of several values; one alone as it is."""
        return values[0] if len(values) == 1 else self.op("Sum", *values)

    def sum(self, value: ir.Value, axes: Sequence[int], keep: bool = True) -> ir.Value:
        """The sum of a value over axes; the value itself for no axes."""
        if not axes:
            return value
        return self.op("ReduceSum", value, self.ints(*axes), keepdims=int(keep))

    def mean(self, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """The mean over axes, which stay."""
        listed = {"axes": list(axes)} if self.graph.opset_imports.get("", 18) < 18 else {}
        return self.op("ReduceMean", value, *([] if listed else [self.ints(*axes)]), keepdims=1, **listed)


def sum_to(b: Builder, gradient: ir.Value, value: ir.Value, result: ir.Value) -> ir.Value:
    """The gradient of ``value``, given one of the shape of ``result``, to which it was broadcast."""
    return sum_to_dims(b, gradient, value, None if result.shape is None else list(result.shape))


def sum_to_dims(b: Builder, gradient: ir.Value, value: ir.Value, whole: Sequence[Size] | None) -> ir.Value:
    """The gradient of ``value``, given one of the dimensions ``whole``, to which it was broadcast.

    Dimensions count as equal if they are the same number or the same symbol; a symbol is taken to be 2 or more, as
    torch.export specialises 0 and 1. Where that does not decide, the axes are found when the graph runs.
    """
    if value.shape is None or whole is None:
        return _at_run_time(b, gradient, value)
    own = list(value.shape)
    missing = len(whole) - len(own)
    axes = list(range(missing))
    for position, dim in enumerate(own):
        other = whole[missing + position]
        if dim == 1 and other != 1:
            axes.append(missing + position)
        elif not isinstance(dim, int) and not same_size(dim, other):
            return _at_run_time(b, gradient, value)
    if not axes:
        return gradient
    summed = b.sum(gradient, axes)
    return b.op("Squeeze", summed, b.ints(*range(missing))) if missing else summed


def same_size(one: Size, other: Size) -> bool:
    """For gradients: whether two sizes are known to be equal: the same number or the same symbol."""
    if isinstance(one, int) or isinstance(other, int):
        return one == other
    return one.value is not None and one.value == other.value


def _at_run_time(b: Builder, gradient: ir.Value, value: ir.Value) -> ir.Value:
    """Sums over the axes where the value's shape, filled up with ones in front, has 1."""
    shape = b.shape(value)
    missing = b.op("Sub", b.op("Shape", b.shape(gradient)), b.op("Shape", shape))
    filled = b.op("Concat", b.op("Expand", b.ints(1), missing), shape, axis=0)
    ones = b.op("NonZero", b.op("Equal", filled, b.ints(1)))
    with b.float32(REASON):
        summed = b.op("ReduceSum", gradient, b.op("Squeeze", ones, b.ints(0)), keepdims=1, noop_with_empty_axes=1)
    return b.op("Reshape", summed, shape, allowzero=1)


def _names_in_graph(graph: ir.Graph) -> Iterator[str | None]:
    """For nodes of gradients: all names that a graph uses, so that new ones are free."""
    yield from (value.name for value in graph.inputs)
    yield from graph.initializers
    for node in graph.all_nodes():
        yield node.name
        yield from (value.name for value in node.outputs)
