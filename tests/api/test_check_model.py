"""The rules of `ampgraph.check` that execute something, with builders and sessions that are stood in for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from ampgraph.api import check_model
from ampgraph.core.errors import AmpError
from ampgraph.numerics.strict.session import StrictSession
from ampgraph.runtime.tensorrt_rtx import BuildAnswer, RefusedNode
from onnx_text import parse

MODEL = "g (float[2, 4] x) => (float[2, 4] y) { [one] h = Relu (x) [two] y = Neg (h) }"
SAID = RefusedNode("parser", "two", "Neg", "not in this type")
UNNAMED = RefusedNode("builder", "made by the parser", "Relu", "no kernel")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(check_model, "opening_refusal", lambda model: None)
    onnx.save(parse(MODEL), tmp_path / "m.onnx")
    onnx.save(parse(MODEL), tmp_path / "reference.onnx")
    return Path("m.onnx")


@pytest.mark.parametrize(
    ("answers", "level", "hint"),
    [
        ([BuildAnswer("TRT", refused=(SAID, UNNAMED))], "error", "convert it with --fp32 two --fp32 op:Relu"),
        ([BuildAnswer("TRT", died="killed")], "error", "ampgraph diff names what a conversion changed"),
        (
            [BuildAnswer("TRT", refused=(SAID,)), BuildAnswer("TRT", died="killed")],
            "warning",
            "refused as well: killed",
        ),
        ([BuildAnswer("TRT"), BuildAnswer("TRT", died="killed")], "", ""),
    ],
)
def test_what_a_builder_refuses(
    model: Path, monkeypatch: pytest.MonkeyPatch, answers: list[BuildAnswer], level: str, hint: str
) -> None:
    """What the reference meets too is a warning, and no fault of the conversion; what is taken is no finding at all."""
    asked: list[object] = []

    def build_all(jobs: Any, *, python: str) -> list[BuildAnswer]:
        asked.extend(job.model for job in jobs)
        return answers

    monkeypatch.setattr(check_model, "build_all", build_all)
    monkeypatch.setattr(check_model, "engine_sizes", lambda graph, dims, data: ({}, {}))
    against = "reference.onnx" if len(answers) > 1 else None
    rules = check_model._ModelCheck("m.onnx")
    graph = rules.read()
    assert graph is not None
    rules.check_builds(graph, "python", against, None, None)
    found = rules.report()
    built = [one for one in found.findings if one.rule == "builds"]
    assert asked == ["m.onnx", *([against] if against else [])]
    assert [one.level for one in built] == [level] * len(answers[0].refused or [""] * bool(answers[0].died))
    assert all(one.hint.endswith(hint) for one in built) and ("builds" in found.passed) == (not built)


def test_capabilities_without_a_builder_are_refused(model: Path) -> None:
    with pytest.raises(AmpError, match="AMP404.*none is built"):
        check_model.check(model, sm=["89"])


@pytest.mark.parametrize(
    ("within", "ok", "said"),
    [
        (True, True, []),
        (False, False, ["'y' is not within 0.5 of reference.onnx"]),
        (True, False, ["it is not within 0.5 of reference.onnx"]),  # by a measure of all outputs together
    ],
)
@pytest.mark.parametrize("by", ["", "Runtime 1.0"])
def test_who_ran_a_model_that_is_held_against_another(
    model: Path, monkeypatch: pytest.MonkeyPatch, by: str, within: bool, ok: bool, said: list[str]
) -> None:
    """The target's own runtime where there is one."""
    runtime, opened = SimpleNamespace(name=by) if by else None, list[object]()

    def session(runtime: object, path: str, graph: object) -> StrictSession:
        opened.append(runtime)
        return StrictSession(path)

    output = SimpleNamespace(name="y", within=lambda tolerance: within and tolerance == 0.5)
    monkeypatch.setattr(check_model, "runtime_of", lambda target, python: runtime)
    monkeypatch.setattr(check_model, "executed_session", session)
    monkeypatch.setattr(check_model, "verify", lambda *files, **how: SimpleNamespace(outputs=[output], ok=ok))
    found = check_model.check(model, "reference.onnx", tolerance=0.5)
    assert opened == [runtime] * bool(by) and [one.message for one in found.findings] == said
    right = f"right by real kernels of {by}" if by else "right by a strict run"
    met = "reads, valid, stored, casts, opens, finite" + f", {right}" * ok
    assert found.lines()[0] == f"m.onnx: {'ok' if ok else 'wrong'} ({met})"


def test_what_is_not_finite_is_named() -> None:
    outputs = {
        "fine": np.ones(2, np.float32),
        "high": np.array([1, np.inf], np.float16),
        "count": np.array([1]),
        "absent": None,
        "rows": [np.array([np.nan])],
        "map": {"a": float("nan")},
    }
    assert list(check_model._infinite(outputs)) == ["output 'high' is infinite or NaN"]


@pytest.mark.parametrize(("code", "level"), [("AMP501", ""), ("AMP504", "error"), ("AMP503", "raised")])
def test_a_run_that_fails(model: Path, monkeypatch: pytest.MonkeyPatch, code: str, level: str) -> None:
    """What is not installed leaves the rule out, what does not run is an error, a mistake of the caller is raised."""

    def session(*_: object, **__: object) -> None:
        raise AmpError(code, "a test says so")

    monkeypatch.setattr(check_model, "open_session", session)
    if level == "raised":
        with pytest.raises(AmpError, match=code):
            check_model.check(model)
        return
    found = check_model.check(model)
    assert [one.level for one in found.findings] == [level] * bool(level)
    assert dict(found.skipped) == ({} if level else {"finite": "a test says so"})
