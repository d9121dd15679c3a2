"""float32 rounded to the low types, to nearest with ties to even, as a cast rounds.

numpy casts to float16 one element after the other, which takes ten times what all else takes that is done to a weight.
Its sums and shifts take many at a time: x + M, where M is 1.5 * 2**13 times the power of two below |x| and at least
3/4, has the step of float16 at x, so that the sum itself rounds. M's exponent, less a constant, is that of the result,
and the distance of the two bit patterns is the significand with its leading one.
"""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np

from ..core.arrays import Array, DType

LOW_TYPES: dict[str, DType] = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
STORED_TYPES = {**LOW_TYPES, "float32": np.dtype(np.float32)}  # float32: for a mask that is only floored

BLOCK = 1 << 16  # elements: 256 KiB of float32 and what is computed of them stay in the second cache
SHORT = 1 << 13  # elements: below it the calls cost more than numpy's cast

EXPONENT, LOWEST, HIGHEST = np.uint32(0x7F800000), np.uint32(113 << 23), np.uint32(141 << 23)
"""Of float32: the bits of the exponent; that of 2**-14, the least of float16; that of 2**14: above may be infinite."""
RAISED = np.uint32(13 << 23 | 1 << 22)
"""What multiplies a power of two by 1.5 * 2**13."""
SHIFT, SIGN_SHIFT, SIGN = np.uint32(13), np.uint32(16), np.uint32(0x8000)
"""What brings the exponent, and the sign, to where float16 has them; the latter's bit there."""
EXCESS = np.uint16(126 << 10 & 0xFFFF) + np.uint16(1 << 9)  # of M's bits over the result's exponent, in place


def pieces(data: Array) -> Iterator[Array]:
    """Rounding of stored tensors: views of at most `BLOCK` elements of an array of one dimension, in order."""
    return (data[start : start + BLOCK] for start in range(0, data.size, BLOCK))


class Rounder:
    """Rounds stored tensors to the numpy type ``dtype``, to nearest with ties to even, piece by piece. Finite elements
    below ``floor`` become ``floor`` first; None for no floor. ``factor``: elements are multiplied by it in float64 and
    rounded once; one that is not finite by that is rounded without it. It holds memory to compute in for as long as it
    lives."""

    def __init__(self, dtype: DType, floor: float | None = None, factor: float = 1.0) -> None:
        self.dtype, self.floor, self.factor = dtype, floor, factor
        self._scratch: tuple[Array, Array, Array] | None = None  # two to compute in, one filled with `LOWEST`

    def whole(self, data: Array) -> Array:
        """The elements of an array of one dimension, rounded, as a new array."""
        rounded = np.empty(data.size, self.dtype)
        for part, place in zip(pieces(data), pieces(rounded), strict=True):
            self.round(part, place)
        return rounded

    def parts(self, data: Array) -> Iterator[Array]:
        """The rounded elements of an array of one dimension, piece by piece, each in the memory of the one before:
        fresh pages cost more."""
        kept = np.empty(min(BLOCK, data.size), self.dtype)
        for part in pieces(data):
            self.round(part, kept[: part.size])
            yield kept[: part.size]

    def round(self, part: Array, place: Array) -> None:
        """Writes the elements of ``part``, rounded, into ``place``, both contiguous, of one dimension and one length;
        beyond the range of the type they become infinite."""
        if self.floor is not None:
            part = np.where(np.isfinite(part) & (part < self.floor), np.float32(self.floor), part)
        fast = self.dtype == np.float16 and part.dtype == np.float32 and part.size >= SHORT
        for start in range(0, part.size, BLOCK) if fast else ():
            block, target = part[start : start + BLOCK], place[start : start + BLOCK]
            if not self._round_block(block, target):
                _plain_cast(block, target)
        if not fast:
            _plain_cast(part, place)
        if self.factor != 1.0:
            with np.errstate(over="ignore", invalid="ignore"):
                scaled = (part.astype(np.float64) * self.factor).astype(self.dtype)
            np.copyto(place, scaled, where=np.isfinite(scaled))

    def _round_block(self, block: Array, target: Array) -> bool:
        """Rounds a block of float32 elements of a stored tensor to float16 as this file's head says, into ``target``;
        False, and nothing is written, where an element may not be finite in float16."""
        if self._scratch is None:  # an array of the lowest exponents: numpy compares with a single number slowly
            self._scratch = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint32), np.full(BLOCK, LOWEST)
        bits, low = block.view(np.uint32), target.view(np.uint16)
        one, other, lowest = (array[: block.size] for array in self._scratch)
        middle, total = one.view(np.float32), other.view(np.float32)  # the same memory
        np.bitwise_and(bits, EXPONENT, out=one)
        np.maximum(one, lowest, out=one)
        if one.max() > HIGHEST:
            return False
        np.add(one, RAISED, out=one)  # middle = M
        np.add(block, middle, out=total)  # x + M: rounds
        np.subtract(other, one, out=other)
        np.abs(other.view(np.int32), out=other.view(np.int32))
        np.right_shift(one, SHIFT, out=one)
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
