"""The report of `bench`, as data and as plain text."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.shown import Data, Shown
from .lines import plural


@dataclass(frozen=True)
class Timed(Data):
    """A model on a runtime.

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

    def line(self, width: int) -> str:
        """A row of the table."""
        name = f"{self.model}{f', {self.hint} by its own hint' if self.hint else ''}"
        if self.seconds is None:
            return f"  {name:<{width}}  {self.refused}"
        spread = "" if self.spread is None else f" ({self.spread[0]:.2f} to {self.spread[1]:.2f})"
        error = "" if self.error is None else f"{self.error:.1e}"
        return f"  {name:<{width}}  {1e3 * self.seconds:9.2f} ms  x {self.speed or 0.0:.2f}{spread}  {error}".rstrip()


@dataclass(frozen=True, repr=False)
class Benched(Shown):
    """What `bench` found."""

    rounds: int
    rows: tuple[Timed, ...]
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The report of `bench`."""
        width = max((len(row.model) + 25 * bool(row.hint) for row in self.rows), default=0)
        lines, place = [], ("", -1)
        for row in self.rows:
            if place != (row.runtime, row.threads):
                place = row.runtime, row.threads
                how = "one thread, CPU time" if row.threads == 1 else "all threads"
                lines.append(
                    f"{row.runtime}, {how}: median of {plural(self.rounds, 'round')}, speed, relative L2 error"
                )
            lines.append(row.line(width))
        return lines
