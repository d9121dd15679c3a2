"""The search behind `tune`: which groups to promote. It knows nothing of models.

Runs of one model in which only some groups are low predict what a conversion leaves; few conversions confirm it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

BUDGET = 20  # strict runs of candidates
BISECTIONS = 8
CLOSE = 16  # bisection ends within a sixteenth of the size
SLACKS = (0.9, 0.45)  # of the tolerance: what a set of kinds is to leave by the measured sums, which are estimates
KINDS = 4  # named in a step
NEARLY = 0.8  # of the tolerance: a candidate that leaves so much is lean enough
AIM = 0.97  # of the tolerance, for the next prediction
LEAST, MOST = 0.3, 2.0  # by which an aim is moved at once


@dataclass(frozen=True)
class Point:
    """A candidate that was run: the groups promoted, the error, and what it has in float32: nodes, bytes, products
    among the nodes, and the cost of all of it, the bytes if not given."""

    step: str
    promoted: frozenset[int]
    error: float
    nodes: int
    bytes: int
    products: int = 0
    cost: int | None = None

    @property
    def size(self) -> tuple[int, int, int]:
        """What is to be small, the first first."""
        return self.bytes if self.cost is None else self.cost, self.nodes, len(self.promoted)


@dataclass
class Tried:
    """Candidates that were run. ``evaluate(groups, step)`` runs one.

    Attributes:
        points: all that was run, in order.
        runs: how many runs.
    """

    costs: Sequence[int]
    tolerance: float
    evaluate: Callable[[frozenset[int], str], Point]
    budget: int = BUDGET
    points: list[Point] = field(default_factory=list)
    runs: int = 0

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


@dataclass
class ConfirmedSearch(Tried):
    """A search that is led by predictions: ``predict(aim)`` gives the groups that are to leave an error of ``aim``,
    which a run confirms, or which is asked again by what that run has left. ``costs`` are the groups' own."""

    predict: Callable[[float], frozenset[int]] = lambda aim: frozenset()

    def run(self) -> Point | None:
        """The smallest candidate found that meets the tolerance; None where even all groups in float32 do not."""
        if self._meets(self._try([], "the level's plan")):
            return self.best()
        if not self.costs or not self._meets(self._try(range(len(self.costs)), "all in float32")):
            return None
        aim = self.tolerance
        while self.runs < self.budget:
            number = self.runs
            point = self._try(self.predict(aim), f"what is to leave {aim:.3g}")
            if number == self.runs or (self._meets(point) and point.error > NEARLY * self.tolerance):
                break
            aim *= min(max(AIM * self.tolerance / point.error, LEAST), MOST) if point.error else MOST
        return self.best()


