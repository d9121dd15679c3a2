"""Products as kernels compute them that accumulate in a low type: each product rounded, each sum rounded, in turn.

A Scan over the depth of the contraction, in standard operators, so that any runtime of ONNX can run it: its body rounds
by pairs of Casts. As ONNX Runtime's WebGPU provider does, bit for bit (tests/webgpu): MatMul and Gemm from the first
element of the depth to the last; a Gemm that transposes its second operand, of a depth divisible by four, adds up each
four before it adds them to the sum; Conv goes through the places of its kernel, and through the channels at each.
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

PRODUCTS = frozenset({"MatMul", "Gemm", "Conv"})
MEANS = frozenset({"ReduceMean", "GlobalAveragePool", "AveragePool"})
LANES = 4  # of a Gemm that transposes its second operand
NEGATIVE_AXES = 11  # the opset from which Unsqueeze and Scan count axes from the end
AXES_AS_INPUT = 13  # the opset from which Unsqueeze is told its axes by an operand
EXACT = "exact"
"""Of a value's meta: what its operator makes in float32."""
INNER = MappingProxyType({"ReduceL2": ("Mul", "Sqrt"), "ReduceLogSumExp": ("Exp", "Log")})
"""Reductions that overflow inside: what leads from the result to the sum, and back."""
DEFAULTS = MappingProxyType({"transA": 0, "transB": 0, "alpha": 1.0, "beta": 1.0})
END = np.iinfo(np.int64).max


def models(kind: str, opset: int, shapes: Sequence[Sequence[int | str | None] | None]) -> bool:
    """Whether an operator's accumulator can be written, by what is known of its operands' shapes."""
    if kind not in PRODUCTS:
        return kind in MEANS or kind in INNER
    if kind == "Conv":
        weight = shapes[1]
        return opset >= NEGATIVE_AXES and weight is not None and all(isinstance(n, int) and n > 0 for n in weight)
    return opset >= NEGATIVE_AXES and all(shape is not None and len(shape) > 1 for shape in shapes[:2])


