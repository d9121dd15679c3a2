"""float32 rounded to the low types, to nearest with ties to even, as a cast rounds.

numpy casts to float16 one element after the other, which takes ten times what all else takes that is done to a weight.
Its sums and shifts take many at a time: x + M, where M is 1.5 * 2**13 times the power of two below |x| and at least
3/4, has the step of float16 at x, so that the sum itself rounds. M's exponent, less a constant, is that of the result,
and the distance of the two bit patterns is the significand with its leading one. The sum less M is the rounded number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import ml_dtypes
import numpy as np

from ..core.arrays import Array, DType
from ..core.low_types import low_type

LOW_TYPES: dict[str, DType] = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
STORED_TYPES = {**LOW_TYPES, "float32": np.dtype(np.float32)}  # float32: for a mask that is only floored

BLOCK = 1 << 16  # elements: 256 KiB of float32 and what is computed of them stay in the second cache
SHORT = 1 << 13  # elements: below it the calls cost more than numpy's cast
FEWEST_ASKED, ROOTS_ASKED = 64, 4  # candidates of a row: its errors add up to about sqrt(length / 12) steps
MOST_ASKED = 1 << 15  # so that a candidate's column has 16 bits
FEWEST_TRIED = 16  # candidates at a time; an eighth of them is enough for most rows
FINEST = np.float32(32767)  # shares of a step (0 to 1) are compared as integers up to this

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

    def rows(self, data: Array, length: int) -> Iterator[Array]:
        """The rounded elements of an array of one dimension, several rows of ``length`` elements at a time, each in the
        memory of the one before; a row keeps the sum that it had, to half a step of one of its elements.

        Those nearest to the middle between two low numbers go to the other one, as few as are needed (C. Guo et al.,
        SQuant: on-the-fly data-free quantization, 2022); in a long row only one in ``every`` may. A row with a number
        that is not finite, before or after, is rounded number by number."""
        every = length // min(length, MOST_ASKED, max(FEWEST_ASKED, ROOTS_ASKED * math.isqrt(length)))
        asked, rows = -(-length // every), data.reshape(-1, length)
        at_once = max(1, BLOCK // length)
        together = max(at_once, BLOCK // asked // at_once * at_once)
        kept = np.empty((min(together, len(rows)), length), self.dtype)
        error = np.empty((min(at_once, len(rows)), length), np.float32)
        total, exact = np.empty(len(kept)), np.empty((len(kept), asked), np.float32)
        off = np.empty_like(exact)
        for start in range(0, len(rows), together):
            some = rows[start : start + together]
            for first in range(0, len(some), at_once):
                block = slice(first, min(first + at_once, len(some)))
                errors = error[: block.stop - first]
                self.round(some[block].reshape(-1), kept[block].reshape(-1), errors.reshape(-1))
                with np.errstate(invalid="ignore"):
                    errors.sum(1, np.float64, total[block])
                off[block] = errors[:, ::every]
                np.multiply(some[block, ::every], self.factor, out=exact[block], casting="unsafe")
            size = len(some)
            _keep_sums(kept[:size], every, total[:size], exact[:size], off[:size])
            yield kept[:size].reshape(-1)

    def round(self, part: Array, place: Array, error: Array | None = None) -> None:
        """Writes the elements of ``part``, rounded, into ``place``, both contiguous, of one dimension and one length;
        beyond the range of the type they become infinite. ``error``: takes, in float32, rounded less exact."""
        if self.floor is not None:
            part = np.where(np.isfinite(part) & (part < self.floor), np.float32(self.floor), part)
        fast = self.dtype == np.float16 and part.dtype == np.float32 and part.size >= SHORT
        for start in range(0, part.size, BLOCK) if fast else ():
            block, target = part[start : start + BLOCK], place[start : start + BLOCK]
            off = None if error is None else error[start : start + BLOCK]
            if not self._round_block(block, target, off):
                _plain_cast(block, target, off)
        if not fast:
            _plain_cast(part, place, error)
        if self.factor != 1.0:
            with np.errstate(over="ignore", invalid="ignore"):
                exact = part.astype(np.float64) * self.factor
                scaled = exact.astype(self.dtype)
                np.copyto(place, scaled, where=np.isfinite(scaled))
                if error is not None:
                    np.subtract(place.astype(np.float32), exact, out=error, casting="unsafe")

    def _round_block(self, block: Array, target: Array, error: Array | None) -> bool:
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
        if error is not None:
            np.subtract(total, middle, out=error)
            np.subtract(error, block, out=error)
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


@np.errstate(invalid="ignore")  # numbers that are not finite
def _keep_sums(low: Array, every: int, total: Array, exact: Array, error: Array) -> None:
    """Rounds numbers of stored tensors the other way, in place, until the errors of each row add up to half a step of
    one of them or less. ``low``: rows of rounded numbers, of which one in ``every`` is a candidate; ``total``: each
    row's errors added up; ``exact`` and ``error``: of the candidates, float32. All but ``exact`` are used up."""
    total[~np.isfinite(total)] = 0
    kind, step = low_type(low.dtype.name), np.abs(exact)
    least, most = kind.smallest_subnormal / 2, kind.largest
    if not (step.min() > least and step.max() <= most):
        error[~((step > least) & (step <= most))] = 0  # there is no low number on the other side
    np.bitwise_and(step.view(np.uint32), EXPONENT, out=step.view(np.uint32))
    step *= 2 * kind.rounding
    np.maximum(step, np.full_like(step, kind.smallest_subnormal), out=step)
    error /= step
    error *= (np.sign(total) * -FINEST).astype(np.float32)[:, None]  # negative where it makes up the row's
    keys = error.astype(np.int32)
    keys <<= 16
    keys |= np.arange(exact.shape[1], dtype=np.int32)
    keys.sort(axis=1)  # takes a fraction of what `argsort` does
    _turn(low, every, total, step, keys)


def _turn(low: Array, every: int, total: Array, step: Array, keys: Array) -> None:
    """For `_keep_sums`: moves candidates of each row to the other low number beside them, in place, until their steps
    add up to the row's ``total``. ``step``: of each candidate; ``keys``: the candidates sorted, those to be moved
    first: below zero where a move makes up the total, each with its column in the lower 16 bits."""
    bits, columns = low.view(np.int16).reshape(-1), keys.shape[1]
    toward, left = np.where(total < 0, np.int16(1), np.int16(-1)), np.abs(total).astype(np.float32)
    rows, width = np.arange(len(low)), max(FEWEST_TRIED, columns // 8)
    for first in range(0, columns, width):
        some = keys[rows, first : first + width]
        column = some & 0xFFFF
        steps = step.take(column + rows[:, None] * columns)
        reached = np.cumsum(steps, 1)
        turned = (some < 0) & (reached - steps / 2 < left[rows, None])
        row = rows[turned.nonzero()[0]]
        places = row * low.shape[1] + column[turned] * every
        plain = bits[places]
        bits[places] = plain + toward[row] * (plain >> 15 | 1)  # farther from zero, or nearer to it
        left[rows] -= reached[:, -1]
        rows = rows[turned[:, -1]]
        if not rows.size:
            return


def _plain_cast(part: Array, place: Array, error: Array | None) -> None:
    """Rounding of stored tensors: fills ``place`` with ``part`` cast by numpy to its type, and ``error``; inf without a
    warning."""
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(place, part, casting="unsafe")
        if error is not None:
            np.subtract(place.astype(np.float32), part, out=error)
