"""Which nodes or groups make the error of a model, and which have to be in float32 for a tolerance: by runs of one
session in which only some are low. Nothing here knows of models."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

RUNS = 64  # of one search at most
Late = Callable[[], bool]


@dataclass(frozen=True)
class Cause:
    """Units to blame for an error, one as a rule, or an undivided block; and the error with these low alone."""

    units: tuple[int, ...]
    error: float


@dataclass(frozen=True)
class Attribution:
    """What a search for causes found: the errors with all units low (``whole``), with ``none`` low, and ``without`` the
    causes, which are in float32; ``order``: all units, those that make most first, and the ``shares`` of each in that
    order: the squared error of its block by units."""

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
    """Which units make the largest errors, by halving blocks of them: the next to be divided is the one that has most
    squared error for the root of its size.

    By the error alone all blocks of a model in which errors are spread would be divided before any node is found.

    Args:
        error: gives the error of a run in which only these units are low.
        count: how many units there are, numbered from 0.
        wanted: how many causes at most.
        least: an error up to which a block is not worth naming.
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


# -- which units have to be in float32 --------------------------------------------------------------------------------

BUDGET = 20  # strict runs of candidates that `tune` makes
LEANER = 64  # runs at most that look for what is not needed
EIGHTH = 8  # the first of a ranking are found within one of them
NEARLY = 0.85  # of the tolerance: what leaves so much is lean enough
SHARE = 0.2  # of the heavy units: so few are lean enough
WIDTH = 24  # heavy units of which each is tried beside those that are held
AIM = 0.97  # of the tolerance, for a prediction
LEAST, MOST = 0.3, 2.0  # by which an aim is moved at once


