"""float32 rounded to the low types, to nearest with ties to even, as a cast rounds.

numpy casts to float16 one element after the other, which takes ten times what all else takes that is done to a weight.
Its sums and shifts take many at a time: |x| + M, where M is 2**13 times the power of two below |x| and at least 1/2,
has the step of float16 at x, so that the sum itself rounds. Its exponent, less a constant, is that of the result, and
its last 12 bits are the significand with its leading one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import ml_dtypes
import numpy as np

from ..core.arrays import Array, DType

LOW_TYPES: dict[str, DType] = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
STORED_TYPES = {**LOW_TYPES, "float32": np.dtype(np.float32)}  # float32: for a mask that is only floored

BLOCK = 1 << 16  # elements: 256 KiB of float32 and what is computed of them stay in the second cache
SHORT = 1 << 13  # elements: below it the calls cost more than numpy's cast
FEWEST_ASKED, ROOTS_ASKED = 64, 4  # candidates of a row: its errors add up to about sqrt(length / 12) steps
FINEST = np.float32(32767)  # shares of a step (0 to 1) are compared as integers up to this
OVERFLOWS = 65520.0  # what float16 rounds to infinity, from here on

EXPONENT, LOWEST, RAISED = np.uint32(0x7F800000), np.uint32(113 << 23), np.uint32(13 << 23)
"""Of float32: the bits of the exponent; that of 2**-14, the least of float16; what multiplies by 2**13."""
SHIFT, SIGNIFICAND = np.uint32(13), np.uint32(0xFFF)
"""What brings the sum's exponent to where float16 has it; the bits of its significand with the leading one."""
SIGN_SHIFT, SIGN = np.uint32(16), np.uint32(0x8000)
EXCESS = np.uint16((126 << 10) % (1 << 16))  # of the sum's exponent over the result's, in place


def pieces(data: Array) -> Iterator[Array]:
    """Rounding of stored tensors: views of at most `BLOCK` elements of an array of one dimension, in order."""
    return (data[start : start + BLOCK] for start in range(0, data.size, BLOCK))


class Rounder:
    """Rounds stored tensors to the numpy type ``dtype``, to nearest with ties to even, piece by piece. Finite elements
    below ``floor`` become ``floor`` first; None for no floor. ``factor``: elements are multiplied by it in float64 and
    rounded once; one that is not finite by that is rounded without it. It keeps memory to compute in."""

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
        """The rounded elements of a one-dimensional array, piece by piece, each in the memory of the one before."""
        kept = np.empty(min(BLOCK, data.size), self.dtype)
        for part in pieces(data):
            self.round(part, kept[: part.size])
            yield kept[: part.size]

    def round(self, part: Array, place: Array) -> None:
        """Writes the elements of ``part``, rounded, into ``place``, both contiguous, of one dimension and one length;
        beyond the range of the type they become infinite."""
        if self.floor is not None:
            part = np.where(np.isfinite(part) & (part < self.floor), np.float32(self.floor), part)
        if self.dtype == np.float16 and part.dtype == np.float32 and part.size >= SHORT:
            for block, target in zip(pieces(part), pieces(place), strict=True):
                if not self._round_block(block, target):
                    _plain_cast(block, target)
        else:
            _plain_cast(part, place)
        if self.factor != 1.0:
            with np.errstate(over="ignore", invalid="ignore"):
                scaled = (part.astype(np.float64) * self.factor).astype(self.dtype)
            np.copyto(place, scaled, where=np.isfinite(scaled))

    def _round_block(self, block: Array, target: Array) -> bool:
        """Rounds a block of float32 elements of a stored tensor to float16 as this file's head says, into ``target``;
        False, and nothing is written, where an element is not finite in float16."""
        if self._scratch is None:  # an array of the lowest exponents: numpy compares with a single number slowly
            self._scratch = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint32), np.full(BLOCK, LOWEST)
        bits, low = block.view(np.uint32), target.view(np.uint16)
        one, other, lowest = (array[: block.size] for array in self._scratch)
        total, step = other.view(np.float32), one.view(np.float32)  # the same memory: total is other, step is one
        np.abs(block, out=total)
        if not total.max() < OVERFLOWS:  # also for nan
            return False
        np.bitwise_and(bits, EXPONENT, out=one)  # step = M: the power of two below |x|, times 2**13
        np.maximum(one, lowest, out=one)
        np.add(one, RAISED, out=one)
        np.add(total, step, out=total)  # |x| + M: rounds
        np.right_shift(other, SHIFT, out=one)  # its exponent, plus its significand, plus the sign of x
        np.bitwise_and(other, SIGNIFICAND, out=other)
        np.add(one, other, out=one)
        np.right_shift(bits, SIGN_SHIFT, out=other)
        np.bitwise_and(other, SIGN, out=other)
        np.add(one, other, out=one)
        np.copyto(low, one, casting="unsafe")
        np.subtract(low, EXCESS, out=low)
        return True


