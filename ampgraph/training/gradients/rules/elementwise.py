"""Arithmetic, activations and selections: element by element, operands broadcast.

Where a branch is not taken its gradient is selected away, never multiplied by 0: inf * 0 is NaN. What overflows float16
for ordinary arguments is computed in float32.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ..broadcast import REASON
from ..builder import Builder
from ..registry import attribute, gradient, no_gradient, operand

Value = ir.Value

no_gradient(
    *("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "And", "Or", "Xor", "IsNaN", "IsInf"),
    *("Ceil", "Floor", "Round", "Sign", "Shape", "Size", "ConstantOfShape", "ArgMax", "ArgMin", "NonZero"),
    *("RandomUniformLike", "RandomNormalLike", "Bernoulli", "EyeLike"),
)


@gradient("Identity")
def identity(b: Builder, node: ir.Node, g: Value) -> Value:
    return g


@gradient("Cast")
def cast(b: Builder, node: ir.Node, g: Value) -> Value | None:
    [x] = node.inputs
    assert x is not None
    if x.dtype is None:
        raise ValueError(f"the type of '{x.name}' is not known")
    return b.op("Cast", g, to=int(x.dtype)) if x.dtype.is_floating_point() else None


@gradient("Neg")
def neg(b: Builder, node: ir.Node, g: Value) -> Value:
    return b.op("Neg", g)


@gradient("Add", broadcasts=True)
def add(b: Builder, node: ir.Node, g: Value) -> tuple[Value, Value]:
    return g, g


@gradient("Sub", broadcasts=True)
def sub(b: Builder, node: ir.Node, g: Value) -> tuple[Value, Value]:
    return g, b.op("Neg", g)


@gradient("Sum", broadcasts=True)
def sum_(b: Builder, node: ir.Node, g: Value) -> list[Value]:
    return [g] * len(node.inputs)


@gradient("Mean", broadcasts=True)
def mean(b: Builder, node: ir.Node, g: Value) -> list[Value]:
    return [b.op("Mul", g, b.number(1 / len(node.inputs), g))] * len(node.inputs)


@gradient("Mul", broadcasts=True)
def mul(b: Builder, node: ir.Node, g: Value) -> tuple[Value, Value]:
    x, y = node.inputs
    return b.op("Mul", g, y), b.op("Mul", g, x)


@gradient("Div", broadcasts=True)
def div(b: Builder, node: ir.Node, g: Value) -> tuple[Value, Value]:
    """dy = -(g / y) (x / y): the square of y is never formed."""
    y, quotient = node.inputs[1], node.outputs[0]
    first = b.op("Div", g, y)
    return first, b.op("Neg", b.op("Mul", first, quotient))


@gradient("Pow", broadcasts=True)
def power(b: Builder, node: ir.Node, g: Value) -> tuple[Value, Value | None]:
    """g y x^(y-1), 0 for a y of 0, and g x^y ln x where x is positive."""
    x, y = node.inputs
    assert x is not None
    exponent = b.given(y)
    with b.float32("powers leave the range of float16"):
        if exponent is not None and exponent.size == 1:
            number = float(exponent.reshape(()))
            if number == 0:
                return b.zeros(node.outputs[0]), None
            if number == 2:
                return b.op("Mul", b.op("Mul", g, x), b.number(2, x)), None
            slope = b.op("Mul", b.op("Pow", x, b.number(number - 1, x)), b.number(number, x))
            return b.op("Mul", g, slope), None
        exponents = y if y is not None and y.dtype == x.dtype else b.op("CastLike", y, x)
        zero = b.number(0, x)
        slope = b.op("Mul", exponents, b.op("Pow", x, b.op("Sub", exponents, b.number(1, x))))
        slope = b.op("Where", b.op("Equal", exponents, zero), zero, slope)
        positive = b.op("Greater", x, zero)
        logarithm = b.op("Log", b.op("Where", positive, x, b.number(1, x)))
        return b.op("Mul", g, slope), b.op("Mul", g, b.op("Mul", node.outputs[0], logarithm))


@gradient("Sqrt")
def sqrt(b: Builder, node: ir.Node, g: Value) -> Value:
    y = node.outputs[0]
    return b.op("Div", g, b.op("Add", y, y))


@gradient("Reciprocal")
def reciprocal(b: Builder, node: ir.Node, g: Value) -> Value:
    y = node.outputs[0]
    return b.op("Neg", b.op("Mul", b.op("Mul", g, y), y))


@gradient("Exp")
def exp(b: Builder, node: ir.Node, g: Value) -> Value:
    return b.op("Mul", g, node.outputs[0])


@gradient("Log")
def log(b: Builder, node: ir.Node, g: Value) -> Value:
    return b.op("Div", g, node.inputs[0])


@gradient("Abs")
def abs_(b: Builder, node: ir.Node, g: Value) -> Value:
    return b.op("Mul", g, b.op("Sign", node.inputs[0]))


@gradient("Sin")
def sin(b: Builder, node: ir.Node, g: Value) -> Value:
    return b.op("Mul", g, b.op("Cos", node.inputs[0]))


@gradient("Cos")
def cos(b: Builder, node: ir.Node, g: Value) -> Value:
    return b.op("Neg", b.op("Mul", g, b.op("Sin", node.inputs[0])))


@gradient("Atan")
def atan(b: Builder, node: ir.Node, g: Value) -> Value:
    [x] = node.inputs
    with b.float32("x * x overflows float16 above 256"):
        return b.op("Div", g, b.op("Add", b.op("Mul", x, x), b.number(1, x)))


@gradient("Tanh")
def tanh(b: Builder, node: ir.Node, g: Value) -> Value:
    y = node.outputs[0]
    return b.op("Mul", g, b.op("Sub", b.number(1, y), b.op("Mul", y, y)))


@gradient("Sigmoid")
def sigmoid(b: Builder, node: ir.Node, g: Value) -> Value:
    y = node.outputs[0]
    return b.op("Mul", g, b.op("Mul", y, b.op("Sub", b.number(1, y), y)))


@gradient("Erf")
def erf(b: Builder, node: ir.Node, g: Value) -> Value:
    """Where x * -x leaves a low type the bell is 0, as it is in truth."""
    x = operand(node)
    bell = b.op("Exp", b.op("Mul", x, b.op("Neg", x)))
    return b.op("Mul", g, b.op("Mul", bell, b.number(2 / math.sqrt(math.pi), x)))


@gradient("Relu")
def relu(b: Builder, node: ir.Node, g: Value) -> Value:
    x = node.inputs[0]
    return g if g in b.rectified else b.op("Where", b.op("Greater", x, b.number(0, x)), g, b.number(0, x))


@gradient("LeakyRelu")
def leaky_relu(b: Builder, node: ir.Node, g: Value) -> Value:
    x = node.inputs[0]
    slope = b.number(_number(node, "alpha", 0.01), x)
    return b.op("Where", b.op("Greater", x, b.number(0, x)), g, b.op("Mul", g, slope))


@gradient("PRelu", broadcasts=True)
def prelu(b: Builder, node: ir.Node, g: Value) -> tuple[Value, Value]:
    x, slope = node.inputs
    negative, zero = b.op("LessOrEqual", x, b.number(0, x)), b.number(0, x)
    return b.op("Where", negative, b.op("Mul", g, slope), g), b.op("Where", negative, b.op("Mul", g, x), zero)


@gradient("Elu")
def elu(b: Builder, node: ir.Node, g: Value) -> Value:
    """alpha e^x is y + alpha where x is not positive."""
    x, y = node.inputs[0], node.outputs[0]
    falling = b.op("Mul", g, b.op("Add", y, b.number(_number(node, "alpha", 1.0), y)))
    return b.op("Where", b.op("LessOrEqual", x, b.number(0, x)), falling, g)


@gradient("HardSigmoid")
def hard_sigmoid(b: Builder, node: ir.Node, g: Value) -> Value:
    y = node.outputs[0]
    inside = b.op("And", b.op("Greater", y, b.number(0, y)), b.op("Less", y, b.number(1, y)))
    return b.op("Where", inside, b.op("Mul", g, b.number(_number(node, "alpha", 0.2), y)), b.number(0, y))


@gradient("HardSwish")
def hard_swish(b: Builder, node: ir.Node, g: Value) -> Value:
    """x (x + 3) / 6 between -3 and 3, where the slope is x / 3 + 1 / 2."""
    [x] = node.inputs
    slope = b.op("Add", b.op("Mul", x, b.number(1 / 3, x)), b.number(0.5, x))
    inside = b.op("Where", b.op("Greater", x, b.number(-3, x)), b.op("Mul", g, slope), b.number(0, x))
    return b.op("Where", b.op("GreaterOrEqual", x, b.number(3, x)), g, inside)


@gradient("Softplus")
def softplus(b: Builder, node: ir.Node, g: Value) -> Value:
    return b.op("Mul", g, b.op("Sigmoid", node.inputs[0]))


@gradient("Mish")
def mish(b: Builder, node: ir.Node, g: Value) -> Value:
    """t + x (1 - t^2) sigmoid(x), t = tanh(softplus(x))."""
    [x] = node.inputs
    t = b.op("Tanh", b.op("Softplus", x))
    falling = b.op("Mul", b.op("Sub", b.number(1, x), b.op("Mul", t, t)), b.op("Sigmoid", x))
    return b.op("Mul", g, b.op("Add", t, b.op("Mul", x, falling)))


@gradient("Gelu", "com.microsoft::Gelu")
def gelu(b: Builder, node: ir.Node, g: Value) -> Value:
    """P(x) + x p(x) with the normal distribution; for tanh its approximation, as torch differentiates it.

    P and p are bounded, and where x * -x leaves a low type p is 0, as it is in truth."""
    [x] = node.inputs
    if attribute(node, "approximate", "none") == "tanh":
        return _gelu_tanh(b, x, g)
    half, one = b.number(0.5, x), b.number(1, x)
    below = b.op("Mul", half, b.op("Add", one, b.op("Erf", b.op("Mul", x, b.number(math.sqrt(0.5), x)))))
    bell = b.op("Exp", b.op("Mul", x, b.op("Mul", x, b.number(-0.5, x))))
    density = b.op("Mul", bell, b.number(1 / math.sqrt(2 * math.pi), x))
    return b.op("Mul", g, b.op("Add", below, b.op("Mul", x, density)))


def _gelu_tanh(b: Builder, x: Value | None, g: Value) -> Value:
    """t = tanh(c (x + k x^3)): (1 + t) / 2 + x (1 - t^2) c (1 + 3 k x^2) / 2, c = sqrt(2 / pi), k = 0.044715."""
    c, k = math.sqrt(2 / math.pi), 0.044715
    with b.float32("x^2 = inf times 1 - t^2 = 0 is NaN"):
        half, one = b.number(0.5, x), b.number(1, x)
        x = b.op("Clip", x, b.number(-100, x), b.number(100, x))  # far out t is 1 or -1
        square = b.op("Mul", x, x)
        inner = b.op("Mul", x, b.op("Add", b.number(c, x), b.op("Mul", square, b.number(c * k, x))))
        t = b.op("Tanh", inner)
        slope = b.op("Add", b.number(c, x), b.op("Mul", square, b.number(3 * c * k, x)))
        rising = b.op("Mul", b.op("Mul", x, b.op("Sub", one, b.op("Mul", t, t))), slope)
        return b.op("Mul", g, b.op("Mul", half, b.op("Add", b.op("Add", one, t), rising)))


@gradient("Clip")
def clip(b: Builder, node: ir.Node, g: Value) -> list[Value | None]:
    """As torch: the borders themselves let the gradient through. What was cut off goes to its border."""
    x, low, high = (*node.inputs, None, None)[:3]
    assert x is not None
    zero = b.number(0, x)
    found, dlow, dhigh = g, None, None
    if low is not None:
        found = b.op("Where", b.op("GreaterOrEqual", x, low), found, zero)
        if b.given(low) is None:
            dlow = b.op("Where", b.op("Less", x, low), g, zero)
            dlow = dlow if high is None else b.op("Where", b.op("LessOrEqual", low, high), dlow, zero)
    if high is not None:
        found = b.op("Where", b.op("LessOrEqual", x, high), found, zero)
        if b.given(high) is None:
            raised = x if low is None else b.op("Max", x, low)
            dhigh = b.op("Where", b.op("Greater", raised, high), g, zero)
    bounds = [None if part is None else _whole(b, part) for part in (dlow, dhigh)]
    return [found, *bounds[: len(node.inputs) - 1]]


def _whole(b: Builder, value: Value) -> Value:
    """The sum of all elements, a scalar."""
    with b.float32(REASON):
        return b.op("ReduceSum", value, keepdims=0)


@gradient("OneHot", constant=(0, 1))
def one_hot(b: Builder, node: ir.Node, g: Value) -> tuple[None, None, Value]:
    """The two values get the sums of where they stand."""
    indices, depth, values = node.inputs
    assert values is not None
    pair = np.array([0, 1], np.float32 if values.dtype is None else values.dtype.numpy())
    marks = b.op("OneHot", indices, depth, b.constant(pair), axis=attribute(node, "axis", -1))
    hot, zero = b.op("Greater", marks, b.number(0, values)), b.number(0, values)
    sums = (_whole(b, b.op("Where", hot, *parts)) for parts in ((zero, g), (g, zero)))
    return None, None, b.op("Concat", *(b.op("Unsqueeze", part, b.ints(0)) for part in sums), axis=0)


@gradient("Range", constant=(1,))
def range_(b: Builder, node: ir.Node, g: Value) -> tuple[Value, None, Value]:
    """start + n delta."""
    start = operand(node)
    zero, one = (b.constant(np.array(number, np.int64)) for number in (0, 1))
    count = b.op("Cast", b.op("Range", zero, b.op("Size", g), one), to=int(start.dtype or ir.DataType.FLOAT))
    return _whole(b, g), None, _whole(b, b.op("Mul", g, count))


@gradient("Where", broadcasts=True)
def where(b: Builder, node: ir.Node, g: Value) -> tuple[None, Value, Value]:
    condition, zero = node.inputs[0], b.number(0, g)
    return None, b.op("Where", condition, g, zero), b.op("Where", condition, zero, g)


@gradient("Max", "Min", broadcasts=True)
def extreme(b: Builder, node: ir.Node, g: Value) -> list[Value]:
    """What is equal to the result gets the gradient; several equal ones share it, as in torch for two."""
    y, zero = node.outputs[0], b.number(0, g)
    if len(node.inputs) == 1:
        return [g]
    hits = [b.op("Equal", x, y) for x in node.inputs]
    count = b.op("Sum", *(b.op("Where", hit, b.number(1, g), zero) for hit in hits))
    share = b.op("Div", g, count)
    return [b.op("Where", hit, share, zero) for hit in hits]


def _number(node: ir.Node, name: str, default: float) -> float:
    return float(attribute(node, name, default))
