"""Random numbers for inputs, the same on every machine: integer arithmetic on PCG64's raw stream."""

from __future__ import annotations

import math

import numpy as np

from ...core.arrays import Array


class Numbers:
    """Random numbers of one input of one sample."""

    def __init__(self, *key: int) -> None:
        self.bits = np.random.PCG64(np.random.SeedSequence([k & 0xFFFFFFFF for k in key]))

    def _raw(self, count: int) -> Array:
        return np.atleast_1d(self.bits.random_raw(count)) if count else np.zeros(0, np.uint64)

    def integers(self, first: int, last: int, shape: tuple[int, ...]) -> Array:
        """int64 numbers from ``first`` to ``last``, both included."""
        span = np.uint64(max(last - first, 0) + 1)
        return (self._raw(math.prod(shape)) % span).astype(np.int64).reshape(shape) + first

    def uniform(self, shape: tuple[int, ...]) -> Array:
        """float32 numbers in [0, 1), of 24 bits."""
        return ((self._raw(math.prod(shape)) >> np.uint64(40)) * 2.0**-24).astype(np.float32).reshape(shape)

    def normal(self, shape: tuple[int, ...]) -> Array:
        """float32 numbers of about the standard normal distribution: sums of twelve 16-bit numbers, exact."""
        count = math.prod(shape)
        words = self._raw(3 * count).astype("<u8").view("<u2").reshape(count, 12)
        sums: Array = words.sum(axis=1, dtype=np.int64)
        return (sums / 65536 - 6 + 6 / 65536).astype(np.float32).reshape(shape)
