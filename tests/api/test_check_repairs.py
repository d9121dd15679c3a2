"""What the check says that mends a model was tried; what was not is a suggestion; and it ends in its time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ampgraph
from ampgraph.api import check, check_run
from ampgraph.api.check_request import Request
from ampgraph.core.pass_ import Change
from ampgraph.core.recipe import Recipe
from ampgraph.core.verdict import CheckVerdict
from onnx_text import parse

TEXT = "agraph (float[4,64] x) => (float[4,64] y) { a = MatMul(x, w)  b = Add(a, big)  y = Sub(b, big) }"
WEIGHTS = {"w": np.eye(64, dtype=np.float32), "big": np.full(64, 300, np.float32)}


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """A model whose last digits are what it gives, and what was made of it."""
    source, low = tmp_path / "model.onnx", tmp_path / "low.onnx"
    source.write_bytes(parse(TEXT, WEIGHTS).SerializeToString())
    ampgraph.convert(source, output=low, check="off")
    return str(source), str(low)


def verdict(files: tuple[str, str], recipe: Recipe | None, **more: Any) -> CheckVerdict:
    """The last answer of the check, in this process."""
    given: list[CheckVerdict] = []
    check_run.run(Request(*files, None, 3, {}, 1e-2, 10, recipe=recipe, **more), given.append)
    return given[-1]


@pytest.mark.parametrize("metric", [None, "l2"])
def test_a_repair_was_tried(files: tuple[str, str], metric: str | None) -> None:
    found = verdict(files, Recipe(), metric=metric)
    assert found.missed and found.repair and not found.suggestion
    assert found.repaired_error is not None and found.repaired_error <= 1e-2
    assert str(found).endswith(f"repair: {' '.join(found.repair)} (tried: error {found.repaired_error:.2g})")
    ampgraph.convert(files[0], output=files[1], fp32=found.mended_by, check="off")
    assert verdict(files, None, metric=metric).ok


def test_what_else_made_the_model_leaves_a_suggestion(files: tuple[str, str]) -> None:
    found = verdict(files, None)
    assert found.missed and not found.repair and "try: --fp32 " in str(found) and "repair" not in str(found)


def test_where_the_time_is_up_nothing_is_called_a_repair(files: tuple[str, str]) -> None:
    found = verdict(files, Recipe(), whole=0.0)
    assert found.missed and not found.repair and "the time is up, try: --fp32 " in str(found)


def test_a_passes_work_is_not_tried(files: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Recipe | None] = []

    def ask(request: Request) -> CheckVerdict:
        asked.append(request.recipe)
        return CheckVerdict("ok")

    monkeypatch.setattr(check, "ask", ask)
    for passes in (), (lambda graph: Change(0),):
        ampgraph.convert(files[0], output=files[1], passes=passes, check="auto")
    assert asked == [Recipe(), None]


@pytest.mark.usefixtures("check_here")
@pytest.mark.slow
def test_repair_takes_what_the_check_has_tried(files: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "by_search", lambda *words: pytest.fail("tune is not needed"))
    with pytest.warns(ampgraph.PrecisionWarning, match="MISSED"):
        ampgraph.convert(files[0], output=files[1], check="auto")
    ampgraph.convert(files[0], output=files[1], check="require", repair=True)
    assert ampgraph.verify(*files, nodes=0).ok
