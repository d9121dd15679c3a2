"""The policy ``mindspore`` makes of a float32 file what MindSpore's own mixed precision makes of the network.

Node by node (exact moves aside, see ``compare``), in the number of casts, and to the bit in the outputs. All networks,
also those that are too many for every run: ``python -m mindir.parity --all``."""

from pathlib import Path

import pytest

from ampgraph import convert
from formats.mindir import text
from mindir import cases, compare, parity

pytestmark = pytest.mark.mindspore
ROOT = Path(__file__).parents[2]
PAIRS = list(cases.comparable(parity.USED))
EXCEPTIONS = {pair: why for pair, why in {**cases.UNDECIDABLE, **cases.DIFFERENT}.items() if pair in parity.NAMED}


@pytest.mark.parametrize(("name", "level"), PAIRS)
def test_a_converted_file_is_mindspores_own(converted, name, level):
    verdict = parity.judge(converted, name, level)
    assert verdict.comparison.nodes
    assert verdict.comparison.agrees, str(verdict)
    assert verdict.comparison.casts[0] == verdict.comparison.casts[1], str(verdict)
    assert len(verdict.comparison.mixed) == cases.MIXED.get((name, level), 0), verdict.comparison.mixed
    assert verdict.types_equal and verdict.identical, str(verdict)


@pytest.mark.parametrize(("name", "level"), EXCEPTIONS)
def test_what_cannot_match_does_not(converted, name, level):
    """Else it belongs to what must match."""
    verdict = parity.judge(converted, name, level)
    assert not verdict.equal, f"equal now, although {EXCEPTIONS[name, level]}"
    assert verdict.distance < 5e-3


def test_what_mindspore_refuses_is_what_the_cases_name(exported):
    assert parity.errors(exported) - set(parity.LOW) == set(cases.REFUSED) & set(parity.NAMED)


@pytest.mark.parametrize(("name", "level"), parity.IN_BFLOAT16)
def test_bfloat16_is_where_mindspore_has_it(exported, tmp_path, name, level):
    """The CPU cannot run it, so only the files are compared; MindSpore leaves casts in that cancel out."""
    own, ours = exported / name / f"{level}-bfloat16.mindir", tmp_path / "ours.mindir"
    convert(exported / name / "fp32.mindir", level, dtype="bfloat16", policy="mindspore", output=ours)
    if (name, level) in cases.REFUSED_BFLOAT16:
        assert all(set(node.inputs) == {"f32"} for node in compare.nodes(text.load(ours)) if "Batch" in node.operator)
        return
    result = compare.compare(own, ours)
    assert result.agrees and not result.mixed, str(result)
    extra = compare.round_trips(text.load(own)) + cases.CROSSING.get((name, level), 0)
    assert result.casts[0] - extra == result.casts[1] > 0, str(result)


def test_what_mindspore_refuses_in_bfloat16_is_what_the_cases_name(exported):
    refused = {(name, f"{level}-bfloat16") for name, level in cases.REFUSED_BFLOAT16} & set(parity.LOW)
    assert refused and parity.errors(exported) & set(parity.LOW) == refused


def test_mindspore_leaves_nothing_in_the_checkout(converted):
    """Its O1 writes source files, its compiler folders, into the folder that it runs in."""
    assert (converted / "rewritten_network").exists()
    here = [ROOT, Path.cwd()]
    assert not [place / "rewritten_network" for place in here if (place / "rewritten_network").exists()]


def test_a_difference_is_told_by_node(exported):
    result = compare.compare(exported / "residual" / "O2.mindir", exported / "residual" / "O3.mindir")
    norms = [line for line in str(result).splitlines() if line.startswith("-")]
    assert len(result.differences) == 2 and result.casts == (14, 16)
    assert any("BatchNorm(f32, f32, f32, f32, f32)" in line for line in norms)
    assert any("LayerNorm(f32, f32, f32)" in line for line in norms)


def test_the_text_shows_types_constants_and_branches(exported):
    shown = text.dump(text.load(exported / "if" / "O2.mindir"))
    assert shown.count("graph ") == 3
    assert "f16[8,6] = Cast(inner.weight, f16)" in shown
    assert "MatMul(x, %1, false, true)" in shown
    assert "(f32[2,8], f32[2,1], f32[2,1]) = LayerNorm(" in shown
