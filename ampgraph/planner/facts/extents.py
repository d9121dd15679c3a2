"""How large the numbers of stored tensors are, and what of them the low type cannot hold; each is read once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ...core.arrays import Array
from ...core.dataflow import Dataflow, Value
from ...core.low_types import LowType


class Extent(NamedTuple):
    """The largest finite magnitude, whether some finite element is below the low minimum and none above the maximum,
    the share of the elements that are beyond the range, and of those that are not zero the share flushed to zero."""

    largest: float
    below: bool
    beyond: float
    flushed: float

    @staticmethod
    def of(parts: Iterable[Array], low: LowType) -> Extent:
        """Of numbers that come piece by piece."""
        limit, tiny = low.largest, low.smallest_subnormal / 2
        largest, flushed, nonzero, beyond, total = 0.0, 0, 0, 0, 0
        below = above = False
        for part in parts:
            magnitude = np.abs(part)
            total += magnitude.size
            top = float(magnitude.max(initial=0))
            if not math.isfinite(top):
                magnitude = magnitude[np.isfinite(magnitude)]
                top = float(magnitude.max(initial=0))
            largest = max(largest, top)
            if top > limit:
                beyond += int(np.count_nonzero(magnitude > limit))
                finite = part[np.isfinite(part)]
                below |= bool((finite < -limit).any())
                above |= bool((finite > limit).any())
            small = magnitude[magnitude <= magnitude.dtype.type(tiny)]
            lost = int(np.count_nonzero(small))
            flushed += lost
            nonzero += magnitude.size - small.size + lost
        return Extent(largest, below and not above, beyond / max(total, 1), flushed / max(nonzero, 1))


class Extents:
    """Of the float32 tensors that a model stores."""

    def __init__(self, flow: Dataflow, low: LowType) -> None:
        self.flow, self.low = flow, low
        self._read: dict[object, Extent] = {}

    def of(self, value: Value) -> Extent:
        """That of a stored tensor."""
        key = self.flow.weights.key(value)
        if key not in self._read:
            self._read[key] = Extent.of(self.flow.weights.chunks(value), self.low)
        return self._read[key]
