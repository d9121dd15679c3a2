"""Reductions, softmax, running sums and TopK, each against torch and by numerical differences."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
import torch

from ampgraph.core.dataflow import HELD
from ampgraph.training.gradients.driver import differentiate
from training.gradients import check, gradients, model_of, normal

pytestmark = pytest.mark.slow  # a grid: many small cases

REDUCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "ReduceSum": torch.sum,
    "ReduceMean": torch.mean,
    "ReduceMax": torch.amax,
    "ReduceMin": torch.amin,
    "ReduceL1": lambda x, dim, keepdim: x.abs().sum(dim, keepdim=keepdim),
    "ReduceL2": lambda x, dim, keepdim: torch.linalg.vector_norm(x, dim=dim, keepdim=keepdim),
    "ReduceSumSquare": lambda x, dim, keepdim: (x * x).sum(dim, keepdim=keepdim),
    "ReduceLogSumExp": torch.logsumexp,
    "ReduceLogSum": lambda x, dim, keepdim: x.sum(dim, keepdim=keepdim).log(),
    "ReduceProd": lambda x, dim, keepdim: product(x, dim, keepdim),
}
AXES = [(1,), (-1,), (0, -1), (2, 0), (0, 1, 2), None]
X = normal(3, 4, 2, low=0.3)


def product(x, dim, keepdim):
    for axis in dim:
        x = x.prod(axis, keepdim=True)
    return x if keepdim else x.squeeze(dim)


def result_dims(axes, keep):
    axes = (0, 1, 2) if axes is None else axes
    return ",".join("RST"[: 3 if keep else 3 - len(axes)])


@pytest.mark.share(4)
@pytest.mark.parametrize("dims", ["3,4,2", "A,B,C", "A,4,C"])
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("kind", REDUCTIONS)
def test_axes_as_an_input(kind, axes, keep, dims):
    given = "" if axes is None else f"<int64[{len(axes)}] a = {{{','.join(map(str, axes))}}}>"
    second = "" if axes is None else ", a"
    x = X if kind in ("ReduceLogSum", "ReduceProd") else X * np.sign(normal(3, 4, 2))
    check(
        f"g (float[{dims}] x) => (float[{result_dims(axes, keep)}] y) {given} "
        f"{{ y = {kind} <keepdims = {keep}> (x{second}) }}",
        {"x": x},
        lambda x: REDUCTIONS[kind](x, dim=(0, 1, 2) if axes is None else axes, keepdim=bool(keep)),
    )


@pytest.mark.parametrize("axes", [(1,), (0, -1), None], ids=str)
@pytest.mark.parametrize("kind", sorted(set(REDUCTIONS) - {"ReduceSum"}))
def test_axes_as_an_attribute(kind, axes):
    """The form before opset 18."""
    given = "keepdims = 0" + ("" if axes is None else f", axes = [{','.join(map(str, axes))}]")
    check(
        f"g (float[A,4,C] x) => (float[{result_dims(axes, 0)}] y) {{ y = {kind} <{given}> (x) }}",
        {"x": X},
        lambda x: REDUCTIONS[kind](x, dim=(0, 1, 2) if axes is None else axes, keepdim=False),
        opset=17,
    )


@pytest.mark.share(2)
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", [[1], [-1, 0], []], ids=str)
@pytest.mark.parametrize("kind", REDUCTIONS)
def test_axes_that_only_a_run_shows(kind, axes, keep):
    """Without axes everything is reduced."""
    x = X if kind in ("ReduceLogSum", "ReduceProd") else X * np.sign(normal(3, 4, 2))
    every = axes or [0, 1, 2]
    result = ",".join("RST"[: 3 if keep else 3 - len(every)])
    check(
        f"g (float[A,B,C] x, int64[N] a) => (float[{result}] y) {{ y = {kind} <keepdims = {keep}> (x, a) }}",
        {"x": x, "a": np.array(axes, np.int64)},
        lambda x, a: REDUCTIONS[kind](x, dim=tuple(every), keepdim=bool(keep)),
    )


@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("axes", ["", ", a"])
def test_no_axes_and_nothing_to_do(kind, axes):
    check(
        f"g (float[A,B,C] x) => (float[A,B,C] y) <int64[0] a = {{}}> "
        f"{{ y = {kind} <keepdims = 1, noop_with_empty_axes = 1> (x{axes}) }}",
        {"x": X},
        None,
    )


def test_equal_extremes_share_the_gradient():
    x = np.array([[1, 3, 3], [2, 2, 2]], np.float32)
    text = "g (float[2,3] x) => (float[2] y) <int64[1] a = {1}> { y = ReduceMax <keepdims = 0> (x, a) }"
    check(text, {"x": x}, lambda x: x.amax(1), differences=False)


def test_products_with_zeros():
    x = np.array([[2, 0, 3], [0, 0, 5], [1, 2, 3]], np.float32)
    text = "g (float[3,3] x) => (float[3] y) <int64[1] a = {1}> { y = ReduceProd <keepdims = 0> (x, a) }"
    check(text, {"x": x}, lambda x: x.prod(1))


def test_a_norm_of_zero_has_the_gradient_zero():
    text = "g (float[2,3] x) => (float[2] y) <int64[1] a = {1}> { y = ReduceL2 <keepdims = 0> (x, a) }"
    x = np.array([[0, 0, 0], [1, 2, 3]], np.float32)
    found = gradients(model_of(text), {"x": x}, ["x"], np.ones(2, np.float32))["x"]
    np.testing.assert_allclose(found, [[0, 0, 0], x[1] / np.sqrt(14)], rtol=1e-6)


@pytest.mark.parametrize(
    "operator",
    ["LogSoftmax (x)", "ReduceMean (x)", "ReduceL2 (x)", "ReduceProd (x)", "ReduceLogSumExp (x)"],
)
def test_sums_squares_and_products_compute_in_float32_at_every_level(operator):
    graph = ir.from_proto(model_of(f"g (float[A,B] x) => (float[R,S] y) {{ y = {operator} }}")).graph
    [result], [x] = graph.outputs, graph.inputs
    graph.inputs.append(seed := ir.Value(name="seed", type=result.type, shape=result.shape))
    differentiate(graph, result, [x], seed)
    made = [node for node in graph if node.name and node.name.startswith("grad/")]
    arithmetic = [node for node in made if node.op_type in ("Mul", "Div", "Sub", "Exp", "ReduceSum", "ReduceProd")]
    assert arithmetic and all(HELD in node.meta for node in arithmetic)


@pytest.mark.parametrize("dims", ["3,4,2", "A,B,C"])
@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_softmax(axis, dims):
    for kind, function in {"Softmax": torch.softmax, "LogSoftmax": torch.log_softmax}.items():
        check(
            f"g (float[{dims}] x) => (float[{dims}] y) {{ y = {kind} <axis = {axis}> (x) }}",
            {"x": 3 * normal(3, 4, 2)},
            lambda x, function=function: function(x, axis),
        )


def test_softmax_of_masked_and_of_large_values():
    x = np.array([[0, -np.inf, 1], [3e4, -3e4, 2.9999e4]], np.float32)
    check(
        "g (float[2,3] x) => (float[2,3] y) { y = Softmax (x) }", {"x": x}, lambda x: x.softmax(-1), differences=False
    )


@pytest.mark.parametrize("axis", [0, -1, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_running_sums(axis, exclusive, reverse):
    def function(x):
        turned = x.flip(axis) if reverse else x
        found = turned.cumsum(axis) - (turned if exclusive else 0)
        return found.flip(axis) if reverse else found

    check(
        f"g (float[A,4,C] x) => (float[A,4,C] y) <int64 a = {{{axis}}}> "
        f"{{ y = CumSum <exclusive = {exclusive}, reverse = {reverse}> (x, a) }}",
        {"x": normal(3, 4, 2)},
        function,
    )


@pytest.mark.parametrize("dims", ["3,4,5", "A,B,C"])
@pytest.mark.parametrize("axis", [-1, 1, 0])
@pytest.mark.parametrize("largest", [0, 1])
def test_top_k(dims, axis, largest):
    check(
        f"g (float[{dims}] x) => (float[R,S,T] v, int64[R,S,T] i) <int64[1] k = {{2}}> "
        f"{{ v, i = TopK <axis = {axis}, largest = {largest}> (x, k) }}",
        {"x": normal(3, 4, 5)},
        lambda x: x.topk(2, axis, bool(largest)).values,
    )
