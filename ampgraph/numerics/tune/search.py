"""The search behind `tune`: which groups to promote, in few strict runs. It knows nothing of models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

BUDGET = 20  # strict runs, measuring passes among them
BISECTIONS = 8
CLOSE = 16  # bisection ends within a sixteenth of the size


@dataclass(frozen=True)
class Point:
    """A candidate that was run: the groups promoted, the error, and the float32 nodes and bytes that it has."""

    step: str
    promoted: frozenset[int]
    error: float
    nodes: int
    bytes: int

    @property
    def size(self) -> tuple[int, int, int]:
        """What is to be small, the first first."""
        return self.bytes, self.nodes, len(self.promoted)


@dataclass
class PromotionSearch:
    """``costs`` are the groups' bytes. ``evaluate(groups, step)`` runs a candidate; ``overflowing()`` gives the groups
    in which a node overflows or makes a NaN, in one run; ``measure(promoted)`` gives what each group contributes to the
    squared error, in one run of that candidate.

    Attributes:
        points: all that was run, in order.
        runs: how many strict runs.
    """

    costs: Sequence[int]
    tolerance: float
    evaluate: Callable[[frozenset[int], str], Point]
    overflowing: Callable[[], Iterable[int]]
    measure: Callable[[frozenset[int]], Sequence[float]]
    budget: int = BUDGET
    points: list[Point] = field(default_factory=list)
    runs: int = 0

    def run(self) -> Point | None:
        """The smallest candidate found that meets the tolerance; None where even all groups in float32 do not."""
        start = self._try([], "the level's plan")
        if self._meets(start):
            return start
        if not self.costs:
            return None
        self.runs += 1
        forced = sorted(self.overflowing())
        base = self._try(forced, f"what overflows: {len(forced)}") if forced else start
        weights: Sequence[float] = [0.0] * len(self.costs)
        if not self._meets(base):
            whole = self._try(range(len(self.costs)), "all in float32")
            if not self._meets(whole):
                return None
            self.runs += 1
            weights = self.measure(base.promoted)
            rest = [i for i in range(len(self.costs)) if i not in base.promoted]
            self._bisect(forced, sorted(rest, key=lambda i: -weights[i]), weights, base, whole)
        self._demote(weights)
        return self.best()

    def best(self) -> Point | None:
        """Of the candidates that meet the tolerance the one with the fewest float32 bytes."""
        return min((p for p in self.points if self._meets(p)), key=lambda p: p.size, default=None)

    def frontier(self) -> list[Point]:
        """The candidates that no other one beats in bytes and in error, the smallest first."""
        kept: list[Point] = []
        for point in sorted(self.points, key=lambda p: (p.size, p.error)):
            if not kept or point.error < kept[-1].error:
                kept.append(point)
        return kept

    def _meets(self, point: Point) -> bool:
        return point.error <= self.tolerance

    def _try(self, promoted: Iterable[int], step: str) -> Point:
        chosen = frozenset(promoted)
        known = next((p for p in self.points if p.promoted == chosen), None)
        if known is None:
            self.runs += 1
            known = self.evaluate(chosen, step)
            self.points.append(known)
        return known

    # -- how many of the ranking --------------------------------------------------------------------------------------

    def _bisect(self, forced: list[int], order: list[int], weights: Sequence[float], low: Point, high: Point) -> None:
        """Looks for the shortest prefix of the ranking that meets the tolerance."""
        tails = [0.0]
        for i in reversed(order):
            tails.append(tails[-1] + (weights[i] if math.isfinite(weights[i]) else 0.0))
        tails.reverse()  # what is left when so many are promoted
        few, many = 0, len(order)
        for turn in range(BISECTIONS):
            if many - few <= max(1, many // CLOSE) or self.runs >= self.budget:
                return
            size = (few + many) // 2 if turn % 2 else self._guess(tails, few, many, low, high)
            point = self._try([*forced, *order[:size]], f"first {size} of the ranking")
            if self._meets(point):
                many, high = size, point
            else:
                few, low = size, point

    def _guess(self, tails: Sequence[float], few: int, many: int, low: Point, high: Point) -> int:
        """Where the squared error would pass the tolerance if what is left added up as it was measured."""
        if not math.isfinite(low.error):
            return (few + many) // 2
        top, bottom = low.error**2, high.error**2
        share = (0.9 * self.tolerance**2 - bottom) / max(top - bottom, 1e-300)
        wanted = tails[many] + (tails[few] - tails[many]) * share
        size = next((k for k in range(few + 1, many) if tails[k] <= wanted), many - 1)
        return min(max(size, few + 1), many - 1)

    # -- taking some back ---------------------------------------------------------------------------------------------

    def _demote(self, weights: Sequence[float]) -> None:
        """Takes back what contributes least for its bytes, a quarter of the best candidate first, and what follows; a
        piece without which the tolerance is missed is halved, and at last stays."""
        best = self.best()
        assert best is not None
        order = sorted(best.promoted, key=lambda i: (weights[i] / max(self.costs[i], 1), -self.costs[i], i))
        place, size = 0, max(1, len(order) // 4)
        while place < len(order) and self.runs < self.budget:
            taken = order[place : place + size]
            point = self._try(best.promoted - set(taken), f"{len(taken)} made low again")
            if self._meets(point) and point.size < best.size:
                best, place = point, place + len(taken)
            elif size > 1:
                size = len(taken) // 2 or 1
            else:
                place += 1
