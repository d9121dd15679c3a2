"""The limits of the low types."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .arrays import DType

MOST_LOST = 2.0**-7
"""What rounding takes from a normal number of a low type, at most, as a share of it."""


@dataclass(frozen=True)
class LowType:
    """Of a low type: its largest finite number, its smallest normal and subnormal ones above zero, and how many
    significant bits a normal number has."""

    name: str
    largest: float
    smallest_normal: float
    smallest_subnormal: float
    bits: int

    @property
    def exact_up_to(self) -> int:
        """Of a low type: the largest whole number up to which all are exact."""
        return 1 << self.bits

    @property
    def rounding(self) -> float:
        """Of a low type: the largest relative error of a rounding."""
        return 2.0**-self.bits


@cache
def low_type(name: str) -> LowType:
    """The facts of a low type, ``float16`` or ``bfloat16``."""
    from ml_dtypes import finfo

    info = finfo(name)  # type: ignore[no-untyped-call]
    smallest = float(info.smallest_normal), float(info.smallest_subnormal)
    return LowType(name, float(info.max), *smallest, info.nmant + 1)


def numpy_type(name: str) -> DType:
    """Of a low type: the numpy type of ``float16`` or ``bfloat16`` (ml_dtypes')."""
    import ml_dtypes
    import numpy as np

    return np.dtype(getattr(ml_dtypes, name, name))
