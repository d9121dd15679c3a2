"""Train and export `digits_cnn.mindir` (images to logits) and `digits_cnn_loss.mindir` (images and labels to a loss).

Run as `python -m ampgraph.models.make_digits_mindir [--out DIR]`, with MindSpore installed. The first is trained, the
second starts from fresh weights: it is there to be trained.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy.typing as npt
from mindspore import Tensor, nn, ops

from ampgraph.models import digits
from ampgraph.models.train_digits_mindir import SEED, batches

EPOCHS = 12


class DigitsCnn(nn.Cell):
    """About 30,000 parameters: 8 x 8 -> 4 x 4 -> 2 x 2 -> 64 -> 10."""

    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 16, 3, has_bias=True), nn.BatchNorm2d(16)
        self.conv2, self.norm2 = nn.Conv2d(16, 32, 3, has_bias=True), nn.BatchNorm2d(32)
        self.conv3, self.norm3 = nn.Conv2d(32, 48, 3, has_bias=True), nn.BatchNorm2d(48)
        self.relu, self.pool, self.flatten = nn.ReLU(), nn.MaxPool2d(2, 2), nn.Flatten()
        self.hidden, self.head = nn.Dense(48 * 2 * 2, 64), nn.Dense(64, 10)

    def construct(self, image):
        x = self.relu(self.norm1(self.conv1(image)))
        x = self.pool(self.relu(self.norm2(self.conv2(x))))
        x = self.pool(self.relu(self.norm3(self.conv3(x))))
        return self.head(self.relu(self.hidden(self.flatten(x))))


class WithLoss(nn.Cell):
    """The mean cross entropy of a network's logits."""

    def __init__(self, network):
        super().__init__()
        self.network, self.loss = network, nn.CrossEntropyLoss()

    def construct(self, image, labels):
        return self.loss(self.network(image), labels)


def train(network: nn.Cell, data: digits.Arrays) -> None:
    """Adam in float32; leaves the network in evaluation mode."""
    network.set_train()
    optimizer = nn.Adam(network.trainable_params(), 2e-3)
    loss = WithLoss(network)

    def forward(x, y):
        return loss(x, y)

    gradients = ops.value_and_grad(forward, None, optimizer.parameters)

    @ms.jit
    def step(x, y):
        value, grads = gradients(x, y)
        optimizer(grads)
        return value

    for image, labels in batches(data, EPOCHS):
        step(Tensor(image), Tensor(labels))
    network.set_train(False)


def export(network: nn.Cell, arrays: tuple[npt.NDArray[Any], ...], path: Path) -> None:
    """Writes a network for arrays of these shapes."""
    ms.export(network, *(Tensor(array) for array in arrays), file_name=str(path), file_format="MINDIR")
    path.chmod(0o644)  # MindSpore writes it for its owner alone


def main() -> None:
    """Make both files."""
    folder = digits.out_folder("Train and export digits_cnn.mindir and digits_cnn_loss.mindir.")
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(SEED)
    data, held = digits.load_split()
    network = DigitsCnn()
    train(network, data)
    right = int((network(Tensor(held[0])).asnumpy().argmax(-1) == held[1]).sum())
    print(f"digits_cnn.mindir: {right} of {len(held[1])} right")
    export(network, (held[0],), folder / "digits_cnn.mindir")
    ms.set_seed(SEED)
    fresh = WithLoss(DigitsCnn())
    fresh.set_train()
    first = next(batches(data, 1))
    export(fresh, first, folder / "digits_cnn_loss.mindir")


if __name__ == "__main__":
    main()
