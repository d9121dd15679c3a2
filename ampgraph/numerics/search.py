"""Which nodes or groups make the error of a model, and which have to be in float32 for a tolerance: by runs of one
session in which only some are low. Nothing here knows of models."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

RUNS = 64  # of one search at most
Late = Callable[[], bool]


@dataclass(frozen=True)
class Cause:
    """Units that are to blame together, one as a rule, and the error with these low alone."""

    units: tuple[int, ...]
    error: float


@dataclass(frozen=True)
class Attribution:
    """What a search found: the error of the whole, that with every unit in float32, and that with the causes so;
    ``order``: all units, those first of which one makes most, ``shares``: of each in the squared error of its block."""

    causes: tuple[Cause, ...]
    whole: float
    none: float
    without: float
    order: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()


def attribute(
    error: Callable[[Collection[int]], float], count: int, wanted: int, least: float, runs: int = RUNS,
    late: Late = lambda: False,
) -> Attribution:  # fmt: skip
    """The units with the largest errors, by halving: the block is divided that has most for the root of its size.

    By the whole error alone all blocks of a model in which errors are spread would be divided before any node is found.

    Args:
        error: that of a run in which only these units are low.
        count: how many units there are.
        wanted: how many causes at most.
        least: an error that is not worth naming.
        runs: how many at most.
        late: whether to end with what was found.
    """
    everything = range(count)
    whole, none = error(everything), error(())
    left, found, small = runs - 3, list[Cause](), list[Cause]()
    blocks: list[tuple[float, int, float, Sequence[int]]] = [(0.0, 0, whole, everything)] if count else []
    while blocks and len(found) < wanted and left > 1 and not late():
        _, _, made, block = heapq.heappop(blocks)
        if len(block) == 1:
            found.append(Cause(tuple(block), made))
            continue
        middle = len(block) // 2
        for half in (block[:middle], block[middle:]):
            made = error(half)
            if made > max(least, none):
                heapq.heappush(blocks, (-made * made / math.sqrt(len(half)), half[0], made, half))
            else:
                small.append(Cause(tuple(half), made))
        left -= 2
    found.sort(key=lambda cause: -cause.error)
    held = {unit for cause in found for unit in cause.units}
    without = error([i for i in everything if i not in held]) if held else whole
    rest = [*(Cause(tuple(block), made) for _, _, made, block in blocks), *small]
    rows = [(block.error**2 / len(block.units), unit) for block in (*found, *rest) for unit in block.units]
    rows.sort(key=lambda row: -row[0])
    return Attribution(tuple(found), whole, none, without, tuple(u for _, u in rows), tuple(s for s, _ in rows))


# -- the first of a ranking, less some --------------------------------------------------------------------------------

EIGHTH = 8  # a search among the first of a ranking ends within one of them
LEANER = 16  # runs at most that look for what is not needed


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
        while many - few > max(1, many // EIGHTH) and not late():
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


# -- which groups `tune` promotes -------------------------------------------------------------------------------------

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
