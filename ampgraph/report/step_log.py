"""What every step of a training told: as a table of comma-separated values, which loggers and spreadsheets read."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import AmpError
from ..core.files import refuse_output, sources_of

if TYPE_CHECKING:
    from ..training.step.step_result import StepResult


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step. ``step`` counts from 1; ``scale``: that the next one uses; ``grad_norm``: None without clipping."""

    step: int
    loss: float
    finite: bool
    scale: float
    grad_norm: float | None
    learning_rate: float


@dataclass
class StepLog:
    """Listens to the steps of a training, as ``on_step``. ``rates``: by update, of how many steps; the last one counts
    on. ``told`` hears of each row at once.

    Each number is waited for when a step ends, so a device is not kept busy ahead."""

    rates: Callable[[int], Sequence[float]] = lambda total: ()
    told: Callable[[StepRow], None] = lambda row: None
    rows: list[StepRow] = field(default_factory=list)
    updates: int = 0
    table: Sequence[float] = ()

    def __call__(self, done: int, total: int, result: StepResult[object]) -> None:
        """Takes in one step."""
        self.table = self.table or self.rates(total)
        rate = self.table[min(self.updates, len(self.table) - 1)] if self.table else math.nan
        self.rows.append(StepRow(done, result.loss, result.finite, result.scale, result.grad_norm, float(rate)))
        self.updates += result.finite
        self.told(self.rows[-1])

    def to_csv(self) -> str:
        """A line for each step behind a line of names."""
        out = io.StringIO()
        table = csv.writer(out, lineterminator="\n")
        table.writerow([one.name for one in fields(StepRow)])
        for row in self.rows:
            table.writerow(
                ["" if cell is None else f"{cell:.7g}" if isinstance(cell, float) else cell for cell in _plain(row)]
            )
        return out.getvalue()


def _plain(row: StepRow) -> list[float | int | None]:
    return [int(cell) if isinstance(cell, bool) else cell for cell in astuple(row)]


def check_log(path: str, *sources: object) -> None:
    """Raises AmpError AMP105 for a name that says another format and for a place that can hold no file, AMP106."""
    if not path.lower().endswith(".csv"):
        raise AmpError("AMP105", "steps are logged as a .csv file", where=path, hint="--log steps.csv")
    refuse_output(Path(path), sources_of(*sources), "--log")
