"""What an export cannot say is refused, and what it can say about gradients is kept: graph and module side by side."""

import numpy as np
import pytest
import torch
from torch import nn

import ampgraph
from ampgraph.core.errors import AmpError

pytestmark = pytest.mark.slow


class Smoothed(nn.Module):
    def __init__(self, smoothing: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
        self.smoothing = smoothing

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(x), y, label_smoothing=self.smoothing)


class Twice(nn.Module):
    """Two layers, put together by a function."""

    def __init__(self, together) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.together = nn.Linear(6, 6), nn.Linear(6, 4), together

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.together(self, x)


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return (x > 0).float()

    @staticmethod
    def backward(context, g):
        return g


def without_gradient(module, x):
    with torch.no_grad():
        hidden = module.one(x)
    return module.two(hidden + x)


LABELS = torch.tensor([0, 1, 2, 0, 1])


class Counting(nn.Linear):
    """What it computes depends on how often it was called: a graph has only one of them."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x) * self.calls


def test_what_a_graph_computes_otherwise_is_refused(tmp_path):
    args, path = (torch.randn(5, 4),), tmp_path / "forward.onnx"
    with pytest.raises(
        AmpError, match=r"AMP214.*output '.*' is [-\d.]+ at \[.*\] in the exported graph, and [-\d.]+ by"
    ):
        ampgraph.export_for_training(Counting(4, 3), args, path)
    assert not path.exists()
    ampgraph.export_for_training(Counting(4, 3), args, path, check=False)
    assert path.exists()


def test_dropout_and_batch_norm_are_no_difference(tmp_path):
    module = Smoothed(0.0).train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    ampgraph.export_for_training(module, (torch.randn(5, 4), LABELS), tmp_path / "forward.onnx")
    assert all(part.training for part in module.modules()) and all(p.grad is None for p in module.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


@pytest.mark.parametrize(
    "together", [without_gradient, lambda m, x: m.two(Straight.apply(m.one(x)))], ids=["no_grad", "function"]
)
def test_gradients_that_a_graph_cannot_tell_are_refused(tmp_path, together):
    with pytest.raises(AmpError, match=r"AMP214.*gradient of 'one.weight' is .* by the exported graph, and .* by the"):
        ampgraph.export_for_training(Twice(together), (torch.randn(5, 6),), tmp_path / "forward.onnx")
    assert not (tmp_path / "forward.onnx").exists()


def test_a_hook_is_refused(tmp_path):
    first = nn.Linear(6, 6)
    module = nn.Sequential(first, nn.Linear(6, 4))
    first.weight.register_hook(lambda g: 2 * g)
    with pytest.raises(AmpError, match=r"AMP214.*gradient of '0.weight'"):
        ampgraph.export_for_training(module, (torch.randn(5, 6),), tmp_path / "forward.onnx")


TOGETHER = {
    "a branch": lambda m, x: m.two(m.one(x) - m.one(x).softmax(-1).detach()),
    "straight through": lambda m, x: m.two(m.one(x) + (m.one(x).round() - m.one(x)).detach()),
    "one value twice": lambda m, x: (lambda h: m.two(h.detach() * h + h.detach().tanh()))(m.one(x)),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_what_is_detached_gets_no_gradient(tmp_path, name):
    module, x = Twice(TOGETHER[name]), torch.randn(5, 6)
    compare(tmp_path, module, x)


def test_the_padding_of_an_embedding_gets_no_gradient(tmp_path):
    module = nn.Sequential(nn.Embedding(7, 4, padding_idx=2), nn.Flatten(), nn.Linear(12, 4))
    compare(tmp_path, module, torch.tensor([[2, 1, 2], [0, 2, 6], [5, 5, 2], [1, 1, 1], [2, 2, 2]]))


def compare(folder, module, x):
    """One step of plain descent, as torch makes it."""
    torch.manual_seed(1)
    ampgraph.export_for_training(module, (x,), folder / "forward.onnx")
    step = ampgraph.build_training_step(
        folder / "forward.onnx", loss="cross_entropy", optimizer="sgd:lr=0.5", level="O0"
    )
    trainer = ampgraph.Trainer(step)
    trainer.step({step.layout.inputs[0]: x.numpy(), "labels": LABELS.numpy()})
    nn.functional.cross_entropy(module(x), LABELS).backward()
    for name, parameter in module.named_parameters():
        expected = (parameter - 0.5 * parameter.grad).detach().numpy()
        np.testing.assert_allclose(trainer.state[name], expected, rtol=1e-4, atol=1e-6)