def with_sums_kept(exact: Array, rounded: Array, length: int) -> Array:
    """The numbers of ``rounded``, some of them rounded the other way, so that each row of ``length`` of them has the
    sum of its ``exact`` ones, to half a step of one of them. Those nearest to the middle between two low numbers go to
    the other one, as few as are needed (C. Guo et al., SQuant: on-the-fly data-free quantization, 2022). ``exact``:
    what was rounded; both are of one dimension, and not empty. A row with a number not finite stays."""
    rows = max(1, BLOCK // length) * length
    parts = (_sums_kept(exact[s : s + rows], rounded[s : s + rows], length) for s in range(0, exact.size, rows))
    return np.concatenate([part.reshape(-1) for part in parts])


@np.errstate(invalid="ignore")  # numbers that are not finite
def _sums_kept(exact: Array, rounded: Array, length: int) -> Array:
    """`with_sums_kept` of a few rows of low numbers; the result has two dimensions, [rows, ``length``]. In a long row
    only every n-th number is a candidate to be rounded the other way."""
    low = rounded.reshape(-1, length).copy()
    total = (low.astype(np.float32) - exact.reshape(low.shape)).sum(1, keepdims=True, dtype=np.float64)
    total[~np.isfinite(total)] = 0
    asked = min(length, max(FEWEST_ASKED, ROOTS_ASKED * math.isqrt(length)))
    some = low[:, :: length // asked]  # the candidates: a view, written below
    wide, bits = some.astype(np.float32), low.view(np.int16)[:, :: length // asked]
    error = wide - exact.reshape(low.shape)[:, :: length // asked].astype(np.float32)
    away = (total < 0) != (wide < 0)  # the other number is further from zero, so that the sum comes back
    other = np.where(away, bits + np.int16(1), bits - np.int16(1)).view(low.dtype)
    step = abs(other.astype(np.float32) - wide)
    may = (error * np.sign(total).astype(np.float32) > 0) & (wide != 0) & (step < np.inf)
    share = np.divide(abs(error), step, out=np.zeros_like(error), where=may)  # 1/2: in the middle
    order = np.argsort((share * -FINEST).astype(np.int16), axis=1, kind="stable")  # of 16 bits: a radix sort
    steps = np.where(np.take_along_axis(may, order, 1), np.take_along_axis(step, order, 1), 0.0)
    turned = (steps > 0) & (np.cumsum(steps, 1) - steps / 2 < abs(total))  # until the sum is there
    kept = np.take_along_axis(some, order, 1)
    np.put_along_axis(some, order, np.where(turned, np.take_along_axis(other, order, 1), kept), 1)
    return low


def _plain_cast(part: Array, place: Array) -> None:
    """Rounding of stored tensors: fills ``place`` with ``part`` cast by numpy; inf beyond the range, not warned of."""
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(place, part, casting="unsafe")
