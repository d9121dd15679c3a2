"""Nodes that round as kernels do, run by ONNX Runtime, beside the same steps in numpy's float16.

`tests/webgpu` compares them with the kernels themselves, where a browser's runtime is set up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ampgraph.core.arrays import Array
from ampgraph.core.dataflow import Op, Shape
from ampgraph.core.names import FreshNames
from ampgraph.core.runnable import Sums
from ampgraph.formats.onnx.accumulators import EXACT, computed_again
from ampgraph.formats.onnx.types import DTYPES
from formats.onnx.helpers import run_plain

HALF = np.float16


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    """Float16 numbers, as float32."""
    drawn: Array = np.random.default_rng(seed).normal(0, scale, shape)
    return drawn.astype(HALF).astype(np.float32)


def run_again(
    kind: str,
    operands: Sequence[Array],
    attributes: dict[str, Any] | None = None,
    *,
    opset: int = 18,
    open_shape: bool = False,
    norm: Sequence[Array] = (),
    fused: bool = False,
    stepwise: bool = True,
) -> Any:
    """What an operator makes that is computed again, rounded to float16; None where it is not modelled.

    ``open_shape``: no size of the first operand is known before the run; ``norm``: operands of a BatchNormalization
    behind the operator, which is taken into it."""
    names = [f"i{number}" for number in range(len(operands) + len(norm))]
    own = names[: len(operands)]
    nodes = [onnx.helper.make_node(kind, own, ["y"], **(attributes or {}))]
    if norm:
        nodes.append(onnx.helper.make_node("BatchNormalization", ["y", *names[len(own) :]], ["z"]))
    last = nodes[-1].output[0]
    feeds = dict(zip(names, [*operands, *norm], strict=True))
    infos = [onnx.helper.make_tensor_value_info(name, 1, array.shape) for name, array in feeds.items()]
    graph = onnx.helper.make_graph(nodes, "g", infos, [onnx.helper.make_tensor_value_info(last, 1, None)])
    opsets = [onnx.helper.make_opsetid("", opset)]
    model = ir.from_proto(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8))
    natives = list(model.graph)
    shapes: list[Shape | None] = [array.shape for array in operands]
    if open_shape:
        shapes[0] = (None,) * operands[0].ndim
    made = [
        Sums(Op(0, node.op_type, 0, 0, "", [], [], {}, node, node.op_type), tuple(shapes), fused, stepwise)
        for node in natives
    ]
    sums = made[0] if not norm else Sums(made[1].op, tuple(shapes), fused, stepwise, folded=made[0])
    to = {name: ir.AttrInt64("to", DTYPES[name].value) for name in ("float32", "float16")}
    added, found = computed_again(sums, "float16", opset, to, FreshNames())
    if not added:
        assert found is natives[-1].outputs[0]
        return None
    assert found.meta[EXACT] is natives[-1].outputs[0]
    model.graph.extend(added)
    found.type = ir.TensorType(ir.DataType.FLOAT)
    model.graph.outputs[:] = [found]
    [result] = run_plain(ir.to_proto(model), feeds).values()
    return result.astype(HALF)


def added_up(terms: Array, start: Array | None = None) -> Array:
    """The sum over the first axis, one term after the other, each step rounded."""
    total = np.zeros(terms.shape[1:], HALF) if start is None else start.astype(HALF)
    for term in terms:
        total = total + term.astype(HALF)
    return total


def products(a: Array, b: Array) -> Array:
    """[depth, rows, columns]: what a kernel adds up of a @ b, each product rounded."""
    return np.stack([a.astype(HALF)[:, [k]] * b.astype(HALF)[[k]] for k in range(a.shape[1])])


def test_products_are_added_up_from_first_to_last() -> None:
    a, b, c = numbers(3, 30), numbers(30, 4, seed=1), numbers(4, seed=2)
    expected = added_up(products(a, b))
    np.testing.assert_array_equal(run_again("MatMul", [a, b]), expected)
    assert (expected != (a @ b).astype(HALF)).any()  # else rounding of steps shows nothing
    np.testing.assert_array_equal(run_again("MatMul", [a, b], opset=12), expected)
    scaled = expected * HALF(0.7) + c.astype(HALF) * HALF(0.3)
    np.testing.assert_array_equal(run_again("Gemm", [a, b, c], {"alpha": 0.7, "beta": 0.3}), scaled)
    np.testing.assert_array_equal(run_again("Gemm", [a.T.copy(), b], {"transA": 1}), expected)
    assert run_again("MatMul", [a, b], opset=8) is None  # a Scan of that opset takes sequence lengths


def test_a_gemm_across_adds_up_by_fours() -> None:
    a, b = numbers(3, 32), numbers(4, 32, seed=1)
    terms = products(a, b.T)
    fours = np.stack([added_up(terms[i + 1 : i + 4], terms[i]) for i in range(0, 32, 4)])
    np.testing.assert_array_equal(run_again("Gemm", [a, b], {"transB": 1}), added_up(fours))


def test_fused_products_are_not_rounded_and_begin_at_the_bias() -> None:
    a, b, c = numbers(3, 30), numbers(30, 4, seed=1), numbers(4, seed=2)
    total = np.broadcast_to(c, (3, 4)).astype(HALF)
    for k in range(30):
        total = (total.astype(np.float32) + a[:, [k]] * b[[k]]).astype(HALF)
    np.testing.assert_array_equal(run_again("Gemm", [a, b, c], fused=True), total)


def test_an_einsum_sums_over_its_letters_in_their_order() -> None:
    a, b = numbers(2, 5, 6), numbers(2, 4, 6, seed=1)
    terms = np.stack([a.astype(HALF)[:, :, None, k] * b.astype(HALF)[:, None, :, k] for k in range(6)])
    expected = added_up(terms).transpose(1, 0, 2)
    np.testing.assert_array_equal(run_again("Einsum", [a, b], {"equation": "zbd,zed->bze"}), expected)
    assert run_again("Einsum", [a, b], {"equation": "zbd,zed->bz"}) is None  # e is in one operand alone


def windows(x: Array, size: int) -> Array:
    """[places, batch, channels, rows, columns] of a picture, by a square kernel without padding."""
    out = x.shape[-1] - size + 1
    return np.stack([x[..., i : i + out, j : j + out] for i in range(size) for j in range(size)])


@pytest.mark.parametrize("group", [1, 2])
def test_a_conv_goes_through_places_then_channels(group: int) -> None:
    x, w, bias = numbers(2, 4, 5, 5), numbers(6, 4 // group, 3, 3, seed=1), numbers(6, seed=2)
    seen, weight = windows(x, 3).astype(HALF), w.astype(HALF).reshape(6, 4 // group, 9)
    inside, out = 4 // group, 6 // group
    expected = np.concatenate(
        [
            added_up(
                np.stack(
                    [
                        seen[place][:, [g * inside + c]] * weight[g * out : (g + 1) * out, c, place, None, None]
                        for place in range(9)
                        for c in range(inside)
                    ]
                )
            )
            for g in range(group)
        ],
        axis=1,
    )
    np.testing.assert_array_equal(run_again("Conv", [x, w], {"group": group}), expected)
    biased = expected + bias.astype(HALF)[:, None, None]
    np.testing.assert_array_equal(run_again("Conv", [x, w, bias], {"group": group}), biased)
    assert run_again("Conv", [x, w], {"group": group}, opset=8) is None


def test_convs_by_fours_are_near_the_exact_ones() -> None:
    """Of three dimensions, into one channel, transposed, with pads: each place is met once."""
    for kind, x, w, attributes in (
        ("Conv", numbers(1, 7, 4, 4, 4), numbers(3, 7, 2, 2, 2, seed=1), {}),
        ("ConvTranspose", numbers(1, 7, 4, 4), numbers(7, 1, 2, 2, seed=1), {"strides": [2, 2]}),
        ("ConvTranspose", numbers(2, 4, 4, 4), numbers(4, 3, 3, 3, seed=1), {"group": 2, "pads": [1, 1, 1, 1]}),
        ("Conv", numbers(2, 4, 6), numbers(3, 4, 3, seed=1), {"pads": [1, 1], "dilations": [2]}),
    ):
        found = run_again(kind, [x, w], attributes)
        graph = onnx.helper.make_graph(
            [onnx.helper.make_node(kind, ["x", "w"], ["y"], **attributes)],
            "g",
            [onnx.helper.make_tensor_value_info(name, 1, array.shape) for name, array in (("x", x), ("w", w))],
            [onnx.helper.make_tensor_value_info("y", 1, None)],
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8)
        exact = run_plain(model, {"x": x, "w": w})["y"]
        assert found.shape == exact.shape
        np.testing.assert_allclose(found.astype(np.float32), exact, atol=0.06)


def test_a_norm_is_taken_into_the_conv_in_front() -> None:
    x, w, bias = numbers(2, 3, 5, 5), numbers(4, 3, 1, 1, seed=1), numbers(4, seed=2)
    scale, shift, mean = (numbers(4, seed=seed).astype(HALF) for seed in (3, 4, 5))
    variance = abs(numbers(4, seed=6)).astype(HALF)
    factor = scale / np.sqrt((variance.astype(np.float32) + np.float32(1e-5)).astype(HALF))
    weight = w.astype(HALF)[:, :, 0, 0] * factor[:, None]
    terms = np.stack([x.astype(HALF)[:, [c]] * weight[:, c, None, None] for c in range(3)])
    norm = [part.astype(np.float32) for part in (scale, shift, mean, variance)]
    plain = added_up(terms) + (shift - mean * factor)[:, None, None]
    np.testing.assert_array_equal(run_again("Conv", [x, w], norm=norm), plain)
    biased = added_up(terms) + ((bias.astype(HALF) - mean) * factor + shift)[:, None, None]
    np.testing.assert_array_equal(run_again("Conv", [x, w, bias], norm=norm), biased)


def by_halves(lanes: Array) -> Array:
    """The last axis added up, the second half to the first, the middle of an odd number left for the next round."""
    while lanes.shape[-1] > 1:
        half, kept = lanes.shape[-1] // 2, lanes.shape[-1] - lanes.shape[-1] // 2
        lanes = np.concatenate([lanes[..., :half] + lanes[..., kept:], lanes[..., half:kept]], axis=-1)
    return lanes[..., 0]


def in_lanes(rows: Array, lanes: int) -> Array:
    """The sum of each row, in lanes, then by halves."""
    filled = np.pad(rows.astype(HALF), ((0, 0), (0, -rows.shape[1] % lanes)))
    sums = added_up(filled.reshape(len(rows), -1, lanes).transpose(1, 0, 2))
    return by_halves(sums[:, : min(rows.shape[1], lanes)])


@pytest.mark.parametrize("open_shape", [False, True])
def test_reductions_add_up_in_lanes(open_shape: bool) -> None:
    x = numbers(3, 150, scale=4)
    expected = in_lanes(x, 64)
    axes = {"axes": [1], "keepdims": 0}
    again: dict[str, Any] = {"opset": 17, "open_shape": open_shape}
    mean = (expected.astype(np.float32) / 150).astype(HALF)
    np.testing.assert_array_equal(run_again("ReduceMean", [x], axes, **again), mean)
    np.testing.assert_array_equal(run_again("ReduceL1", [x], axes, **again), in_lanes(abs(x), 64))
    squares = in_lanes(x.astype(HALF) * x.astype(HALF), 64)
    np.testing.assert_array_equal(run_again("ReduceSumSquare", [x], axes, **again), squares)
    np.testing.assert_array_equal(run_again("ReduceL2", [x], axes, **again), np.sqrt(squares))
    if not open_shape:  # a single result has more lanes
        of_all = (in_lanes(x.reshape(1, -1), 256)[0].astype(np.float32) / 450).astype(HALF)
        np.testing.assert_array_equal(run_again("ReduceMean", [x], {"keepdims": 0}, opset=17), of_all)


def test_where_steps_are_not_known_the_sum_is_rounded_once() -> None:
    big = np.full((2, 200), 500, np.float32)
    assert np.isinf(run_again("ReduceMean", [big], {"axes": [1]}, opset=17, stepwise=False)).all()
    assert np.isinf(run_again("ReduceMean", [big], {"axes": [1]}, opset=10, open_shape=True)).all()
    assert np.isinf(run_again("ReduceL2", [big], {"axes": [1]}, opset=17, stepwise=False)).all()
    assert run_again("ReduceSum", [big], {"axes": [1]}, opset=11, stepwise=False) is None  # its result shows it
    picture = np.full((1, 1, 20, 20), 500, np.float32)
    assert np.isinf(run_again("AveragePool", [picture], {"kernel_shape": [20, 20]}, stepwise=False)).all()
    small = numbers(2, 8)
    found = run_again("ReduceLogSumExp", [small], {"axes": [1], "keepdims": 0}, opset=17)
    np.testing.assert_allclose(found, np.log(np.exp(small).sum(1)), atol=2e-3)


@pytest.mark.parametrize("counted", [0, 1])
def test_pools_divide_by_what_they_count(counted: int) -> None:
    x = numbers(1, 2, 6, 6)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    total = added_up(windows(padded, 3))
    inside = np.pad(np.ones((6, 6), np.float32), 1)
    counts = np.full((6, 6), 9) if counted else windows(inside, 3).sum(0)
    attributes = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": counted}
    expected = (total.astype(np.float32) / counts).astype(HALF)
    np.testing.assert_array_equal(run_again("AveragePool", [x], attributes), expected)
    whole = (added_up(x.reshape(2, 36).T).astype(np.float32) / 36).astype(HALF)
    np.testing.assert_array_equal(np.ravel(run_again("GlobalAveragePool", [x])), whole)


@pytest.mark.parametrize(("length", "open_shape"), [(12, False), (6, False), (7, False), (12, True), (7, True)])
def test_softmax_reads_as_many_numbers_as_divide_the_row(length: int, open_shape: bool) -> None:
    x = numbers(2, length, scale=3)
    found = run_again("Softmax", [x], open_shape=open_shape)
    powers = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(found.astype(np.float32), powers / powers.sum(1, keepdims=True), atol=2e-3)
    if not open_shape:
        across = run_again("Softmax", [x.T.copy()], {"axis": 0})
        np.testing.assert_array_equal(across, found.T)
        assert run_again("Softmax", [x.T.copy()], {"axis": 0}, opset=12) is None  # over both axes there
    else:
        assert run_again("Softmax", [x], opset=10, open_shape=True) is None


def test_norms_round_moments_and_each_step() -> None:
    x, scale, bias = numbers(2, 6, 5), numbers(5, seed=1), numbers(5, seed=2)
    low, g, b = (part.astype(HALF) for part in (x, scale, bias))
    mean, square = x.mean(-1, keepdims=True), (x * x).mean(-1, keepdims=True)
    inverse = 1 / np.sqrt(square - mean * mean + np.float32(1e-5))
    expected = (low - mean.astype(HALF)) * inverse.astype(HALF) * g
    for operands, wanted in (([x, scale], expected), ([x, scale, bias], expected + b)):
        found = run_again("LayerNormalization", operands).astype(np.float32)
        np.testing.assert_allclose(found, wanted.astype(np.float32), atol=4e-3)
    picture, scales, shifts = numbers(2, 3, 4, 4), numbers(3, seed=3), numbers(3, seed=4)
    by_channel = (slice(None), None, None)
    means, deviations = picture.mean((2, 3), keepdims=True), picture.std((2, 3), keepdims=True)
    wanted = (picture - means) / deviations * scales[by_channel] + shifts[by_channel]
    found = run_again("InstanceNormalization", [picture, scales, shifts]).astype(np.float32)
    np.testing.assert_allclose(found, wanted, atol=1e-2)
    stored = [scales, shifts, shifts, abs(scales)]
    s, t, m, v = (part.astype(HALF)[by_channel] for part in stored)
    epsilon = HALF(np.nextafter(HALF(1e-5), HALF(0))) if HALF(1e-5) > 1e-5 else HALF(1e-5)
    exact = (picture.astype(HALF) - m) * (HALF(1) / np.sqrt(v + epsilon)) * s + t
    np.testing.assert_array_equal(run_again("BatchNormalization", [picture, *stored]), exact)


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "Erf": np.vectorize(math.erf),
    "Exp": np.exp,
    "HardSigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Tanh": np.tanh,
    "Gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / 2**0.5)) / 2,
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_formulas_are_near_their_functions(kind: str) -> None:
    x = numbers(200, scale=2)
    opset = 20 if kind == "Gelu" else 18
    for attributes in ({}, {"approximate": "tanh"}) if kind == "Gelu" else ({},):
        found = run_again(kind, [x], attributes, opset=opset)
        np.testing.assert_allclose(found.astype(np.float32), FUNCTIONS[kind](x), atol=6e-3, rtol=6e-3)
    assert run_again(kind, [x], opset=opset, stepwise=False) is None


def test_each_step_of_a_formula_is_rounded() -> None:
    x = numbers(200, scale=2)
    log2_e = HALF(1.4426950408889634)
    log2_e = np.nextafter(log2_e, HALF(0)) if log2_e > 1.4426950408889634 else log2_e
    power = np.exp2((-x.astype(HALF) * log2_e).astype(np.float32)).astype(HALF)
    np.testing.assert_array_equal(run_again("Sigmoid", [x]), HALF(1) / (HALF(1) + power))
