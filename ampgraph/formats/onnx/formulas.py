"""Functions (Exp, Gelu, ...) for strict runs, as kernels compute them that round each step of a formula.

The formulas are those of the shaders of ONNX Runtime's WebGPU provider, bit for bit what they make over Mesa's lavapipe
(tests/webgpu): numbers in them are cut towards zero, those of attributes rounded, and exp is a power of two. Other
drivers may round elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ...core.arrays import Array
from ...core.low_types import numpy_type
from .low_nodes import LowNodes

LOG2_E = 1.4426950408889634
Make = Callable[[str, Sequence[ir.Value | float]], ir.Value]
"""(operator, operands that are values or numbers) -> the operator's result, rounded; its nodes are written."""


class Step:
    """A value in a formula that is computed as kernels round. ``a * b + 1.0`` of Steps writes a node for each operator,
    in that order, each result rounded to the low type; a number is a Constant (`cut`). ``make`` writes them."""

    def __init__(self, value: ir.Value, make: Make) -> None:
        self.value, self._make = value, make

    def with_value(self, value: ir.Value | None) -> Step:
        """As kernels round: another value, rounded already and never None, as a Step of the same formula."""
        assert value is not None
        return Step(value, self._make)

    def apply(self, kind: str, *operands: Step | float) -> Step:
        """As kernels round: an ONNX operator's rounded result on just these ``operands``."""
        return Step(self._make(kind, [one.value if isinstance(one, Step) else one for one in operands]), self._make)

    def __add__(self, other: Step | float) -> Step:
        return self.apply("Add", self, other)

    def __radd__(self, other: float) -> Step:
        return self.apply("Add", other, self)

    def __sub__(self, other: Step | float) -> Step:
        return self.apply("Sub", self, other)

    def __rsub__(self, other: float) -> Step:
        return self.apply("Sub", other, self)

    def __mul__(self, other: Step | float) -> Step:
        return self.apply("Mul", self, other)

    def __rmul__(self, other: float) -> Step:
        return self.apply("Mul", other, self)

    def __truediv__(self, other: Step | float) -> Step:
        return self.apply("Div", self, other)

    def __rtruediv__(self, other: float) -> Step:
        return self.apply("Div", other, self)

    def __neg__(self) -> Step:
        return self.apply("Neg", self)

    def __abs__(self) -> Step:
        return self.apply("Abs", self)


def exp(x: Step) -> Step:
    """As kernels round: e^x, as the power of two that shaders compute."""
    return x.apply("Pow", 2.0, x * LOG2_E)


def _sigmoid(x: Step) -> Step:
    """As kernels round: 1 / (1 + e^-x)."""
    return 1.0 / (1.0 + exp(-x))


def _tanh(x: Step) -> Step:
    """As kernels round: (1 - e^-2|x|) / (1 + e^-2|x|), with the sign of x."""
    small = exp(-2.0 * abs(x))
    return x.apply("Sign", x) * (1.0 - small) / (1.0 + small)


def _erf(x: Step) -> Step:
    """As kernels round: erf, by Abramowitz and Stegun, 7.1.26, with e^(-x^2) as 2^-((|x| * log2(e)) * |x|)."""
    size = abs(x)
    t = 1.0 / (1.0 + 0.3275911 * size)
    fit = (((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592
    return x.apply("Sign", x) * (1.0 - fit * t * x.apply("Pow", 2.0, -(size * LOG2_E * size)))


def _hard_sigmoid(x: Step, alpha: float = 0.2, beta: float = 0.5) -> Step:
    """As kernels round: alpha x + beta, kept between 0 and 1."""
    return x.apply("Max", 0.0, x.apply("Min", 1.0, alpha * x + beta))


def _gelu(x: Step, approximate: str = "none") -> Step:
    """As kernels round: x times the normal distribution below x, by erf if ``approximate`` is ``none``, or tanh."""
    if approximate == "none":
        return 0.5 * x * (1.0 + _erf(x * 0.7071067811865475))
    return x * (0.5 + 0.5 * _tanh(x * (0.035677408136300125 * x * x + 0.7978845608028654)))


FORMULAS: Mapping[str, Callable[..., Step]] = {
    "Erf": _erf,
    "Exp": exp,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda x: x * _hard_sigmoid(x, 1 / 6),
    "Sigmoid": _sigmoid,
    "Tanh": _tanh,
}
"""Operator -> its formula, of its operand and of its attributes by their names."""


def step(nodes: LowNodes, value: ir.Value | None, dtype: str) -> Step:
    """As kernels round: a value (never None) as a `Step` whose nodes go to ``nodes``, rounded to ``dtype``."""

    def make(kind: str, operands: Sequence[ir.Value | float]) -> ir.Value:
        values = [one if isinstance(one, ir.Value) else nodes.constant(cut(one, dtype)) for one in operands]
        return nodes.round_to(nodes.do(kind, values), dtype)

    assert value is not None
    return Step(value, make)


def by_formula(nodes: LowNodes, node: ir.Node, dtype: str) -> ir.Value:
    """As kernels round: writes the formula of an operator in `FORMULAS` to ``nodes``, each step rounded to ``dtype``,
    and returns its result. Float attributes are rounded to ``dtype`` first."""
    kind = numpy_type(dtype)
    attributes = {name: a.value for name, a in node.attributes.items()}
    attributes |= {name: float(np.array(n, kind)) for name, n in attributes.items() if isinstance(n, float)}
    return FORMULAS[node.op_type](step(nodes, node.inputs[0], dtype), **attributes).value


def cut(number: float, dtype: str) -> Array:
    """As kernels round: a number of a formula, cut towards zero to the low type ``dtype``, as a float32 scalar."""
    kind = numpy_type(dtype)
    nearest = np.array(number, kind)
    if abs(float(nearest)) > abs(number):
        nearest = np.nextafter(nearest, np.array(0, kind))
    return nearest.astype(np.float32)
