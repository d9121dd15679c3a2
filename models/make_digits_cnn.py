"""Train and export `digits_cnn.onnx`: three convolutions with BatchNorm, two MaxPools and two Gemms.

Run as `python -m ampgraph.models.make_digits_cnn [--out DIR]`.
"""

from __future__ import annotations

import torch
from torch import nn

from ampgraph.models import digits


def block(inputs: int, outputs: int) -> list[nn.Module]:
    """Convolution, BatchNorm and Relu at one resolution."""
    return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]


class DigitsCnn(nn.Module):
    """About 30,000 parameters: 8 x 8 -> 4 x 4 -> 2 x 2 -> 64 -> 10."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *block(1, 16), *block(16, 32), nn.MaxPool2d(2), *block(32, 48), nn.MaxPool2d(2), nn.Flatten()
        )
        self.head = nn.Sequential(nn.Linear(48 * 2 * 2, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(image))


def main() -> None:
    """Make the model."""
    folder = digits.out_folder("Train and export digits_cnn.onnx.")
    digits.prepare_torch(seed=1)
    digits.make(DigitsCnn(), folder / "digits_cnn.onnx", epochs=15, lr=8e-3, opset=20, optimize=False)


if __name__ == "__main__":
    main()
