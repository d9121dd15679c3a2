"""float32 rounded to the low types, to nearest with ties to even, as a cast rounds.

numpy casts to float16 one element after the other, which takes ten times what all else takes that is done to a weight.
Its sums and shifts take many at a time: |x| + M, where M is 2**13 times the power of two below |x| and at least 1/2,
has the step of float16 at x, so that the sum itself rounds. Its exponent, less a constant, is that of the result, and
its last 12 bits are the significand with its leading one.
"""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np

from ..core.arrays import Array, DType

LOW_TYPES: dict[str, DType] = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
STORED_TYPES = {**LOW_TYPES, "float32": np.dtype(np.float32)}  # float32: a mask that is floored and stays

BLOCK = 1 << 16  # elements: 256 KiB of float32 and what is computed of them stay in the second cache
SHORT = 1 << 13  # elements: below it the calls cost more than the cast
OVERFLOWS = 65520.0  # what float16 rounds to infinity, from here on

EXPONENT, LOWEST, RAISED = np.uint32(0x7F800000), np.uint32(113 << 23), np.uint32(13 << 23)
SHIFT, SIGNIFICAND = np.uint32(13), np.uint32(0xFFF)
SIGN_SHIFT, SIGN = np.uint32(16), np.uint32(0x8000)
EXCESS = np.uint16((126 << 10) % (1 << 16))  # of the sum's exponent over the result's


def pieces(data: Array) -> Iterator[Array]:
    """Rounding of stored tensors: views of an array of one dimension, one after the other."""
    return (data[start : start + BLOCK] for start in range(0, data.size, BLOCK))


class Rounder:
    """Rounds pieces of a tensor to ``dtype`` in memory of its own, which it holds for as long as it lives.

    Finite elements below ``floor`` become ``floor`` first; ``factor``: what is multiplied by it, in float64, and stays
    finite, is rounded once."""

    def __init__(self, dtype: DType, floor: float | None = None, factor: float = 1.0) -> None:
        self.dtype, self.half, self.floor, self.factor = dtype, dtype == np.float16, floor, factor
        self._scratch: tuple[Array, Array, Array] | None = None

    def whole(self, data: Array) -> Array:
        """The elements of an array of one dimension, rounded, in one piece."""
        rounded = np.empty(data.size, self.dtype)
        for part, place in zip(pieces(data), pieces(rounded), strict=True):
            self.round(part, place)
        return rounded

    def parts(self, data: Array) -> Iterator[Array]:
        """The rounded elements piece by piece, each in the memory of the one before: fresh pages cost more."""
        kept = np.empty(min(BLOCK, data.size), self.dtype)
        for part in pieces(data):
            self.round(part, kept[: part.size])
            yield kept[: part.size]

    def round(self, part: Array, place: Array) -> None:
        """Puts a contiguous piece, rounded, into one of the same length; beyond the range it becomes infinite."""
        if self.floor is not None:
            part = np.where(np.isfinite(part) & (part < self.floor), np.float32(self.floor), part)
        fast = self.half and part.dtype == np.float32 and part.size >= SHORT
        for start in range(0, part.size, BLOCK) if fast else ():
            block, target = part[start : start + BLOCK], place[start : start + BLOCK]
            if not self._half(block, target):
                _plain_cast(block, target)
        if not fast:
            _plain_cast(part, place)
        if self.factor != 1.0:
            with np.errstate(over="ignore", invalid="ignore"):
                scaled = (part.astype(np.float64) * self.factor).astype(self.dtype)
            np.copyto(place, scaled, where=np.isfinite(scaled))

    def _half(self, block: Array, target: Array) -> bool:
        """Rounds a block of finite elements in range; False for another, where nothing is done."""
        if self._scratch is None:  # an array of the lowest exponents: numpy compares with a single number slowly
            self._scratch = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint32), np.full(BLOCK, LOWEST)
        bits, low = block.view(np.uint32), target.view(np.uint16)
        one, other, lowest = (array[: block.size] for array in self._scratch)
        total, step = other.view(np.float32), one.view(np.float32)
        np.abs(block, out=total)
        if not total.max() < OVERFLOWS:
            return False
        np.bitwise_and(bits, EXPONENT, out=one)
        np.maximum(one, lowest, out=one)
        np.add(one, RAISED, out=one)
        np.add(total, step, out=total)
        np.right_shift(other, SHIFT, out=one)
        np.bitwise_and(other, SIGNIFICAND, out=other)
        np.add(one, other, out=one)
        np.right_shift(bits, SIGN_SHIFT, out=other)
        np.bitwise_and(other, SIGN, out=other)
        np.add(one, other, out=one)
        np.copyto(low, one, casting="unsafe")
        np.subtract(low, EXCESS, out=low)
        return True


def _plain_cast(part: Array, place: Array) -> None:
    """Rounding of stored tensors: fills ``place`` with ``part`` cast by numpy to its type; inf without a warning."""
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(place, part, casting="unsafe")
