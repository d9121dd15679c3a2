"""Train a forward-and-loss .mindir file on the digits, MindSpore differentiating it:
``python -m ampgraph.models.train_digits_mindir digits_cnn_loss.O2.mindir``"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

import ampgraph.training.mindspore
from ampgraph.models import digits

BATCH, EPOCHS, SEED = 64, 6, 3


def batches(data: digits.Arrays, epochs: int) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """Whole batches in a seeded order: image float32 [64, 1, 8, 8], labels int32 [64]."""
    image, labels = data
    random = np.random.default_rng(SEED)
    for _ in range(epochs):
        order = random.permutation(len(labels))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            rows = order[start : start + BATCH]
            yield image[rows], labels[rows].astype(np.int32)


def stored() -> digits.Arrays:
    """The training half of the split, as it lies beside the models: scikit-learn, which it is of, is not needed."""
    with resources.files("ampgraph.models").joinpath("digits_train.npz").open("rb") as file:
        data = np.load(file)
        return data["image"], data["labels"]


def main(path: str) -> None:
    """Adam and a dynamic loss scale; a line every 22 steps."""
    from mindspore import amp, nn

    step = ampgraph.training.mindspore.train_step(
        path, lambda parameters: nn.Adam(parameters, 2e-3), amp.DynamicLossScaler(2.0**24, 2, 50)
    )
    skipped = 0
    for number, (image, labels) in enumerate(batches(stored(), EPOCHS), 1):
        result = step(image, labels)
        skipped += not result.finite
        if number % 22 == 0:
            print(f"step {number:3}  loss {result.loss:.4f}  scale {result.scale:g}  skipped {skipped}")


if __name__ == "__main__":
    main(sys.argv[1])
