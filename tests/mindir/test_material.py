"""The material of the MindSpore parity tests: it exports, runs, and compares as its modules say."""

import pytest

from formats.mindir import text
from mindir import cases, compare, parity

pytestmark = pytest.mark.mindspore


@pytest.fixture
def folder(exported):
    return exported


def test_every_file_has_its_outputs(folder):
    pairs = cases.comparable(parity.USED)
    assert pairs and all((folder / name / f"outputs_{level}.npz").exists() for name, level in pairs)


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
