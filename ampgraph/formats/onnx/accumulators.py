"""Products as kernels compute them that accumulate in a low type: each product rounded, each sum rounded, in turn.

A Scan over the depth of the contraction, in standard operators, so that any runtime of ONNX can run it: its body rounds
by pairs of Casts. As ONNX Runtime's WebGPU provider does, bit for bit (tests/webgpu): MatMul and Gemm from the first
element of the depth to the last; a Gemm that transposes its second operand, of a depth divisible by four, adds up each
four before it adds them to the sum; Conv goes through the places of its kernel, and through the channels at each, one
of three dimensions by fours; ConvTranspose from the last place of its kernel to the first, by fours into one channel.
Where multiply-adds are fused, as on Arm CPUs (tests/arm64), products are not rounded, nothing goes by fours, and the
sum of a Conv, or of a Gemm without transposes and factors, begins at the bias.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from ...core.arrays import Array
from ...core.dataflow import FLOAT32

CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
PRODUCTS = frozenset({"MatMul", "Gemm"}) | CONVOLUTIONS
MEANS = frozenset({"ReduceMean", "GlobalAveragePool", "AveragePool"})
LANES = 4
"""Of a Gemm that transposes its second operand, and of a Conv of three dimensions."""
VOLUME = 5  # the rank of that Conv's operands
SCAN = 9  # the opset from which Scan takes what has no batch, and ConstantOfShape is there
AXES_AS_INPUT = 13  # the opset from which Unsqueeze is told its axes by an operand
EXACT = "exact"
"""Of a value's meta: what its operator makes in float32."""
INNER = MappingProxyType({"ReduceL2": ("Mul", "Sqrt"), "ReduceLogSumExp": ("Exp", "Log")})
"""Reductions that overflow inside: what leads from the result to the sum, and back."""
DEFAULTS = MappingProxyType({"transA": 0, "transB": 0, "alpha": 1.0, "beta": 1.0})
WINDOW = ("auto_pad", "dilations", "output_padding", "output_shape", "pads", "strides")
Lane = tuple[Array, Array]
"""Where along the depth a lane reads the first operand, and the second."""


def models(kind: str, opset: int, shapes: Sequence[Sequence[int | str | None] | None]) -> bool:
    """Whether an operator's accumulator can be written, by what is known of its operands' shapes."""
    if kind not in PRODUCTS:
        return kind in MEANS or kind in INNER
    if kind in CONVOLUTIONS:
        weight = shapes[1]
        return opset >= SCAN and weight is not None and all(isinstance(n, int) and n > 0 for n in weight)
    return opset >= SCAN and all(shape is not None and len(shape) > 1 for shape in shapes[:2])


