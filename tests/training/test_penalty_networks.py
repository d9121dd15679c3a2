"""Gradient penalties of networks as torch exports them: every rule on the way is differentiated once more."""

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ampgraph
from present import present
from share import FULL

SCALE = 256.0


class WithLoss(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, y):
        return F.cross_entropy(self.net(x), y)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.TransformerEncoderLayer(16, 2, 32, 0.0, "gelu", batch_first=True), nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.layer(x).mean(1))


NETWORKS = {
    "norm and gelu": (lambda: nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 5)), (6, 8)),
    "pooled": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, stride=2),
            nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(8, 5),
        ),
        (6, 3, 8, 8),
    ),
    "batch statistics": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Softplus(), nn.AvgPool2d(2), nn.Flatten(),
            nn.Linear(128, 5),
        ),
        (6, 3, 8, 8),
    ),
    "discriminator": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 4, 2, 1, bias=False), nn.LeakyReLU(0.2), nn.Conv2d(8, 16, 4, 2, 1, bias=False),
            nn.InstanceNorm2d(16, affine=True), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(256, 5),
        ),
        (6, 3, 16, 16),
    ),
    "transformer": (Encoder, (6, 7, 16)),
}  # fmt: skip


@pytest.fixture(scope="module", params=NETWORKS if FULL else ["pooled"])
def network(request, tmp_path_factory):
    make, shape = NETWORKS[request.param]
    torch.manual_seed(0)
    module, x, y = WithLoss(make()), torch.randn(*shape), torch.arange(shape[0]) % 5
    path = tmp_path_factory.mktemp("network") / "forward.onnx"
    ampgraph.export_for_training(module, (x, y), path, dynamic_batch=False, check=False)
    return module, path, x, y


def output_name(path):
    return onnx.load(path, load_external_data=False).graph.output[0].name


def by_torch(module, x, y, of, low=False):
    """The loss with its penalty, and its gradients; ``low``: under autocast, and unscaled as in PyTorch's example."""
    module.train()
    scale = SCALE if low else 1.0
    with (
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),  # the only one with a second derivative
        torch.autocast("cpu", torch.float16, enabled=low),
    ):
        given = x.clone().requires_grad_(True)
        loss = module(given, y)
        wanted = list(module.parameters()) if of == "parameters" else [given]
        found = [g.float() / scale for g in torch.autograd.grad(loss * scale, wanted, create_graph=True)]
        if of == "parameters":
            penalty = torch.linalg.vector_norm(torch.cat([g.reshape(-1) for g in found]))
        else:
            penalty = found[0].reshape(len(x), -1).pow(2).sum(1).mean()
        total = loss + penalty
        gradients = torch.autograd.grad(total * scale, list(module.parameters()))
    rows = zip(module.named_parameters(), gradients, strict=True)
    return total.item(), {name: present(gradient).float().numpy() / scale for (name, _), gradient in rows}


def farthest(found, reference):
    """The largest error, over the largest gradient."""
    largest = max(float(np.abs(gradient).max()) for gradient in reference.values())
    return max(float(np.abs(found[name] - gradient).max()) for name, gradient in reference.items()) / largest


def by_us(path, x, y, **options):
    step = ampgraph.build_training_step(
        path, loss=output_name(path), optimizer="sgd:lr=1", target="cuda", loss_scale=f"dynamic:init={SCALE}", **options
    )
    trainer = ampgraph.Trainer(step, threads=1, strict=True)
    before = trainer.state
    result = trainer.step(dict(zip(step.layout.inputs, (x.numpy(), y.numpy()), strict=True)))
    assert result.finite
    return result.loss, {name: before[name] - trainer.value(name) for name in step.parameters}


@pytest.mark.slow
@pytest.mark.parametrize(("of", "power"), [("parameters", 1), ("inputs", 2)])
def test_of_a_network_as_torch(network, of, power):
    """O0 to 1e-5 of the largest gradient; O2 about as far from it as torch under autocast."""
    module, path, x, y = network
    penalty = ampgraph.GradientPenalty(of=of, power=power)
    total, reference = by_torch(module, x, y, of)
    loss, found = by_us(path, x, y, penalty=penalty, level="O0")
    assert loss == pytest.approx(total, rel=1e-5) and farthest(found, reference) < 1e-5
    loss, found = by_us(path, x, y, penalty=penalty, level="O2")
    low, theirs = by_torch(module, x, y, of, low=True)
    assert loss == pytest.approx(low, rel=5e-3)
    assert farthest(found, reference) < 1.5 * farthest(theirs, reference) + 1e-3
