"""`ampgraph check`: what is sound, what is not, and the forms in which it is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest

import ampgraph
from cli_helpers import refused
from onnx_text import parse

TEXT = "g (float[4, 8] x) => (float[4, 8] y) { [one] h = MatMul (x, w) y = Relu (h) }"
IDLE = "g (float[4, 8] x) => (float[4, 8] y) { c = Cast <to = 1> (x) h = MatMul (c, w) y = Relu (h) }"
LOW = "g (float16[4, 8] x) => (float16[4, 8] y) { h = MatMul (x, w) y = Mul (h, h) }"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    onnx.save(parse(TEXT, w=(8, 8)), tmp_path / "m.onnx")
    onnx.save(parse(TEXT, w=np.full((8, 8), np.nan, np.float32)), tmp_path / "nan.onnx")
    onnx.save(parse(IDLE, w=(8, 8)), tmp_path / "idle.onnx")
    onnx.save(parse(LOW, w=np.full((8, 8), 1000, np.float16)), tmp_path / "high.onnx")
    onnx.save(parse(TEXT.replace("Relu", "Nothing"), w=(8, 8)), tmp_path / "invalid.onnx")
    onnx.save(parse(TEXT, w=np.zeros((8, 8), np.float32)), tmp_path / "zero.onnx")
    (tmp_path / "cut.onnx").write_bytes((tmp_path / "m.onnx").read_bytes()[:80])
    np.savez(tmp_path / "x.npz", x=np.ones((4, 8), np.float32))
    np.savez(tmp_path / "low.npz", x=np.ones((4, 8), np.float16))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_sound_file(folder: Path, amp: Any) -> None:
    ampgraph.convert("m.onnx", output="m.O2.onnx")
    code, out, err = amp("check", "m.onnx", "m.O2.onnx", "--against", "m.onnx")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"{n}: ok (reads, valid, stored, casts, opens, finite, right)" for n in ("m.onnx", "m.O2.onnx")
    ]
    assert str(ampgraph.check("m.onnx", "m.onnx")) == out.splitlines()[0]


@pytest.mark.parametrize(
    ("model", "more", "rule", "level"),
    [
        ("cut.onnx", [], "reads", "error"),
        ("none.onnx", [], "reads", "error"),
        ("invalid.onnx", [], "valid", "error"),
        ("nan.onnx", [], "stored", "error"),
        ("idle.onnx", [], "casts", "warning"),
        ("high.onnx", [], "finite", "warning"),
        ("high.onnx", ["--data", "low.npz"], "finite", "error"),
        ("zero.onnx", ["--against", "m.onnx", "--data", "x.npz"], "right", "error"),
    ],
)
def test_what_is_not_sound(folder: Path, amp: Any, model: str, more: list[str], rule: str, level: str) -> None:
    code, out, _ = amp("check", model, *more, "--format", "json")
    (one,) = json.loads(out)
    assert (rule, level) in {(found["rule"], found["level"]) for found in one["findings"]}, one
    assert rule not in one["passed"] and code == int(level == "error") and one["ok"] == (level == "warning")


def test_forms_for_machines(folder: Path, amp: Any) -> None:
    code, out, _ = amp("check", "m.onnx", "cut.onnx", "idle.onnx", "--format", "junit")
    suites = ElementTree.fromstring(out)
    assert code == 1 and [suite.get("failures") for suite in suites] == ["0", "1", "0"]
    assert suites[1][0].get("name") == "reads" and suites[1][0].find("failure") is not None
    code, out, _ = amp("check", "m.onnx", "cut.onnx", "idle.onnx", "--format", "sarif")
    (run,) = json.loads(out)["runs"]
    told = [
        (r["ruleId"], r["level"], r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"])
        for r in run["results"]
    ]
    assert code == 1 and told == [("reads", "error", "cut.onnx"), ("casts", "warning", "idle.onnx")]
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} >= {"reads", "casts"}


def test_what_cannot_be_looked_at_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ampgraph.AmpError("AMP501", "onnxruntime is not installed", hint="install it")

    for module in ("numerics.strict.session", "runtime.opening"):
        monkeypatch.setattr(f"ampgraph.{module}.import_onnxruntime", missing)
    found = ampgraph.check("m.onnx")
    assert found.ok and found.skipped == tuple((rule, "onnxruntime is not installed") for rule in ("opens", "finite"))
    assert "finite not looked at: onnxruntime is not installed" in str(found)


def test_mistakes_are_the_users(folder: Path, amp: Any) -> None:
    refused(amp("check", "m.onnx", "--format", "jnuit"), "AMP301", "junit")
    refused(amp("check", "m.onnx", "--data", "none.npz"), "AMP101", "none.npz")
    refused(amp("check", "m.onnx", "--dim", "n=3"), "AMP310", "n")
