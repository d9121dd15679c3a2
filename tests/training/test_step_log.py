"""What steps told, as a table and as a page."""

from __future__ import annotations

import csv
import io
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from ampgraph.core.errors import AmpError
from ampgraph.report.picture.training_page import POINTS, training_page
from ampgraph.training.run.step_log import EventLog, StepLog, StepRow, check_log, check_tensorboard_folder
from ampgraph.training.step.training_step import StepResult


def result(loss: float, finite: bool = True, norm: float | None = None) -> StepResult[object]:
    numbers = [np.float32(loss), np.float32(finite), np.float32(1024), None if norm is None else np.float32(norm)]
    return StepResult(lambda number: number, *numbers)  # type: ignore[arg-type, return-value]


def test_tables_and_pages() -> None:
    """A step that is left out does not use up a learning rate."""
    log = StepLog(lambda total: [0.1, 0.2, 0.3])
    for number, finite in enumerate([True, False, True, True, True], 1):
        log(number, 5, result(float(number), finite))
    told = list(csv.DictReader(io.StringIO(log.to_csv())))
    assert [row["learning_rate"] for row in told] == ["0.1", "0.2", "0.2", "0.3", "0.3"]
    assert [row["finite"] for row in told] == ["1", "0", "1", "1", "1"] and told[0]["grad_norm"] == ""
    assert list(told[0]) == ["step", "loss", "finite", "scale", "grad_norm", "learning_rate"]
    # a curve keeps its peaks
    rows = [StepRow(i + 1, 9.0 if i == 5_001 else 1.0, True, 2.0**16, None, 0.1) for i in range(20_000)]
    page = training_page("t", rows)
    [points] = re.findall(r'aria-label="loss over the steps">.*?points="([^"]+)"', page)
    assert len(points.split()) <= POINTS + 2 and "9</text>" in page
    assert "gradient norm" not in page and "learning rate" in page
    measured = training_page("t", rows, measured=[(10_000, 12.5), (20_000, float("nan"))])
    assert measured.count('<circle class="measured"') == 1 and "12.5</text>" in measured
    # steps left out are seen and words are no markup
    rows = [StepRow(1, 1.0, True, 8.0, 2.0, 0.1), StepRow(2, float("inf"), False, 4.0, float("nan"), 0.1)]
    page = training_page("<b>", rows, ["a < b"])
    assert page.count('class="skip"') == 4 and "1 skipped" in page and "<b>" not in page and "a &lt; b" in page
    assert "inf" not in page.partition("<body>")[2] and page == training_page("<b>", rows, ["a < b"])
    # a log is a table
    check_log("steps.csv")
    with pytest.raises(AmpError, match="AMP105"):
        check_log("steps.txt")


def test_tensorboard_reads_every_step(tmp_path: Path) -> None:
    """Of a log that goes on in the same folder, too."""
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = tmp_path / "runs" / "1"
    check_tensorboard_folder(folder)
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
    monkeypatch.setattr("ampgraph.training.run.step_log._tensorboard", lambda: None)
    (tmp_path / "file").write_text("")
    check_tensorboard_folder(tmp_path / "new" / "folder")
    for place in (tmp_path / "file", tmp_path / "file" / "folder"):
        with pytest.raises(AmpError, match="AMP105"):
            check_tensorboard_folder(place)


def test_tensorboard_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(AmpError, match="AMP501") as caught:
        check_tensorboard_folder(tmp_path)
    assert "pip install 'tensorboard>=2.12'" in str(caught.value.hint)
