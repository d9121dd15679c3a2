"""The steps of `ampgraph.train` around the training itself, with trainers and ranks that are stood in for."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ampgraph.core.errors import AmpError
from ampgraph.training.run.options import RunOptions

train = importlib.import_module("ampgraph.api.train")


def trainer(groups: dict[str, float]) -> Any:
    return SimpleNamespace(layout=SimpleNamespace(groups=groups), learning_rate=0.1)


def test_the_log_is_kept_where_a_file_is_wanted_and_by_the_first_rank(tmp_path: Path) -> None:
    places = {"html": tmp_path / "page.html", "log": tmp_path / "log.csv"}
    none: dict[str, Any] = dict.fromkeys(("html", "log", "tensorboard"))
    for first, asked in ((True, {}), (False, {"html": places["html"]}), (False, {"tensorboard": tmp_path})):
        with train._open_log(SimpleNamespace(first=first), trainer({}), "s.onnx", None, **none | asked) as log:
            assert log is None
    for name, path in places.items():
        with train._open_log(SimpleNamespace(first=True), trainer({}), "s.onnx", None, **none | {name: path}) as log:
            assert log is not None and log.rates(3) == [0.1]
    opened = train._open_log(SimpleNamespace(first=True), trainer({}), places["html"], None, **none | places)
    with pytest.raises(AmpError, match="AMP106"):
        opened.__enter__()


def test_the_page_shows_the_rates_of_the_first_group() -> None:
    assert train._learning_rates(trainer({}), None, 3) == [0.1]
    assert train._learning_rates(trainer({}), [0.3, 0.2, 0.1], 3) == pytest.approx([0.3, 0.2, 0.1])
    groups = trainer({"*.bias": 0.5, "*": 0.1})
    assert train._learning_rates(groups, {"*": [0.2, 0.1]}, 2) == pytest.approx([0.5, 0.5])


def test_all_listeners_hear() -> None:
    heard: list[tuple[object, ...]] = []
    train._join_listeners(None, lambda *told: heard.append(told), None, lambda *told: heard.append(told))(
        1, 2, "result"
    )
    assert heard == [(1, 2, "result")] * 2


def test_normalisation_is_for_files() -> None:
    data = {"x": np.ones((2, 3), np.float32)}
    assert train._normalised(None, ["0,1"], None) is None and train._normalised(data, None, ()) is data
    with pytest.raises(AmpError, match="AMP325.*files"):
        train._normalised(data, ["0,1"], None)


def test_what_mindspore_has_not_is_refused_before_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AmpError, match="AMP325.*--accumulate"):
        train._open_trainer("step.mindir", RunOptions("cpu", accumulate=2), None)
    monkeypatch.setattr(train, "rank_and_world", lambda: (0, 2))
    with pytest.raises(AmpError, match="AMP325.*one of several"):
        train._open_trainer("step.mindir", RunOptions("cpu"), "auto")
