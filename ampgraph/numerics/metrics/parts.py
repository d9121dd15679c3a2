"""Parts of an output that differ in scale, each judged by itself: boxes beside scores, one task beside another.

The error of a whole output is that of its largest numbers. Slices along an axis are grouped by their scales over the
samples; every group but the largest is a part, whose tolerance is `PART` times that of the whole.
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
AXES = {1: (0,), 2: (1,), 3: (1, 2)}
"""By rank, axes that may hold parts; of pictures and maps the channels, 1."""


@dataclass(frozen=True)
class Slices:
    """Root mean squares of the slices of an output along an axis in one sample: of the reference and of the difference,
    float64 [slices] each."""

    axis: int
    size: Array
    off: Array


@dataclass(frozen=True)
class OutputPart:
    """Slices of one scale along an axis."""

    axis: int
    places: Array
    scale: float

    @property
    def name(self) -> str:
        """As `[:, 4:84]`, behind the name of the output."""
        first, last = int(self.places.min()), int(self.places.max())
        whole = len(self.places) == last - first + 1
        some = f"{first}:{last + 1}" if last > first else str(first)
        return f"[{':, ' * self.axis}{some if whole else f'{len(self.places)} of {some}'}]"

    def error(self, slices: Slices, floor: float) -> float:
        """Of one sample: against its own scale there, and at least that over all samples."""
        off, size = (math.sqrt(float(np.mean(each[self.places] ** 2))) for each in (slices.off, slices.size))
        return off / max(size, self.scale, floor)


def slices_of(want: Array, difference: Array) -> tuple[Slices, ...]:
    """Those of an array of finite float64 and of what another one is off, along each axis that may hold parts."""
    axes = [axis for axis in AXES.get(want.ndim, (1,)) if want.ndim and 2 <= want.shape[axis] <= MOST and want.size]
    return tuple(Slices(axis, _root(want, axis), _root(difference, axis)) for axis in axes)


def _root(array: Array, axis: int) -> Array:
    others = tuple(each for each in range(array.ndim) if each != axis)
    largest = float(np.abs(array).max()) or 1.0  # squares of huge numbers must not overflow
    root: Array = np.sqrt(np.mean((array / largest) ** 2, axis=others)) * largest
    return root


def parts_of(samples: Sequence[Sequence[Slices]]) -> Iterator[OutputPart]:
    """The parts of an output, by its slices in each sample; none along an axis that has no one size."""
    for same in zip(*(sorted(sample, key=lambda each: each.axis) for sample in samples if sample), strict=False):
        sizes = [each.size for each in same]
        if len({(each.axis, len(each.size)) for each in same}) > 1:
            continue
        scales = np.sqrt(np.mean(np.square(sizes), axis=0))
        order = np.argsort(scales, kind="stable")
        ordered = scales[order]
        ends = np.flatnonzero(ordered[1:] > GAP * ordered[:-1]) + 1
        for places in np.split(order, ends)[:-1]:
            yield OutputPart(same[0].axis, np.sort(places), math.sqrt(float(np.mean(scales[places] ** 2))))
