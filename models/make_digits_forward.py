"""Export forward graphs that are there to be trained, and the images to train them on.

Run as `python -m ampgraph.models.make_digits_forward [--out DIR]`: writes `digits_cnn_forward.onnx`, a CNN with
BatchNorm and Dropout from fresh weights, and `digits_train.npz`, the images that are not held out.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from ampgraph import export_for_training
from ampgraph.models import digits
from ampgraph.models.make_digits_cnn import block

TRAIN_FILE = "digits_train.npz"


class Mlp(nn.Module):
    """64 -> 64 -> 32 -> 10."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.net(image)


class Cnn(nn.Module):
    """Three convolutions with BatchNorm, two MaxPools, Dropout, two Linears: about 30,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *block(1, 16), *block(16, 32), nn.MaxPool2d(2), *block(32, 48), nn.MaxPool2d(2), nn.Flatten()
        )
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(48 * 2 * 2, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(image))


class Transformer(nn.Module):
    """Eight rows of eight pixels as a sequence, one block of attention and feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(8, 32), nn.Parameter(torch.randn(8, 32) / 8)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(32), nn.LayerNorm(32), nn.LayerNorm(32)
        self.query, self.key, self.value, self.out = (nn.Linear(32, 32) for _ in range(4))
        self.feed = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.head = nn.Linear(32, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.embed(image.flatten(1, 2)) + self.place
        n = self.norm1(x)
        q, k, v = (layer(n).unflatten(2, (4, 8)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        attended = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        x = x + self.feed(self.norm2(x))
        return self.head(self.norm3(x).mean(1))


def main() -> None:
    """Make the files."""
    folder = digits.out_folder("Export digits_cnn_forward.onnx and write digits_train.npz.")
    digits.prepare_torch(seed=2)
    export_for_training(Cnn(), (torch.zeros(2, 1, 8, 8),), folder / "digits_cnn_forward.onnx")
    image, labels = digits.load_split()[0]
    np.savez_compressed(folder / TRAIN_FILE, image=image, labels=labels)


if __name__ == "__main__":
    main()
