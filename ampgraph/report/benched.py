"""The report of `bench`, as data and as plain text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from ..core.shown import Data, Shown, plural
from ..core.sketches import Html, bar, heading, table


@dataclass(frozen=True)
class Timed(Data):
    """A model on a runtime, as `bench` timed it.

    Attributes:
        hint: the low precision that the runtime was told to take; empty for the precisions of the file.
        threads: 1, or 0 for all.
        seconds: the median of the runs: of CPU time with one thread, which leaves out what else the machine does, of
            elapsed time with all.
        speed: the median over the rounds of the first model's time through this one's; ``spread``: its quartiles.
        error: relative L2 of the worst output beside the first model's; None where there is none.
        refused: why it does not run there.
    """

    runtime: str
    model: str
    hint: str
    threads: int
    seconds: float | None = None
    speed: float | None = None
    spread: tuple[float, float] | None = None
    error: float | None = None
    refused: str = ""

    @property
    def name(self) -> str:
        """The name of a row in the report of `bench`: the model, and the runtime's ``hint``."""
        return f"{self.model}, {self.hint} by its own hint" if self.hint else self.model

    def line(self, width: int) -> str:
        """A row of the report's table that `bench` prints for a timed model, its name as wide as ``width``."""
        if self.seconds is None:
            return f"  {self.name:<{width}}  {self.refused}"
        spread = "" if self.spread is None else f" ({self.spread[0]:.2f} to {self.spread[1]:.2f})"
        error = "" if self.error is None else f"{self.error:.1e}"
        return (
            f"  {self.name:<{width}}  {1e3 * self.seconds:9.2f} ms  x {self.speed or 0.0:.2f}{spread}  {error}".rstrip()
        )


@dataclass(frozen=True, repr=False)
class Benched(Shown):
    """The report of `bench`: how many ``rounds`` were timed, and a row for each model on each runtime."""

    rounds: int
    rows: tuple[Timed, ...]
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The text that `bench` prints, by lines."""
        width = max((len(row.model) + 25 * bool(row.hint) for row in self.rows), default=0)
        lines = []
        for head, rows in self._places():
            lines += [f"{head}: median of {plural(self.rounds, 'round')}, speed, relative L2 error"]
            lines += [row.line(width) for row in rows]
        return lines

    def _overview(self) -> Iterable[Html]:
        """The top of the page on timings: for each runtime a table of its models, their speed as bars."""
        most = max((round(100 * (row.speed or 0.0)) for row in self.rows), default=1)
        for head, rows in self._places():
            yield heading(head, f": median of {plural(self.rounds, 'round')}")
            yield table(
                ("model", "ms", "speed", "", "quartiles", "relative L2 error"), [_cells(row, most) for row in rows]
            )

    def _places(self) -> Iterable[tuple[str, list[Timed]]]:
        """Report of `bench`: (runtime and threads in words, rows) for rows that follow one another."""
        for (runtime, threads), rows in groupby(self.rows, lambda row: (row.runtime, row.threads)):
            yield f"{runtime}, {'one thread, CPU time' if threads == 1 else 'all threads'}", list(rows)


def _cells(row: Timed, most: int) -> tuple[str, ...]:
    """The cells of a timed row in the page's table; ``most``: the speed of a whole bar, in percent."""
    if row.seconds is None or row.speed is None:
        return row.name, "", "", "", "", row.refused
    quartiles = "" if row.spread is None else f"{row.spread[0]:.2f} to {row.spread[1]:.2f}"
    error = "" if row.error is None else f"{row.error:.1e}"
    speed = bar({"% of the first": round(100 * row.speed)}, most)
    return row.name, f"{1e3 * row.seconds:.2f}", f"x {row.speed:.2f}", speed, quartiles, error
