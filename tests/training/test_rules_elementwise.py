"""Elementwise rules, selections, generators, MatMul, Gemm and Einsum: each against torch and by differences."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch.nn import functional as F

from ampgraph.core.errors import AmpError
from ampgraph.training.gradients import registry
from ampgraph.training.gradients.driver import differentiate
from present import present
from training.gradients import check, gradients, network, normal, refused, with_gradients

ANY, WITHIN_ONE, POSITIVE, ABOVE_ONE = (
    2 * normal(2, 3, 4), np.tanh(normal(2, 3, 4)), normal(2, 3, 4, low=0.3), normal(2, 3, 4, low=1.2)
)  # fmt: skip
Unary = dict[str, tuple[np.ndarray, Callable[..., torch.Tensor]]]


def named(space: object, x: np.ndarray, names: str) -> Unary:
    return {kind: (x, getattr(space, kind.lower())) for kind in names.split()}


UNARY: Unary = {
    **named(torch, ANY, "Abs Exp Sin Cos Atan Tanh Sigmoid Erf Relu Sinh Cosh Asinh Neg"),
    **named(F, ANY, "HardSwish Softplus Mish Softsign Selu"),
    **named(torch, WITHIN_ONE, "Tan Asin Acos Atanh"),
    **named(torch, POSITIVE, "Sqrt Log Reciprocal"),
    "Acosh": (ABOVE_ONE, torch.acosh),
    "Identity": (ANY, lambda x: x * 1),
    "LeakyRelu <alpha = 0.3>": (ANY, lambda x: F.leaky_relu(x, 0.3)),
    "Elu <alpha = 0.7>": (ANY, lambda x: F.elu(x, 0.7)),
    "HardSigmoid <alpha = 0.16666667, beta = 0.5>": (ANY, F.hardsigmoid),
    "Celu <alpha = 0.7>": (ANY, lambda x: F.celu(x, 0.7)),
    "ThresholdedRelu <alpha = 0.4>": (ANY, lambda x: F.threshold(x, 0.4, 0.0)),
    'Gelu <approximate = "none">': (ANY, F.gelu),
    'Gelu <approximate = "tanh">': (ANY, lambda x: F.gelu(x, approximate="tanh")),
}
BINARY: dict[str, Callable[..., torch.Tensor]] = {
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Div": torch.div,
    "Pow": torch.pow,
}
SHAPES = [((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (4,)), ((2, 3, 4), (3, 1)), ((3, 1), (2, 1, 4)), ((2, 3), ())]


def letters(shape: tuple[int, ...], names: str) -> str:
    """Symbols for all sizes but 1, named from the last axis."""
    return ",".join(
        name if size != 1 else "1" for name, size in zip(names[len(names) - len(shape) :], shape, strict=True)
    )


@pytest.mark.parametrize("operator", UNARY)
def test_one_operand(operator):
    x, function = UNARY[operator]
    check(f"y = {operator} (x)", {"x": x}, function)


@pytest.mark.share(2)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("operator", BINARY)
def test_two_operands_are_broadcast(operator, shapes, dynamic):
    arrays = {name: normal(*shape, seed=n, low=0.4) for n, (name, shape) in enumerate(zip("ab", shapes, strict=True))}
    dims = {name: letters(array.shape, "ABC") for name, array in arrays.items() if array.ndim} if dynamic else ""
    check(f"y = {operator} (a, b)", arrays, BINARY[operator], dims)


X, ROW = normal(3, 4), normal(4, seed=1)
SUMMED = {"x": normal(2, 3), "y0": normal(3, seed=1), "z": normal(2, 1, seed=2)}
CASES: dict[str, tuple[str, dict[str, np.ndarray], Callable[..., torch.Tensor]]] = {
    "Where": ("y = Where (c, x, z)", {"c": normal(3, 1, seed=2) > 0, "x": X, "z": ROW}, torch.where),
    "Max": ("y = Max (x, z)", {"x": X, "z": ROW}, torch.maximum),
    "Min": ("y = Min (x, z)", {"x": X, "z": ROW}, torch.minimum),
    "PRelu": (
        "y = PRelu (x, s)",
        {"x": normal(2, 3, 4), "s": normal(3, 1, seed=5)},
        lambda x, s: F.prelu(x, s.reshape(3)),
    ),
    "Sum": ("y = Sum (x, y0, z)", SUMMED, lambda x, y, z: x + y + z),
    "Mean": ("y = Mean (x, y0, z)", SUMMED, lambda x, y, z: (x + y + z) / 3),
    "a value that is read several times": (
        "a = Mul (x, x)  c = Tanh (a)  d = Add (c, x)  y = Mul (d, a)",
        {"x": normal(2, 3)},
        lambda x: (torch.tanh(x * x) + x) * (x * x),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_several_operands(name):
    check(*CASES[name])


def test_shapes_that_only_a_run_shows():
    """Nothing is known but the rank: the axes of the sum are found at run time."""
    check("y = Mul (x, z)", {"x": normal(3, 1), "z": normal(1, 4, seed=1)}, torch.mul, {"x": "A,B", "z": "C,D"})


@pytest.mark.parametrize("exponent", [2.0, 3.0, 0.5, -1.0])
def test_a_constant_exponent(exponent):
    check("y = Pow (x, e)", {"x": normal(2, 5, low=0.4)}, lambda x: x**exponent, stored={"e": np.float32(exponent)})


def test_an_exponent_that_is_trained_is_no_constant():
    """GeM pooling: the exponent is an initializer, and is read twice."""
    body = "z = Pow (x, p)  m = ReduceMean <keepdims = 0> (z, a)  r = Reciprocal (p)  s = Pow (m, r)"
    x, p = normal(4, 6, low=0.3), torch.full((1,), 2.0, requires_grad=True)
    body, stored = f"{body}  y = ReduceSum <keepdims = 0> (s)", {"p": np.array([2], np.float32), "a": np.array([1])}
    model = ir.from_proto(network(body, {"x": x}, rank=0, stored=stored))
    graph = model.graph
    [found] = differentiate(graph, graph.outputs[0], [graph.initializers["p"]])
    graph.outputs.append(found)
    [_, ours] = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString()).run(None, {"x": x})
    (torch.tensor(x).pow(p).mean(1)).pow(1 / p).sum().backward()
    np.testing.assert_allclose(ours, present(p.grad).numpy(), rtol=1e-5)


BOUNDS = {"l": np.float32(-0.5), "h": np.float32(0.7)}


def test_a_clip_by_constants():
    check("y = Clip (x, l, h)", {"x": X}, lambda x: x.clamp(-0.5, 0.7), stored=BOUNDS)


WIDE = np.array([-3e4, -300.0, 0.0, 300.0, 3e4], np.float32)
POINTS, ONES = np.array([0, 1, 2, 0, 0], np.float32), np.ones((2, 2), np.float32)
EDGES: dict[str, tuple[str, dict[str, np.ndarray], Callable[..., torch.Tensor]]] = {
    "equal values share the gradient": ("y = Max (x, z)", {"x": ONES, "z": ONES}, torch.maximum),
    "PRelu at 0": (
        "y = PRelu (x, s)",
        {"x": np.array([-1, 0, 1], np.float32), "s": np.array([0.3], np.float32)},
        F.prelu,
    ),
    "Elu at 0": ("y = Elu <alpha = 0.5> (x)", {"x": np.array([-1, 0, 1], np.float32)}, lambda x: F.elu(x, 0.5)),
    **{  # branches are selected, not multiplied by 0; large arguments of tanh-GELU stay numbers
        f"{kind} far out": (f"y = {kind} (x)", {"x": WIDE}, UNARY[kind][1])
        for kind in UNARY
        if UNARY[kind][0] is ANY and kind not in ("Exp", "Sinh", "Cosh")  # which are infinite there
    },
}


@pytest.mark.parametrize("name", EDGES)
def test_where_differences_say_nothing(name):
    check(*EDGES[name], differences=False)


@pytest.mark.parametrize("how", ["input", "constant"])
def test_a_power_of_0_has_no_slope(how):
    """Not even at 0, where x^-1 is inf."""
    if how == "input":
        given = {"x": POINTS, "e": np.array([0, 0, 0, 1, 2], np.float32)}
        check("y = Pow (x, e)", given, torch.pow, wanted=["x"], differences=False)
    check("y = Pow (x, e)", {"x": POINTS}, lambda x: x**0, differences=False, stored={"e": np.float32(0)})


def test_tanh_gelu_far_out():
    x = np.array([-1e30, -200, 200, 1e30], np.float32)
    model = network('y = Gelu <approximate = "tanh"> (x)', {"x": x}, rank=1)
    assert gradients(model, {"x": x}, ["x"], np.ones(4, np.float32))["x"].tolist() == [0, 0, 1, 1]


def test_softsign_far_out():
    """Where the square of the denominator is beyond float32, and the gradient is not 0."""
    x = np.array([-2e19, 0, 2e19], np.float32)
    found = gradients(network("y = Softsign (x)", {"x": x}, rank=1), {"x": x}, ["x"], np.full(3, 1e19, np.float32))
    np.testing.assert_allclose(found["x"], [2.5e-20, 1e19, 2.5e-20], rtol=1e-5)


@pytest.mark.parametrize(("low", "high"), [(-0.5, 0.3), (0.5, -0.2)])
def test_bounds_have_gradients(low, high):
    """torch.clamp takes no shapes of bounds that ONNX allows."""
    bounds = {"l": np.array(low, np.float32), "h": np.array(high, np.float32)}
    check("y = Clip (x, l, h)", {"x": X, **bounds}, lambda x, low, high: x.maximum(low).minimum(high))
    check("y = Clip (x, , h)", {"x": X, "h": bounds["h"]}, torch.minimum, "N,4")
    check("y = Clip (x, l)", {"x": X, "l": bounds["l"]}, torch.maximum, "N,4")


@pytest.mark.parametrize("axis", [-1, 0])
def test_the_values_of_one_hot_have_gradients(axis):
    def function(i, v):
        hot = F.one_hot(i, 3).double()
        return v[0] + (v[1] - v[0]) * (hot if axis == -1 else hot.T)

    given = {"i": np.array([0, 2, 2, 1]), "v": normal(2)}
    check(f"y = OneHot <axis = {axis}> (i, d, v)", given, function, "N", {"d": np.array(3)})


def test_a_range_has_gradients():
    given = {name: np.array(number, np.float32) for name, number in (("s", 0.5), ("e", 3.2), ("d", 0.7))}
    check("y = Range (s, e, d)", given, lambda s, e, d: s + d * torch.arange(4), wanted=["s", "d"])


def test_an_input_without_a_gradient_is_told(monkeypatch):
    """A trained value that reaches it would be trained wrongly; what changes a result in steps has a gradient of 0."""
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    model = network("y = Mul (x, w)", {"x": normal(3), "w": normal(3)}, rank=1)
    registry.gradient("Mul")(lambda b, node, g: [b.op("Mul", g, node.inputs[1]), None])
    with pytest.raises(AmpError, match="AMP210.*the node that writes 'y': no gradient for input 1 of Mul, 'w'"):
        with_gradients(model, ["x", "w"])
    with_gradients(model, ["x"])
    registry.gradient("Mul", constant=[1])(lambda b, node, g: [b.op("Mul", g, node.inputs[1]), None])
    with pytest.raises(AmpError, match="AMP211.*does not depend on 'w'"):
        with_gradients(model, ["x", "w"])


# -- products ---------------------------------------------------------------------------------------------------------

PRODUCTS = [
    ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (2, 4, 5)),
    ((1, 3, 4), (2, 4, 5)), ((3, 4), (2, 4, 5)), ((2, 3, 4), (1, 4, 5)), ((2, 3, 2, 4), (1, 3, 4, 2)), ((4,), (4,)),
    ((4,), (4, 5)), ((4,), (2, 4, 5)), ((4,), (3, 2, 4, 5)), ((3, 4), (4,)), ((2, 3, 4), (4,)), ((1, 1, 1), (1, 1)),
    ((2, 1, 1), (1, 1, 1)),
]  # fmt: skip


@pytest.mark.share(2)
@pytest.mark.parametrize("names", [None, ("PBMK", "PBKN"), ("PBMK", "QCLN")], ids=["static", "symbols", "unknown"])
@pytest.mark.parametrize("shapes", PRODUCTS, ids=str)
def test_matmul(shapes, names):
    """Symbols: the batch of two operands is the same."""
    arrays = {name: normal(*shape, seed=n) for n, (name, shape) in enumerate(zip("xw", shapes, strict=True))}
    rows = zip("xw", shapes, names or (), strict=False)
    dims = {name: letters(shape, known) for name, shape, known in rows if len(shape) > 1}
    check("y = MatMul (x, w)", arrays, torch.matmul, dims)


def test_a_weight_has_one_gemm_and_no_transposed_copy():
    model = network("y = MatMul (x, w)", {"x": normal(2, 3, 4), "w": normal(4, 5)}, "B,S,4", 3)
    kinds = [node.op_type for node in with_gradients(model, ["x", "w"]).graph.node]
    assert kinds.count("Gemm") == 2 and "Transpose" not in kinds


@pytest.mark.share(2)
@pytest.mark.parametrize("flips", [(0, 0), (0, 1), (1, 0), (1, 1)], ids=str)
@pytest.mark.parametrize("bias", [None, (), (1,), (5,), (1, 5), (3, 1), (1, 1), (3, 5)], ids=str)
@pytest.mark.parametrize("factors", [(1.0, 1.0), (0.5, -2.0)], ids=str)
def test_gemm(flips, bias, factors):
    pair = zip((normal(3, 4), normal(4, 5, seed=1)), flips, strict=True)
    x, w = (value.T.copy() if flip else value for value, flip in pair)
    arrays = {"x": x, "w": w} | ({} if bias is None else {"c": normal(*bias, seed=2)})
    alpha, beta = factors
    options = f"transA = {flips[0]}, transB = {flips[1]}, alpha = {alpha}, beta = {beta}"

    def function(x, w, c=0):
        return alpha * (x.T if flips[0] else x) @ (w.T if flips[1] else w) + beta * c

    check(f"y = Gemm <{options}> ({', '.join(arrays)})", arrays, function)


def test_gemm_with_a_dynamic_batch():
    arrays = {"x": normal(3, 4), "w": normal(5, 4, seed=1), "c": normal(5, seed=2)}
    check("y = Gemm <transB = 1> (x, w, c)", arrays, F.linear, "B,4")


EQUATIONS = {
    "ab,bc->ac": ((2, 3), (3, 4)),
    "ab,bc": ((2, 3), (3, 4)),
    "bhqd,bhkd->bhqk": ((2, 2, 3, 4), (2, 2, 5, 4)),
    "bqhd,bkhd->bhqk": ((2, 3, 2, 4), (2, 5, 2, 4)),
    "bhqk,bkhd->bqhd": ((2, 2, 3, 5), (2, 5, 2, 4)),
    "bsd,d->bs": ((2, 3, 4), (4,)),
    "i,j->ij": ((3,), (4,)),
    "i,i->": ((3,), (3,)),
    "abc,cd->ad": ((2, 3, 4), (4, 5)),
    "ab,cd->bd": ((2, 3), (4, 5)),
    "ab,ab->ab": ((2, 3), (2, 3)),
    "...ij,...jk->...ik": ((2, 3, 4), (2, 4, 5)),
    "...ij,jk->...ik": ((2, 2, 3, 4), (4, 5)),
    "...ij,...jk->i...k": ((2, 1, 3, 4), (1, 3, 4, 5)),
    "...ij,...jk": ((2, 3, 4), (2, 4, 5)),
    "ij->ji": ((2, 3),),
    "abc->b": ((2, 3, 4),),
    "ab,bc,cd->ad": ((2, 3), (3, 4), (4, 5)),
}
REPEATED = {  # 1 in one operand, repeated by the other, also where it is summed
    "ab,ab->ab": ((4, 3), (1, 3)),
    "ab,bc->ac": ((2, 1), (4, 3)),
    "ab,ab,b->a": ((2, 1), (1, 3), (3,)),
    "ab,bc->c": ((2, 4), (1, 3)),
}
EINSUMS = [(*row, known) for row in EQUATIONS.items() for known in ("all", "rank")]
EINSUMS += [(*row, known) for row in REPEATED.items() for known in ("all", "ones", "rank")]


@pytest.mark.parametrize(("equation", "shapes", "known"), EINSUMS, ids=str)
def test_einsum(equation, shapes, known):
    def dim(n, axis, size):
        return str(size) if known == "all" or (known == "ones" and size == 1) else f"{'ABCDEF'[axis]}{n}"

    arrays = {f"x{n}": normal(*shape, seed=n) for n, shape in enumerate(shapes)}
    dims = {f"x{n}": ",".join(dim(n, *size) for size in enumerate(shape)) for n, shape in enumerate(shapes)}
    body = f'y = Einsum <equation = "{equation}"> ({", ".join(arrays)})'
    check(body, arrays, lambda *tensors: torch.einsum(equation, *tensors), dims)


@pytest.mark.parametrize(
    ("equation", "shape", "told"), [("ii->i", (3, 3), "diagonal"), ("...i->i", (2, 3), "ellipsis")]
)
def test_einsum_that_is_refused(equation, shape, told):
    refused(f"AMP210.*{told}", f'y = Einsum <equation = "{equation}"> (x)', {"x": normal(*shape)}, rank=1)
