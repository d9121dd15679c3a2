"""The random graphs of MXNet's parity: which forms there are."""

from __future__ import annotations

from .random_graphs import drawn, in_depth, plain, spread, weighted

PLAIN = """Relu Softplus Elu LeakyRelu Selu Exp Softmax LogSoftmax Tanh Sigmoid Softsign Transpose Reshape Abs Sqrt Log
Reciprocal Floor Ceil Round Sign Neg Sin Cos Erf Identity Clip Doubled Shifted Halved Inverted Squared Gather Tile"""
PAIRS = "Add Mul Sub Div Max Min MatMul Sum Pow"


def _cut(graph, one, other):
    return graph.add("Slice", graph.add("Concat", one, other))


def _choice(graph, one, other):
    return graph.add("Where", graph.add("Greater", one, other), one, other)


def _halves(graph, operand):
    split = graph.add("Split", operand)
    return graph.add("Concat", f"{split}:1", f"{split}:0")


def _lifted(graph, operand):
    return graph.add("Squeeze", graph.add("Unsqueeze", operand))


ONE = [
    *map(plain, PLAIN.split()),
    *(spread(reduction, "Mul") for reduction in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")),
    weighted("LayerNormalization", (8,), (8,)),
    weighted("BatchNormalization", (8,), (8,), (8,), (8,)),
    _halves,
    _lifted,
]
TWO = [*map(plain, PAIRS.split()), _cut, _choice]
PRODUCTS = [weighted("Gemm", (8, 8), (8,))]


def graph(seed):
    """(steps, outputs) of a seed."""
    return in_depth(*drawn(seed, ONE, TWO, PRODUCTS))
