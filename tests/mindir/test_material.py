"""The material of the MindSpore parity tests: it exports, runs, and compares as its modules say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mindir import cases, compare, text

pytestmark = pytest.mark.mindspore
NAMES = ("mlp", "residual", "if", "lstm_cell")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("mindspore")
    target = tmp_path_factory.mktemp("mindir")
    tests = Path(__file__).parents[1]
    search = os.pathsep.join([str(tests), str(tests.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "mindir.export", str(target), *NAMES]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": search})
    return target


def test_what_mindspore_refuses_is_what_the_cases_name(folder):
    errors = json.loads((folder / "errors.json").read_text())
    expected = {f"{name}/{level}" for name, level in cases.REFUSED if name in NAMES}
    assert set(errors) == expected


def test_every_file_has_its_outputs(folder):
    pairs = [(name, level) for name, level in cases.comparable(NAMES)]
    assert all((folder / name / f"outputs_{level}.npz").exists() for name, level in pairs)


def test_a_file_agrees_with_itself(folder):
    result = compare.compare(folder / "residual" / "O2.mindir", folder / "residual" / "O2.mindir", moves=True)
    assert result.agrees and result.nodes > 10 and result.casts == (14, 14)


def test_a_difference_is_told_by_node(folder):
    result = compare.compare(folder / "residual" / "O2.mindir", folder / "residual" / "O3.mindir")
    norms = [line for line in str(result).splitlines() if line.startswith("-")]
    assert len(result.differences) == 2 and result.casts == (14, 16)
    assert any("BatchNorm(f32, f32, f32, f32, f32)" in line for line in norms)
    assert any("LayerNorm(f32, f32, f32)" in line for line in norms)


@pytest.mark.parametrize("level", cases.LEVELS)
def test_scopes_are_normalised(folder, level):
    own = compare.nodes(text.load(folder / "residual" / f"{level}.mindir"))
    plain = compare.nodes(text.load(folder / "residual" / "fp32.mindir"))
    assert [(node.scope, node.operator) for node in own] == [(node.scope, node.operator) for node in plain]


def test_the_text_shows_types_constants_and_branches(folder):
    shown = text.dump(text.load(folder / "if" / "O2.mindir"))
    assert shown.count("graph ") == 3
    assert "f16[8,6] = Cast(inner.weight, f16)" in shown
    assert "MatMul(x, %1, false, true)" in shown
    assert "(f32[2,8], f32[2,1], f32[2,1]) = LayerNorm(" in shown
