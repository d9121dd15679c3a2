"""MatMul, Gemm, Einsum and convolutions for strict runs, as kernels compute them that accumulate in a low type: each
product is rounded, and each sum, in turn.

They are a Scan over the depth (the axis that is summed over), in standard operators, so that any runtime of ONNX can
run it: its body rounds by pairs of Casts. As ONNX Runtime's WebGPU provider does, bit for bit (tests/webgpu): MatMul
and Gemm from the first element of the depth to the last; a Gemm that transposes its second operand, of a depth
divisible by four, adds up each four before it adds them to the sum; Conv goes through the places of its kernel, and
through the channels at each, one of three dimensions by fours; ConvTranspose from the last place of its kernel to the
first, by fours into one channel; Einsum through what it sums over, in the order of the letters. Where multiply-adds are
fused, as on Arm CPUs (tests/arm64), products are not rounded, nothing goes by fours, and the sum of a Conv, or of a
Gemm without transposes and factors, begins at the bias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from ...core.arrays import Array
from ...core.dataflow import Shape
from .low_nodes import LowNodes
from .nodes import attribute

CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
PRODUCTS = frozenset({"Einsum", "MatMul", "Gemm"}) | CONVOLUTIONS
LANES = 4
"""How many products are added up first: of a Gemm that transposes its second operand, of a Conv of three dimensions."""
VOLUME = 5  # the rank of that Conv's operands
SCAN = 9  # the opset from which Scan takes what has no batch, and ConstantOfShape is there
DEFAULTS = MappingProxyType({"transA": 0, "transB": 0, "alpha": 1.0, "beta": 1.0})
Lane = tuple[Array, Array]
"""(indices along the depth at which a lane reads the first operand, the same of the second), one a turn."""


def knows(node: ir.Node, opset: int, shapes: Sequence[Shape | None]) -> bool:
    """Whether `ProductNodes` can write a product as a kernel rounds, by its opset and operands' ``shapes``."""
    if node.op_type == "Einsum":
        return bool(_equation(node).summed)
    if opset < SCAN:
        return False
    if node.op_type in CONVOLUTIONS:
        return shapes[1] is not None and _all_known(shapes[1])
    if node.op_type == "MatMul" and shapes[0] is None:
        return shapes[1] is not None and len(shapes[1]) == 2 and _all_known(shapes[1])
    return all(shape is not None and len(shape) > 1 for shape in shapes[:2])


def _all_known(shape: Shape) -> bool:
    """Whether all sizes of a product's operand are known, and none is 0."""
    return all(isinstance(size, int) and size > 0 for size in shape)


