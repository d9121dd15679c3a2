"""The builders by which gradient rules and lowerings write a training graph: nodes, constants, formulas and shapes.

New nodes are appended to the graph (or put in front of the node `before`), in the order of the calls. A node that is
made inside ``with b.float32(reason)`` keeps float32: the planner reads the reason from the node. Inside
``with b.float32_as_norms(reason)`` it keeps float32 at the levels whose norms are float32. A size or a shape is a
constant where it is known, else nodes that compute it.
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
REASON = "a sum over what was broadcast: 4,096 rows of mean 20 overflow float16"  # of sums, why they are float32


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
        self._kept = HELD, ""  # key of a new node's metadata and the reason; "": nothing is noted

    # -- nodes --------------------------------------------------------------------------------------------------------

    def op(self, kind: str, *inputs: Term | ir.Value | None, **attributes: Attribute) -> ir.Value:
        """Of gradients: adds a node with one output, and returns this. ``kind`` is an operator's name, with
        ``domain::`` before it outside of ONNX; an input of None is left away, and so is an attribute of None."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, outputs: int, *inputs: Term | ir.Value | None, **attributes: Attribute) -> list[ir.Value]:
        """Of gradients: adds a node with ``outputs`` outputs, and returns these; see `op`."""
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

    def repeat_with(self, node: ir.Node, inputs: Sequence[ir.Value | None]) -> ir.Value:
        """Of gradients: adds a node like ``node`` (operator, attributes) that reads ``inputs``; returns its output."""
        kind = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        return self.op(kind, *inputs, **node.attributes)

    def typed(self, value: ir.Value, like: ir.Value | ir.DataType, *dims: Dim) -> ir.Value:
        """Of gradients: sets a value's type and shape, and returns it: both are those of a value ``like``; with a type
        ``like`` the shape is ``dims`` (none: a scalar). Rules ask for both, and nothing infers them for new nodes."""
        if isinstance(like, ir.Value):
            value.type, value.shape = like.type, like.shape
        else:
            value.type, value.shape = ir.TensorType(like), ir.Shape(dims)
        return value

    def copy(self, value: ir.Value) -> ir.Value:
        """Of gradients: adds an Identity of a value, for a graph that has to give it under another name."""
        return self.typed(self.op("Identity", value), value)

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Of gradients: the value in another type; itself if it has that."""
        if value.dtype == dtype:
            return value
        made = self.op("Cast", value, to=int(dtype))
        made.type, made.shape = ir.TensorType(dtype), value.shape
        return made

    def replace(self, old: ir.Value, new: ir.Value) -> None:
        """Makes all readers of ``old`` read ``new``, a result of a new node of the training graph. Where ``old`` is an
        output of the graph, ``new`` takes its place and its name."""
        if old.is_graph_output():
            new.name, old.name = old.name, self.fresh("replaced")
        old.replace_all_uses_with(new, replace_graph_outputs=True)

    def in_front_of_each(self, wanted: Callable[[ir.Node], bool]) -> Iterator[ir.Node]:
        """Iterates over the nodes of the training graph that ``wanted`` holds for, as the graph is at the first step.
        Nodes made meanwhile go in front of the node given last, and carry its name; after the loop too."""
        for node in [node for node in self.graph if wanted(node)]:
            self.before, self.scope = node, node.name or node.op_type
            yield node

    def replace_node(self, node: ir.Node, made: Sequence[ir.Value]) -> None:
        """Removes a node of the training graph: readers of its outputs read the values ``made``, in the same order."""
        for old, new in zip(node.outputs, made, strict=False):
            self.replace(old, new)
        self.graph.remove(node, safe=True)

    def output(self, node: ir.Node, index: int, dtype: ir.DataType, shape: ir.Shape | None) -> ir.Value:
        """Of gradients: output number ``index`` of a forward node, added if the node left it out; ``dtype`` and
        ``shape`` become those of an output that has no type yet."""
        if len(node.outputs) <= index:
            node.resize_outputs(index + 1)
        value = node.outputs[index]
        for other in node.outputs:
            if not other.name:
                other.name = self.fresh(f"{self.prefix}/{node.name or node.op_type}")
        if value.dtype is None:
            value.type, value.shape = ir.TensorType(dtype), shape
        return value

    @contextmanager
    def float32(self, reason: str) -> Iterator[None]:
        """Nodes of gradients made inside of it compute in float32 at every level. A reason of "" changes nothing."""
        before, self._kept = self._kept, (HELD, reason) if reason else self._kept
        try:
            yield
        finally:
            self._kept = before

    @contextmanager
    def float32_as_norms(self, reason: str) -> Iterator[None]:
        """Nodes of gradients made inside of it are float32 at the levels whose norms are, or as a `float32` around
        says."""
        before = self._kept
        self._kept = before if before[1] else (KEPT, reason)
        try:
            yield
        finally:
            self._kept = before

    # -- constants ----------------------------------------------------------------------------------------------------

    def constant(self, array: Array) -> ir.Value:
        """Of gradients: the initializer of the graph with these numbers; it is added at the first call and shared by
        later calls with the same numbers, type and shape."""
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
        """Of gradients: removes the nodes behind the first ``before`` ones, and the constants of this builder, that
        nothing reads and that are not ``kept``. Rules make these for data and frozen weights."""
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
        """Of gradients: a constant scalar of the element type of ``like``, float32 by default."""
        dtype = np.dtype(np.float32) if like is None or like.dtype is None else like.dtype.numpy()
        return self.constant(np.array(number, dtype))

    def known_numbers(self, value: ir.Value | None) -> Array | None:
        """Of gradients: the numbers of a constant; None for any other value, a trained initializer too."""
        if value is None or value.is_graph_input() or value in self.trained:
            return None
        tensor = ir.convenience.get_const_tensor(value)
        return None if tensor is None else tensor.numpy()


def _binary(kind: str, swapped: bool = False) -> Callable[[Term, Operand], Term]:
    """For the formula of a gradient: makes the method of `Term` for a Python operator, which adds a node ``kind``;
    ``swapped``: for the reflected operator (2 - x)."""
    return lambda one, other: one.apply(kind, other, one) if swapped else one.apply(kind, one, other)


class Term:
    """A value in the formula of a gradient: Python's operators add nodes, and numbers become constants of its type."""

    def __init__(self, b: NodeBuilder, value: ir.Value, like: ir.Value | ir.DataType) -> None:
        self.b, self.value = b, value
        self.dtype = like if isinstance(like, ir.DataType) else like.dtype or FLOAT

    def apply(self, kind: str, *operands: Operand, **attributes: Attribute) -> Term:
        """In the formula of a gradient: adds a node that reads ``operands`` (this term only if it is among them), and
        returns its result. Numbers become constants of this term's type; an array keeps its own. The result counts as
        of this term's type, a comparison's too, so that the numbers given to its `where` have that type."""
        given = [self.number(one) if isinstance(one, (int, float, np.ndarray)) else one for one in operands]
        return Term(self.b, self.b.op(kind, *given, **attributes), self.dtype)

    def number(self, number: float | Array) -> Term:
        """In the formula of a gradient: a constant of this term's type; an array keeps its own type."""
        array = number if isinstance(number, np.ndarray) else np.array(number, self.dtype.numpy())
        return Term(self.b, self.b.constant(array), self.dtype)

    def cast(self, dtype: ir.DataType) -> Term:
        """In the formula of a gradient: this term in another type; itself if it has that type."""
        return self if dtype == self.dtype else Term(self.b, self.b.op("Cast", self, to=int(dtype)), dtype)

    def op(self, kind: str, *others: Operand, **attributes: Attribute) -> Term:
        """In the formula of a gradient: adds a node that reads this term, then ``others``, and returns its result."""
        return self.apply(kind, self, *others, **attributes)

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
    """For the formula of a gradient: the numpy function of each operator, as an attribute with the operator's name."""

    Add, Sub, Mul, Div = np.add, np.subtract, np.multiply, np.divide
    Min, Max, Abs, Floor, Ceil = np.minimum, np.maximum, np.abs, np.floor, np.ceil
    Less, Greater, IsInf, And = np.less, np.greater, np.isinf, np.logical_and
    Where, Gather, Identity = np.where, np.take, np.asarray


