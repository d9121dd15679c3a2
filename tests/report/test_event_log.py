"""TensorBoard reads what steps told."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from ampgraph.core.errors import AmpError
from ampgraph.report.step_log import EventLog, StepLog, check_events
from ampgraph.training.step.step_result import StepResult


def result(loss: float, finite: bool, norm: float) -> StepResult[object]:
    numbers = [np.float32(loss), np.float32(finite), np.float32(1024), np.float32(norm)]
    return StepResult(lambda number: number, *numbers)  # type: ignore[arg-type, return-value]


def test_tensorboard_reads_every_step(tmp_path: Path) -> None:
    """Of a log that goes on in the same folder, too."""
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = tmp_path / "runs" / "1"
    check_events(folder)
    for steps in ((1, 2), (3,)):
        events = EventLog(folder)
        log = StepLog(lambda total: [0.1, 0.2, 0.3], events)
        for step in steps:
            log(step, 3, result(math.inf if step == 2 else 0.5 * step, step != 2, 2.0))
        events.close()
    reader = reading.EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    found = {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}
    assert found.pop("learning_rate")[:2] == [(1, pytest.approx(0.1)), (2, pytest.approx(0.2))]
    assert found == {
        "loss": [(1, 0.5), (2, math.inf), (3, 1.5)],
        "loss_scale": [(1, 1024), (2, 1024), (3, 1024)],
        "gradient_norm": [(1, 2), (2, 2), (3, 2)],
        "skipped_steps": [(1, 0), (2, 1), (3, 0)],
    }


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ampgraph.report.step_log._tensorboard", lambda: None)
    (tmp_path / "file").write_text("")
    check_events(tmp_path / "new" / "folder")
    for place in (tmp_path / "file", tmp_path / "file" / "folder"):
        with pytest.raises(AmpError, match="AMP105"):
            check_events(place)


def test_tensorboard_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(AmpError, match="AMP501") as caught:
        check_events(tmp_path)
    assert "pip install 'tensorboard>=2.12'" in str(caught.value.hint)
