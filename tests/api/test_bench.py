"""`ampgraph.bench`: runtimes that are stood in for, so that what is timed and compared is known."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from ampgraph.core.errors import AmpError
from onnx_text import parse

timing = importlib.import_module("ampgraph.api.bench")
SECONDS = {"float32.onnx": 4.0, "low.onnx": 2.0}


class Runtime:
    """A runtime: `first` is here, `second` in the environment "beside" alone, which has no other."""

    def __init__(self, kind: str, python: str = "") -> None:
        if python != {"second": "beside"}.get(kind, ""):
            raise AmpError("AMP501", f"{kind} is not installed")
        self.name, self.low, self.note = f"{kind} 1.0", ("bfloat16",) if kind == "second" else (), ""


class Session:
    """What a runtime opens: takes known seconds, the double on all threads, and adds an error to its output."""

    inputs = {"x": SimpleNamespace(dtype="float32")}

    def __init__(self, model: str, hint: str) -> None:
        self.seconds, self.off = SECONDS[Path(model).name] / (2 if hint else 1), 0.5 if "low" in model or hint else 0.0

    def run(self, feeds: Any) -> dict[str, Any]:
        return self.results()

    def feed(self, feeds: Any) -> None:
        assert feeds["x"].dtype == np.float32

    def time(self) -> tuple[float, float]:
        return 2 * self.seconds, self.seconds

    def results(self) -> dict[str, Any]:
        return {"y": np.full(4, 1 + self.off, np.float32)}


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    def session(runtime: Runtime, model: object, *, threads: int, hint: str) -> Session:
        if runtime.name == "second 1.0" and "low" in str(model):
            raise AmpError("AMP502", "it has no such kernel")
        return Session(str(model), hint)

    monkeypatch.setattr(timing, "Runtime", Runtime)
    monkeypatch.setattr(timing, "is_here", lambda kind: kind == "first")
    monkeypatch.setattr(timing, "executed_session", session)
    monkeypatch.setattr(timing, "PLAIN", "first")
    monkeypatch.setattr(timing, "_executing_runtime", lambda target: {"cuda": "second"}.get(target, ""))
    monkeypatch.setattr(timing.os, "cpu_count", lambda: 1)
    for name in SECONDS:
        onnx.save(parse("g (float[4] x) => (float[4] y) { y = Relu (x) }"), tmp_path / name)
    yield [tmp_path / name for name in SECONDS]


def test_models_are_held_against_the_first_of_their_runtime(models: list[Path]) -> None:
    found = timing.bench(models, rounds=3, runtime="beside")
    rows = [(row.runtime, row.hint, row.seconds, row.speed, row.error, row.refused) for row in found.rows]
    assert rows == [
        ("first 1.0", "", 4.0, 1.0, 0.0, ""),
        ("first 1.0", "", 2.0, 2.0, 0.5, ""),
        ("second 1.0", "", 4.0, 1.0, 0.0, ""),
        ("second 1.0", "bfloat16", 2.0, 2.0, 0.5, ""),
        ("second 1.0", "", None, None, None, "it has no such kernel"),
    ]
    assert found.rows[1].spread == (2.0, 2.0) and found.rounds == 3


def test_all_threads_are_timed_by_the_clock(models: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing.os, "cpu_count", lambda: 2)
    found = timing.bench(models[:1], rounds=1)
    assert [(row.threads, row.seconds, row.spread) for row in found.rows] == [
        (1, 4.0, (1.0, 1.0)),
        (0, 8.0, (1.0, 1.0)),
    ]


def test_a_target_means_its_runtime_alone(models: list[Path]) -> None:
    found = timing.bench(models[:1], target="cuda", runtime=["beside"], rounds=1)
    assert {row.runtime for row in found.rows} == {"second 1.0"}
    for asked, code in [
        ({"target": "cuda"}, "AMP501"),
        ({"target": "cann"}, "AMP404"),
        ({"runtime": "none"}, "AMP501"),
    ]:
        with pytest.raises(AmpError) as caught:
            timing.bench(models[:1], rounds=1, **asked)
        assert caught.value.code == code, asked
    mistakes: list[dict[str, Any]] = [{"rounds": 0}, {"models": []}]
    for wrong in mistakes:
        with pytest.raises(AmpError, match="AMP312"):
            timing.bench(**{"models": models, **wrong})
