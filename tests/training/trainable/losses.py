"""Losses, one by one and together, on a small network."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from .case import case, classes, numbers

Tensor = torch.Tensor
SIZE = 6


class With(nn.Module):
    """A network of two layers and a loss of its outputs and what is given."""

    def __init__(self, loss: Callable[..., Tensor], out: int = 3) -> None:
        super().__init__()
        self.net, self.loss = nn.Sequential(nn.Linear(SIZE, 8), nn.Tanh(), nn.Linear(8, out)), loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.net(x), y)


def labelled() -> tuple[Tensor, Tensor]:
    return numbers(5, SIZE), classes(3, 5)


def ignoring() -> tuple[Tensor, Tensor]:
    return numbers(5, SIZE), torch.tensor([0, -100, 2, 1, -100])


def targets() -> tuple[Tensor, Tensor]:
    return numbers(5, SIZE), numbers(5, 3, seed=1)


def shares() -> tuple[Tensor, Tensor]:
    return numbers(5, SIZE), numbers(5, 3, seed=1).softmax(-1)


WEIGHT = torch.tensor([0.5, 2.0, 1.0])


def focal(found: Tensor, y: Tensor) -> Tensor:
    share = found.log_softmax(-1).gather(1, y[:, None]).squeeze(1)
    return (-((1 - share.exp()) ** 2) * share).mean() + F.smooth_l1_loss(found, torch.zeros_like(found))


def smooth(**options: object) -> Callable[[], nn.Module]:
    return lambda: With(lambda found, y: F.cross_entropy(found, y, label_smoothing=0.2, **options))  # type: ignore[arg-type]


case("Cross entropy, class weights", labelled, lambda: With(lambda o, y: F.cross_entropy(o, y, WEIGHT)), lr=0.2)
case("Cross entropy, label smoothing", labelled, smooth(), lr=0.2)
case("Cross entropy, label smoothing, weights, ignored labels", ignoring, smooth(weight=WEIGHT), lr=0.2)
case("Cross entropy, label smoothing, a sum", ignoring, smooth(reduction="sum"))
case("Cross entropy of shares", shares, lambda: With(F.cross_entropy), lr=0.2)
case("Cross entropy of shares, label smoothing", shares, smooth(weight=WEIGHT), lr=0.2)
case("Focal loss and smooth L1", labelled, lambda: With(focal), lr=0.2)
case("KL divergence", shares, lambda: With(lambda o, y: F.kl_div(o.log_softmax(-1), y, reduction="batchmean")), lr=0.2)
case("Huber loss", targets, lambda: With(lambda o, y: F.huber_loss(o, y, delta=0.7)), lr=0.2)
case(
    "Cosine embedding loss",
    targets,
    lambda: With(lambda o, y: F.cosine_embedding_loss(o, y, torch.ones(o.shape[0]))),
    lr=0.2,
)
case("Distances by cdist", targets, lambda: With(lambda o, y: torch.cdist(o, y).mean()), lr=0.2)
case("Distances by cdist, p=1", targets, lambda: With(lambda o, y: torch.cdist(o, y, p=1.0).mean()), lr=0.1)


@case("VAE, randn_like", lambda: (numbers(16, SIZE),), random=True, lr=0.1)
class Drawn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(SIZE, 4), nn.Linear(2, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        mean, logarithm = self.encoder(x).chunk(2, -1)
        drawn = mean + torch.randn_like(mean) * (0.5 * logarithm).exp()
        away = -0.5 * (1 + logarithm - mean**2 - logarithm.exp()).mean()
        return F.mse_loss(self.decoder(drawn), x) + away


@case("Siamese network, triplet loss", lambda: tuple(numbers(5, SIZE, seed=n) for n in range(3)), lr=0.2)
class Triplet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(SIZE, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, x: Tensor, near: Tensor, far: Tensor) -> Tensor:
        return F.triplet_margin_loss(self.net(x), self.net(near), self.net(far), margin=2.0)


@case("CLIP: InfoNCE over the batch", lambda: (numbers(5, SIZE), numbers(5, SIZE, seed=1)), lr=0.2)
class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(SIZE, 4), nn.Linear(SIZE, 4)
        self.heat = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        scores = self.heat.exp() * F.normalize(self.one(x), dim=-1) @ F.normalize(self.other(y), dim=-1).T
        same = torch.arange(scores.shape[0])
        return (F.cross_entropy(scores, same) + F.cross_entropy(scores.T, same)) / 2


def speech() -> tuple[Tensor, ...]:
    targets = torch.tensor([[1, 2, 2], [3, 1, 0], [2, 0, 0]])
    return numbers(3, 8, SIZE), targets, torch.tensor([8, 7, 5]), torch.tensor([3, 2, 1])


@case("CTC loss", speech, lr=0.5)
class Aligned(nn.Module):
    """Letters over time, some of them twice; sounds and texts of several lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(SIZE, 4)

    def forward(self, x: Tensor, y: Tensor, sounds: Tensor, letters: Tensor) -> Tensor:
        scores = self.net(x).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(scores, y, sounds, letters)


def penalty(function: Callable[[nn.Module, Tensor], Tensor], name: str) -> None:
    case(f"Gradient penalty by {name}", lambda: (numbers(5, SIZE),), lambda: Penalised(function))


class Penalised(nn.Module):
    def __init__(self, penalty: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.penalty = nn.Sequential(nn.Linear(SIZE, 8), nn.Tanh(), nn.Linear(8, 1)), penalty

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).mean() + self.penalty(self.net, x)


def of_inputs(net: nn.Module, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    [slope] = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    return ((slope.norm(dim=-1) - 1) ** 2).mean()


def of_weights(net: nn.Module, x: Tensor) -> Tensor:
    slopes = torch.autograd.grad(net(x).mean(), list(net.parameters()), create_graph=True)
    return sum((slope**2).sum() for slope in slopes).sqrt()  # type: ignore[union-attr]


def by_func(net: nn.Module, x: Tensor) -> Tensor:
    slope = torch.func.grad(lambda value: net(value).sum())(x)
    return ((slope.norm(dim=-1) - 1) ** 2).mean()


penalty(of_inputs, "torch.autograd.grad of inputs")
penalty(of_weights, "torch.autograd.grad of weights")
penalty(by_func, "torch.func.grad")


def normed() -> nn.Module:
    made = Penalised(of_inputs)
    made.net = nn.Sequential(nn.Linear(SIZE, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
    return made


case("Gradient penalty of a network with BatchNorm", lambda: (numbers(5, SIZE),), normed, refused="make_fx")
