"""What torch's exporter leaves without its optimizer: lowered where it can be, refused by name where not."""

from __future__ import annotations

import warnings

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

import ampgraph
from ampgraph.core.errors import AmpError
from onnx_text import parse
from present import present
from training.architectures import OneByOne
from training.small_steps import Runner


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
