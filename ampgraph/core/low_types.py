"""The limits of the low types."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .arrays import DType

MOST_LOST = 2.0**-7
"""What rounding takes from a normal number of a low type, at most, as a share of it."""


@dataclass(frozen=True)
class LowType:
    """A low type's limits: its largest finite number, its smallest normal and subnormal ones above zero, and how many
    significant ``bits`` a normal number has, the hidden one included."""

    name: str
    largest: float
    smallest_normal: float
    smallest_subnormal: float
    bits: int

    @property
    def exact_up_to(self) -> int:
        """Of a low type: the whole number up to which all whole numbers are exact."""
        return 1 << self.bits

    @property
    def rounding(self) -> float:
        """Of a low type: the largest relative error when a number in its normal range is rounded to the nearest."""
        return 2.0**-self.bits


@cache
def low_type(name: str) -> LowType:
    """The limits of a low type, ``float16`` or ``bfloat16``."""
    from ml_dtypes import finfo

    info = finfo(name)  # type: ignore[no-untyped-call]
    smallest = float(info.smallest_normal), float(info.smallest_subnormal)
    return LowType(name, float(info.max), *smallest, info.nmant + 1)


def numpy_type(name: str) -> DType:
    """The numpy type of a low type by its name, for ``bfloat16`` that of ml_dtypes; of any other type's name too."""
    import ml_dtypes
    import numpy as np

    return np.dtype(getattr(ml_dtypes, name, name))
