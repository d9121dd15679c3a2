"""A generative adversarial network on digits: two steps of their own, one set of parameters, trained by turns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import ampgraph

NOISE, PIXELS, BATCH, EPOCHS = 16, 64, 64, 60


class Networks(nn.Module):
    """Both steps hold both networks under the same names, which is what they share."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.g = nn.Sequential(nn.Linear(NOISE, 128), nn.ReLU(), nn.Linear(128, PIXELS), nn.Sigmoid())
        self.d = nn.Sequential(nn.Linear(PIXELS, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))


class GeneratorLoss(Networks):
    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        return F.softplus(-self.d(self.g(noise))).mean()


class DiscriminatorLoss(Networks):
    def forward(self, real: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        made = self.g(noise).detach()
        return F.softplus(-self.d(real)).mean() + F.softplus(self.d(made)).mean()


def opened(folder: Path) -> tuple[ampgraph.Trainer, ampgraph.Trainer]:
    """The trainers of both; what the other one trains is ``shared``."""
    noise, real = torch.randn(BATCH, NOISE), torch.rand(BATCH, PIXELS)
    adam = ampgraph.Adam(lr=1e-3, beta1=0.5)
    trainers: list[ampgraph.Trainer] = []
    for module, example, other in ((GeneratorLoss(), (noise,), "d.*"), (DiscriminatorLoss(), (real, noise), "g.*")):
        written = ampgraph.export_for_training(module, example, folder / f"{type(module).__name__}.onnx")
        step = ampgraph.build_training_step(
            written, loss=written.outputs[0], optimizer=[(other, "shared"), ("*", adam)], level="O2"
        )
        trainers.append(ampgraph.Trainer(step, share=trainers[0] if trainers else None))
    return trainers[0], trainers[1]


def distance(real: np.ndarray, made: np.ndarray) -> float:
    """Between the normal distributions with the means and covariances of both (Frechet)."""
    one, two = np.cov(real.T), np.cov(made.T)
    roots = np.sqrt(np.maximum(np.linalg.eigvals(one @ two).real, 0)).sum()
    return float(np.square(real.mean(0) - made.mean(0)).sum() + np.trace(one) + np.trace(two) - 2 * roots)


def drawn(generator: ampgraph.Trainer, count: int) -> np.ndarray:
    """Digits by the generator as it is now."""
    networks = Networks()
    networks.load_state_dict({name: torch.tensor(generator.value(name)) for name in networks.state_dict()})
    with torch.no_grad():
        return networks.g(torch.randn(count, NOISE, generator=torch.Generator().manual_seed(1))).numpy()


def main(folder: Path, epochs: int = EPOCHS) -> tuple[float, float]:
    """The distance of what is drawn from the digits, before and after."""
    digits = load_digits().data.astype(np.float32) / 16
    generator, discriminator = opened(folder)
    rng, first = np.random.default_rng(0), distance(digits, drawn(generator, 1000))
    print(f"before: distance {first:.2f}")
    for epoch in range(epochs):
        order = rng.permutation(len(digits))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            real = digits[order[start : start + BATCH]]
            noise = rng.standard_normal((2, BATCH, NOISE)).astype(np.float32)
            told = discriminator.step({"real": real, "noise": noise[0]})
            fooled = generator.step({"noise": noise[1]})
        if (epoch + 1) % 20 == 0:
            far = distance(digits, drawn(generator, 1000))
            print(f"epoch {epoch + 1}: losses {told.loss:.3f} {fooled.loss:.3f}, distance {far:.2f}")
    return first, distance(digits, drawn(generator, 1000))


if __name__ == "__main__":
    build = Path(__file__).resolve().parents[1] / "build" / "examples"
    build.mkdir(parents=True, exist_ok=True)
    main(build)
