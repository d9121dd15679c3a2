"""Random operators from a counter: their moments, another draw in each step, the same in a repeated run."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import shape_inference
from torch import nn

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.training.forward.random_numbers import lower_random
from onnx_text import parse
from training.architectures import OneByOne
from training.small_steps import Runner

SIZE = 40_000


def drawn(body: str, step: int = 0, result: str = "float[N, M] y") -> np.ndarray:
    text = f"g (float[N, M] x, int64 step) => ({result}) {{ {body} }}"
    model = ir.from_proto(shape_inference.infer_shapes(parse(text, opset=18)))
    assert lower_random(model.graph, model.graph.inputs[1], 7) == body.count("Random") + body.count("Bernoulli")
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
    one, same, other = drawn(body, 3), drawn(body, 3), drawn(body, 4)
    assert one.dtype == np.float32 and one.size == SIZE and least <= one.min() and one.max() <= most
    assert abs(one.mean() - mean) < 4 * deviation / SIZE**0.5
    assert abs(one.std() - deviation) < 0.02 * deviation
    assert np.array_equal(one, same) and (one != other).mean() > 0.3
    assert abs(np.corrcoef(one.reshape(-1), other.reshape(-1))[0, 1]) < 0.02


def test_types():
    assert drawn("y = RandomUniformLike <dtype = 11> (x)", result="double[N, M] y").dtype == np.float64
    assert drawn("y = Bernoulli <dtype = 7> (x)", result="int64[N, M] y").dtype == np.int64


def test_two_nodes_draw_apart():
    made = drawn("a = RandomUniformLike (x) b = RandomUniformLike (x) y = Sub (a, b)")
    assert abs(made.std() - 6**-0.5) < 0.01


def test_multinomial_is_refused():
    with pytest.raises(AmpError, match="Multinomial"):
        drawn("y = Multinomial <sample_size = 2> (x)", result="int32[N, M] y")


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
