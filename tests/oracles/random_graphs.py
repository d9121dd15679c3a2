"""Random graphs as data: one list of steps a seed, of which each framework's builder and ONNX's make the same graph.

A step is one node, named ``n0``, ``n1`` ...; it reads inputs (``x``, ``y``), steps, and weights, which are its own
(``w3_0`` is step 3's first). Every tensor between forms is float32 of [8, 8]. Python 3.8, which MXNet needs, reads this
file too.
"""

from __future__ import annotations

import random
from typing import NamedTuple, Tuple  # noqa: UP035

SIZE = 8


class Step(NamedTuple):
    """One node. ``operands``: names of inputs and steps, ``n3:1`` for the second result; ``weights``: shapes."""

    kind: str
    operands: Tuple[str, ...]  # noqa: UP006
    weights: Tuple[Tuple[int, ...], ...] = ()  # noqa: UP006


class Drawn:
    """Steps under way."""

    def __init__(self, seed):
        self.dice, self.steps, self.pool = random.Random(seed), [], ["x", "y"]

    def add(self, kind, *operands, weights=()):
        """A step more; its name."""
        self.steps.append(Step(kind, operands, weights))
        return f"n{len(self.steps) - 1}"

    def outputs(self):
        """The names of two results, or of one."""
        return list(dict.fromkeys([self.pool[-1], self.dice.choice(self.pool[2:])]))


def drawn(seed, one, two, product, count=(6, 26)):
    """Random steps and outputs. ``one``, ``two`` and ``product``: forms of one operand, of two, and products; a form is
    called with what is drawn and its operands, and gives the name of its result."""
    graph = Drawn(seed)
    for _ in range(graph.dice.randint(*count)):
        dart = graph.dice.random()
        a, b = graph.dice.choice(graph.pool[-4:]), graph.dice.choice(graph.pool)
        if dart < 0.25:
            made = graph.dice.choice(product)(graph, a)
        elif dart < 0.75:
            made = graph.dice.choice(one)(graph, a)
        else:
            made = graph.dice.choice(two)(graph, a, b)
        graph.pool.append(made)
    return graph.steps, graph.outputs()


def plain(kind):
    """A form of one step."""
    return lambda graph, *operands: graph.add(kind, *operands)


def weighted(kind, *shapes):
    """A form of one step with weights."""
    return lambda graph, *operands: graph.add(kind, *operands, weights=shapes)


def wrapped(before, kind, after, *shapes):
    """A form of three steps: another shape, the operator if there is one, and the shape of before."""

    def form(graph, operand):
        inner = graph.add(before, operand)
        return graph.add(after, graph.add(kind, inner, weights=shapes) if kind else inner)

    return form


def spread(reduction, joins):
    """A form of two steps: a reduction, and its result joined with the operand."""
    return lambda graph, operand: graph.add(joins, operand, graph.add(reduction, operand))


def in_depth(steps, outputs):
    """The same graph in the order in which MXNet visits a symbol: what no output needs is left out."""
    order: dict[int, int] = {}

    def visit(name):
        number = int(name[1:].partition(":")[0]) if name[0] == "n" else -1
        if number < 0 or number in order:
            return
        for operand in steps[number].operands:
            visit(operand)
        order[number] = len(order)

    def renamed(name):
        number, colon, port = name[1:].partition(":")
        return f"n{order[int(number)]}{colon}{port}" if name[0] == "n" else name

    for name in outputs:
        visit(name)
    kept = [steps[number]._replace(operands=tuple(map(renamed, steps[number].operands))) for number in order]
    return kept, [renamed(name) for name in outputs]


def _halves(graph, operand):
    split = graph.add("Split", operand)
    return graph.add("Concat", f"{split}:1", f"{split}:0")


def _cut(graph, one, other):
    return graph.add("Slice", graph.add("Concat", one, other))


def _choice(graph, one, other):
    return graph.add("Where", graph.add("Greater", one, other), one, other)


def _there_and_back(graph, operand):
    return graph.add("ToFloat", graph.add("ToInt", operand))


def _place(graph, operand):
    return graph.add("Mul", operand, graph.add("ToFloat", graph.add("ArgMax", operand)))


SPREAD = [spread(reduction, "Mul") for reduction in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")]
TENSORFLOW = """Relu Tanh Sigmoid Exp Softmax LogSoftmax Transpose Identity Sqrt Sin Erf Abs Elu Softplus Floor Log
Neg Sign Round Ceil LeakyRelu Selu Softsign Reciprocal Reshape CumSum Gather Tile"""
TENSORFLOW_ONE = [
    *map(plain, TENSORFLOW.split()),
    *SPREAD,
    *(wrapped("ToImage", kind, "ToMatrix") for kind in ("MaxPool", "AveragePool")),
    wrapped("ToImage", "BatchNormalization", "ToMatrix", (8,), (8,), (8,), (8,)),
    wrapped("Unsqueeze", "Relu", "Squeeze"),
    weighted("BiasAdd", (8,)),
    weighted("Clip", (), ()),
    _halves,
    _there_and_back,
    _place,
]
TENSORFLOW_PAIRS = "Add Mul Sub Div Max Min Pow Sum MatMul"
TENSORFLOW_TWO = [*map(plain, TENSORFLOW_PAIRS.split()), _cut, _choice]
TENSORFLOW_PRODUCTS = [
    weighted("MatMul", (8, 8)),
    wrapped("ToImage", "Conv", "ToMatrix", (8, 8, 1, 1)),
    weighted("Einsum", (8, 8)),
]


def tensorflow_graph(seed, low="float16"):
    """(steps, outputs) of a seed; without Einsum for bfloat16, which ONNX's does not take."""
    products = TENSORFLOW_PRODUCTS if low == "float16" else TENSORFLOW_PRODUCTS[:2]
    return drawn(seed, TENSORFLOW_ONE, TENSORFLOW_TWO, products)


MXNET = """Relu Softplus Elu LeakyRelu Selu Exp Softmax LogSoftmax Tanh Sigmoid Softsign Transpose Reshape Abs Sqrt Log
Reciprocal Floor Ceil Round Sign Neg Sin Cos Erf Identity Clip Doubled Shifted Halved Inverted Squared Gather Tile"""
MXNET_ONE = [
    *map(plain, MXNET.split()),
    *SPREAD,
    weighted("LayerNormalization", (8,), (8,)),
    weighted("BatchNormalization", (8,), (8,), (8,), (8,)),
    _halves,
    wrapped("Unsqueeze", "", "Squeeze"),
]
MXNET_PAIRS = "Add Mul Sub Div Max Min MatMul Sum Pow"
MXNET_TWO = [*map(plain, MXNET_PAIRS.split()), _cut, _choice]


def mxnet_graph(seed):
    """(steps, outputs) of a seed."""
    return in_depth(*drawn(seed, MXNET_ONE, MXNET_TWO, [weighted("Gemm", (8, 8), (8,))]))
