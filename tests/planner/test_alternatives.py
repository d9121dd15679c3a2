"""The report says what another level would save, where that is cheap to know."""

from __future__ import annotations

import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.api.steps import Job, run
from ampgraph.core.recipe import Recipe
from ampgraph.planner import alternatives
from hard_models import HARD_MODELS, measure
from planner.test_guards_place import stream


def said(model: ModelProto, level: str | None = None, policy: str = "ampgraph") -> list[str]:
    summary = run(Job(model, Recipe.of(level=level, policy=policy), report=True, dry_run=True)).summary
    assert summary is not None
    return [note["text"] for note in summary.notes if note["topic"] in ("level", "stream")]


def test_what_auto_would_save_is_what_it_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    model = HARD_MODELS["bytes"].build()
    given, at_o2, at_auto = (
        measure.casts(m) for m in (model, ampgraph.convert(model, "O2"), ampgraph.convert(model, "auto"))
    )
    assert at_o2 - at_auto == 1
    assert said(model) == [f"--level auto would save 1 of {at_o2 - given} Casts"]
    assert not said(model, level="auto") and not said(model, policy="pytorch")
    monkeypatch.setattr(alternatives, "MOST", 10)
    assert not said(model)


def test_nothing_is_said_or_planned_where_only_borders_are_cast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alternatives, "decide", None)
    assert not said(stream(3))