class Accumulators:
    """Writes the nodes for the operators of a model.

    ``to``: Cast's attribute by type; ``name``: makes a name that is free; ``fused``: products are not rounded."""

    def __init__(self, opset: int, to: Mapping[str, ir.Attr], name: Callable[[str], str], fused: bool) -> None:
        self._opset, self._to, self._name, self._fused = opset, to, name, fused
        self._nodes: list[ir.Node] = []
        self._ranks: tuple[int, int] = 0, 0  # of what is multiplied

    def behind(
        self, node: ir.Node, dtype: str, shapes: Sequence[Sequence[int | str | None] | None]
    ) -> tuple[list[ir.Node], ir.Value]:
        """The nodes that compute an operator again with an accumulator of ``dtype``, and what they make.

        ``node`` computes in float32, and says the shape; ``shapes``: of its operands, as far as they are known."""
        self._nodes = []
        if node.op_type in PRODUCTS:
            weight = [n if isinstance(n, int) else 0 for n in shapes[1] or ()]
            self._ranks = (3, 4) if node.op_type in CONVOLUTIONS else (len(shapes[0] or ()), len(shapes[1] or ()))
            return self._nodes, getattr(self, f"_{node.op_type.lower()}")(node, dtype, weight)
        return self._nodes, (self._mean if node.op_type in MEANS else self._inner)(node, dtype)

    def _mean(self, node: ir.Node, dtype: str) -> ir.Value:
        """A mean whose sum is rounded (and may overflow) once before it is divided; its single additions are not
        rounded."""
        if "kernel_shape" in node.attributes:
            count = self._constant(np.array(np.prod(node.attributes["kernel_shape"].value), np.float32))
        else:
            sizes = [
                self._do("Cast", [self._do("Size", [v])], to=ir.DataType.FLOAT.value)
                for v in (node.inputs[0], node.outputs[0])
            ]
            count = self._do("Div", sizes)
        return self._do("Div", [self._rounded(self._do("Mul", [node.outputs[0], count]), dtype), count])

    def _inner(self, node: ir.Node, dtype: str) -> ir.Value:
        there, back = INNER[node.op_type]
        total = self._do(there, [node.outputs[0]] * (2 if there == "Mul" else 1))
        return self._do(back, [self._rounded(total, dtype)])

    def _matmul(self, node: ir.Node, dtype: str, weight: Sequence[int]) -> ir.Value:
        return self._sum(node.inputs[0], node.inputs[1], self._do("Shape", [node.outputs[0]]), dtype)

    def _gemm(self, node: ir.Node, dtype: str, weight: Sequence[int]) -> ir.Value:
        """alpha * (A B) + beta * C with the accumulator, each of the two scaled terms rounded."""
        given = {name: a.value for name, a in node.attributes.items()}
        a, b, across = node.inputs[0], node.inputs[1], given.get("transB", 0)
        by_lanes = across and weight and weight[-1] and weight[-1] % LANES == 0 and not self._fused
        lanes = [(np.arange(i, weight[-1], LANES),) * 2 for i in range(LANES)] if by_lanes else []
        a = self._do("Transpose", [a], perm=[1, 0]) if given.get("transA", 0) else a
        b = self._do("Transpose", [b], perm=[1, 0]) if across else b
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        shape = self._do("Shape", [node.outputs[0]])
        if self._fused and all(given.get(name, value) == value for name, value in DEFAULTS.items()):
            return self._sum(a, b, shape, dtype, first=bias)
        total = self._sum(a, b, shape, dtype, lanes)
        total = self._times(total, given.get("alpha", 1.0), dtype)
        return total if bias is None else self._do("Add", [total, self._times(bias, given.get("beta", 1.0), dtype)])

    def _times(self, value: ir.Value, factor: float, dtype: str) -> ir.Value:
        if factor == 1:
            return value
        rounded = self._rounded(self._constant(np.array(factor, np.float32)), dtype)
        return self._rounded(self._do("Mul", [value, rounded]), dtype)

    def _conv(self, node: ir.Node, dtype: str, weight: Sequence[int]) -> ir.Value:
        group = node.attributes["group"].value if "group" in node.attributes else 1
        out, inside, places = weight[0], weight[1], int(np.prod(weight[2:]))
        weights = self._reshape(node.inputs[1], [group, out // group, inside, places])
        weights = self._do("Transpose", [weights], perm=[0, 1, 3, 2])
        ones = np.tile(np.eye(places, dtype=np.float32), (inside * group, 1))
        columns = self._columns(node, ones.reshape(-1, 1, *weight[2:]), inside * group)
        return self._by_places(node, dtype, weights, columns, (group, out, inside, places), len(weight))

    def _convtranspose(self, node: ir.Node, dtype: str, weight: Sequence[int]) -> ir.Value:
        """A ConvTranspose as a sum over the kernel's places from the last to the first, as WebGPU adds them up."""
        group = node.attributes["group"].value if "group" in node.attributes else 1
        out, inside, places = weight[1] * group, weight[0] // group, int(np.prod(weight[2:]))
        weights = self._reshape(node.inputs[1], [group, inside, out // group, places])
        weights = self._do("Transpose", [weights], perm=[0, 2, 3, 1])
        weights = self._do("Gather", [weights, self._constant(np.arange(places)[::-1].copy())], axis=2)
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
        """Each group is a product of its weights with the columns that they meet. ``weights``: group, output channel,
        place, input channel; ``columns``: of each channel what each place of the kernel meets; ``sizes``: groups,
        output channels, input channels of a group, places."""
        group, out, inside, places = sizes
        columns = self._reshape(columns, [0, group, inside, places, -1])
        columns = self._reshape(self._do("Transpose", [columns], perm=[0, 1, 3, 2, 4]), [0, group, places * inside, -1])
        weights, lanes = self._reshape(weights, [group, out // group, places * inside]), []
        volume, thin = rank == VOLUME, node.op_type == "ConvTranspose" and out == 1
        if not self._fused and group == 1 and (volume or thin):
            nothing = self._constant(np.zeros((1, out, 1), np.float32))
            weights, lanes = self._do("Concat", [weights, nothing], axis=2), _by_fours(places, inside, volume)
        shape = self._do("Shape", [self._reshape(node.outputs[0], [0, group, out // group, -1])])
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        first = None if bias is None or not self._fused else self._reshape(bias, [1, group, out // group, 1])
        total = self._sum(weights, columns, shape, dtype, lanes, first)
        total = self._do("Reshape", [total, self._do("Shape", [node.outputs[0]])])
        if bias is None or self._fused:
            return total
        return self._do("Add", [self._rounded(total, dtype), self._reshape(bias, [1, out] + [1] * (rank - 2))])

    def _columns(self, node: ir.Node, ones: Array, channels: int) -> ir.Value:
        """Of each channel what each place of the kernel meets: the same operator by ones, each channel by itself."""
        made = self._do(node.op_type, [node.inputs[0], self._constant(ones)], group=channels)
        assert (maker := made.producer()) is not None
        maker.attributes.update({name: a for name, a in node.attributes.items() if name in WINDOW})
        return made

    # -- sums ---------------------------------------------------------------------------------------------------------

    def _sum(
        self, a: ir.Value | None, b: ir.Value | None, shape: ir.Value, dtype: str, lanes: Sequence[Lane] = (),
        first: ir.Value | None = None,
    ) -> ir.Value:  # fmt: skip
        """first + a @ b; the products of all ``lanes`` are added up before they are added to the sum."""
        assert a is not None and b is not None
        last, middle = self._ranks[0], self._ranks[1] - 2  # the depth, counted from the front: opsets before 11 do
        a, b = (self._unsqueezed(value, rank - 1) for value, rank in zip((a, b), self._ranks, strict=True))
        start = self._do("ConstantOfShape", [shape]) if first is None else self._do("Expand", [first, shape])
        reads, axes = [a, b], [last, middle]
        if lanes:
            reads = [self._do("Gather", [a, self._constant(place)], axis=last) for place, _ in lanes]
            reads += [self._do("Gather", [b, self._constant(place)], axis=middle) for _, place in lanes]
            axes = [last] * len(lanes) + [middle] * len(lanes)
        body = self._body(len(axes) // 2, dtype)
        scan = ir.node("Scan", [start, *reads], {"body": body, "num_scan_inputs": len(axes), "scan_input_axes": axes})
        return self._add(scan)

    def _body(self, lanes: int, dtype: str) -> ir.Graph:
        """One step: what was summed up, and slices of both operands that multiply to the shape of the result."""
        inner = Accumulators(self._opset, self._to, self._name, self._fused)
        names = [self._name("@sum"), *(self._name("@slice") for _ in range(2 * lanes))]
        total, *slices = [ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT)) for name in names]
        total.shape = ir.Shape([None] * max(self._ranks))  # a runtime that infers none asks for it
        products = [inner._do("Mul", [a, b]) for a, b in zip(slices[:lanes], slices[lanes:], strict=True)]
        if not self._fused:
            products = [inner._rounded(product, dtype) for product in products]
        added = products[0]
        for product in products[1:]:
            added = inner._rounded(inner._do("Add", [added, product]), dtype)
        found = inner._rounded(inner._do("Add", [total, added]), dtype)
        found.type, found.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([None] * max(self._ranks))
        return ir.Graph([total, *slices], [found], nodes=inner._nodes, name=self._name("@step"))

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _unsqueezed(self, value: ir.Value, axis: int) -> ir.Value:
        if self._opset >= AXES_AS_INPUT:
            return self._do("Unsqueeze", [value, self._constant(np.array([axis]))])
        return self._do("Unsqueeze", [value], axes=[axis])

    def _rounded(self, value: ir.Value, dtype: str) -> ir.Value:
        for name in (dtype, FLOAT32):
            value = self._do("Cast", [value])
            assert (maker := value.producer()) is not None
            maker.attributes["to"] = self._to[name]
        return value

    def _reshape(self, value: ir.Value | None, sizes: Sequence[int]) -> ir.Value:
        return self._do("Reshape", [value, self._constant(np.array(sizes))])

    def _constant(self, array: Array) -> ir.Value:
        return self._do("Constant", [], value=ir.Tensor(array))

    def _do(self, kind: str, inputs: Sequence[ir.Value | None], **attributes: Any) -> ir.Value:
        return self._add(ir.node(kind, inputs, attributes))

    def _add(self, node: ir.Node) -> ir.Value:
        node.name, node.outputs[0].name = "", self._name("@a")
        self._nodes.append(node)
        return node.outputs[0]


def _by_fours(places: int, channels: int, threes: bool) -> list[Lane]:
    """The lanes of a Conv of three dimensions, or of a ConvTranspose with one channel out: at each place of its kernel
    four channels at a time, and what is left one by one, but for ``threes``. A lane that has none reads the weight
    behind all others, which is zero."""
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
