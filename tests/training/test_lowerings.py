"""What is lowered before gradients: BatchNormalization, Dropout, random operators, and what exporters leave."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import checker, numpy_helper, shape_inference
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.training.forward.batch_norm import lower_batch_norm
from ampgraph.training.forward.random_numbers import (
    COLUMNS,
    dropout_mask,
    lower_dropout,
    lower_random,
    random_numbers,
    stream_key,
)
from ampgraph.training.gradients.builder import Builder
from ampgraph.training.gradients.driver import differentiate
from onnx_text import parse
from present import present
from training.architectures import OneByOne
from training.gradients import normal
from training.nets import Runner

MODULES = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
NODE = "BatchNormalization <epsilon = 0.001, momentum = 0.8>"


def model_of(x: tuple[int, ...], body: str, dynamic: bool = False, opset: int = 20) -> ir.Model:
    dims = ",".join(["N", str(x[1]), *"HWD"][: len(x)] if dynamic else map(str, x))
    vectors = ", ".join(f"float[{x[1]}] {name}" for name in "wcmv")
    text = f"g (float[{dims}] x, {vectors}) => (float[{dims}] y) {{ {body} }}"
    proto = parse(text, opset=opset)
    for name in "mv":  # stored, and fed all the same
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(x[1], np.float32), name))
    return ir.from_proto(shape_inference.infer_shapes(proto))


def arrays(x: tuple[int, ...]) -> dict[str, np.ndarray]:
    found = {"x": 2 * normal(*x) + 1} | {name: normal(x[1], seed=n + 1) for n, name in enumerate("wcm")}
    return found | {"v": normal(x[1], seed=5, low=0.5)}


def lowered_norms(graph: ir.Graph) -> dict[ir.Value, ir.Value]:
    """New running statistics by the old ones."""
    b, after = Builder(graph, "next"), dict[ir.Value, ir.Value]()
    for one in lower_batch_norm(graph):
        after[one.old] = b.typed(one.next(b, after.get(one.old, one.old)), one.old)
    return after


def compared(model: ir.Model, x: tuple[int, ...], function, tolerance: float = 2e-5, stored: bool = True) -> None:
    """y, the gradients of x, w and c, and the new mean and variance where they are stored, beside a module of torch
    that ``function`` calls on x."""
    graph, given, seed = model.graph, arrays(x), normal(*x, seed=9)
    running = lowered_norms(graph)
    assert [old.name for old in running] == ["m", "v"] * stored
    start = ir.Value(name="seed", type=graph.inputs[0].type, shape=graph.inputs[0].shape)
    wanted = list(graph.inputs[:3])
    graph.inputs.append(start)
    graph.outputs.extend(differentiate(graph, graph.outputs[0], wanted, start))
    graph.outputs.extend(running.values())
    found = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString()).run(None, given | {"seed": seed})
    module, data = module_of(given), torch.tensor(given["x"].astype(np.float64), requires_grad=True)
    y = function(module, data)
    (y * torch.tensor(seed.astype(np.float64))).sum().backward()
    expected = [y, data.grad, module.weight.grad, module.bias.grad, module.running_mean, module.running_var]
    for one, other in zip(found, expected[: None if stored else 4], strict=True):
        wide = present(other).detach().numpy()
        if tolerance > 1e-3:
            assert np.abs(one - wide).max() < tolerance * np.abs(wide).max()
        else:
            np.testing.assert_allclose(one, wide, rtol=tolerance, atol=tolerance)


def module_of(given: dict[str, np.ndarray]) -> _BatchNorm:
    module = MODULES[given["x"].ndim](given["x"].shape[1], eps=1e-3, momentum=0.2).double()
    with torch.no_grad():
        for value, name in ((module.weight, "w"), (module.bias, "c"), (module.running_mean, "m")):
            present(value).copy_(torch.tensor(given[name]))
        present(module.running_var).copy_(torch.tensor(given["v"]))
    return module.train()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (3, 4, 5, 2), (2, 3, 2, 3, 2)])
def test_as_in_torch(shape, dynamic):
    compared(model_of(shape, f"y = {NODE} (x, w, c, m, v)", dynamic), shape, lambda module, x: module(x))


@pytest.mark.parametrize("opset", [14, 17])
def test_training_mode_and_its_outputs(opset):
    """A graph that reads the running values reads the new ones; the mode goes, CUDA refuses it."""
    body = f"z, rm, rv = {NODE.replace('>', ', training_mode = 1>')} (x, w, c, m, v)  y = Add (z, z)  d = Neg (rv)"
    model = model_of((4, 3, 5), body, opset=opset)
    reader = {node.op_type: node for node in model.graph}["Neg"]
    compared(model, (4, 3, 5), lambda module, x: 2 * module(x))
    assert present(present(reader.inputs[0]).producer()).op_type == "Add"
    assert not [node for node in model.graph if "training_mode" in node.attributes or len(node.outputs) > 1]


def test_a_module_that_is_used_twice_is_updated_twice():
    body = f"z = {NODE} (x, w, c, m, v)  t = Mul (z, z)  y = {NODE} (t, w, c, m, v)"
    compared(model_of((5, 3, 4), body), (5, 3, 4), lambda module, x: module(module(x) ** 2))


def test_low_data_is_raised_for_its_statistics():
    """A part of the forward that is float16 in the file."""
    body = f"h = Cast <to = 10> (x)  n = {NODE} (h, w, c, m, v)  y = Cast <to = 1> (n)"
    compared(model_of((6, 3, 4), body), (6, 3, 4), lambda module, x: module(x), 3e-3)


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (3, 4, 5, 2)])
def test_statistics_that_the_graph_computes(shape):
    """As torch exports track_running_stats=False: they are no state, and part of the gradient."""
    axes = ", ".join(str(axis) for axis in range(len(shape)) if axis != 1)
    body = f"""axes = Constant <value_ints = [{axes}]> ()  mean = ReduceMean <keepdims = 0> (x, axes)
        far = ReduceMean <keepdims = 1> (x, axes)  away = Sub (x, far)  squares = Mul (away, away)
        variance = ReduceMean <keepdims = 0> (squares, axes)  y = {NODE} (x, w, c, mean, variance)"""
    compared(model_of(shape, body), shape, lambda module, x: module(x), stored=False)


def new_statistics(shape, given):
    """Mean and variance after a step."""
    model = model_of(shape, f"y = {NODE} (x, w, c, m, v)")
    model.graph.outputs.extend(lowered_norms(model.graph).values())
    return onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString()).run(None, given)


def test_a_large_mean_leaves_the_variance_exact():
    """1,000 squared in float32 would leave nothing of a deviation of 0.01."""
    shape = (8, 2, 64)
    given = arrays(shape) | {"x": (1000 + 0.01 * normal(*shape)).astype(np.float32)}
    *_, variance = new_statistics(shape, given)
    expected = 0.8 * given["v"] + 0.2 * given["x"].astype(np.float64).transpose(1, 0, 2).reshape(2, -1).var(1, ddof=1)
    np.testing.assert_allclose(variance, expected, rtol=1e-6)
    assert np.all((variance - 0.8 * given["v"]) / 0.2 > 0)


def test_one_value_a_channel_is_no_division_by_zero():
    assert all(np.isfinite(array).all() for array in new_statistics((1, 3), arrays((1, 3))))


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("frozen", ["m", "v"])
def test_frozen_statistics_are_those_of_inference(mode, frozen):
    shape, given = (4, 3, 5), arrays((4, 3, 5))
    node = NODE.replace(">", f", training_mode = {mode}>")
    model = model_of(shape, f"i = Identity (m)  y{', rm, rv' if mode else ''} = {node} (x, w, c, i, v)")
    assert lower_batch_norm(model.graph, frozen={frozen}) == []
    [found] = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString()).run(None, given)
    module = module_of(given).eval()
    np.testing.assert_allclose(found, module(torch.tensor(given["x"]).double()).detach(), rtol=1e-5, atol=1e-6)


def test_data_of_unknown_rank_is_told():
    model = model_of((2, 3, 4), f"y = {NODE} (x, w, c, m, v)")
    model.graph.inputs[0].shape = None
    with pytest.raises(AmpError, match="AMP212.*rank of 'x'"):
        lower_batch_norm(model.graph)


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
        graph.outputs.append(dropout_mask(Builder(graph), border, x, step, stream_key(3, 4)))
        graph.outputs[0].type = ir.TensorType(ir.DataType.BOOL)
        session = onnxruntime.InferenceSession(ir.to_proto(ir.Model(graph, ir_version=9)).SerializeToString())
        feeds = {"x": np.zeros(size, np.float32), "step": np.array(5), "border": np.array(12345, np.int32)}
        masks.append(session.run(None, feeds)[0])
    wanted = drawn(size, 5, stream_key(3, 4)) >= 12345
    assert np.array_equal(masks[0], wanted) and np.array_equal(masks[1], wanted)


def test_corners_of_rectangles_are_independent():
    """Words are shared by rows and by columns: no parity of 2 x 2 elements is more frequent for it."""
    run = session_of("y = Dropout (x, q, t)")
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


def session_of(
    body: str, result: str = "float[N,M] y", seed: int = 7, opset: int = 18
) -> Callable[..., list[np.ndarray]]:
    """Runs (step, x) -> outputs and gradient of x."""
    constants = "float r = {0.25}, bool t = {1}, bool f = {0}, float whole = {1.0}"
    text = f"g (float[N,M] x, float q) => ({result}) <{constants}> {{ {body} }}"
    proto = parse(text, opset=opset)
    model = ir.from_proto(shape_inference.infer_shapes(proto))
    graph, step = model.graph, scalar("step")
    graph.inputs.append(step)
    lower_dropout(graph, step, seed)
    assert not [node for node in graph if node.op_type == "Dropout"]
    graph.outputs.extend(differentiate(graph, graph.outputs[0], [graph.inputs[0]], graph.outputs[0]))
    lowered = ir.to_proto(model)
    checker.check_model(lowered)
    run = onnxruntime.InferenceSession(lowered.SerializeToString()).run
    return lambda number, x, q=0.5: run(None, {"x": x, "q": np.array(q, np.float32), "step": np.array(number)})


ONES = np.ones((500, 400), np.float32)


def test_scale_mean_and_gradient():
    run = session_of("y = Dropout (x, r, t)")
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
    run = session_of("y = Dropout (x, r, t)")
    again = session_of("y = Dropout (x, r, t)")
    other = session_of("y = Dropout (x, r, t)", seed=8)
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
    run = session_of(body, "float[N,M] y, float[N,M] z")
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


def test_modes_and_masks():
    """What does not drop stays as it is, with a mask of ones."""
    x = normal(6, 5)
    body, result = "y, k = Dropout (x, r, f)  z = Dropout (x)", "float[N,M] y, bool[N,M] k, float[N,M] z"
    run = session_of(body, result)
    y, kept, z, dx = run(0, x)
    assert kept.all() and kept.shape == x.shape
    for found in (y, z, dx):
        np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize(("ratio", "kept"), [(0.0, 1.0), (0.1, 0.9), (0.9, 0.1), (1.0, 0.0)])
def test_a_ratio_that_is_an_input(ratio, kept):
    run = session_of("y = Dropout (x, q, t)")
    y, dx = run(0, ONES, ratio)
    assert abs((y > 0).mean() - kept) < 0.004 and np.isfinite(dx).all()
    assert kept == 0 or abs(y.max() - 1 / kept) < 1e-5 / kept


@pytest.mark.parametrize("shape", [(1, 1), (7, 9), (0, 4)])
def test_odd_and_empty_sizes(shape):
    run = session_of("y = Dropout (x, r, t)")
    for step in range(4):
        y, _ = run(step, np.ones(shape, np.float32))
        assert y.shape == shape and set(y.reshape(-1)) <= {0, np.float32(1 / 0.75)}


def test_a_mode_that_is_computed_is_told():
    with pytest.raises(AmpError, match="AMP205.*computes whether Dropout is active"):
        session_of("m = Less (q, r)  y = Dropout (x, r, m)")


SIZE = 40_000


def random_of(body: str, step: int = 0, result: str = "float[N, M] y") -> np.ndarray:
    text = f"g (float[N, M] x, int64 step) => ({result}) {{ {body} }}"
    model = ir.from_proto(shape_inference.infer_shapes(parse(text, opset=18)))
    lower_random(model.graph, model.graph.inputs[1], 7)
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    x = np.full((4, SIZE // 4), 0.3, np.float32)
    return session.run(None, {"x": x, "step": np.array(step)})[0]


@pytest.mark.parametrize(
    "body, mean, deviation, least, most",
    [
        ("y = RandomUniformLike (x)", 0.5, 12**-0.5, 0, 1),
        ("y = RandomUniformLike <low = -3.0, high = 1.0> (x)", -1, 4 * 12**-0.5, -3, 1),
        ("y = RandomNormalLike (x)", 0, 1, -6, 6),
        ("y = RandomNormalLike <mean = 2.0, scale = 0.5> (x)", 2, 0.5, -1, 5),
        ("y = Bernoulli (x)", 0.3, 0.21**0.5, 0, 1),
        ("y = RandomUniform <shape = [200, 200]> ()", 0.5, 12**-0.5, 0, 1),
        ("y = RandomNormal <shape = [200, 200]> ()", 0, 1, -6, 6),
    ],
)
def test_moments_and_repetition(body, mean, deviation, least, most):
    one, same, other = random_of(body, 3), random_of(body, 3), random_of(body, 4)
    assert one.dtype == np.float32 and one.size == SIZE and least <= one.min() and one.max() <= most
    assert abs(one.mean() - mean) < 4 * deviation / SIZE**0.5
    assert abs(one.std() - deviation) < 0.02 * deviation
    assert np.array_equal(one, same) and (one != other).mean() > 0.3
    assert abs(np.corrcoef(one.reshape(-1), other.reshape(-1))[0, 1]) < 0.02


def test_types():
    assert random_of("y = RandomUniformLike <dtype = 11> (x)", result="double[N, M] y").dtype == np.float64
    assert random_of("y = Bernoulli <dtype = 7> (x)", result="int64[N, M] y").dtype == np.int64


def test_two_nodes_draw_apart():
    made = random_of("a = RandomUniformLike (x) b = RandomUniformLike (x) y = Sub (a, b)")
    assert abs(made.std() - 6**-0.5) < 0.01


def test_multinomial_is_refused():
    with pytest.raises(AmpError, match="Multinomial"):
        random_of("y = Multinomial <sample_size = 2> (x)", result="int32[N, M] y")


class DropPath(nn.Module):
    """As in Swin and ConvNeXt: whole rows of a branch are left away, the others grow."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 4)

    def forward(self, x):
        kept = 0.75
        rows = (kept + torch.rand((x.shape[0], 1), dtype=x.dtype)).floor()
        return self.line(x) / kept * rows


