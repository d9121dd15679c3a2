"""float32 rounded to the low types, to nearest with ties to even, as a cast rounds.

numpy casts to float16 one element after the other, which takes ten times what all else takes that is done to a weight.
Its sums and shifts take many at a time: |x| + M, where M is 2**13 times the power of two below |x| and at least 1/2,
has the step of float16 at x, so that the sum itself rounds. Its exponent, less a constant, is that of the result, and
its last 12 bits are the significand with its leading one.

Where a product adds up what it multiplies by a tensor, the rounding keeps these sums. What it multiplies has a mean, as
behind a Relu or in a picture, and rounded one by one the k weights of a sum shift the result by that mean times sqrt(k)
times 0.29 steps, in all samples alike. Of the weights that lie nearly halfway between two low numbers a few take the
other one, which leaves half a step of the sum, and adds a hundredth to the mean square of the rounding. (After SQuant,
Guo et al., ICLR 2022, which does it for integers.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import ml_dtypes
import numpy as np

from ..core.arrays import Array, DType
from ..core.low_types import low_type

LOW_TYPES: dict[str, DType] = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
STORED_TYPES = {**LOW_TYPES, "float32": np.dtype(np.float32)}  # float32: a mask that is floored and stays

BLOCK = 1 << 16  # elements: 256 KiB of float32 and what is computed of them stay in the second cache
SHORT = 1 << 13  # elements: below it the calls cost more than the cast
OVERFLOWS = 65520.0  # what float16 rounds to infinity, from here on

EXPONENT, LOWEST, RAISED = np.uint32(0x7F800000), np.uint32(113 << 23), np.uint32(13 << 23)
SHIFT, SIGNIFICAND = np.uint32(13), np.uint32(0xFFF)
SIGN_SHIFT, SIGN = np.uint32(16), np.uint32(0x8000)
EXCESS = np.uint16((126 << 10) % (1 << 16))  # of the sum's exponent over the result's


def pieces(data: Array, size: int = 0) -> Iterator[Array]:
    """Views of an array of one dimension, one after the other, of ``size`` elements or `BLOCK`."""
    size = size or BLOCK
    return (data[start : start + size] for start in range(0, data.size, size))


class Rounder:
    """Rounds pieces of a tensor to ``dtype`` in memory of its own, which it holds for as long as it lives.

    Finite elements below ``floor`` become ``floor`` first; ``factor``: what is multiplied by it, in float64, and stays
    finite, is rounded once."""

    def __init__(self, dtype: DType, floor: float | None = None, factor: float = 1.0) -> None:
        self.dtype, self.half, self.floor, self.factor = dtype, dtype == np.float16, floor, factor
        self._scratch: tuple[Array, Array, Array] | None = None

    def whole(self, data: Array) -> Array:
        """All elements of an array of one dimension, in one piece."""
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
    """Casts ``part`` by numpy to the type of ``place``, and fills that; overflow gives inf without a warning."""
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(place, part, casting="unsafe")


# -- sums that are kept -----------------------------------------------------------------------------------------------

FRACTION = {LOW_TYPES["float16"]: 10, LOW_TYPES["bfloat16"]: 7}  # bits of the significand behind the point
SMALLEST = {LOW_TYPES["float16"]: 113, LOW_TYPES["bfloat16"]: 1}  # exponents of the smallest normal numbers
LARGEST = {dtype: low_type(name).largest for name, dtype in LOW_TYPES.items()}
CANDIDATES = 3.0  # times the root of the length of a sum: what so many near halves change is beyond five deviations of it
HELD = 1 << 22  # elements of a tensor that are rounded at once where sums run across its rows
ROW, COST = np.uint64(47), np.uint64(32)  # where the row and the cost stand in a key; the place is below
PLACE = np.uint64((1 << 32) - 1)


class SumRounder(Rounder):
    """Rounds a tensor such that sums along some axes are kept: to half a step each, as far as float16 has such numbers.

    ``dims``: its shape; ``added``: the axes, from one up to before another. Where these are several, as the channels
    and the window of a Conv, the sums along all but the first are kept before those along all. Sums across rows that
    are together longer than `HELD` are kept part by part."""

    def __init__(self, dtype: DType, dims: tuple[int, ...], added: tuple[int, int], factor: float = 1.0) -> None:
        super().__init__(dtype, factor=factor)
        start, end = added
        self.inner = math.prod(dims[end:])
        lengths = [math.prod(dims[start + 1 : end]), math.prod(dims[start:end])]
        self.lengths = [n for k, n in enumerate(lengths) if n > 1 and n not in lengths[:k]]

    def whole(self, data: Array) -> Array:
        """All elements of an array of one dimension, in one piece."""
        return np.concatenate([part.copy() for part in self.parts(data)] or [np.empty(0, self.dtype)])

    def parts(self, data: Array) -> Iterator[Array]:
        """The same piece by piece."""
        length = self.lengths[-1] if self.lengths else 1
        if self.inner == 1:
            yield from (self._kept(part, 1) for part in pieces(data, max(1, BLOCK // length) * length))
            return
        most = min(length, max(1, HELD // self.inner)) * self.inner
        for each in pieces(data, length * self.inner):
            yield from (self._kept(part, self.inner) for part in pieces(each, most))

    def _kept(self, part: Array, inner: int) -> Array:
        """A piece of whole sums, rounded; ``inner``: sums that lie side by side."""
        low = np.empty(part.size, self.dtype)
        self.round(part, low)
        wide = part if self.factor == 1.0 else (part.astype(np.float64) * self.factor).astype(np.float32)
        if inner == 1:
            for length in self.lengths:
                _keep_sums(wide, low, length, 1)
            return low
        wide, side = wide.reshape(-1, inner), low.reshape(-1, inner)
        width = max(1, BLOCK // len(wide))
        for start in range(0, inner, width):
            columns = np.s_[:, start : start + width]
            block = np.ascontiguousarray(side[columns])
            _keep_sums(np.ascontiguousarray(wide[columns]).reshape(-1), block.reshape(-1), len(wide), block.shape[1])
            side[columns] = block
        return low


def _keep_sums(wide: Array, low: Array, length: int, inner: int) -> None:
    """Moves some of the ``low`` numbers that ``wide`` ones were rounded to, such that sums of ``length`` of them, of
    which ``inner`` lie side by side, are kept. What is beyond the range stays."""
    error, step = _errors(wide, low)
    signed = error * np.sign(wide)
    off = signed.reshape(-1, length, inner).sum(1, dtype=np.float64).reshape(-1)
    cost = step - 2 * np.abs(error)  # what the other number adds to the sum of squares, for each step of the sum
    places = np.flatnonzero(cost <= step * np.float32(min(1.0, CANDIDATES / math.sqrt(length))))
    rows = places // (length * inner) * inner + places % inner
    helps = signed[places] * off[rows] > 0
    places, rows = places[helps], rows[helps]
    if not places.size:
        return
    costs = np.maximum(cost[places], 0).view(np.uint32) >> np.uint32(17)
    keys = np.sort(rows.astype(np.uint64) << ROW | costs.astype(np.uint64) << COST | places.astype(np.uint64))
    places, rows = (keys & PLACE).astype(np.int64), (keys >> ROW).astype(np.int64)
    steps = step[places].astype(np.float64)
    before = np.cumsum(steps) - steps
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    before -= np.repeat(before[starts], np.diff(starts, append=len(rows)))
    moved = places[np.abs(off[rows]) - before > steps / 2]
    low.view(np.uint16)[moved] -= np.where(error[moved] > 0, 1, -1).astype(np.uint16)


def _errors(wide: Array, low: Array) -> tuple[Array, Array]:
    """How much larger a low number is than the wide one, both without their signs, and the low type's step there;
    zero for what has no neighbour that is finite."""
    exponents = np.maximum(wide.view(np.uint32) & EXPONENT, np.uint32(SMALLEST[low.dtype] << 23))
    step = (exponents - np.uint32(FRACTION[low.dtype] << 23)).view(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        size, error = np.abs(wide), np.abs(low.astype(np.float32))
        np.subtract(error, size, out=error)
    error[~(size < LARGEST[low.dtype])] = 0
    return error, step
