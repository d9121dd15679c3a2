"""The log of a training's steps: comma-separated values, and the event files of TensorBoard."""

from __future__ import annotations

import csv
import io
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.errors import AmpError
from ...core.files import refuse_output, sources_of
from ...core.installing import pip_install

if TYPE_CHECKING:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    from ..step.training_step import StepResult


@dataclass(frozen=True, slots=True)
class StepRow:
    """A row in the log of a training. ``step`` counts from 1; ``scale``: the loss scale that the next step uses;
    ``grad_norm``: None without clipping by it; ``learning_rate``: NaN where it is not known."""

    step: int
    loss: float
    finite: bool
    scale: float
    grad_norm: float | None
    learning_rate: float


@dataclass
class StepLog:
    """Collects the log of a training, as the ``on_step`` of `fit`. ``rates``: number of steps -> the learning rate of
    each update, whose last one holds on; ``told`` is called with each row. Its numbers are waited for."""

    rates: Callable[[int], Sequence[float]] = lambda total: ()
    told: Callable[[StepRow], None] = lambda row: None
    rows: list[StepRow] = field(default_factory=list)
    updates: int = 0
    table: Sequence[float] = ()  # what `rates` gave at the first step

    def __call__(self, done: int, total: int, result: StepResult[object]) -> None:
        """Adds the row of one step to the log of a training: number ``done`` of ``total``."""
        self.table = self.table or self.rates(total)
        rate = self.table[min(self.updates, len(self.table) - 1)] if self.table else math.nan
        self.rows.append(StepRow(done, result.loss, result.finite, result.scale, result.grad_norm, float(rate)))
        self.updates += result.finite
        self.told(self.rows[-1])

    def to_csv(self) -> str:
        """The log of a training as comma-separated values: a line of names, then one for each step."""
        out = io.StringIO()
        table = csv.writer(out, lineterminator="\n")
        table.writerow([one.name for one in fields(StepRow)])
        for row in self.rows:
            cells = (int(cell) if isinstance(cell, bool) else cell for cell in astuple(row))
            table.writerow(f"{cell:.7g}" if isinstance(cell, float) else cell for cell in cells)  # None is empty
        return out.getvalue()


def check_log(path: str, *sources: object) -> None:
    """Before a training: raises AmpError AMP105 for a log whose name is not *.csv or where no file can be written,
    AMP106 for one that would overwrite one of the ``sources``."""
    if not path.lower().endswith(".csv"):
        raise AmpError("AMP105", "steps are logged as a .csv file", where=path, hint="--log steps.csv")
    refuse_output(Path(path), sources_of(*sources), "--log")


OPTION = "--tensorboard"


def check_tensorboard_folder(folder: str | os.PathLike[str]) -> None:
    """Before a training: raises AmpError AMP501 without tensorboard, AMP105 for a place that can be no folder."""
    _tensorboard()
    place = Path(folder)
    above = next((path for path in (place, *place.parents) if path.exists()), Path())
    if not above.is_dir() or not os.access(above, os.W_OK):
        hint = f"{OPTION} takes a folder, which is made where it is not there"
        raise AmpError("AMP105", "the folder cannot be created", where=str(folder), hint=hint)


class EventLog:
    """Writes the log of a training for TensorBoard: call it with rows in order, then `close` it. The file is made at
    the first row. Scalars: loss, loss_scale, gradient_norm (with clipping), learning_rate, skipped_steps (in all)."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder, self.skipped = os.fspath(folder), 0
        self._writer: EventFileWriter | None = None

    def __call__(self, row: StepRow) -> None:
        """Writes a row of a training's log for TensorBoard."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._writer = self._writer or _tensorboard()(self.folder)
        self.skipped += not row.finite
        told = {
            "loss": row.loss, "loss_scale": row.scale, "gradient_norm": row.grad_norm,
            "learning_rate": row.learning_rate, "skipped_steps": self.skipped,
        }  # fmt: skip
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in told.items() if value is not None]
        self._writer.add_event(Event(wall_time=time.time(), step=row.step, summary=Summary(value=values)))

    def close(self) -> None:
        """Ends the log of a training for TensorBoard: writes what is still in memory."""
        if self._writer is not None:
            self._writer.close()


def _tensorboard() -> type[EventFileWriter]:
    """For the log of a training: TensorBoard's class that writes event files. Raises AmpError AMP501 without it."""
    try:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise AmpError("AMP501", "tensorboard is not installed", hint=pip_install("tensorboard")) from error
    writer: type[EventFileWriter] = EventFileWriter
    return writer
