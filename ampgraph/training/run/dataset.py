"""A set of samples in memory, and the batches that it is trained in."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from ...core.arrays import Array

TrainingData: TypeAlias = "str | os.PathLike[str] | Mapping[str, ArrayLike]"
"""A path of an .npz file, or arrays by input name."""


@dataclass(frozen=True)
class Dataset:
    """Arrays by input name; the first axis counts the samples."""

    arrays: Mapping[str, Array]
    samples: int

    def digest(self) -> str:
        """Changes with names, types, sizes and numbers."""
        made = hashlib.blake2b(digest_size=16)
        for name, array in sorted(self.arrays.items()):
            made.update(f"{name}:{array.dtype}:{list(array.shape)}\n".encode())
            made.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return made.hexdigest()

    def shuffled(self, batch_size: int, seed: int, epoch: int, skip: int = 0) -> Iterator[dict[str, Array]]:
        """The whole batches of an epoch in a random order, without the first ``skip``; what is left is dropped."""
        order = np.random.default_rng([seed, epoch]).permutation(self.samples)
        for number in range(skip, self.samples // batch_size):
            rows = order[number * batch_size : (number + 1) * batch_size]
            yield {name: array[rows] for name, array in self.arrays.items()}

    def in_order(self, batch_size: int, whole: bool) -> Iterator[dict[str, Array]]:
        """All samples from the first to the last; ``whole`` leaves out a last batch that is smaller."""
        end = self.samples - self.samples % batch_size if whole else self.samples
        for start in range(0, end, batch_size):
            yield {name: array[start : start + batch_size] for name, array in self.arrays.items()}
