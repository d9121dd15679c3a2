"""Functions of one operand that networks seldom use."""

from __future__ import annotations

import onnx_ir as ir

from ..builder import Builder
from ..registry import attribute, gradient, operand

Value = ir.Value

SQUARE = "x * x overflows float16 above 256, and 1 - x * x has few digits near 1"
SELU = {"alpha": 1.6732632423543772, "gamma": 1.0507009873554805}


@gradient("Tan")
def tan(b: Builder, node: ir.Node, g: Value) -> Value:
    y = node.outputs[0]
    with b.float32(SQUARE):
        return b.op("Mul", g, b.op("Add", b.op("Mul", y, y), b.number(1, y)))


@gradient("Sinh")
def sinh(b: Builder, node: ir.Node, g: Value) -> Value:
    return b.op("Mul", g, b.op("Cosh", operand(node)))


@gradient("Cosh")
def cosh(b: Builder, node: ir.Node, g: Value) -> Value:
    return b.op("Mul", g, b.op("Sinh", operand(node)))


@gradient("Asin")
def asin(b: Builder, node: ir.Node, g: Value) -> Value:
    with b.float32(SQUARE):
        return b.op("Div", g, b.op("Sqrt", _one_minus_square(b, operand(node))))


@gradient("Acos")
def acos(b: Builder, node: ir.Node, g: Value) -> Value:
    with b.float32(SQUARE):
        return b.op("Neg", b.op("Div", g, b.op("Sqrt", _one_minus_square(b, operand(node)))))


@gradient("Atanh")
def atanh(b: Builder, node: ir.Node, g: Value) -> Value:
    with b.float32(SQUARE):
        return b.op("Div", g, _one_minus_square(b, operand(node)))


@gradient("Asinh")
def asinh(b: Builder, node: ir.Node, g: Value) -> Value:
    x = operand(node)
    with b.float32(SQUARE):
        return b.op("Div", g, b.op("Sqrt", b.op("Add", b.op("Mul", x, x), b.number(1, x))))


@gradient("Acosh")
def acosh(b: Builder, node: ir.Node, g: Value) -> Value:
    x = operand(node)
    with b.float32(SQUARE):
        return b.op("Div", g, b.op("Sqrt", b.op("Sub", b.op("Mul", x, x), b.number(1, x))))


@gradient("Softsign")
def softsign(b: Builder, node: ir.Node, g: Value) -> Value:
    """1 / (1 + |x|)^2."""
    x = operand(node)
    below = b.op("Add", b.op("Abs", x), b.number(1, x))
    return b.op("Div", b.op("Div", g, below), below)


@gradient("Selu")
def selu(b: Builder, node: ir.Node, g: Value) -> Value:
    """gamma alpha e^x is y + gamma alpha where x is not positive."""
    x, y = operand(node), node.outputs[0]
    alpha, gamma = (float(attribute(node, name, SELU[name])) for name in ("alpha", "gamma"))
    falling = b.op("Add", y, b.number(alpha * gamma, y))
    slope = b.op("Where", b.op("LessOrEqual", x, b.number(0, x)), falling, b.number(gamma, y))
    return b.op("Mul", g, slope)


@gradient("Celu")
def celu(b: Builder, node: ir.Node, g: Value) -> Value:
    """e^(x / alpha) is y / alpha + 1 where x is not positive."""
    x, y = operand(node), node.outputs[0]
    falling = b.op("Add", b.op("Mul", y, b.number(1 / float(attribute(node, "alpha", 1.0)), y)), b.number(1, y))
    return b.op("Where", b.op("LessOrEqual", x, b.number(0, x)), b.op("Mul", g, falling), g)


@gradient("ThresholdedRelu")
def thresholded_relu(b: Builder, node: ir.Node, g: Value) -> Value:
    x = operand(node)
    return b.op("Where", b.op("Greater", x, b.number(float(attribute(node, "alpha", 1.0)), x)), g, b.number(0, x))


def _one_minus_square(b: Builder, x: Value) -> Value:
    """(1 - x) (1 + x), which keeps its digits where x is near 1."""
    return b.op("Mul", b.op("Sub", b.number(1, x), x), b.op("Add", b.number(1, x), x))
