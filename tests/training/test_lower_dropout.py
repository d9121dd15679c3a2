"""Dropout from a counter: the numbers of the paper, repeated for equal seeds and steps, independent otherwise."""

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import checker, shape_inference

from ampgraph.core.errors import AmpError
from ampgraph.training.forward.random_numbers import COLUMNS, kept, lower_dropout, random_numbers, stream_key
from ampgraph.training.gradients.builder import Builder
from ampgraph.training.gradients.driver import differentiate
from onnx_text import parse
from training.gradients import normal

INT64 = ir.DataType.INT64


def squares(counter: int, key: int) -> int:
    """The paper's squares32."""
    word = 2**64 - 1
    x = y = counter * key & word
    z = y + key & word
    for term in (y, z, y):
        x = x * x + term & word
        x = (x >> 32) | (x << 32) & word
    return (x * x + z & word) >> 32


def scalar(name: str) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(INT64), shape=ir.Shape([]))


def test_the_numbers_are_those_of_the_paper():
    size, step = scalar("size"), scalar("step")
    graph = ir.Graph([size, step], [], nodes=[], opset_imports={"": 18}, name="g")
    key = stream_key(1, 2)
    graph.outputs.append(random_numbers(Builder(graph), size, step, key))
    graph.outputs[0].type = ir.TensorType(INT64)
    session = onnxruntime.InferenceSession(ir.to_proto(ir.Model(graph, ir_version=9)).SerializeToString())
    for number in (0, 1, 70_000, 2**31 - 1):
        [found] = session.run(None, {"size": np.array(200), "step": np.array(number)})
        assert found.tolist() == [squares((number << 32) + index, key) for index in range(200)]


