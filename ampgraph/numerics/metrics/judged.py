"""One output of one sample as a metric judges it, and what it is over the samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from ...core.json_types import JsonObject

QUANTILE = 0.9  # the share of samples that decides
SCALE_SHARE = 0.1
"""Of an output's own scale: what a sample is measured against at least.

At a tolerance of 1e-2 that allows 1e-3 of the scale, float16's step there (2^-10): an output whose samples are around 5
is not asked to be nearer to zero, in the one sample where it nearly vanishes, than float16 knows numbers of
its size. The scale is the median over the samples of their root mean squares, which no single large sample moves.
"""


@dataclass(frozen=True)
class Judged:
    """``error`` is ``off`` over ``size``: of a difference and a reference in one unit, ``size`` at least ``least``.

    Attributes:
        sort: what the output was taken for.
        scaled: whether the output's scale over the samples is a floor as well.
        paired: rows that have a partner, of how many on both sides together; None where rows are not paired.
    """

    off: float
    size: float = 1.0
    least: float = 0.0
    sort: str = ""
    scaled: bool = False
    paired: tuple[int, int] | None = None

    def error(self, scale: float = 0.0) -> float:
        """Against the scale of the output, 0 for none."""
        size = max(self.size, self.least, SCALE_SHARE * scale if self.scaled else 0.0)
        return self.off / size if size else 0.0 if not self.off else math.inf


def scale_of(sizes: Iterable[float]) -> float:
    """The scale of an output: the median of what its samples have, 0 for none."""
    known = [size for size in sizes if math.isfinite(size)]
    return float(median(known)) if known else 0.0


def quantile(errors: Sequence[float], share: float) -> float:
    """An error that occurred: of 8 samples the 90th percentile is the eighth."""
    return sorted(errors)[max(0, math.ceil(share * len(errors)) - 1)]


@dataclass
class Scores:
    """The errors of all samples by one metric. ``over_all``: their mean is judged, else the 90th percentile."""

    name: str
    errors: list[float] = field(default_factory=list)
    over_all: bool = False

    @property
    def median(self) -> float:
        return quantile(self.errors, 0.5)

    @property
    def p90(self) -> float:
        return quantile(self.errors, QUANTILE)

    @property
    def worst(self) -> float:
        return max(self.errors)

    @property
    def decisive(self) -> float:
        """What is held against the tolerance."""
        if not all(map(math.isfinite, self.errors)) and self.over_all:
            return math.inf
        return sum(self.errors) / len(self.errors) if self.over_all else self.p90

    def to_dict(self) -> JsonObject:
        """Plain data for JSON; null stands for an infinite error."""
        figures = {"median": self.median, "p90": self.p90, "worst": self.worst, "judged": self.decisive}
        return {name: value if math.isfinite(value) else None for name, value in figures.items()}
