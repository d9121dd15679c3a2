"""How large the numbers of stored tensors are, and what of them the low type cannot hold; each is read once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...core.arrays import Array
from ...core.dataflow import FLOAT32, Dataflow, Value
from ...core.low_types import LowType

SMALL = 1 << 12  # elements: tensors up to here are looked at together
TOGETHER = 1 << 16  # elements of those, which stay in the second cache


class Extent(NamedTuple):
    """The largest finite magnitude, whether some finite element is below the low minimum and none above the maximum,
    the share of the elements that are beyond the range, and of those that are not zero the share flushed to zero."""

    largest: float
    below: bool
    beyond: float
    flushed: float


class Extents:
    """Of the float32 tensors that a model stores."""

    def __init__(self, flow: Dataflow, low: LowType) -> None:
        self.flow, self.low = flow, low
        self.tiny = np.float32(low.smallest_subnormal / 2)
        self._read: dict[object, Extent] = {}

    def of(self, value: Value) -> Extent:
        """That of a stored tensor."""
        key = self.flow.weights.key(value)
        found = self._plain.get(key) or self._read.get(key)
        if found is None:
            found = self._read[key] = self._by_pieces(value)
        return found

    def is_plain(self, value: Value) -> bool:
        """Whether a stored tensor is small, and the low type holds all of it."""
        return self.flow.weights.key(value) in self._plain

    @cached_property
    def _plain(self) -> Mapping[object, Extent]:
        """Of all small tensors that the low type holds whole: a look at each alone takes longer than its numbers."""
        found: dict[object, Extent] = {}
        for group in self._groups():
            parts = list(group.values())
            size = np.abs(np.concatenate(parts))
            starts = np.cumsum([0, *(part.size for part in parts[:-1])])
            tops = np.maximum.reduceat(size, starts).tolist()
            flushed = np.logical_or.reduceat((size <= self.tiny) & (size > 0), starts).tolist()
            for key, top, loses in zip(group, tops, flushed, strict=True):
                if top <= self.low.largest and not loses:  # no infinity and no NaN either
                    found[key] = Extent(top, below=False, beyond=0.0, flushed=0.0)
        return found

    def _groups(self) -> Iterator[dict[object, Array]]:
        """The small tensors, as many at a time as are looked at together."""
        weights, group, count = self.flow.weights, dict[object, Array](), 0
        for value in self.flow.values:
            array = weights.array(value, SMALL) if value.weight and value.dtype == FLOAT32 else None
            if array is not None and array.size:
                group[weights.key(value)] = array.reshape(-1)
                count += array.size
                if count >= TOGETHER:
                    yield group
                    group, count = {}, 0
        if group:
            yield group

    def _by_pieces(self, value: Value) -> Extent:
        """Reads a stored tensor piece by piece."""
        limit, largest, flushed, nonzero, beyond, total = self.low.largest, 0.0, 0, 0, 0, 0
        below = above = False
        for part in self.flow.weights.chunks(value):
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
            small = int(np.count_nonzero(magnitude <= self.tiny))
            if small:
                flushed += int(np.count_nonzero(magnitude[magnitude <= self.tiny]))
            nonzero += magnitude.size - small
        nonzero += flushed
        beyond_share, flushed_share = beyond / total if total else 0.0, flushed / nonzero if nonzero else 0.0
        return Extent(largest, below and not above, beyond_share, flushed_share)
