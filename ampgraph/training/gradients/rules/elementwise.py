"""Gradients of elementwise operators: arithmetic, activations, functions of one operand, selections.

The gradient of a branch that is not taken is selected away by Where, never multiplied by 0: inf * 0 is NaN. What
overflows float16 for ordinary arguments is computed in float32. In formulas ``g`` is the gradient of the result ``y``.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ....formats.onnx.nodes import attribute, operand
from ..builder import FLOAT, REASON, Builder, Term
from ..registry import formula_gradient, gradient, no_gradient

Value = ir.Value
SQUARE = "x * x overflows float16 above 256, and 1 - x * x has few digits near 1"

no_gradient(
    *("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "And", "Or", "Xor", "IsNaN", "IsInf"),
    *("Ceil", "Floor", "Round", "Sign", "Shape", "Size", "ConstantOfShape", "ArgMax", "ArgMin", "NonZero"),
    *("RandomUniformLike", "RandomNormalLike", "Bernoulli", "EyeLike"),
)


def _one_minus_square(x: Term) -> Term:
    """In a gradient: 1 - x^2 as (1 - x)(1 + x), which keeps its digits where x is near 1."""
    return (1 - x) * (1 + x)


def _mish(g: Term, y: Term, x: Term) -> Term:
    """The gradient of Mish, y = x t with t = tanh(softplus(x)): t + x (1 - t^2) sigmoid(x), times g."""
    t = x.op("Softplus").op("Tanh")
    return g * (t + x * ((1 - t * t) * x.op("Sigmoid")))


def _softsign(g: Term, y: Term, x: Term) -> Term:
    """The gradient of Softsign, y = x / (1 + |x|): g / (1 + |x|)^2, in two divisions, as squares overflow."""
    below = x.op("Abs") + 1
    return g / below / below


formula_gradient("Identity", lambda g, y, x: g)
formula_gradient("Neg", lambda g, y, x: -g)
formula_gradient("Exp", lambda g, y, x: g * y)
formula_gradient("Log", lambda g, y, x: g / x)
formula_gradient("Sqrt", lambda g, y, x: g / (y + y))
formula_gradient("Reciprocal", lambda g, y, x: -(g * y * y))
formula_gradient("Abs", lambda g, y, x: g * x.op("Sign"))
formula_gradient("Sin", lambda g, y, x: g * x.op("Cos"))
formula_gradient("Cos", lambda g, y, x: -(g * x.op("Sin")))
formula_gradient("Tan", lambda g, y, x: g * (y * y + 1), SQUARE)
formula_gradient("Asin", lambda g, y, x: g / _one_minus_square(x).op("Sqrt"), SQUARE)
formula_gradient("Acos", lambda g, y, x: -(g / _one_minus_square(x).op("Sqrt")), SQUARE)
formula_gradient("Atan", lambda g, y, x: g / (x * x + 1), "x * x overflows float16 above 256")
formula_gradient("Sinh", lambda g, y, x: g * x.op("Cosh"))
formula_gradient("Cosh", lambda g, y, x: g * x.op("Sinh"))
formula_gradient("Tanh", lambda g, y, x: g * (1 - y * y))
formula_gradient("Asinh", lambda g, y, x: g / (x * x + 1).op("Sqrt"), SQUARE)
formula_gradient("Acosh", lambda g, y, x: g / (x * x - 1).op("Sqrt"), SQUARE)
formula_gradient("Atanh", lambda g, y, x: g / _one_minus_square(x), SQUARE)
formula_gradient("Sigmoid", lambda g, y, x: g * (y * (1 - y)))
formula_gradient("Softplus", lambda g, y, x: g * x.op("Sigmoid"))
formula_gradient("Softsign", _softsign)
formula_gradient("Mish", _mish)
# where x * -x leaves a low type the bell is 0, as it is in truth
formula_gradient("Erf", lambda g, y, x: g * ((x * -x).op("Exp") * (2 / math.sqrt(math.pi))))
formula_gradient("LeakyRelu", lambda g, y, x, alpha: (x > 0).where(g, g * alpha), alpha=0.01)
formula_gradient("ThresholdedRelu", lambda g, y, x, alpha: (x > alpha).where(g, 0), alpha=1.0)
# alpha e^x, alpha gamma e^x and e^(x / alpha) by y, where x is not positive
formula_gradient("Elu", lambda g, y, x, alpha: (x <= 0).where(g * (y + alpha), g), alpha=1.0)
formula_gradient(
    "Selu",
    lambda g, y, x, alpha, gamma: g * (x <= 0).where(y + alpha * gamma, gamma),
    alpha=1.6732632423543772,
    gamma=1.0507009873554805,
)
formula_gradient("Celu", lambda g, y, x, alpha: (x <= 0).where(g * (y * (1 / alpha) + 1), g), alpha=1.0)
formula_gradient("HardSigmoid", lambda g, y, x, alpha: (y > 0).op("And", y < 1).where(g * alpha, 0), alpha=0.2)
# x (x + 3) / 6 between -3 and 3, where the slope is x / 3 + 1 / 2
formula_gradient("HardSwish", lambda g, y, x: (x >= 3).where(g, (x > -3).where(g * (x * (1 / 3) + 0.5), 0)))


@gradient("Cast")
def cast(b: Builder, node: ir.Node, g: Value) -> Value | None:
    """The gradient of Cast: g cast back to the input's type; None for an input of whole numbers."""
    x = operand(node)
    if x.dtype is None:
        raise ValueError(f"the type of '{x.name}' is not known")
    return b.op("Cast", g, to=int(x.dtype)) if x.dtype.is_floating_point() else None