@pytest.mark.slow
@pytest.mark.parametrize("level", ["O0", "O2"])
def test_drop_path_of_a_torch_module(tmp_path, level):
    ampgraph.export_for_training(DropPath(), (torch.zeros(3, 4),), tmp_path / "net.onnx")
    step = ampgraph.build_training_step(
        tmp_path / "net.onnx", loss="mse", optimizer=OneByOne(0.1, momentum=0.9), level=level, loss_scale=None
    )
    rows = 4000
    batch = {"x": np.zeros((rows, 4), np.float32), "labels": np.full((rows, 4), 1, np.float32)}

    def bias_gradients() -> list[np.ndarray]:
        runner = Runner(step)
        weights = {name: array for name, array in runner.state.items() if name.startswith("line.")}
        weights["line.bias"] = np.zeros(4, np.float32)
        found = []
        for _ in range(2):
            runner.state.update(weights, **{"momentum/line.bias": np.zeros(4, np.float32)})
            runner(batch)
            found.append(runner.state["momentum/line.bias"].copy())
        return found

    first, second = bias_gradients()
    # of (b r / 0.75 - 1)^2, averaged over 4 outputs and all rows, at b = 0: -2 / 4 mean(r) / 0.75
    shares = [-2 * 0.75 * gradient[0] for gradient in (first, second)]
    assert all(abs(share - 0.75) < 0.03 for share in shares) and shares[0] != shares[1]
    assert np.array_equal(bias_gradients(), [first, second])


