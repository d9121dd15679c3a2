"""The rules as a table: what is printed of them, and that each can be switched off by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.planner.order import RULES
from ampgraph.planner.policies.registry import policy
from ampgraph.report.listing import rule_lines, rule_table
from onnx_text import parse
from planner.guard_cases import CASES
from planner.support import converted, dtype_of
from planner.test_guards import model_of_case

LEVELS = Path(__file__).resolve().parents[2] / "docs" / "levels.md"
OTHERS = {"list", "unlisted", "region", "cut", "user"}
"""By what else a unit is decided."""
MODEL = parse("g (float[2,8] x, float[8,8] w) => (float[2,8] y) { m = MatMul (x, w)  y = Sigmoid (m) }")


def test_the_page_has_the_table() -> None:
    assert rule_table() in LEVELS.read_text(encoding="utf-8"), "make it again: ampgraph.report.listing.rule_table()"


def test_a_line_a_rule() -> None:
    assert [line.split()[0] for line in rule_lines()[1:]] == [rule.name for rule in RULES]
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_every_decision_names_a_rule() -> None:
    known = OTHERS | {rule.name for rule in RULES}
    for case in CASES:
        model = model_of_case(case)
        for level in case.levels:
            assert {one.why.rule for one in ampgraph.plan(model, level).decisions} <= known


def test_a_rule_is_switched_off() -> None:
    assert dtype_of(converted(MODEL), "Sigmoid") == "f32"
    assert ampgraph.explain(MODEL, "y").slots[0].rule == "tail"
    assert dtype_of(converted(MODEL, rule="no-tail"), "Sigmoid") == "f16"


@pytest.mark.parametrize(
    ("word", "message", "hint"),
    [
        ("no-tial", "unknown rule 'tial'", "tail"),
        ("no-kernel", "rule 'kernel' cannot be switched off", "validity"),
        ("tail", "rule 'tail' acts anyway", "--rule no-tail"),
    ],
)
@pytest.mark.parametrize("level", ["O0", "O2"])
def test_words_that_switch_nothing_off(word: str, message: str, hint: str, level: str) -> None:
    with pytest.raises(AmpError, match=message) as caught:
        ampgraph.convert(MODEL, level, rule=word)
    assert caught.value.code == "AMP301" and hint in (caught.value.hint or "")


def test_frameworks_have_no_rules_of_ours() -> None:
    assert not policy("apex").ours
    with pytest.raises(AmpError, match="--rule is none of"):
        ampgraph.convert(MODEL, policy="apex", rule="no-tail")