@dataclass
class PromotionSearch(Tried):
    """``measure(promoted)`` gives what each group contributes to the squared error of a candidate, infinite where a
    node overflows or makes a NaN. ``kinds`` are the groups' operators, ``others`` sets of groups that are tried too.

    Attributes:
        forced: groups that overflow.
        weights: what each group contributes, those having been promoted that overflow.
    """

    measure: Callable[[frozenset[int]], Sequence[float]] = lambda promoted: ()
    kinds: Sequence[str] = ()
    others: Mapping[str, frozenset[int]] = field(default_factory=dict)
    forced: frozenset[int] = frozenset()
    weights: Sequence[float] = ()

    def run(self) -> Point | None:
        """The smallest candidate found that meets the tolerance; None where even all groups in float32 do not."""
        start = self._try([], "the level's plan")
        if self._meets(start):
            return start
        if not self.costs:
            return None
        self.weights = [0.0] * len(self.costs)
        base = self._finite(start)
        if not self._meets(base):
            whole = self._try(range(len(self.costs)), "all in float32")
            if not self._meets(whole):
                return None
            if math.isfinite(base.error):
                self._weigh(base)
            self._alternatives(base)
            rest = [i for i in range(len(self.costs)) if i not in base.promoted]
            self._bisect(sorted(base.promoted), sorted(rest, key=lambda i: -self.weights[i]), base, whole)
        self._demote()
        return self.best()

    def _weigh(self, point: Point) -> None:
        self.runs += 1
        self.weights = self.measure(point.promoted)

    def _finite(self, point: Point) -> Point:
        """The candidate with what overflows promoted, sample by sample."""
        while not math.isfinite(point.error) and self.runs < self.budget - BISECTIONS:
            self._weigh(point)
            found = {i for i, weight in enumerate(self.weights) if math.isinf(weight)} - self.forced
            if not found:
                break
            self.forced |= found
            point = self._try(self.forced, f"what overflows: {len(self.forced)}")
        return point

    # -- sets with a name ---------------------------------------------------------------------------------------------

    def _alternatives(self, base: Point) -> None:
        """What is given, and the kinds of operators that contribute most for what they cost."""
        for name, groups in self.others.items():
            self._try(base.promoted | groups, name)
        order = self._ranked_kinds(base)
        for slack in SLACKS if order else ():
            chosen = order[: self._enough(order, base, slack)]
            kinds = [kind for kind, _ in chosen]
            groups = base.promoted.union(*(members for _, members in chosen))
            if self._meets(self._try(groups, f"all {', '.join(kinds[:KINDS])}{' ...' * (len(kinds) > KINDS)}")):
                return

    def _ranked_kinds(self, base: Point) -> list[tuple[str, list[int]]]:
        """The kinds of what is low in a candidate, that first which contributes most for its cost."""
        members: dict[str, list[int]] = {}
        for i, kind in enumerate(self.kinds):
            if i not in base.promoted:
                members.setdefault(kind, []).append(i)
        worth = {k: self._sum(m) / max(sum(self.costs[i] for i in m), 1) for k, m in members.items()}
        return sorted(members.items(), key=lambda item: (-worth[item[0]], item[0]))

    def _enough(self, order: list[tuple[str, list[int]]], base: Point, slack: float) -> int:
        """How many kinds leave no more than a share of the tolerance, if what was measured added up."""
        whole = self._sum([i for _, members in order for i in members])
        wanted = whole * (slack * self.tolerance / base.error) ** 2 if math.isfinite(base.error) else 0.0
        left = whole
        for count, (_, members) in enumerate(order, 1):
            left -= self._sum(members)
            if left <= wanted:
                return count
        return len(order)

    def _sum(self, groups: Iterable[int]) -> float:
        return sum(self.weights[i] for i in groups if math.isfinite(self.weights[i]))

    # -- how many of the ranking --------------------------------------------------------------------------------------

    def _bisect(self, forced: list[int], order: list[int], low: Point, high: Point) -> None:
        """Looks for the shortest prefix of the ranking that meets the tolerance."""
        weights = self.weights
        tails = [0.0]
        for i in reversed(order):
            tails.append(tails[-1] + (weights[i] if math.isfinite(weights[i]) else 0.0))
        tails.reverse()  # what is left when so many are promoted
        few, many = 0, self._cheaper(forced, order)
        if many < len(order):
            high = self._try([*forced, *order[:many]], f"first {many} of the ranking") if many else low
            if not self._meets(high):
                return
        for turn in range(BISECTIONS):
            if many - few <= max(1, many // CLOSE) or self.runs >= self.budget:
                return
            size = (few + many) // 2 if turn % 2 else self._guess(tails, few, many, low, high)
            point = self._try([*forced, *order[:size]], f"first {size} of the ranking")
            if self._meets(point):
                many, high = size, point
            else:
                few, low = size, point

    def _cheaper(self, forced: list[int], order: list[int]) -> int:
        """How many of the ranking cost less than the best candidate so far: more are not worth a run."""
        best = self.best()
        limit = math.inf if best is None else sum(self.costs[i] for i in best.promoted)
        cost = sum(self.costs[i] for i in forced)
        for count, i in enumerate(order):
            cost += self.costs[i]
            if cost > limit:
                return count
        return len(order)

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

    def _demote(self) -> None:
        """Takes back what contributes least for its bytes, a quarter of the best candidate first, and what follows; a
        piece without which the tolerance is missed is halved, and at last stays."""
        best = self.best()
        assert best is not None
        weights = self.weights
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
