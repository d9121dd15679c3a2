"""The random graphs of TensorFlow's parity: which forms there are, and each node in ONNX."""

from __future__ import annotations

from .random_graphs import drawn, plain, spread, weighted, wrapped

PLAIN = """Relu Tanh Sigmoid Exp Softmax LogSoftmax Transpose Identity Sqrt Sin Erf Abs Elu Softplus Floor Log Neg Sign
Round Ceil LeakyRelu Selu Softsign Reciprocal Reshape CumSum Gather Tile"""
PAIRS = "Add Mul Sub Div Max Min Pow Sum MatMul"


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


ONE = [
    *map(plain, PLAIN.split()),
    *(spread(reduction, "Mul") for reduction in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")),
    *(wrapped("ToImage", kind, "ToMatrix") for kind in ("MaxPool", "AveragePool")),
    wrapped("ToImage", "BatchNormalization", "ToMatrix", (8,), (8,), (8,), (8,)),
    wrapped("Unsqueeze", "Relu", "Squeeze"),
    weighted("BiasAdd", (8,)),
    weighted("Clip", (), ()),
    _halves,
    _there_and_back,
    _place,
]
TWO = [*map(plain, PAIRS.split()), _cut, _choice]
PRODUCTS = [
    weighted("MatMul", (8, 8)),
    wrapped("ToImage", "Conv", "ToMatrix", (8, 8, 1, 1)),
    weighted("Einsum", (8, 8)),
]


def graph(seed, low="float16"):
    """(steps, outputs) of a seed; without Einsum for bfloat16, which ONNX's does not take."""
    return drawn(seed, ONE, TWO, PRODUCTS if low == "float16" else PRODUCTS[:2])
