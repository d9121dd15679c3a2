"""Accuracy of digit classifiers on the held-out images, every low value really rounded:
``python -m ampgraph.models.accuracy MODEL...``"""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..numerics.strict.session import StrictSession


def held_out() -> dict[str, npt.NDArray[Any]]:
    """``image`` float32 [360, 1, 8, 8] and ``labels`` int64 [360], never seen in training."""
    with resources.files(__package__).joinpath("digits_heldout.npz").open("rb") as file:
        return dict(np.load(file))


def accuracy(model: str | Path) -> tuple[int, int, npt.NDArray[Any]]:
    """(right answers, images, logits float32 [360, 10]) of a model by a strict run."""
    data = held_out()
    logits = np.asarray(StrictSession(model).run({"image": data["image"]})["logits"], np.float32)
    return int((logits.argmax(-1) == data["labels"]).sum()), len(data["labels"]), logits


def main(paths: list[str]) -> None:
    first: npt.NDArray[Any] | None = None
    for path in paths:
        right, count, logits = accuracy(path)
        first = logits if first is None else first
        error = float(np.linalg.norm(logits - first) / np.linalg.norm(first))
        size = Path(path).stat().st_size
        print(
            f"{Path(path).name:32} {right} of {count} right ({right / count:.2%}), "
            f"relative L2 error {error:.1e}, {size:,} bytes"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
