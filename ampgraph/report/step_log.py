"""What every step of a training told: as a table of comma-separated values, which loggers and spreadsheets read."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, fields
from typing import TYPE_CHECKING

from ..core.errors import AmpError

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
    """Listens to the steps of a training, as ``on_step``. ``rates``: by update; the last one counts on; none: unknown.

    Each number is waited for when a step ends, so a device is not kept busy ahead."""

    rates: Sequence[float] = ()
    rows: list[StepRow] = field(default_factory=list)
    updates: int = 0

    def __call__(self, done: int, total: int, result: StepResult[object]) -> None:
        """Takes in one step."""
        rate = self.rates[min(self.updates, len(self.rates) - 1)] if self.rates else math.nan
        self.rows.append(StepRow(done, result.loss, result.finite, result.scale, result.grad_norm, float(rate)))
        self.updates += result.finite

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


def check_log(path: str) -> None:
    """Raises AmpError AMP105 for a name that says another format."""
    if not path.lower().endswith(".csv"):
        raise AmpError("AMP105", "steps are logged as a .csv file", where=path, hint="--log steps.csv")