def _extreme_gradients(g: Term, y: Term, *inputs: Term) -> list[Term]:
    """The gradients of Max and Min: g for the operand that is equal to the result; equal ones share it."""
    if len(inputs) == 1:
        return [g]
    hits = [x.op("Equal", y) for x in inputs]
    share = g / g.apply("Sum", *(hit.where(1, 0) for hit in hits))
    return [hit.where(share, 0) for hit in hits]


formula_gradient("Add", lambda g, y, *x: (g, g), broadcasts=True)
formula_gradient("Sub", lambda g, y, *x: (g, -g), broadcasts=True)
formula_gradient("Sum", lambda g, y, *x: [g] * len(x), broadcasts=True)
formula_gradient("Mean", lambda g, y, *x: [g * (1 / len(x))] * len(x), broadcasts=True)
formula_gradient("Mul", lambda g, y, one, other: (g * other, g * one), broadcasts=True)
# -(g / x2) (x1 / x2): the square of x2 is never formed
formula_gradient("Div", lambda g, y, x, by: (first := g / by, -(first * y)), broadcasts=True)
formula_gradient("Where", lambda g, y, chosen, *x: (None, chosen.where(g, 0), chosen.where(0, g)), broadcasts=True)
formula_gradient("Max", _extreme_gradients, broadcasts=True)
formula_gradient("Min", _extreme_gradients, broadcasts=True)
# the slope acts below zero
formula_gradient(
    "PRelu", lambda g, y, x, slope: ((low := x <= 0).where(g * slope, g), low.where(g * x, 0)), broadcasts=True
)


@gradient("Pow", broadcasts=True)
def power(b: Builder, node: ir.Node, given: Value) -> tuple[Value | Term, Term | None]:
    """Gradients of Pow, x^y: g y x^(y-1) for x, 0 where y is 0; and g x^y ln x for y, 0 where x is not positive."""
    x, g, result = b.terms(operand(node), given, node.outputs[0])
    y = node.inputs[1]
    exponent = b.known_numbers(y)
    with b.float32("powers leave the range of float16"):
        if exponent is not None and exponent.size == 1:
            number = float(exponent.reshape(()))
            if number == 0:
                return b.zeros(node.outputs[0]), None
            return g * x * 2 if number == 2 else g * (x.op("Pow", number - 1) * number), None
        same = y is not None and y.dtype == x.dtype
        exponents = Term(b, y if y is not None and same else b.op("CastLike", y, x), x.value)
        slope = exponents * x.op("Pow", exponents - 1)
        slope = exponents.op("Equal", 0).where(0, slope)
        logarithm = (x > 0).where(x, 1).op("Log")
        return g * slope, g * (result * logarithm)


@gradient("Relu")
def relu(b: Builder, node: ir.Node, g: Value) -> Value | Term:
    """The gradient of Relu: g where x > 0, else 0; g itself where a MaxPool has made it 0 there already."""
    [x] = b.terms(operand(node))
    return g if g in b.rectified else (x > 0).where(g, 0)