class ProductNodes(LowNodes):
    """Writes the nodes that compute a MatMul, Gemm, Einsum or convolution as a kernel rounds. One object writes one."""

    _ranks: tuple[int, int] = 0, 0  # of the two values that `_sum` multiplies

    def write(self, node: ir.Node, dtype: str, shapes: Sequence[Shape | None]) -> ir.Value:
        """Writes a product that `knows` knows as a kernel rounds, with an accumulator of ``dtype``; returns its result.
        ``node``: computes the same in float32; ``shapes``: of its operands, None where unknown."""
        weight = [n if isinstance(n, int) else 0 for n in shapes[1] or ()]
        self._ranks = (3, 4) if node.op_type in CONVOLUTIONS else (len(shapes[0] or ()), len(shapes[1] or ()))
        made: ir.Value = getattr(self, f"_{node.op_type.lower()}")(node, dtype, weight)
        return made

    def _matmul(self, node: ir.Node, dtype: str, weight: Sequence[int]) -> ir.Value:
        """A MatMul written as a kernel rounds; an operand of unknown rank is multiplied as a matrix of its rows."""
        a, b, made = node.inputs[0], node.inputs[1], node.outputs[0]
        if self._ranks[0]:
            return self._sum(a, b, self.do("Shape", [made]), dtype)
        self._ranks = 2, 2
        rows, flat = self.reshape(a, [-1, weight[0]]), self.reshape(made, [-1, weight[1]])
        total = self._sum(rows, b, self.do("Shape", [flat]), dtype)
        return self.do("Reshape", [total, self.do("Shape", [made])])

    def _gemm(self, node: ir.Node, dtype: str, weight: Sequence[int]) -> ir.Value:
        """A Gemm written as a kernel rounds: alpha * (A B) + beta * C, each of the two scaled terms rounded, the last
        sum not: the caller rounds it. ``weight``: the shape of B, 0 for an unknown size."""
        attributes = {name: a.value for name, a in node.attributes.items()}
        a, b, transposed = node.inputs[0], node.inputs[1], attributes.get("transB", 0)
        depth = weight[-1] if transposed and weight else 0
        by_lanes = depth > 0 and depth % LANES == 0 and not self.fused
        lanes = [(np.arange(i, depth, LANES),) * 2 for i in range(LANES)] if by_lanes else []
        a = self.do("Transpose", [a], perm=[1, 0]) if attributes.get("transA", 0) else a
        b = self.do("Transpose", [b], perm=[1, 0]) if transposed else b
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        shape = self.do("Shape", [node.outputs[0]])
        if self.fused and all(attributes.get(name, value) == value for name, value in DEFAULTS.items()):
            return self._sum(a, b, shape, dtype, start=bias)
        total = self._sum(a, b, shape, dtype, lanes)
        total = self._scale(total, attributes.get("alpha", 1.0), dtype)
        return total if bias is None else self.do("Add", [total, self._scale(bias, attributes.get("beta", 1.0), dtype)])

    def _scale(self, value: ir.Value, factor: float, dtype: str) -> ir.Value:
        """For a Gemm written as a kernel rounds: a value times alpha or beta, both rounded; itself times 1."""
        if factor == 1:
            return value
        rounded = self.round_to(self.constant(np.array(factor, np.float32)), dtype)
        return self.round_to(self.do("Mul", [value, rounded]), dtype)

    def _einsum(self, node: ir.Node, dtype: str, weight: Sequence[int]) -> ir.Value:
        """An Einsum of two operands written as a kernel rounds: the letters that are summed over become one axis, the
        last one; a turn multiplies what is at one index of it, by an Einsum of the other letters."""
        equation = _equation(node)
        free_terms, reads = [], []
        for operand, term in zip(node.inputs, equation.terms, strict=True):
            free = [letter for letter in term if letter not in equation.summed]
            moved = self.do("Transpose", [operand], perm=[term.index(letter) for letter in (*free, *equation.summed)])
            reads.append(self.reshape(moved, [0] * len(free) + [-1]))
            free_terms.append("".join(free))
        start = self.do("ConstantOfShape", [self.do("Shape", [node.outputs[0]])])
        axes, attributes = (
            [len(free) for free in free_terms],
            {"equation": ",".join(free_terms) + f"->{equation.result}"},
        )
        return self.sum_of_products(start, reads, axes, len(equation.result), dtype, "Einsum", attributes)

    def _conv(self, node: ir.Node, dtype: str, weight: Sequence[int]) -> ir.Value:
        """A Conv written as a kernel rounds: a sum over the places of its kernel, and over the channels at each.
        Without ``fused`` its bias is added unrounded: the caller rounds. ``weight``: the shape of its weight."""
        group = attribute(node, "group", 1)
        out, inside, places = weight[0], weight[1], int(np.prod(weight[2:]))
        weights = self.reshape(node.inputs[1], [group, out // group, inside, places])
        weights = self.do("Transpose", [weights], perm=[0, 1, 3, 2])
        ones = np.tile(np.eye(places, dtype=np.float32), (inside * group, 1))
        columns = self._columns(node, ones.reshape(-1, 1, *weight[2:]), inside * group)
        return self._by_places(node, dtype, weights, columns, (group, out, inside, places), len(weight))

    def _convtranspose(self, node: ir.Node, dtype: str, weight: Sequence[int]) -> ir.Value:
        """A ConvTranspose written as WebGPU rounds: a sum over the kernel's places, the last first, and channels."""
        group = attribute(node, "group", 1)
        out, inside, places = weight[1] * group, weight[0] // group, int(np.prod(weight[2:]))
        weights = self.reshape(node.inputs[1], [group, inside, out // group, places])
        weights = self.do("Transpose", [weights], perm=[0, 2, 3, 1])
        weights = self.do("Gather", [weights, self.constant(np.arange(places)[::-1].copy())], axis=2)
        ones = np.tile(np.eye(places, dtype=np.float32)[::-1], (weight[0], 1))
        columns = self._columns(node, ones.reshape(weight[0], places, *weight[2:]), weight[0])
        return self._by_places(node, dtype, weights, columns, (group, out, inside, places), len(weight))

    def _by_places(
        self,
        node: ir.Node,
        dtype: str,
        weights: ir.Value,
        columns: ir.Value,
        sizes: tuple[int, int, int, int],
        rank: int,
    ) -> ir.Value:
        """A convolution written as a kernel rounds: each group is a product of its weights with what they meet, summed
        over the places of the kernel and the channels at each. ``weights``: [group, output channel, place, input
        channel]; ``columns``: what each place of the kernel meets in each channel, [batch, channel, place, ...];
        ``sizes``: groups, output channels, input channels a group, places; ``rank``: of the weight."""
        group, out, inside, places = sizes
        columns = self.reshape(columns, [0, group, inside, places, -1])
        columns = self.reshape(self.do("Transpose", [columns], perm=[0, 1, 3, 2, 4]), [0, group, places * inside, -1])
        weights, lanes = self.reshape(weights, [group, out // group, places * inside]), []
        volume, thin = rank == VOLUME, node.op_type == "ConvTranspose" and out == 1
        if not self.fused and group == 1 and (volume or thin):
            zero = self.constant(np.zeros((1, out, 1), np.float32))  # the weight that lanes without one read
            weights, lanes = self.do("Concat", [weights, zero], axis=2), _lanes_of_channels(places, inside, volume)
        shape = self.do("Shape", [self.reshape(node.outputs[0], [0, group, out // group, -1])])
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        start = None if bias is None or not self.fused else self.reshape(bias, [1, group, out // group, 1])
        total = self._sum(weights, columns, shape, dtype, lanes, start)
        total = self.do("Reshape", [total, self.do("Shape", [node.outputs[0]])])
        if bias is None or self.fused:
            return total
        return self.do("Add", [self.round_to(total, dtype), self.reshape(bias, [1, out] + [1] * (rank - 2))])

    def _columns(self, node: ir.Node, ones: Array, channels: int) -> ir.Value:
        """For a convolution written as a kernel rounds: what each place of its kernel meets in each of its
        ``channels``, by the same operator with the weight ``ones``, which picks one place each."""
        made = self.do(node.op_type, [node.inputs[0], self.constant(ones)], group=channels)
        self.copy_window(node, made)
        return made

    # -- sums ---------------------------------------------------------------------------------------------------------

    def _sum(
        self, a: ir.Value | None, b: ir.Value | None, shape: ir.Value, dtype: str, lanes: Sequence[Lane] = (),
        start: ir.Value | None = None,
    ) -> ir.Value:  # fmt: skip
        """As kernels round: start + a @ b for values of the ranks `_ranks`, a turn for each index of the depth.
        ``shape``: of the result, a value; ``lanes``: where each of several lanes reads, whose products are added up at
        each turn before they are added to the sum; ``start``: what the sum begins at, None for zeros."""
        assert a is not None and b is not None
        last, middle = self._ranks[0], self._ranks[1] - 2  # the depth, counted from the front: opsets before 11 do
        a, b = (self.unsqueeze(value, rank - 1) for value, rank in zip((a, b), self._ranks, strict=True))
        begun = self.do("ConstantOfShape", [shape]) if start is None else self.do("Expand", [start, shape])
        reads, axes = [a, b], [last, middle]
        if lanes:
            reads = [self.do("Gather", [a, self.constant(place)], axis=last) for place, _ in lanes]
            reads += [self.do("Gather", [b, self.constant(place)], axis=middle) for _, place in lanes]
            axes = [last] * len(lanes) + [middle] * len(lanes)
        return self.sum_of_products(begun, reads, axes, max(self._ranks), dtype)


@dataclass(frozen=True)
class _Equation:
    """The equation of an Einsum: ``terms``, the letters of each operand, ``result``, those of the result, and
    ``summed``, those that are summed over, in the order of kernels; empty where it is no product of two tensors."""

    terms: Sequence[str]
    result: str
    summed: Sequence[str]


def _equation(node: ir.Node) -> _Equation:
    """The equation of an Einsum, for nodes that round as kernels do. It is a product of two tensors where the result is
    named, no letter stands twice in a term, and both operands have all letters that are summed over."""
    text = node.attributes["equation"].as_string().replace(" ", "")
    left, _, result = text.partition("->")
    terms = left.split(",")
    summed = sorted(set(left) - set(result) - {","})
    unrepeated = "->" in text and "." not in text and all(len(set(term)) == len(term) for term in (*terms, result))
    product = len(terms) == 2 and all(set(summed) <= set(term) for term in terms)
    return _Equation(terms, result, summed if unrepeated and product else ())


def _lanes_of_channels(places: int, channels: int, threes: bool) -> list[Lane]:
    """For a product written as WebGPU rounds: the lanes of a Conv of three dimensions, or of a ConvTranspose with one
    channel out: at each place of its kernel four channels at a time, and those that are left one by one, or, with
    ``threes``, three that are left at once. A lane that has none reads the weight behind all others, which is zero."""
    whole = channels - channels % LANES
    step = LANES - 1 if threes and channels - whole == LANES - 1 else 1
    groups = [range(i, i + LANES) for i in range(0, whole, LANES)]
    groups += [range(i, i + step) for i in range(whole, channels, step)]
    found = np.full((places, len(groups), LANES), -1)
    for place in range(places):
        for number, group in enumerate(groups):
            found[place, number, : len(group)] = np.arange(group.start, group.stop) + place * channels
    rows = found.reshape(-1, LANES)
    return [(np.where(row < 0, places * channels, row), np.where(row < 0, 0, row)) for row in rows.T]
