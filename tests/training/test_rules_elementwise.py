"""Elementwise rules, each against torch and by numerical differences."""

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch.nn import functional as F

from ampgraph.core.errors import AmpError
from ampgraph.training.gradients import registry
from ampgraph.training.gradients.driver import differentiate
from training.gradients import check, gradients, model_of, normal, with_gradients

UNARY = {
    "Identity": lambda x: x,
    "Neg": lambda x: -x,
    "Abs": torch.abs,
    "Exp": torch.exp,
    "Sin": torch.sin,
    "Cos": torch.cos,
    "Atan": torch.atan,
    "Tanh": torch.tanh,
    "Sigmoid": torch.sigmoid,
    "Erf": torch.erf,
    "Relu": torch.relu,
    "LeakyRelu <alpha = 0.3>": lambda x: F.leaky_relu(x, 0.3),
    "Elu <alpha = 0.7>": lambda x: F.elu(x, 0.7),
    "HardSigmoid <alpha = 0.16666667, beta = 0.5>": F.hardsigmoid,
    "HardSwish": F.hardswish,
    "Softplus": F.softplus,
    "Mish": F.mish,
    "Sinh": torch.sinh,
    "Cosh": torch.cosh,
    "Asinh": torch.asinh,
    "Softsign": F.softsign,
    "Selu": F.selu,
    "Celu <alpha = 0.7>": lambda x: F.celu(x, 0.7),
    "ThresholdedRelu <alpha = 0.4>": lambda x: F.threshold(x, 0.4, 0.0),
    'Gelu <approximate = "none">': F.gelu,
    'Gelu <approximate = "tanh">': lambda x: F.gelu(x, approximate="tanh"),
}
WITHIN_ONE = {"Tan": torch.tan, "Asin": torch.asin, "Acos": torch.acos, "Atanh": torch.atanh}
POSITIVE = {"Sqrt": torch.sqrt, "Log": torch.log, "Reciprocal": torch.reciprocal}
BINARY = {"Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": torch.div, "Pow": torch.pow}
SHAPES = [((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (4,)), ((2, 3, 4), (3, 1)), ((3, 1), (2, 1, 4)), ((2, 3), ())]


def text(operator: str) -> str:
    name, _, attributes = operator.partition(" ")
    return f"g (float[2,3,4] x) => (float[2,3,4] y) {{ y = {name} {attributes} (x) }}"


def declared(shape: tuple[int, ...], dynamic: bool) -> str:
    names = ["A", "B", "C"][-len(shape) :] if shape else []
    return ",".join(name if dynamic and size != 1 else str(size) for name, size in zip(names, shape, strict=True))


@pytest.mark.parametrize("operator", UNARY)
def test_one_operand(operator):
    check(text(operator), {"x": 2 * normal(2, 3, 4)}, UNARY[operator])


@pytest.mark.parametrize("operator", WITHIN_ONE)
def test_one_operand_within_one(operator):
    check(text(operator), {"x": np.tanh(normal(2, 3, 4))}, WITHIN_ONE[operator])


def test_acosh():
    check(text("Acosh"), {"x": normal(2, 3, 4, low=1.2)}, torch.acosh)


@pytest.mark.parametrize("operator", POSITIVE)
def test_one_positive_operand(operator):
    check(text(operator), {"x": normal(2, 3, 4, low=0.3)}, POSITIVE[operator])


@pytest.mark.share(2)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("operator", BINARY)
def test_two_operands_are_broadcast(operator, shapes, dynamic):
    one, two = (normal(*shape, seed=n, low=0.4) for n, shape in enumerate(shapes))
    one_dims, two_dims = (declared(shape, dynamic) for shape in shapes)
    rank = max(map(len, shapes))
    result = ",".join(["R", "S", "T"][:rank])
    check(
        f"g (float[{one_dims}] x, float[{two_dims}] y) => (float[{result}] z) {{ z = {operator} (x, y) }}",
        {"x": one, "y": two},
        BINARY[operator],
    )


def test_shapes_that_only_a_run_shows():
    """Nothing is known but the rank: the axes of the sum are found at run time."""
    check(
        "g (float[A,B] x, float[C,D] y) => (float[E,F] z) { z = Mul (x, y) }",
        {"x": normal(3, 1), "y": normal(1, 4, seed=1)},
        torch.mul,
    )


@pytest.mark.parametrize("exponent", [2.0, 3.0, 0.5, -1.0])
def test_a_constant_exponent(exponent):
    check(
        f"g (float[2,5] x) => (float[2,5] y) <float e = {{{exponent}}}> {{ y = Pow (x, e) }}",
        {"x": normal(2, 5, low=0.4)},
        lambda x: x**exponent,
    )


def test_an_exponent_that_is_trained_is_no_constant():
    """GeM pooling: the exponent is an initializer, and is read twice."""
    text = (
        "g (float[4,6] x) => (float[] y) <float[1] p = {2.0}, int64[1] a = {1}> { z = Pow (x, p) "
        "m = ReduceMean <keepdims = 0> (z, a) r = Reciprocal (p) s = Pow (m, r) y = ReduceSum <keepdims = 0> (s) }"
    )
    model = ir.from_proto(model_of(text))
    graph, x, p = model.graph, normal(4, 6, low=0.3), torch.full((1,), 2.0, requires_grad=True)
    [found] = differentiate(graph, graph.outputs[0], [graph.initializers["p"]])
    graph.outputs.append(found)
    [_, ours] = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString()).run(None, {"x": x})
    (torch.tensor(x).pow(p).mean(1)).pow(1 / p).sum().backward()
    np.testing.assert_allclose(ours, p.grad.numpy(), rtol=1e-5)