@gradient("Gelu", "com.microsoft::Gelu")
def gelu(b: Builder, node: ir.Node, given: Value) -> Term:
    """The gradient of Gelu: P(x) + x p(x) with the normal distribution; for tanh its approximation, as torch
    differentiates it. P and p are bounded, and where x * -x leaves a low type p is 0, as it is in truth."""
    x, g = b.terms(operand(node), given)
    if attribute(node, "approximate", "none") == "tanh":
        with b.float32("x^2 = inf times 1 - t^2 = 0 is NaN"):
            return _gelu_tanh(x, g)
    below = 0.5 * (1 + (x * math.sqrt(0.5)).op("Erf"))
    bell = (x * (x * -0.5)).op("Exp")
    return g * (below + x * (bell * (1 / math.sqrt(2 * math.pi))))


def _gelu_tanh(x: Term, g: Term) -> Term:
    """The gradient of Gelu's approximation, y = x (1 + t) / 2 with t = tanh(c (x + k x^3)), c = sqrt(2 / pi), k =
    0.044715: g times (1 + t) / 2 + x (1 - t^2) c (1 + 3 k x^2) / 2."""
    c, k = math.sqrt(2 / math.pi), 0.044715
    x = x.op("Clip", -100, 100)  # far out t is 1 or -1
    square = x * x
    t = (x * (c + square * (c * k))).op("Tanh")
    rising = x * (1 - t * t) * (c + square * (3 * c * k))
    return g * (0.5 * (1 + t + rising))


@gradient("Clip")
def clip(b: Builder, node: ir.Node, given: Value) -> list[Value | Term | None]:
    """Gradients of Clip, as torch's: g for elements that are not cut off, those equal to a bound too; a bound that is
    not constant gets the sum of g over what it cut off."""
    low, high = (*node.inputs[1:], None, None)[:2]
    x, found = b.terms(operand(node), given)
    lowest, highest = (None if bound is None else Term(b, bound, x.value) for bound in (low, high))
    dlow, dhigh = None, None
    if lowest is not None:
        found = (x >= lowest).where(found, 0)
        if b.known_numbers(low) is None:
            cut = (x < lowest).where(given, 0)
            dlow = _sum_of_all(b, cut if highest is None else (lowest <= highest).where(cut, 0))
    if highest is not None:
        found = (x <= highest).where(found, 0)
        if b.known_numbers(high) is None:
            dhigh = _sum_of_all(b, ((x if lowest is None else x.op("Max", lowest)) > highest).where(given, 0))
    return [found, dlow, dhigh][: len(node.inputs)]


def _sum_of_all(b: Builder, value: Value | Term) -> Value:
    """The sum of all elements of a gradient, as a scalar, in float32."""
    with b.float32(REASON):
        return b.op("ReduceSum", value, keepdims=0)


@gradient("OneHot", constant=(0, 1))
def one_hot(b: Builder, node: ir.Node, g: Value) -> tuple[None, None, Value]:
    """Gradients of OneHot: of its values (off, on), the sums of g over the elements that each of them fills."""
    indices, depth, values = (operand(node, n) for n in range(3))
    pair = np.array([0, 1], np.float32 if values.dtype is None else values.dtype.numpy())
    marks = b.op("OneHot", indices, depth, b.constant(pair), axis=attribute(node, "axis", -1))
    hot, zero = b.op("Greater", marks, b.number(0, values)), b.number(0, values)
    sums = (_sum_of_all(b, b.op("Where", hot, *parts)) for parts in ((zero, g), (g, zero)))
    return None, None, b.op("Concat", *(b.op("Unsqueeze", part, b.ints(0)) for part in sums), axis=0)


@gradient("Range", constant=(1,))
def range_(b: Builder, node: ir.Node, g: Value) -> tuple[Value, None, Value]:
    """Gradients of Range, y = start + n delta: sum(g) for start, None for the limit, and sum(n g) for delta."""
    count = b.op("Cast", b.arange(b.op("Size", g)), to=int(operand(node).dtype or FLOAT))
    return _sum_of_all(b, g), None, _sum_of_all(b, b.op("Mul", g, count))