class Accumulators:
    """Writes the nodes for the operators of a model.

    ``to``: Cast's attribute by type; ``name``: makes a name that is free; ``fused``: products are not rounded."""

    def __init__(self, opset: int, to: Mapping[str, ir.Attr], name: Callable[[str], str], fused: bool) -> None:
        self._opset, self._to, self._name, self._fused = opset, to, name, fused
        self._nodes: list[ir.Node] = []
        self._rank = 0  # of the sum

    def behind(
        self, node: ir.Node, dtype: str, shapes: Sequence[Sequence[int | str | None] | None]
    ) -> tuple[list[ir.Node], ir.Value]:
        """The nodes that compute an operator again with an accumulator of ``dtype``, and what they make.

        ``node`` computes in float32, and says the shape; ``shapes``: of its operands, as far as they are known."""
        self._nodes = []
        if node.op_type in PRODUCTS:
            weight = [n if isinstance(n, int) else 0 for n in shapes[1] or ()]
            self._rank = 4 if node.op_type == "Conv" else max(len(shape or ()) for shape in shapes[:2])
            return self._nodes, getattr(self, f"_{node.op_type.lower()}")(node, dtype, weight)
        return self._nodes, (self._mean if node.op_type in MEANS else self._inner)(node, dtype)

    def _mean(self, node: ir.Node, dtype: str) -> ir.Value:
        """The sum is rounded, and overflows, before it is divided; no step of the sum is."""
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
        """alpha scales the sum, and beta the third operand, each rounded."""
        given = {name: a.value for name, a in node.attributes.items()}
        a, b, across = node.inputs[0], node.inputs[1], given.get("transB", 0)
        lanes = LANES if across and weight and weight[-1] % LANES == 0 and not self._fused else 1
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
        """Each group is a product of its weights with the columns that they meet."""
        group = node.attributes["group"].value if "group" in node.attributes else 1
        out, inside, places = weight[0], weight[1], int(np.prod(weight[2:]))
        columns = self._reshape(self._columns(node, inside * group, weight[2:]), [0, group, inside, places, -1])
        columns = self._reshape(self._do("Transpose", [columns], perm=[0, 1, 3, 2, 4]), [0, group, places * inside, -1])
        weights = self._reshape(node.inputs[1], [group, out // group, inside, places])
        weights = self._do("Transpose", [weights], perm=[0, 1, 3, 2])
        weights = self._reshape(weights, [group, out // group, places * inside])
        shape = self._do("Shape", [self._reshape(node.outputs[0], [0, group, out // group, -1])])
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        first = None if bias is None or not self._fused else self._reshape(bias, [1, group, out // group, 1])
        total = self._sum(weights, columns, shape, dtype, first=first)
        total = self._do("Reshape", [total, self._do("Shape", [node.outputs[0]])])
        if bias is None or self._fused:
            return total
        return self._do("Add", [self._rounded(total, dtype), self._reshape(bias, [1, out, *(1 for _ in weight[2:])])])

    def _columns(self, node: ir.Node, channels: int, kernel: Sequence[int]) -> ir.Value:
        """Of each channel what each place of the kernel meets: a convolution by ones."""
        places = int(np.prod(kernel))
        ones = np.tile(np.eye(places, dtype=np.float32), (channels, 1)).reshape(channels * places, 1, *kernel)
        kept = {name: a for name, a in node.attributes.items() if name in ("auto_pad", "dilations", "pads", "strides")}
        made = self._do("Conv", [node.inputs[0], self._constant(ones)], group=channels)
        assert (maker := made.producer()) is not None
        maker.attributes.update(kept)
        return made

    # -- sums ---------------------------------------------------------------------------------------------------------

    def _sum(
        self, a: ir.Value | None, b: ir.Value | None, shape: ir.Value, dtype: str, lanes: int = 1,
        first: ir.Value | None = None,
    ) -> ir.Value:  # fmt: skip
        """first + a @ b; every ``lanes`` products are added up before they are added to the sum."""
        assert a is not None and b is not None
        a, b = self._unsqueezed(a), self._unsqueezed(b)
        start = self._do("ConstantOfShape", [shape]) if first is None else self._do("Expand", [first, shape])
        reads = [
            *(self._every(a, -1, i, lanes) for i in range(lanes)),
            *(self._every(b, -3, i, lanes) for i in range(lanes)),
        ]
        axes = [-1] * lanes + [-3] * lanes
        body = self._body(lanes, dtype)
        scan = ir.node("Scan", [start, *reads], {"body": body, "num_scan_inputs": 2 * lanes, "scan_input_axes": axes})
        return self._add(scan)

    def _body(self, lanes: int, dtype: str) -> ir.Graph:
        """One step: what was summed up, and slices of both operands that multiply to the shape of the result."""
        inner = Accumulators(self._opset, self._to, self._name, self._fused)
        names = [self._name("@sum"), *(self._name("@slice") for _ in range(2 * lanes))]
        total, *slices = [ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT)) for name in names]
        total.shape = ir.Shape([None] * self._rank)  # a runtime that infers none asks for it
        products = [inner._do("Mul", [a, b]) for a, b in zip(slices[:lanes], slices[lanes:], strict=True)]
        if not self._fused:
            products = [inner._rounded(product, dtype) for product in products]
        added = products[0]
        for product in products[1:]:
            added = inner._rounded(inner._do("Add", [added, product]), dtype)
        found = inner._rounded(inner._do("Add", [total, added]), dtype)
        found.type, found.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([None] * self._rank)
        return ir.Graph([total, *slices], [found], nodes=inner._nodes, name=self._name("@step"))

    def _every(self, value: ir.Value, axis: int, first: int, step: int) -> ir.Value:
        """Every ``step``-th of an axis."""
        if step == 1:
            return value
        bounds = [self._constant(np.array([n])) for n in (first, END, axis, step)]
        return self._do("Slice", [value, *bounds])

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _unsqueezed(self, value: ir.Value) -> ir.Value:
        """With an axis of one before the last."""
        if self._opset >= AXES_AS_INPUT:
            return self._do("Unsqueeze", [value, self._constant(np.array([-2]))])
        return self._do("Unsqueeze", [value], axes=[-2])

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