def drawn(size: int, step: int, key: int) -> np.ndarray:
    """What `masks` says of a vector, in numpy."""
    rows = -(-size // COLUMNS)
    words = np.array([squares((step << 32) + n, key) for n in range(2 * (rows + COLUMNS))], np.uint64)
    low = (words + 2**31).astype(np.uint32)  # as int32 less 2^31
    column, more = low[: 2 * COLUMNS].reshape(2, 1, COLUMNS)
    factor, term = low[2 * COLUMNS :].reshape(2, rows, 1)
    t = (factor * np.uint32(2) + np.uint32(1)) * column + term
    return (t * (t + more * np.uint32(2) + np.uint32(1))).view(np.int32).reshape(-1)[:size]


@pytest.mark.parametrize("size", [1, 511, 512, 1300])
def test_masks_are_those_of_the_formula(size):
    masks = []
    for shape in (ir.Shape([size]), ir.Shape(["N"])):
        x, step, border = ir.Value(name="x", shape=shape), scalar("step"), ir.Value(name="border", shape=ir.Shape([]))
        x.type, border.type = ir.TensorType(ir.DataType.FLOAT), ir.TensorType(ir.DataType.INT32)
        graph = ir.Graph([x, step, border], [], nodes=[], opset_imports={"": 18}, name="g")
        graph.outputs.append(kept(Builder(graph), border, x, step, stream_key(3, 4)))
        graph.outputs[0].type = ir.TensorType(ir.DataType.BOOL)
        session = onnxruntime.InferenceSession(ir.to_proto(ir.Model(graph, ir_version=9)).SerializeToString())
        feeds = {"x": np.zeros(size, np.float32), "step": np.array(5), "border": np.array(12345, np.int32)}
        masks.append(session.run(None, feeds)[0])
    wanted = drawn(size, 5, stream_key(3, 4)) >= 12345
    assert np.array_equal(masks[0], wanted) and np.array_equal(masks[1], wanted)


def test_corners_of_rectangles_are_independent():
    """Words are shared by rows and by columns: no parity of 2 x 2 elements is more frequent for it."""
    _, run = session_of("y = Dropout (x, q, t)")
    signs = np.where(run(3, np.ones((640, 512), np.float32))[0] > 0, 1.0, -1.0)
    for down, right in ((1, 1), (2, 3), (7, 64), (320, 256)):
        corner = signs[:-down, :-right] * signs[down:, right:] * signs[:-down, right:] * signs[down:, :-right]
        assert abs(corner.mean()) < 5 / np.sqrt(corner.size), (down, right)
    for axis in (0, 1):  # three in a line, and rows and columns as a whole
        three = (
            np.take(signs, range(500), axis) * np.take(signs, range(5, 505), axis) * np.take(signs, range(9, 509), axis)
        )
        assert abs(three.mean()) < 5 / np.sqrt(three.size)
        products = np.corrcoef(signs if axis else signs.T)
        off = products[~np.eye(len(products), dtype=bool)] * np.sqrt(signs.shape[axis])
        assert abs(off).max() < 6 and abs(off.std() - 1) < 0.05


def test_keys_are_as_the_paper_wants_them():
    keys = [stream_key(seed, number) for seed in range(30) for number in range(30)]
    assert len(set(keys)) == len(keys)
    for key in keys:
        digits = f"{key:016x}"
        assert key % 2 and "0" not in digits and len(set(digits[:8])) == len(set(digits[8:])) == 8


def session_of(body: str, result: str = "float[N,M] y", seed: int = 7, opset: int = 18, **options) -> tuple:
    """Runs (step, x) -> outputs and gradient of x."""
    constants = "float r = {0.25}, bool t = {1}, bool f = {0}, float whole = {1.0}"
    text = f"g (float[N,M] x, float q) => ({result}) <{constants}> {{ {body} }}"
    proto = parse(text, opset=opset)
    model = ir.from_proto(shape_inference.infer_shapes(proto))
    graph, step = model.graph, scalar("step")
    graph.inputs.append(step)
    count = lower_dropout(graph, step, seed, **options)
    assert not [node for node in graph if node.op_type == "Dropout"]
    graph.outputs.extend(differentiate(graph, graph.outputs[0], [graph.inputs[0]], graph.outputs[0]))
    lowered = ir.to_proto(model)
    checker.check_model(lowered)
    run = onnxruntime.InferenceSession(lowered.SerializeToString()).run
    return count, lambda number, x, q=0.5: run(None, {"x": x, "q": np.array(q, np.float32), "step": np.array(number)})


ONES = np.ones((500, 400), np.float32)


def test_scale_mean_and_gradient():
    _, run = session_of("y = Dropout (x, r, t)")
    y, dx = run(0, ONES)
    assert set(np.unique(y)) == {0, np.float32(1 / 0.75)}
    assert abs((y > 0).mean() - 0.75) < 4 * np.sqrt(0.75 * 0.25 / y.size)
    np.testing.assert_array_equal(dx, y * np.float32(1 / 0.75))  # seeded with y itself
    x = normal(5, 6)
    y, dx = run(3, x)
    kept = y != 0
    np.testing.assert_allclose(y[kept], x[kept] / 0.75, rtol=1e-6)
    assert not dx[~kept].any()


def test_equal_seeds_and_steps_repeat_and_others_do_not():
    _, run = session_of("y = Dropout (x, r, t)")
    _, again = session_of("y = Dropout (x, r, t)")
    _, other = session_of("y = Dropout (x, r, t)", seed=8)
    masks = [run(0, ONES)[0], run(1, ONES)[0], run(2**31 - 1, ONES)[0], other(0, ONES)[0]]
    np.testing.assert_array_equal(masks[1], again(1, ONES)[0])
    for n, one in enumerate(masks):
        for two in masks[:n]:
            assert abs(correlation(one, two)) < 0.01


def correlation(one: np.ndarray, two: np.ndarray) -> float:
    return float(np.corrcoef(one.reshape(-1), two.reshape(-1))[0, 1])


def test_neighbours_steps_and_nodes_are_independent():
    """200,000 elements: 0.01 is 4.5 standard deviations of a correlation of none."""
    body = "y = Dropout (x, q, t)  z = Dropout (x, q, t)"
    _, run = session_of(body, "float[N,M] y, float[N,M] z")
    steps = [run(step, ONES) for step in range(12)]
    y, z = steps[0][0], steps[0][1]
    assert abs(correlation(y, z)) < 0.01
    for lag in (1, 2, 3, 4, 8, 16, 64, 100, 400, 800, y.size // 2):  # a number decides over two elements
        flat = y.reshape(-1)
        assert abs(correlation(flat[lag:], flat[:-lag])) < 0.01, lag
    for before, after in zip(steps, steps[1:], strict=False):
        assert abs(correlation(before[0], after[0])) < 0.01
        assert abs(correlation(before[0].reshape(-1)[1:], after[0].reshape(-1)[:-1])) < 0.01
    rows, columns = y.astype(bool).mean(1), y.astype(bool).mean(0)
    for means, size in ((rows, 400), (columns, 500)):
        assert abs(means.std() / np.sqrt(0.25 / size) - 1) < 0.2 and abs(means - 0.5).max() < 5 * np.sqrt(0.25 / size)
    often = np.mean([step[0] > 0 for step in steps], 0)  # each element by itself, over steps
    assert abs(often.var() / (0.25 / 12) - 1) < 0.03


def test_runs_are_as_long_as_they_should_be():
    """Eight neighbours in a row have each of their 256 patterns as often: chi squared, within 5 deviations."""
    _, run = session_of("y = Dropout (x, q, t)")
    bits = (run(5, ONES)[0].reshape(-1, 8) > 0) @ (1 << np.arange(8))
    counts = np.bincount(bits, minlength=256)
    expected = bits.size / 256
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert abs(statistic - 255) < 5 * np.sqrt(2 * 255)


def test_modes_and_masks():
    """What does not drop stays as it is, with a mask of ones; `force` lets it drop."""
    x = normal(6, 5)
    body, result = "y, k = Dropout (x, r, f)  z = Dropout (x)", "float[N,M] y, bool[N,M] k, float[N,M] z"
    count, run = session_of(body, result)
    y, kept, z, dx = run(0, x)
    assert count == 0 and kept.all() and kept.shape == x.shape
    for found in (y, z, dx):
        np.testing.assert_array_equal(found, x)
    count, run = session_of(body, result, force=True)
    y, kept, z, _ = run(0, np.ones((90, 80), np.float32))
    assert count == 2
    np.testing.assert_array_equal(kept, y > 0)
    assert abs(kept.mean() - 0.75) < 0.03 and abs((z > 0).mean() - 0.5) < 0.03 and z.max() == 2


@pytest.mark.parametrize(("ratio", "kept"), [(0.0, 1.0), (0.1, 0.9), (0.9, 0.1), (1.0, 0.0)])
def test_a_ratio_that_is_an_input(ratio, kept):
    _, run = session_of("y = Dropout (x, q, t)")
    y, dx = run(0, ONES, ratio)
    assert abs((y > 0).mean() - kept) < 0.004 and np.isfinite(dx).all()
    assert kept == 0 or abs(y.max() - 1 / kept) < 1e-5 / kept


@pytest.mark.parametrize("shape", [(1, 1), (7, 9), (0, 4)])
def test_odd_and_empty_sizes(shape):
    _, run = session_of("y = Dropout (x, r, t)")
    for step in range(4):
        y, _ = run(step, np.ones(shape, np.float32))
        assert y.shape == shape and set(y.reshape(-1)) <= {0, np.float32(1 / 0.75)}


def test_everything_dropped_is_zero_and_not_nan():
    _, run = session_of("y = Dropout (x, whole, t)")
    for found in run(0, ONES):
        assert not found.any()


def test_a_mode_that_is_computed_is_told():
    with pytest.raises(AmpError, match="AMP205.*computes whether it drops"):
        session_of("m = Less (q, r)  y = Dropout (x, r, m)")
