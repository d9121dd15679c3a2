"""What every step of a training told, as TensorBoard reads it: event files, while the training runs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import AmpError
from ..core.installing import pip_install

if TYPE_CHECKING:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    from .step_log import StepRow

OPTION = "--tensorboard"


def check_events(folder: str | os.PathLike[str]) -> None:
    """Raises AmpError AMP501 without tensorboard, AMP105 for a place that can be no folder."""
    _tensorboard()
    place = Path(folder)
    above = next((path for path in (place, *place.parents) if path.exists()), Path())
    if not above.is_dir() or not os.access(above, os.W_OK):
        hint = f"{OPTION} takes a folder, which is made where it is not there"
        raise AmpError("AMP105", "cannot be made a folder", where=str(folder), hint=hint)


class EventLog:
    """Takes in rows of a log, in order; the folder and the file in it come with the first one.

    Scalars: loss, loss_scale, gradient_norm (with clipping), learning_rate, and skipped_steps, counted from the start.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder, self.skipped = os.fspath(folder), 0
        self._writer: EventFileWriter | None = None

    def __call__(self, row: StepRow) -> None:
        """Writes one step."""
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
        """Everything is in the file then."""
        if self._writer is not None:
            self._writer.close()


def _tensorboard() -> type[EventFileWriter]:
    try:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise AmpError("AMP501", "tensorboard is not installed", hint=pip_install("tensorboard")) from error
    writer: type[EventFileWriter] = EventFileWriter
    return writer
