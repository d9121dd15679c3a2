"""Shapes of subgraphs that stand for one operator: decomposed norms, softmax, GELU, a product with its bias."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..core.dataflow import FLOAT32, NONE, Dataflow, Op
from .state import CONVERSIONS, INVERSE_ROOT, SQUARE


@dataclass(frozen=True)
class Region:
    """Nodes that share one decision. ``kind`` is the operator they stand for; ``result`` their last node."""

    kind: str
    ops: tuple[Op, ...]
    result: Op
    source: int = NONE  # the value that a norm normalises
    scale: int = NONE
    bias: int = NONE
    epsilon: float = 0.0
    reduced: tuple[Op, ...] = ()  # every ReduceMean


class Matcher:
    """Looks at a dataflow through no-op casts and identities."""

    def __init__(self, flow: Dataflow) -> None:
        self.flow = flow
        self.passed: list[Op] = []

    def origin(self, value: int) -> int:
        """The value before no-op casts and identities."""
        while value != NONE and (op := self.flow.writer(value)) is not None and op.role in (*CONVERSIONS, "Identity"):
            if self.flow.values[op.inputs[0]].dtype != FLOAT32 or self.flow.values[value].dtype != FLOAT32:
                break
            self.passed.append(op)
            value = op.inputs[0]
        return value

    def writer(self, value: int, *kinds: str) -> Op | None:
        op = self.flow.writer(self.origin(value)) if value != NONE else None
        return op if op is not None and op.role in kinds else None

    def with_scalar(self, op: Op | None, *kinds: str) -> tuple[int, float] | None:
        """(the other operand, the number) of a binary operator with a scalar constant."""
        if op is None or op.role not in kinds or len(op.inputs) != 2:
            return None
        for here, other in ((1, 0), (0, 1)):
            number = self.flow.scalar(self.origin(op.inputs[here]))
            if number is not None:
                return self.origin(op.inputs[other]), number
        return None

    def sole_reader(self, value: int, *kinds: str) -> Op | None:
        """The one operator that reads a value, seen through no-op casts."""
        uses = self.flow.uses[value]
        if len(uses) != 1 or uses[0].op == NONE:
            return None
        op = self.flow.ops[uses[0].op]
        if (
            op.role in (*CONVERSIONS, "Identity")
            and op.role not in kinds
            and self.flow.values[value].dtype == self.flow.values[op.outputs[0]].dtype == FLOAT32
        ):
            self.passed.append(op)
            return self.sole_reader(op.outputs[0], *kinds)
        return op if op.role in kinds else None

    def is_square(self, op: Op | None) -> int:
        """x of Pow(x, 2) or Mul(x, x), else NONE."""
        if op is None:
            return NONE
        if op.role == "Pow" and self.flow.scalar(op.inputs[1]) == 2.0:
            return self.origin(op.inputs[0])
        if op.role == SQUARE or (op.role == "Mul" and self.same(op.inputs[0], op.inputs[1])):
            return self.origin(op.inputs[0])
        return NONE

    def same(self, value: int, other: int) -> bool:
        """Whether two values are one, or one difference (or mean) computed twice."""
        value, other = self.origin(value), self.origin(other)
        if value == other:
            return True
        one, two = self.writer(value, "Sub", "ReduceMean"), self.writer(other, "Sub", "ReduceMean")
        if one is None or two is None or one.role != two.role or len(one.inputs) != len(two.inputs):
            return False
        if reduced_axes(self.flow, one) != reduced_axes(self.flow, two):
            return False
        if not all(self.same(a, b) for a, b in zip(one.inputs, two.inputs, strict=True) if a != b):
            return False
        self.passed += [one, two]
        return True


def reduced_axes(flow: Dataflow, op: Op) -> list[int] | None:
    """The axes of a reduction that keeps its dimensions, from an attribute or a stored input; None for any other."""
    axes = flow.attribute(op, "axes")
    if axes is None and len(op.inputs) > 1 and op.inputs[1] != NONE:
        item = flow.values[op.inputs[1]]
        array = flow.weights.array(item) if item.weight and item.dtype == "int64" else None
        axes = None if array is None else array.reshape(-1).tolist()
    if axes is None or flow.attribute(op, "keepdims") == 0:
        return None
    return [int(axis) for axis in (axes if isinstance(axes, (list, tuple)) else [axes])]


def find_regions(flow: Dataflow) -> Iterator[Region]:
    """Every region of a dataflow, in the order of the nodes."""
    finders = {"Sqrt": _norm, INVERSE_ROOT: _norm, "Exp": _softmax, "Erf": _gelu, "Tanh": _gelu}
    for op in flow.ops:
        if op.role in finders and op.slots:
            region = finders[op.role](flow, op)
            if region is not None:
                yield region


def _norm(flow: Dataflow, root: Op) -> Region | None:
    """x / sqrt(mean(x * x) + eps), with or without the mean taken off first, then scale and bias."""
    m = Matcher(flow)
    added = m.writer(root.inputs[0], "Add")
    inner = m.with_scalar(added, "Add")
    mean = m.writer(inner[0], "ReduceMean") if inner and inner[1] > 0 else None
    square = m.writer(mean.inputs[0], "Pow", "Mul", SQUARE) if mean else None
    base = m.is_square(square)
    if added is None or inner is None or mean is None or square is None or base == NONE:
        return None
    ops, source = [square, mean, added, root], base
    reduced: tuple[Op, ...] = (mean,)
    centred = m.writer(base, "Sub")
    taken = m.writer(centred.inputs[1], "ReduceMean") if centred else None
    if centred is not None and taken is not None and m.origin(taken.inputs[0]) == m.origin(centred.inputs[0]):
        source, reduced = m.origin(taken.inputs[0]), (taken, mean)
        ops = [taken, centred, *ops]
    kind = "LayerNormalization" if len(reduced) == 2 else "RMSNormalization"
    divided = _divided(flow, m, root, base, ops)
    if divided is not None:
        result, scale, bias = _affine(flow, m, divided, kind, ops)
    elif kind == "LayerNormalization" and (folded := _folded(flow, m, root, source, reduced[0], ops)) is not None:
        result, scale, bias = folded
    else:
        return None
    return Region(kind, _unique((*ops, *m.passed)), result, source, scale, bias, inner[1], reduced)


def _unique(ops: Iterable[Op]) -> tuple[Op, ...]:
    return tuple({op.id: op for op in ops}.values())


def _affine(flow: Dataflow, m: Matcher, result: Op, kind: str, ops: list[Op]) -> tuple[Op, int, int]:
    """The Mul and Add that follow a norm, with stored vectors: (last node, scale, bias)."""
    scale = bias = NONE
    scaled = m.sole_reader(result.outputs[0], "Mul")
    if scaled is not None and (scale := _weight_operand(flow, m, scaled)) != NONE:
        ops.append(scaled)
        result = scaled
        shifted = m.sole_reader(result.outputs[0], "Add") if kind == "LayerNormalization" else None
        if shifted is not None and (bias := _weight_operand(flow, m, shifted)) != NONE:
            ops.append(shifted)
            result = shifted
    return result, scale, bias


def _folded(flow: Dataflow, m: Matcher, root: Op, source: int, taken: Op, ops: list[Op]) -> tuple[Op, int, int] | None:
    """x * r + (bias - mean * r) with r = scale / root: how TensorFlow writes it."""
    inverse = m.sole_reader(root.outputs[0], "Reciprocal")
    factor = m.sole_reader(inverse.outputs[0], "Mul") if inverse else None
    scale = _weight_operand(flow, m, factor) if factor else NONE
    if inverse is None or factor is None or scale == NONE:
        return None
    products = [op for op in flow.readers(factor.outputs[0]) if op.role == "Mul"]
    data = next((op for op in products if source in (m.origin(v) for v in op.inputs)), None)
    means = next((op for op in products if any(m.same(v, taken.outputs[0]) for v in op.inputs)), None)
    shift = m.sole_reader(means.outputs[0], "Sub") if means else None
    result = m.sole_reader(data.outputs[0], "Add") if data else None
    if data is None or means is None or shift is None or result is None or len(products) != 2:
        return None
    bias = m.origin(shift.inputs[0])
    if not flow.values[bias].weight or shift.outputs[0] not in (m.origin(v) for v in result.inputs):
        return None
    ops += [inverse, factor, data, means, shift, result]
    return result, scale, bias


def _divided(flow: Dataflow, m: Matcher, root: Op, base: int, ops: list[Op]) -> Op | None:
    """The node that divides ``base`` by the root, directly or through a reciprocal."""
    for reader in flow.readers(root.outputs[0]):
        if root.role == INVERSE_ROOT:
            if reader.role == "Mul" and any(m.same(v, base) for v in reader.inputs):
                ops.append(reader)
                return reader
            continue
        if reader.role == "Div" and m.same(reader.inputs[0], base):
            ops.append(reader)
            return reader
        inverse = reader.role == "Reciprocal" or (reader.role == "Div" and flow.scalar(reader.inputs[0]) == 1.0)
        product = m.sole_reader(reader.outputs[0], "Mul") if inverse else None
        if product is not None and any(m.same(v, base) for v in product.inputs):
            ops += [reader, product]
            return product
    return None


def _weight_operand(flow: Dataflow, m: Matcher, op: Op) -> int:
    """The stored one-dimensional operand of a binary operator."""
    for value in op.inputs:
        origin = m.origin(value)
        if flow.values[origin].weight and len(flow.shape(origin) or ()) <= 1:
            return origin
    return NONE


def _softmax(flow: Dataflow, root: Op) -> Region | None:
    """exp(x - max(x)) / sum of that: no exponent is positive, so nothing overflows."""
    m = Matcher(flow)
    shifted = m.writer(root.inputs[0], "Sub")
    top = m.writer(shifted.inputs[1], "ReduceMax") if shifted else None
    if shifted is None or top is None or m.origin(top.inputs[0]) != m.origin(shifted.inputs[0]):
        return None
    total = next((op for op in flow.readers(root.outputs[0]) if op.role == "ReduceSum"), None)
    result = next((op for op in flow.readers(root.outputs[0]) if op.role == "Div"), None)
    if total is None or result is None or m.origin(result.inputs[1]) != total.outputs[0]:
        return None
    return Region("Softmax", (top, shifted, root, total, result), result, m.origin(top.inputs[0]))


def _gelu(flow: Dataflow, root: Op) -> Region | None:
    """0.5 x (1 + erf(x / sqrt 2)), or the same with tanh of a cubic, in any order of the factors."""
    m = Matcher(flow)
    plus = m.sole_reader(root.outputs[0], "Add")
    if plus is None or (found := m.with_scalar(plus, "Add")) is None or found[1] != 1.0:
        return None
    ops, result, source, half = [root, plus], plus, NONE, False
    while (source == NONE or not half) and (product := m.sole_reader(result.outputs[0], "Mul")) is not None:
        scaled = m.with_scalar(product, "Mul")
        if scaled is not None and scaled[1] == 0.5 and not half:
            half = True
        elif source == NONE and scaled is None:
            first, second = (m.origin(v) for v in product.inputs)
            source = second if first == m.origin(result.outputs[0]) else first
            halved = m.writer(source, "Mul")
            inner = m.with_scalar(halved, "Mul")
            if halved is not None and inner is not None and inner[1] == 0.5 and not half:
                source, half = inner[0], True
                ops.append(halved)
        else:
            break
        ops.append(product)
        result = product
    inside: list[Op] = []
    if source == NONE or not half or not _depends_only(flow, m, root.inputs[0], source, inside):
        return None
    if root.role == "Tanh" and not any(op.role == "Pow" or m.is_square(op) != NONE for op in inside):
        return None
    return Region("Gelu", _unique((*inside, *ops, *m.passed)), result, source)


def _depends_only(flow: Dataflow, m: Matcher, value: int, source: int, ops: list[Op], depth: int = 0) -> bool:
    """Whether a value is a polynomial of ``source`` with constants; collects the nodes."""
    value = m.origin(value)
    if value == source or flow.scalar(value) is not None:
        return True
    op = flow.writer(value)
    if op is None or op.role not in ("Add", "Mul", "Div", "Pow") or depth > 6:
        return False
    if op not in ops:
        ops.append(op)
    return all(_depends_only(flow, m, v, source, ops, depth + 1) for v in op.inputs)


def find_biases(flow: Dataflow, white: set[str]) -> Iterator[Region]:
    """A product and the Add of a stored vector to its result."""
    for op in flow.ops:
        if op.role not in white or len(op.outputs) != 1:
            continue
        m = Matcher(flow)
        added = m.sole_reader(op.outputs[0], "Add")
        if added is None:
            continue
        for value in added.inputs:
            origin = m.origin(value)
            if flow.values[origin].weight:
                shape = flow.shape(origin) or ()
                if sum(1 for dim in shape if dim != 1) <= 1:
                    yield Region("Bias", (op, added, *m.passed), added, bias=origin)