@dataclass
class Search:
    """The search for the cheapest units in float32 that leave an error of at most so much: the first of a ranking, less
    what is not needed. Units are numbers from 0.

    Attributes:
        costs: of each unit in float32.
        error: gives the error of a run with these units in float32.
        measure: gives what each unit makes of the squared error of a run with these units in float32, infinite where it
            makes what is not finite.
        runs: that look for what is not needed at most; ``late``: whether to end with what was found.
        known: errors of runs, by the units in float32.
        heavy: the units that should be few, as products are.
    """

    costs: Sequence[float]
    error: Callable[[frozenset[int]], float]
    measure: Callable[[frozenset[int]], Sequence[float]]
    runs: int = LEANER
    late: Late = lambda: False
    known: dict[frozenset[int], float] = field(default_factory=dict)
    heavy: frozenset[int] = frozenset()

    def left(self, held: Iterable[int]) -> float:
        """Search by numbers: the error of a run with these units in float32; each is run once."""
        key = frozenset(held)
        if key not in self.known:
            self.known[key] = self.error(key)
        return self.known[key]

    def cheapest(self, aim: float) -> frozenset[int] | None:
        """Search by numbers: the cheapest units to be in float32 that were found for ``aim``; None if all miss it."""
        everything = range(len(self.costs))
        if self.left(()) <= aim:
            return frozenset()
        if self.left(everything) > aim:
            return None
        forced, weights = self._forced_units()
        rest = [unit for unit in everything if unit not in forced]
        density = [weights[unit] / max(self.costs[unit], 1) for unit in everything]
        found: list[list[int]] = []
        for worth in (density, weights):
            first = self._shortest_prefix(sorted(rest, key=lambda unit: -worth[unit]), forced, weights, aim)
            found.append(self._drop_needless([*first, *sorted(forced)], aim, len(self.known) + self.runs))
        if min(len(self.heavy.intersection(held)) for held in found) > SHARE * len(self.heavy):
            found += self._grow_heavy(sorted(rest, key=lambda unit: -density[unit]), forced, aim)
        sizes = [(sum(self.costs[unit] for unit in held), len(held)) for held in found]
        return frozenset(found[sizes.index(min(sizes))])

    def _forced_units(self) -> tuple[frozenset[int], Sequence[float]]:
        """Search by numbers: the units that must be float32 for a finite result; ``measure`` then, 0 for infinite."""
        forced = frozenset[int]()
        while True:
            weights = self.measure(forced)
            more = {unit for unit, weight in enumerate(weights) if math.isinf(weight)} - forced
            if not more or self.late():
                return forced, [weight if math.isfinite(weight) else 0.0 for weight in weights]
            forced |= more

    def _shortest_prefix(
        self, ranked: list[int], forced: frozenset[int], weights: Sequence[float], aim: float
    ) -> list[int]:  # fmt: skip
        """Search by numbers: the units of a ranking from the first on that have to be float32 for ``aim``, as few to
        within an eighth; sought from a guess by doubling steps."""
        guess = self._guess_count(ranked, weights, self.left(forced), aim)
        few, many = -1, len(ranked)  # known not to be enough, and to be enough
        at, step, before, turned = guess, max(1, guess // EIGHTH), None, False
        while many - few > max(1, many // EIGHTH) and not self.late():
            enough = self.left(forced.union(ranked[:at])) <= aim
            few, many = (few, at) if enough else (at, many)
            turned, before = turned or before not in (None, enough), enough
            onwards = max(few + 1, at - step) if enough else min(many - 1, at + step)
            at = (few + many) // 2 if turned else onwards
            step *= 2
        return ranked[: min(many, max(few + 1, guess))] if self.late() else ranked[:many]

    def _guess_count(self, ranked: list[int], weights: Sequence[float], whole: float, aim: float) -> int:
        """Search by numbers: how many of the ``ranked`` units, from the first on, leave ``aim`` of the error ``whole``,
        if their ``weights``, squared errors by unit, add up."""
        left = total = sum(weights[unit] for unit in ranked)
        if not (math.isfinite(whole) and total):
            return min(1, len(ranked))
        wanted = total * min(aim / whole, 1.0) ** 2 if whole else total
        for count, unit in enumerate(ranked):
            if left <= wanted:
                return count
            left -= weights[unit]
        return len(ranked)

    def _grow_heavy(self, ranked: list[int], forced: frozenset[int], aim: float) -> list[list[int]]:
        """Search by numbers: a set of units for ``aim``: all that are not heavy, and heavy ones, each time that which
        leaves the least error, less what is not needed; [] where that is not enough."""
        light = [unit for unit in ranked if unit not in self.heavy]
        held, found, end = forced.union(light), list[int](), len(self.known) + self.runs
        while self.left(held) > aim:
            more = [unit for unit in ranked if unit in self.heavy and unit not in held][:WIDTH]
            if not more or len(self.known) > end or self.late():
                return []
            errors = {unit: self.left(held | {unit}) for unit in more}
            found.append(min(more, key=errors.__getitem__))
            held |= {found[-1]}
        return [self._drop_needless([*found, *sorted(forced), *light], aim, len(self.known) + self.runs)]

    def _drop_needless(self, held: list[int], aim: float, end: int) -> list[int]:
        """Search by numbers: ``held`` without the units that ``aim`` does not need: tried without a quarter of them,
        then with less left out, from the end on, until ``end`` runs are known."""
        place, size = len(held), max(1, len(held) // 4)
        while place > 0 and len(self.known) < end and not self.late():
            begin = max(0, place - size)
            rest = held[:begin] + held[place:]
            if self.left(rest) <= aim:
                held, place = rest, begin
            elif size > 1:
                size = (size + 1) // 2
            else:
                place = begin
        return held


def confirm_by_runs(
    tolerance: float, predict: Callable[[float], frozenset[int] | None],
    run: Callable[[frozenset[int], float], float | None], turns: int,
) -> None:  # fmt: skip
    """Confirms a search by runs: runs the units that ``predict`` gives for an aim (None: there are none), and moves the
    aim by the error that ``run`` gives (None: enough was found), until that is just below ``tolerance``."""
    aim, seen = AIM * tolerance, set[frozenset[int]]()
    for _ in range(turns):
        chosen = predict(aim)
        if chosen is None or chosen in seen:
            return
        seen.add(chosen)
        error = run(chosen, aim)
        if error is None or NEARLY * tolerance < error <= tolerance:
            return
        aim *= min(max(AIM * tolerance / error, LEAST), MOST) if error else MOST
