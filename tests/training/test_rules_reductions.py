"""Reductions, softmax, running sums and TopK, each against torch and by numerical differences."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
import torch

from ampgraph.core.dataflow import HELD
from ampgraph.training.gradients.driver import differentiate
from training.gradients import check, gradients, network, normal

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
X = normal(3, 4, 2, low=0.3)
SIGNED = X * np.sign(normal(3, 4, 2))


def product(x, dim, keepdim):
    for axis in dim:
        x = x.prod(axis, keepdim=True)
    return x if keepdim else x.squeeze(dim)


def reduced(kind, axes, keep):
    return lambda x, *_: REDUCTIONS[kind](x, dim=tuple(axes or (0, 1, 2)), keepdim=bool(keep))


def operand(kind):
    return {"x": X if kind in ("ReduceLogSum", "ReduceProd") else SIGNED}


@pytest.mark.share(4)
@pytest.mark.parametrize("dims", ["3,4,2", "A,B,C", "A,4,C"])
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", [(1,), (-1,), (0, -1), (2, 0), (0, 1, 2), None], ids=str)
@pytest.mark.parametrize("kind", REDUCTIONS)
def test_axes_as_an_input(kind, axes, keep, dims):
    stored = {} if axes is None else {"a": np.array(axes)}
    check(
        f"y = {kind} <keepdims = {keep}> (x{', a' * bool(axes)})",
        operand(kind),
        reduced(kind, axes, keep),
        dims,
        stored,
    )


@pytest.mark.parametrize("axes", [(1,), (0, -1), None], ids=str)
@pytest.mark.parametrize("kind", sorted(set(REDUCTIONS) - {"ReduceSum"}))
def test_axes_as_an_attribute(kind, axes):
    """The form before opset 18."""
    given = "keepdims = 0" + ("" if axes is None else f", axes = {list(axes)}")
    check(f"y = {kind} <{given}> (x)", {"x": X}, reduced(kind, axes, 0), "A,4,C", opset=17)


@pytest.mark.share(2)
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", [[1], [-1, 0], []], ids=str)
@pytest.mark.parametrize("kind", REDUCTIONS)
def test_axes_that_only_a_run_shows(kind, axes, keep):
    """Without axes everything is reduced."""
    given = operand(kind) | {"a": np.array(axes, np.int64)}
    check(f"y = {kind} <keepdims = {keep}> (x, a)", given, reduced(kind, axes, keep), {"x": "A,B,C", "a": "N"})


@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("axes", ["", ", a"])
def test_no_axes_and_nothing_to_do(kind, axes):
    body = f"y = {kind} <keepdims = 1, noop_with_empty_axes = 1> (x{axes})"
    check(body, {"x": X}, None, "A,B,C", {"a": np.zeros(0, np.int64)})


TIES, ZEROS = np.array([[1, 3, 3], [2, 2, 2]], np.float32), np.array([[2, 0, 3], [0, 0, 5], [1, 2, 3]], np.float32)
MASKED = np.array([[0, -np.inf, 1], [3e4, -3e4, 2.9999e4]], np.float32)
EDGES = {
    "equal extremes share the gradient": ("ReduceMax <keepdims = 0> (x, a)", TIES, lambda x: x.amax(1)),
    "products with zeros": ("ReduceProd <keepdims = 0> (x, a)", ZEROS, lambda x: x.prod(1)),
    "softmax of masked and of large values": ("Softmax (x)", MASKED, lambda x: x.softmax(-1)),
}


@pytest.mark.parametrize("name", EDGES)
def test_edges(name):
    body, x, function = EDGES[name]
    check(f"y = {body}", {"x": x}, function, stored={"a": np.array([1])}, differences="zeros" in name)


def test_a_norm_of_zero_has_the_gradient_zero():
    x = np.array([[0, 0, 0], [1, 2, 3]], np.float32)
    model = network("y = ReduceL2 <keepdims = 0> (x, a)", {"x": x}, rank=1, stored={"a": np.array([1])})
    found = gradients(model, {"x": x}, ["x"], np.ones(2, np.float32))["x"]
    np.testing.assert_allclose(found, [[0, 0, 0], x[1] / np.sqrt(14)], rtol=1e-6)


@pytest.mark.parametrize("operator", ["LogSoftmax", "ReduceMean", "ReduceL2", "ReduceProd", "ReduceLogSumExp"])
def test_sums_squares_and_products_compute_in_float32_at_every_level(operator):
    graph = ir.from_proto(network(f"y = {operator} (x)", {"x": normal(2, 3)}, "A,B")).graph
    [result], [x] = graph.outputs, graph.inputs
    graph.inputs.append(seed := ir.Value(name="seed", type=result.type, shape=result.shape))
    differentiate(graph, result, [x], seed)
    made = [node for node in graph if node.name and node.name.startswith("grad/")]
    arithmetic = [node for node in made if node.op_type in ("Mul", "Div", "Sub", "Exp", "ReduceSum", "ReduceProd")]
    assert arithmetic and all(HELD in node.meta for node in arithmetic)


@pytest.mark.parametrize("dims", ["3,4,2", "A,B,C"])
@pytest.mark.parametrize("axis", [0, 1, -1, -2])
@pytest.mark.parametrize(("kind", "function"), [("Softmax", torch.softmax), ("LogSoftmax", torch.log_softmax)])
def test_softmax(kind, function, axis, dims):
    check(f"y = {kind} <axis = {axis}> (x)", {"x": 3 * normal(3, 4, 2)}, lambda x: function(x, axis), dims)


@pytest.mark.parametrize("axis", [0, -1, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_running_sums(axis, exclusive, reverse):
    def function(x):
        turned = x.flip(axis) if reverse else x
        found = turned.cumsum(axis) - (turned if exclusive else 0)
        return found.flip(axis) if reverse else found

    body = f"y = CumSum <exclusive = {exclusive}, reverse = {reverse}> (x, a)"
    check(body, {"x": normal(3, 4, 2)}, function, "A,4,C", {"a": np.array(axis)})


@pytest.mark.parametrize("dims", ["3,4,5", "A,B,C"])
@pytest.mark.parametrize("axis", [-1, 1, 0])
@pytest.mark.parametrize("largest", [0, 1])
def test_top_k(dims, axis, largest):
    body = f"y, i = TopK <axis = {axis}, largest = {largest}> (x, k)"
    check(body, {"x": normal(3, 4, 5)}, lambda x: x.topk(2, axis, bool(largest)).values, dims, {"k": np.array([2])})