class EagerTerm(Term):
    """A number in the formula of a gradient: the same operators as `Term`, computed by numpy at once."""

    def __init__(self, array: Array, dtype: ir.DataType | None = None) -> None:
        self.array, self.dtype = array, dtype or ir.DataType.from_numpy(array.dtype)

    def apply(self, kind: str, *operands: Operand, **attributes: Attribute) -> EagerTerm:
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
    """What a padded gradient consists of: ``piece``, with ``before`` and ``behind`` zeros around it along ``axis``."""

    piece: ir.Value
    axis: int
    before: int
    behind: int


class Builder(NodeBuilder):
    """A `NodeBuilder` that also asks for types and shapes of values, as gradient rules do."""

    def __init__(self, graph: ir.Graph, prefix: str = "grad") -> None:
        super().__init__(graph, prefix)
        self._shapes: dict[ir.Value, ir.Value] = {}  # value -> its shape, as `shape` gives it
        self._sizes: dict[tuple[ir.Value, int], ir.Value] = {}  # value and axis -> what `size` computes of it
        self.placed: dict[ir.Value, Placed] = {}  # padded value -> its piece: gradients of what was cut out

    def terms(self, *values: ir.Value | None) -> list[Term]:
        """For the formula of a gradient: a `Term` for each value that is not None, in their order (unpack as many as
        are there). Numbers beside any of them take the type of the first one."""
        given = [value for value in values if value is not None]
        return [Term(self, value, given[0]) for value in given]

    def body_builder(self, name: str = "", graph: ir.Graph | None = None) -> Builder:
        """For gradients of control flow: a builder of the body ``graph``, by default of a new, empty one that is called
        ``name``. Both builders take their names from one supply, so none occurs twice."""
        if graph is None:
            opsets = dict(self.graph.opset_imports)
            graph = ir.Graph([], [], nodes=[], opset_imports=opsets, name=self.fresh(f"{self.prefix}/{name}"))
        inner = Builder(graph, self.prefix)
        inner.fresh, inner.scope = self.fresh, self.scope
        return inner

    def input(self, like: ir.Value, dims: Sequence[int | ir.SymbolicDim] | None = None) -> ir.Value:
        """Of gradients: appends an input to this body; type and, without ``dims``, shape are those of ``like``."""
        shape = like.shape if dims is None else ir.Shape(dims)
        value = ir.Value(name=self.fresh(f"{self.prefix}/row"), type=like.type, shape=shape)
        self.graph.inputs.append(value)
        return value

    def rank(self, value: ir.Value) -> int:
        """Of gradients: the number of axes of a value. Raises ValueError where it is not known."""
        if value.shape is None:
            raise ValueError(f"the rank of '{value.name}' is not known")
        return len(value.shape)

    def dim(self, value: ir.Value, axis: int) -> int | None:
        """Of gradients: the size along an axis; None where it is not known, or only as a symbol."""
        size = None if value.shape is None else value.shape[axis]
        return size if isinstance(size, int) else None

    def shape(self, value: ir.Value) -> ir.Value:
        """Of gradients: the shape as an int64 vector: a constant if it is known, else one Shape node for all calls."""
        if value not in self._shapes:
            dims = [None] if value.shape is None else list(value.shape)
            known = [dim for dim in dims if isinstance(dim, int)]
            self._shapes[value] = self.ints(*known) if len(known) == len(dims) else self.op("Shape", value)
        return self._shapes[value]

    def size(self, value: ir.Value, axis: int) -> ir.Value:
        """Of gradients: the size along an axis as an int64 vector of one element, a constant where it is known."""
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
        """Of gradients: the sum of ``number`` and of a size that `size` gave; a constant where the size is one."""
        known = self.known_numbers(size)
        return self.op("Add", size, self.ints(number)) if known is None else self.ints(int(known[0]) + number)

    def arange(self, count: ir.Value) -> ir.Value:
        """Of gradients: the int64 vector 0, 1, ..., count - 1 for an int64 scalar ``count``."""
        return self.typed(self.op("Range", self.int64(0), count, self.int64(1)), INT64, None)

    def count(self, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """Of gradients: the number of elements that a sum over ``axes`` adds up, as a scalar of the value's float type.
        A size that only a run shows is computed as a sum of ones, since a number made of a Shape lies on the host and
        would have to be copied to the device. The sum is exact up to 2^24."""
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
        """Of gradients: the attribute ``axis`` of a node that reads ``value``, or ``default``, counted from the front:
        0 or above. Raises ValueError for a negative axis of a value whose rank is not known."""
        axis = node.attributes.get_int("axis", default)
        return axis + self.rank(value) if axis < 0 else axis

    def zeros(self, like: ir.Value) -> ir.Value:
        """Of gradients: zeros of the shape and the type of a value."""
        return self.op("Expand", self.number(0, like), self.shape(like))

    def reshaped(self, gradient: ir.Value, like: ir.Value) -> ir.Value:
        """A gradient in the shape of ``like``, a value with as many elements."""
        dims = [] if like.shape is None else [dim if isinstance(dim, int) else -1 for dim in like.shape]
        if dims.count(-1) == 1 and 0 not in dims:  # Reshape finds one unknown size itself
            return self.op("Reshape", gradient, self.ints(*dims))
        return self.op("Reshape", gradient, self.shape(like), allowzero=1)

    def padded(self, value: ir.Value, rank: int, begin: ir.Value, end: ir.Value, axes: ir.Value) -> ir.Value:
        """A gradient of ``rank`` axes with zeros added around it: along each of ``axes`` (an int64 vector) as many as
        ``begin`` and ``end`` say at its place; a negative amount cuts off. Notes in `placed` what it padded along one
        axis. Pad could read the axes itself, but ONNX Runtime then moves Transposes wrongly."""
        before, behind, chosen = (self.known_numbers(vector) for vector in (begin, end, axes))
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
        """Of gradients: values concatenated along an axis; a single one as it is, without a node."""
        return values[0] if len(values) == 1 else self.op("Concat", *values, axis=axis)

    def total(self, values: Sequence[ir.Value]) -> ir.Value:
        """Of gradients: the sum of several values, element by element; a single one as it is, without a node."""
        return values[0] if len(values) == 1 else self.op("Sum", *values)

    def sum(self, value: ir.Value, axes: Sequence[int], keep: bool = True) -> ir.Value:
        """Of gradients: the sum of a value over ``axes``, which stay (size 1) if ``keep``; itself for none."""
        if not axes:
            return value
        return self.op("ReduceSum", value, self.ints(*axes), keepdims=int(keep))

    def mean(self, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """Of gradients: the mean of a value over ``axes``, which stay with a size of 1."""
        if self.graph.opset_imports.get("", 18) < 18:
            return self.op("ReduceMean", value, keepdims=1, axes=list(axes))
        return self.op("ReduceMean", value, self.ints(*axes), keepdims=1)


def sum_to(b: Builder, gradient: ir.Value, value: ir.Value, result: ir.Value) -> ir.Value:
    """The gradient of ``value``, which was broadcast to ``result``: ``gradient``, of that shape, summed up."""
    return sum_to_dims(b, gradient, value, None if result.shape is None else list(result.shape))


def sum_to_dims(b: Builder, gradient: ir.Value, value: ir.Value, whole: Sequence[Size] | None) -> ir.Value:
    """The gradient of ``value``, which was broadcast to the dimensions ``whole`` (None: not known): ``gradient``, which
    has these, summed to the value's own. Dimensions count as equal if they are the same number or the same symbol; a
    symbol is taken to be 2 or more, as torch.export specialises 0 and 1. Elsewhere the axes are found at run time."""
    if value.shape is None or whole is None:
        return _sum_where_one(b, gradient, value)
    own = list(value.shape)
    missing = len(whole) - len(own)
    axes = list(range(missing))
    for position, dim in enumerate(own):
        other = whole[missing + position]
        if dim == 1 and other != 1:
            axes.append(missing + position)
        elif not isinstance(dim, int) and not same_size(dim, other):
            return _sum_where_one(b, gradient, value)
    if not axes:
        return gradient
    summed = b.sum(gradient, axes)
    return b.op("Squeeze", summed, b.ints(*range(missing))) if missing else summed


def same_size(one: Size, other: Size) -> bool:
    """For gradients: whether two sizes are known to be equal: the same number or the same symbol."""
    if isinstance(one, int) or isinstance(other, int):
        return one == other
    return one.value is not None and one.value == other.value


def _sum_where_one(b: Builder, gradient: ir.Value, value: ir.Value) -> ir.Value:
    """The gradient of a broadcast value whose shape only a run shows: ``gradient`` summed over the axes that the value
    lacks in front, and over those where it has size 1."""
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