class Pieces(nn.Module):
    """Chunks and a split, which come as sequences; a mask of float32, whose type comes as CastLike."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 12)

    def forward(self, x):
        a, b, c = self.line(x).chunk(3, -1)
        first, _, last = torch.split(self.line(x), [2, 4, 6], -1)
        scores = a @ b.T
        mixed = torch.softmax(scores + torch.full_like(scores, float("-inf")).triu(1), -1) @ c
        return mixed.sum(-1) + first.sum(-1) * last.mean(-1)


def folded() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU())


def merged() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.LayerNorm([3, 4, 4]), nn.ReLU(), nn.LayerNorm([3, 4, 4]))


def raw(module: nn.Module, x: torch.Tensor, optimize: bool, train: bool = True):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.onnx.export(module.train(train), (x,), dynamo=True, optimize=optimize, verbose=False)


@pytest.mark.slow
@pytest.mark.parametrize("optimize", [False, True])
def test_sequences_and_castlike_train(optimize):
    torch.manual_seed(0)
    module, x, t = Pieces(), torch.randn(3, 4), torch.randn(3)
    step = ampgraph.build_training_step(
        raw(module, x, optimize), loss="mse", optimizer=OneByOne(0.1, momentum=0.9), level="O0"
    )
    runner = Runner(step)
    runner({"x": x.numpy(), "labels": t.numpy()})
    nn.functional.mse_loss(module(x), t).backward()
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(
            runner.state[f"momentum/{name}"], present(parameter.grad).numpy(), rtol=1e-4, atol=1e-6
        )


@pytest.mark.slow
@pytest.mark.parametrize("make, train, lost", [(merged, True, "1|3"), (folded, True, "1"), (folded, False, "1")])
def test_merged_and_folded_parameters_are_named(make, train, lost):
    """Norms that start out equal become one; BatchNormalization goes into the convolution, in training mode too."""
    with pytest.raises(AmpError, match=rf"parameter '({lost})\.(weight|bias)' is not in the graph") as found:
        program = raw(make(), torch.randn(2, 1, 6, 6), True, train)
        ampgraph.build_training_step(program, loss="mse", optimizer="sgd:lr=0.1", level="O0")
    assert found.value.code == "AMP211" and "export_for_training" in found.value.hint


@pytest.mark.parametrize(
    "body, told",
    [
        ("s = SplitToSequence <axis = 1> (h, two) y = ConcatFromSequence <axis = 0> (s)", "ConcatFromSequence"),
        ("s = SplitToSequence <axis = 1> (h, n) y = SequenceAt (s, zero)", "SplitToSequence"),
        ("s = SplitToSequence <axis = 0> (h) y = SequenceAt (s, n)", "SplitToSequence"),
    ],
)
def test_other_sequences_are_refused(body, told):
    model = parse(
        f"""g (float[N, 4] x, int64 n) => (float[N, M] y)
        <float[4, 2] w = {{1, 2, 3, 4, 5, 6, 7, 8}}, int64 two = {{2}}, int64 zero = {{0}}>
        {{ h = MatMul (x, w) {body} }}""",
        opset=18,
    )
    with pytest.raises(AmpError, match="AMP210") as found:
        ampgraph.build_training_step(ir.from_proto(model), loss="mse", optimizer="sgd:lr=0.1", level="O0")
    assert told in str(found.value) and found.value.hint