def test_selections():
    x, y, c = normal(3, 4), normal(4, seed=1), normal(3, 1, seed=2) > 0
    check(
        "g (bool[3,1] c, float[3,4] x, float[4] y) => (float[3,4] z) { z = Where (c, x, y) }",
        {"c": c, "x": x, "y": y},
        torch.where,
    )
    for name, function in {"Max": torch.maximum, "Min": torch.minimum}.items():
        check(f"g (float[3,4] x, float[4] y) => (float[3,4] z) {{ z = {name} (x, y) }}", {"x": x, "y": y}, function)
    check(
        "g (float[3,4] x) => (float[3,4] y) <float l = {-0.5}, float h = {0.7}> { y = Clip (x, l, h) }",
        {"x": x},
        lambda x: x.clamp(-0.5, 0.7),
    )
    check(
        "g (float[2,3,4] x, float[3,1] s) => (float[2,3,4] y) { y = PRelu (x, s) }",
        {"x": normal(2, 3, 4), "s": normal(3, 1, seed=5)},
        lambda x, s: F.prelu(x, s.reshape(3)),
    )


def test_equal_values_share_the_gradient():
    ones = np.ones((2, 2), np.float32)
    check(
        "g (float[2,2] x, float[2,2] y) => (float[2,2] z) { z = Max (x, y) }",
        {"x": ones, "y": ones},
        torch.maximum,
        differences=False,
    )


def test_sums_and_means_of_many():
    arrays = {"x": normal(2, 3), "y": normal(3, seed=1), "z": normal(2, 1, seed=2)}
    head = "g (float[2,3] x, float[3] y, float[2,1] z) => (float[2,3] s)"
    check(f"{head} {{ s = Sum (x, y, z) }}", arrays, lambda x, y, z: x + y + z)
    check(f"{head} {{ s = Mean (x, y, z) }}", arrays, lambda x, y, z: (x + y + z) / 3)


def test_a_value_that_is_read_several_times():
    check(
        "g (float[2,3] x) => (float[2,3] y) { a = Mul (x, x)  c = Tanh (a)  d = Add (c, x)  y = Mul (d, a) }",
        {"x": normal(2, 3)},
        lambda x: (torch.tanh(x * x) + x) * (x * x),
    )


def test_what_does_not_overflow_forward_gives_no_nan_backward():
    """Branches are selected, not multiplied by 0; large arguments of tanh-GELU stay numbers."""
    x = np.array([-3e4, -300.0, 0.0, 300.0, 3e4], np.float32)
    for operator in ("Relu", "HardSwish", 'Gelu <approximate = "tanh">', "Softplus", "Sigmoid", "Tanh"):
        name, _, attributes = operator.partition(" ")
        check(
            f"g (float[5] x) => (float[5] y) {{ y = {name} {attributes} (x) }}",
            {"x": x},
            UNARY[operator],
            differences=False,
        )


