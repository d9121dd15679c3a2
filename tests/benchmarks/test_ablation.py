"""`benchmarks/ablation.py` over two small models: what they need changes plans and errors, and nothing else does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from hard_models import HARD_MODELS
from npz import write_npz
from onnx_text import parse

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

from ablation_switches import PARTS, all_off, owner_of, switches  # noqa: E402

from ampgraph.planner.rules import arithmetic, rule  # noqa: E402

SCRIPT = BENCHMARKS / "ablation.py"
NORM = """
    graph (float[4, 64] x) => (float[4, 64] y) {
        h = MatMul (x, w)
        square = Pow (h, two)
        mean = ReduceMean <axes = [-1]> (square)
        shifted = Add (mean, eps)
        root = Sqrt (shifted)
        normal = Div (h, root)
        y = MatMul (normal, w)
    }
"""
NEEDED = (
    "rule raw",
    "pattern rms_normalization: x over root",
    "trait control_flow",
    "threshold costs.LAUNCH",
)
ONLY = (*NEEDED, "rewrite gelu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, a table and results."""
    folder = tmp_path_factory.mktemp("ablation")
    models, data = folder / "own" / "models", folder / "own" / "data" / "lstm"
    models.mkdir(parents=True)
    data.mkdir(parents=True)
    onnx.save(parse(NORM, w=(64, 64), two=np.float32(2), eps=np.float32(1e-5)), models / "norm.onnx")
    onnx.save(HARD_MODELS["lstm"].build(), models / "lstm.onnx")
    for number, feeds in enumerate(HARD_MODELS["lstm"].feeds(2)):
        write_npz(data / f"{number}.npz", feeds)
    command = [sys.executable, str(SCRIPT), str(folder), "--sets", "own", "--only", *ONLY, "--samples", "2"]
    for words in (["--target", "webgpu", "--parts", "plan"], ["--table", str(folder / "table.md")]):
        done = subprocess.run([*command, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return folder


def rows(folder: Path, name: str) -> dict[tuple[str, ...], Any]:
    file = min((folder / "results").glob(f"{name}*.jsonl"), key=lambda path: len(path.name))  # for no other target
    found = (json.loads(line) for line in file.read_text().splitlines())
    return {tuple(key): row for *key, row in found}


def changed(folder: Path, thing: str) -> list[tuple[str, ...]]:
    """The plans that do something else without a thing: model, level, type."""
    plans = rows(folder, "plans")
    made = {key[:3]: row for key, row in plans.items() if key[3] == thing}
    assert made, f"nothing asked for {thing}"
    return [key for key, row in made.items() if row.get("does") != plans[(*key, "(nothing)")].get("does")]


@pytest.mark.parametrize("place", PARTS)
def test_every_part_is_where_the_table_has_it(place: str) -> None:
    """A part that was renamed would end the run in its first hour."""
    owner, name, _ = owner_of(place)
    assert callable(getattr(owner, name, None))


def test_a_part_is_off_wherever_it_is_called_from() -> None:
    (part,) = (switch for switch in switches() if switch.key == "part rules.rule.reaches")
    with all_off([part]):
        found = [module.reaches(None, None, None, None) for module in (arithmetic, rule)]  # type: ignore[arg-type]
    assert found == [[], []]
    assert arithmetic.reaches is rule.reaches and rule.reaches.__name__ == "reaches"


@pytest.mark.slow
@pytest.mark.parametrize("thing", NEEDED)
def test_what_a_model_needs_changes_its_plan(folder: Path, thing: str) -> None:
    """Something that is switched off and is not would be called needless."""
    plans = {key[3] for key in rows(folder, "plans")}
    found = [one for one in plans if one.startswith(thing)]
    assert any(changed(folder, one) for one in found), found


@pytest.mark.slow
def test_every_other_plan_is_run(folder: Path) -> None:
    """With its error beside that of the plan as it is."""
    plans, errors = rows(folder, "plans"), rows(folder, "errors")
    found = [
        tuple(errors[key[0], plans[(*key, name)]["does"]].get("error") for name in (thing, "(nothing)"))
        for thing in NEEDED[:3]
        for key in changed(folder, thing)
    ]
    assert all(with_it is not None and with_it < 1e-2 for _, with_it in found)
    assert any(without != with_it for without, with_it in found)


@pytest.mark.slow
def test_what_no_model_has_is_said(folder: Path) -> None:
    table = (folder / "table.md").read_text()
    assert "| own | 2 | 1 | 8 |" in table
    assert "Asked for by no plan: 1 (gelu)." in table


@pytest.mark.slow
def test_what_only_another_target_needs_is_said_apart(folder: Path) -> None:
    before, _, behind = (folder / "table.md").read_text().partition("## For webgpu")
    assert "rule raw" not in behind and "\n| raw |" in before
    assert "Of 6 plans" in behind  # bfloat16 is no type of WebGPU
