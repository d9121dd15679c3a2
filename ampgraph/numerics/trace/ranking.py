"""Which nodes have to be in float32 for a tolerance, by runs of one session: the first of a ranking, less some."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

CLOSE = 8  # the search ends within an eighth
LEANER = 16  # runs at most that look for what is not needed
Late = Callable[[], bool]


@dataclass
class Ranking:
    """``order``: units, those first that make most of the error; ``error``: that of a run in which only some are low;
    ``patterns``: what names each of them to `convert`; ``shares``: of each in the squared error, as far as known."""

    order: Sequence[int]
    error: Callable[[Collection[int]], float]
    patterns: Callable[[int], Sequence[str]]
    shares: Sequence[float] = ()
    known: dict[frozenset[int], float] = field(default_factory=dict)

    def left(self, held: Collection[int]) -> float:
        """The error with some in float32."""
        key = frozenset(held)
        if key not in self.known:
            self.known[key] = self.error([unit for unit in self.order if unit not in key])
        return self.known[key]

    def needed(self, aim: float, late: Late) -> list[int] | None:
        """Units that leave an error of ``aim`` or less in float32, few of them; None where all do not. Where the time
        is up, so many as should."""
        if self.left(self.order) > aim:
            return None
        few, many = self._bounds(aim, late)
        while many - few > max(1, many // CLOSE) and not late():
            middle = (few + many) // 2
            few, many = (few, middle) if self.left(self.order[:middle]) <= aim else (middle, many)
        return self._leaner(list(self.order[:many]), aim, late)

    def _bounds(self, aim: float, late: Late) -> tuple[int, int]:
        """A count that is too few, and one that is enough, from the guess on; the second doubles."""
        few, many = 0, self._guess(aim)
        while not late():
            if self.left(self.order[:many]) <= aim:
                break
            few, many = many, min(2 * many, len(self.order))
        return few, many

    def _guess(self, aim: float) -> int:
        """How many leave ``aim``, if squared errors add up."""
        whole, total = self.left(()), sum(self.shares)
        if not (math.isfinite(whole) and 0 < total < math.inf):
            return 1
        left = total
        for count, share in enumerate(self.shares, 1):
            left -= share
            if left <= total * (aim / whole) ** 2:
                return count
        return len(self.order)

    def _leaner(self, held: list[int], aim: float, late: Late) -> list[int]:
        """Without those that are not needed: from the last on by quarters, which are halved where they are."""
        end, size, most = len(held), max(1, len(held) // 4), len(self.known) + LEANER
        while end > 0 and len(self.known) < most and not late():
            begin = max(0, end - size)
            rest = held[:begin] + held[end:]
            if rest and self.left(rest) <= aim:
                held, end = rest, begin
            elif size > 1:
                size = (size + 1) // 2
            else:
                end = begin
        return held

    def named(self, units: Collection[int]) -> tuple[str, ...]:
        """Patterns of some."""
        return tuple(dict.fromkeys(pattern for unit in units for pattern in self.patterns(unit)))