@pytest.mark.parametrize("how", ["input", "constant"])
def test_a_power_of_0_has_no_slope(how):
    """Not even at 0, where x^-1 is inf."""
    x, e = np.array([0, 1, 2, 0, 0], np.float32), np.array([0, 0, 0, 1, 2], np.float32)
    if how == "input":
        text = "g (float[5] x, float[5] e) => (float[5] y) { y = Pow (x, e) }"
        check(text, {"x": x, "e": e}, torch.pow, wanted=["x"], differences=False)
    text = "g (float[5] x) => (float[5] y) <float e = {0}> { y = Pow (x, e) }"
    check(text, {"x": x}, lambda x: x**0, differences=False)


def test_the_slope_at_0_is_torchs():
    x = np.array([-1, 0, 1], np.float32)
    text = "g (float[3] x, float[1] s) => (float[3] y) { y = PRelu (x, s) }"
    check(text, {"x": x, "s": np.array([0.3], np.float32)}, F.prelu, differences=False)
    text = "g (float[3] x) => (float[3] y) { y = Elu <alpha = 0.5> (x) }"
    check(text, {"x": x}, lambda x: F.elu(x, 0.5), differences=False)


def test_tanh_gelu_far_out():
    x = np.array([-1e30, -200, 200, 1e30], np.float32)
    text = 'g (float[4] x) => (float[4] y) { y = Gelu <approximate = "tanh"> (x) }'
    found = gradients(model_of(text), {"x": x}, ["x"], np.ones(4, np.float32))["x"]
    assert found.tolist() == [0, 0, 1, 1]


def clamped(x, low, high):
    """torch.clamp; it takes no shapes of bounds that ONNX allows."""
    return torch.minimum(torch.maximum(x, low), high)


@pytest.mark.parametrize(("low", "high"), [(-0.5, 0.3), (0.5, -0.2)])
def test_bounds_have_gradients(low, high):
    bounds = {"l": np.array(low, np.float32), "h": np.array(high, np.float32)}
    x = normal(3, 4)
    head = "g (float[3,4] x, float[] l, float[] h) => (float[3,4] y)"
    check(f"{head} {{ y = Clip (x, l, h) }}", {"x": x, **bounds}, clamped)
    head = "g (float[N,4] x, float[] h) => (float[N,4] y)"
    check(f"{head} {{ y = Clip (x, , h) }}", {"x": x, "h": bounds["h"]}, torch.minimum)
    head = "g (float[N,4] x, float[] l) => (float[N,4] y)"
    check(f"{head} {{ y = Clip (x, l) }}", {"x": x, "l": bounds["l"]}, torch.maximum)


@pytest.mark.parametrize(("axis", "shape"), [(-1, "N,3"), (0, "3,N")])
def test_the_values_of_one_hot_have_gradients(axis, shape):
    def function(i, v):
        hot = F.one_hot(i, 3).double()
        return v[0] + (v[1] - v[0]) * (hot if axis == -1 else hot.T)

    text = (
        f"g (int64[N] i, float[2] v) => (float[{shape}] y) <int64 d = {{3}}> {{ y = OneHot <axis = {axis}> (i, d, v) }}"
    )
    check(text, {"i": np.array([0, 2, 2, 1]), "v": normal(2)}, function)


def test_a_range_has_gradients():
    text = "g (float[] s, float[] e, float[] d) => (float[N] y) { y = Range (s, e, d) }"
    given = {name: np.array(number, np.float32) for name, number in (("s", 0.5), ("e", 3.2), ("d", 0.7))}
    check(text, given, lambda s, e, d: s + d * torch.arange(4), wanted=["s", "d"])


def test_an_input_without_a_gradient_is_told(monkeypatch):
    """A trained value that reaches it would be trained wrongly; what changes a result in steps has a gradient of 0."""
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    registry.gradient("Mul")(lambda b, node, g: [b.op("Mul", g, node.inputs[1]), None])
    text = "g (float[3] x, float[3] w) => (float[3] y) { y = Mul (x, w) }"
    with pytest.raises(AmpError, match="AMP210.*the node that writes 'y': no gradient for input 1 of Mul, 'w'"):
        with_gradients(model_of(text), ["x", "w"])
    with_gradients(model_of(text), ["x"])
    registry.gradient("Mul", constant=[1])(lambda b, node, g: [b.op("Mul", g, node.inputs[1]), None])
    with pytest.raises(AmpError, match="AMP211.*does not depend on 'w'"):
        with_gradients(model_of(text), ["x", "w"])
