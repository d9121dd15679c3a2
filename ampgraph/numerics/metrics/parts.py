"""Parts of an output that differ in scale, each judged by itself: boxes beside scores, one task beside another.

The error of a whole output is that of its largest numbers. Slices along an axis are grouped by their scales over the
samples; every group but the largest is a part, whose tolerance is `PART` times that of the whole. A logit that is
small by chance is none: too few numbers, or too much alike, say nothing about its scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...core.arrays import Array

MOST = 1024  # slices along an axis that holds parts: more are places, or words
GAP = 4.0  # between the scales of two parts; less apart, the error of the whole tells of both
PART = 3.0
"""How many times the tolerance of an output each of its parts has: 3e-2 in float16."""
CHANCE = 1e-2  # that a slice of the largest scale is as small as one that counts as a part
AXES = {1: (0,), 2: (1,), 3: (1, 2)}
"""By rank, axes that may hold parts; of pictures and maps the channels, 1."""


@dataclass(frozen=True)
class Slices:
    """The slices of an output along an axis in one sample, of ``count`` numbers each: root mean squares of the
    reference and of the difference, and the reference's means, float64 [slices] each."""

    axis: int
    size: Array
    off: Array
    mean: Array
    count: int


@dataclass(frozen=True)
class OutputPart:
    """Slices of an output along an axis, by index (``places``, sorted), of one scale: a root mean square."""

    axis: int
    places: Array
    scale: float

    @property
    def name(self) -> str:
        """The part as an index, `[:, 4:84]`, which stands behind the output's name."""
        first, last = int(self.places.min()), int(self.places.max())
        some = f"{first}:{last + 1}" if last > first else str(first)
        if len(self.places) < last - first + 1:
            some = f"{len(self.places)} of {some}"
        return f"[{':, ' * self.axis}{some}]"

    def error(self, slices: Slices, floor: float) -> float:
        """The part's error in one sample: relative to its own scale there, which is at least ``floor``."""
        off, size = (math.sqrt(float(np.mean(each[self.places] ** 2))) for each in (slices.off, slices.size))
        return off / max(size, self.scale, floor)


def slices_of(want: Array, difference: Array) -> tuple[Slices, ...]:
    """The slices of an output and of its difference along each axis that may hold parts; both float64, all finite."""
    axes = [axis for axis in AXES.get(want.ndim, (1,)) if want.ndim and 2 <= want.shape[axis] <= MOST and want.size]
    found = []
    for axis in axes:
        means = want.mean(_other_axes(want, axis))
        count = want.size // len(means)
        found.append(Slices(axis, _slice_rms(want, axis), _slice_rms(difference, axis), means, count))
    return tuple(found)


def _other_axes(array: Array, axis: int) -> tuple[int, ...]:
    """Parts of an output: all axes of its array but one."""
    return tuple(each for each in range(array.ndim) if each != axis)


def _slice_rms(array: Array, axis: int) -> Array:
    """Parts of an output: the root mean square of each slice along an axis, without overflow."""
    largest = float(np.abs(array).max()) or 1.0  # squares of huge numbers must not overflow
    root: Array = np.sqrt(np.mean((array / largest) ** 2, axis=_other_axes(array, axis))) * largest
    return root


def parts_of(samples: Sequence[Sequence[Slices]]) -> Iterator[OutputPart]:
    """The parts of an output, by its slices in each sample: the groups of slices that are smaller than the largest by
    more than chance; none along an axis whose size differs between samples."""
    for same in zip(*(sorted(sample, key=lambda each: each.axis) for sample in samples if sample), strict=False):
        sizes = [each.size for each in same]
        if len({(each.axis, len(each.size)) for each in same}) > 1:
            continue
        scales = np.sqrt(np.mean(np.square(sizes), axis=0))
        order = np.argsort(scales, kind="stable")
        ordered = scales[order]
        ends = np.flatnonzero(ordered[1:] > GAP * ordered[:-1]) + 1  # where a group of larger slices begins
        *small, largest = np.split(order, ends)
        numbers = _independent_numbers(same, largest)
        top = math.sqrt(float(np.mean(scales[largest] ** 2)))
        for places in small:
            scale = math.sqrt(float(np.mean(scales[places] ** 2)))
            if len(order) * _chance((scale / top) ** 2, numbers) < CHANCE:
                yield OutputPart(same[0].axis, np.sort(places), scale)


def _independent_numbers(same: Sequence[Slices], places: Array) -> float:
    """Parts of an output: how many independent numbers a slice has over the samples: all, or one where those of the
    slices ``places`` never vary; as ``same``, one axis in each sample, shows it."""
    weights = np.array([each.count for each in same], float)
    squares = np.average([each.size[places] ** 2 for each in same], axis=0, weights=weights)
    means = np.average([each.mean[places] for each in same], axis=0, weights=weights)
    varied = float(np.median(1 - np.minimum(means**2 / np.maximum(squares, np.finfo(float).tiny), 1)))
    return 1 + (float(weights.sum()) - 1) * varied


def _chance(ratio: float, numbers: float) -> float:
    """Parts of an output: a bound of the chance that the mean square of so many normal numbers is at most ``ratio``
    times what is expected: Chernoff's of the chi-squared distribution, (r exp(1 - r))^(n / 2)."""
    return float((ratio * math.exp(1 - ratio)) ** (numbers / 2))
