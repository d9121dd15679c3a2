"""Functions as kernels compute them that round each step of a formula to the low type.

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
"""Adds an operator on values and numbers, rounds what it makes, and returns that."""


class Step:
    """As kernels round, in a graph for strict runs: a value of a formula. What is computed from it is a node for each
    operator, each step rounded. ``make`` adds these."""

    def __init__(self, value: ir.Value, make: Make) -> None:
        self.value, self._make = value, make

    def becomes(self, value: ir.Value | None) -> Step:
        """As kernels round: another value of the same formula, as their next step."""
        assert value is not None
        return Step(value, self._make)

    def made(self, kind: str, *operands: Step | float) -> Step:
        """As kernels round: what an operator makes of ``operands``: its node is written behind them."""
        return Step(self._make(kind, [one.value if isinstance(one, Step) else one for one in operands]), self._make)

    def __add__(self, other: Step | float) -> Step:
        return self.made("Add", self, other)

    def __radd__(self, other: float) -> Step:
        return self.made("Add", other, self)

    def __sub__(self, other: Step | float) -> Step:
        return self.made("Sub", self, other)

    def __rsub__(self, other: float) -> Step:
        return self.made("Sub", other, self)

    def __mul__(self, other: Step | float) -> Step:
        return self.made("Mul", self, other)

    def __rmul__(self, other: float) -> Step:
        return self.made("Mul", other, self)

    def __truediv__(self, other: Step | float) -> Step:
        return self.made("Div", self, other)

    def __rtruediv__(self, other: float) -> Step:
        return self.made("Div", other, self)

    def __neg__(self) -> Step:
        return self.made("Neg", self)

    def __abs__(self) -> Step:
        return self.made("Abs", self)


def exp(x: Step) -> Step:
    """As kernels round: e^x, as the power of two that shaders compute."""
    return x.made("Pow", 2.0, x * LOG2_E)


def _sigmoid(x: Step) -> Step:
    """As kernels round: 1 / (1 + e^-x)."""
    return 1.0 / (1.0 + exp(-x))


def _tanh(x: Step) -> Step:
    """As kernels round: (1 - e^-2|x|) / (1 + e^-2|x|), with the sign of x."""
    small = exp(-2.0 * abs(x))
    return x.made("Sign", x) * (1.0 - small) / (1.0 + small)


def _erf(x: Step) -> Step:
    """As kernels round: erf, by Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26; of the square
    the first factor is scaled."""
    size = abs(x)
    t = 1.0 / (1.0 + 0.3275911 * size)
    fit = (((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592
    return x.made("Sign", x) * (1.0 - fit * t * x.made("Pow", 2.0, -(size * LOG2_E * size)))


def _hard_sigmoid(x: Step, alpha: float = 0.2, beta: float = 0.5) -> Step:
    """As kernels round: alpha x + beta, kept between 0 and 1."""
    return x.made("Max", 0.0, x.made("Min", 1.0, alpha * x + beta))


def _gelu(x: Step, approximate: str = "none") -> Step:
    """As kernels round: x times the share of a normal distribution below x, by erf, or by tanh (``approximate``)."""
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
"""By operator: of its operand, and of attributes by their names."""


def step(nodes: LowNodes, value: ir.Value | None, dtype: str) -> Step:
    """A value of a formula whose nodes are written to ``nodes``, each rounded to ``dtype``."""

    def make(kind: str, operands: Sequence[ir.Value | float]) -> ir.Value:
        values = [one if isinstance(one, ir.Value) else nodes.constant(cut(one, dtype)) for one in operands]
        return nodes.rounded(nodes.do(kind, values), dtype)

    assert value is not None
    return Step(value, make)


def by_formula(nodes: LowNodes, node: ir.Node, dtype: str) -> ir.Value:
    """What an operator's formula makes of its operand, each step rounded to ``dtype``."""
    kind = numpy_type(dtype)
    attributes = {name: a.value for name, a in node.attributes.items()}
    attributes |= {name: float(np.array(n, kind)) for name, n in attributes.items() if isinstance(n, float)}
    return FORMULAS[node.op_type](step(nodes, node.inputs[0], dtype), **attributes).value


def cut(number: float, dtype: str) -> Array:
    """For nodes that round as kernels do: a number in float32, cut towards zero to a low type."""
    kind = numpy_type(dtype)
    near = np.array(number, kind)
    if abs(float(near)) > abs(number):
        near = np.nextafter(near, np.array(0, kind))
    return near.astype(np.float32)
