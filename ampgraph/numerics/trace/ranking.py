"""Which nodes have to be in float32 for a tolerance, by runs of one session: the first of a ranking, less some."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

CLOSE = 8  # the search ends within an eighth
LEANER = 16  # runs at most that look for what is not needed
Late = Callable[[], bool]


@dataclass
class Ranking:
    """``order``: units, those first that make most of the error; ``error``: that of a run in which only some are low;
    ``patterns``: what names each of them to `convert`."""

    order: Sequence[int]
    error: Callable[[Collection[int]], float]
    patterns: Callable[[int], Sequence[str]]
    known: dict[frozenset[int], float] = field(default_factory=dict)

    def left(self, held: Collection[int]) -> float:
        """The error with some in float32."""
        key = frozenset(held)
        if key not in self.known:
            self.known[key] = self.error([unit for unit in self.order if unit not in key])
        return self.known[key]

    def needed(self, aim: float, late: Late) -> list[int] | None:
        """Units that leave an error of ``aim`` or less in float32, few of them; None where all do not, or none were
        found in time."""
        if self.left(self.order) > aim:
            return None
        few, many = self._bounds(aim, late)
        while many is not None and many - few > max(1, many // CLOSE) and not late():
            middle = (few + many) // 2
            few, many = (few, middle) if self.left(self.order[:middle]) <= aim else (middle, many)
        return None if many is None else self._leaner(list(self.order[:many]), aim, late)

    def _bounds(self, aim: float, late: Late) -> tuple[int, int | None]:
        """A count that is too few, and one that is enough; the second doubles."""
        few, many = 0, 1
        while not late():
            many = min(many, len(self.order))
            if self.left(self.order[:many]) <= aim:
                return few, many
            few, many = many, 2 * many
        return few, None

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
