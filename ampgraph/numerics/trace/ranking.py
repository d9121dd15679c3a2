"""How many nodes have to be in float32 for a tolerance: the first of a ranking, by runs of one session."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

CLOSE = 8  # the search ends within an eighth


@dataclass
class Ranking:
    """``order``: units, those first that make most of the error; ``error``: that of a run in which only some are low;
    ``patterns``: what names each of them to `convert`."""

    order: Sequence[int]
    error: Callable[[Collection[int]], float]
    patterns: Callable[[int], Sequence[str]]
    known: dict[int, float] = field(default_factory=dict)

    def left(self, count: int) -> float:
        """The error with the first so many in float32."""
        if count not in self.known:
            self.known[count] = self.error(self.order[count:])
        return self.known[count]

    def fewest(self, aim: float, late: Callable[[], bool]) -> int | None:
        """How few leave an error of ``aim`` or less; None where all do not, or the time is up before any are found."""
        if self.left(len(self.order)) > aim:
            return None
        few, many = self._bounds(aim, late)
        while many is not None and many - few > max(1, many // CLOSE) and not late():
            middle = (few + many) // 2
            few, many = (few, middle) if self.left(middle) <= aim else (middle, many)
        return many

    def _bounds(self, aim: float, late: Callable[[], bool]) -> tuple[int, int | None]:
        """A count that is too few, and one that is enough; the second doubles."""
        few, many = 0, 1
        while not late():
            many = min(many, len(self.order))
            if self.left(many) <= aim:
                return few, many
            few, many = many, 2 * many
        return few, min((count for count, error in self.known.items() if error <= aim), default=None)

    def named(self, count: int) -> tuple[str, ...]:
        """Patterns of the first so many."""
        return tuple(dict.fromkeys(pattern for unit in self.order[:count] for pattern in self.patterns(unit)))
