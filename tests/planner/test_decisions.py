"""Who decides a unit: the precedence that the ledger keeps, and what rules find entered into it."""

from __future__ import annotations

import pytest

from ampgraph.core.dataflow import Dataflow
from ampgraph.core.errors import AmpError
from ampgraph.core.plan import Note, Why
from ampgraph.formats import adapters
from ampgraph.planner.decisions import ACCURACY, CUT, FREE, HIGH, LIST, LOW, REGION, USER, VALIDITY, Hold, Ledger
from ampgraph.planner.rules.rule import Findings, Ruling, warned
from onnx_text import parse

WHY, OTHER = Why("list", "first"), Why("list", "second")


def flow() -> Dataflow:
    """Of two operators: each has one unit, those of the input and the output are others."""
    return adapters.load(parse("g (float[4] x) => (float[4] y) { t = Tanh (x)  y = Exp (t) }"))[0].dataflow("float16")


@pytest.mark.parametrize(
    ("first", "then", "side"),
    [
        ((LOW, LIST), (HIGH, REGION), HIGH),  # a stronger right
        ((LOW, USER), (HIGH, ACCURACY), LOW),  # a weaker one
        ((LOW, LIST), (HIGH, LIST), HIGH),  # between equals float32 wins
        ((HIGH, LIST), (LOW, LIST), HIGH),
        ((HIGH, USER), (LOW, VALIDITY), LOW),
    ],
)
def test_the_stronger_right_decides(first: tuple[int, int], then: tuple[int, int], side: int) -> None:
    ledger = Ledger(flow())
    assert ledger.decide(0, *first, WHY)
    effect = ledger.decide(0, *then, OTHER)
    found = ledger.take()
    assert found.side(0) == side and effect == (side == then[0] != first[0])
    assert found.why(0) is (OTHER if effect else WHY) and found.side(1) == FREE and found.why(1) is None


def test_a_user_who_wants_both_is_refused() -> None:
    ledger = Ledger(flow())
    ledger.decide(0, HIGH, USER, WHY)
    assert not ledger.decide(0, HIGH, USER, OTHER)
    with pytest.raises(AmpError, match="AMP306"):
        ledger.decide(0, LOW, USER, OTHER)


def test_what_is_tied_shares_the_strongest_decision() -> None:
    ledger = Ledger(flow())
    ledger.decide(0, LOW, LIST, WHY)
    ledger.decide(1, HIGH, REGION, OTHER)
    before = ledger.take()
    root = ledger.tie((0, 1))
    after = ledger.take()
    assert root == after.find(1) == 0 and (after.side(0), after.why(1)) == (HIGH, OTHER)
    assert before.find(1) == 1 and before.is_low(0)  # what was taken never changes


@pytest.mark.parametrize(("rank", "freed", "lowered"), [(LIST, FREE, LOW), (REGION, FREE, HIGH), (USER, HIGH, HIGH)])
def test_what_may_be_left_to_the_cut_or_made_low(rank: int, freed: int, lowered: int) -> None:
    released, low = Ledger(flow()), Ledger(flow())
    for ledger in (released, low):
        ledger.decide(0, HIGH, rank, WHY)
    released.release(0, OTHER)
    low.lower(0, OTHER)
    assert released.take().side(0) == freed and low.take().side(0) == lowered
    assert (released.take().ranks[0] == CUT) == (freed == FREE)


def test_a_hold_of_what_is_float32_already() -> None:
    ledger = Ledger(flow())
    ledger.decide(0, HIGH, LIST, WHY)
    assert not ledger.hold(Hold((0,), ACCURACY, OTHER, unless_high=True))
    assert ledger.hold(Hold((0, 1), ACCURACY, OTHER, unless_high=True))
    assert ledger.take().why(0) is OTHER


@pytest.mark.parametrize(("held", "text"), [((0,), "1 node stay"), ((0, 1), "2 nodes stay"), ((), "")])
def test_a_note_says_how_many_nodes_a_rule_held(held: tuple[int, ...], text: str) -> None:
    """What was float32 by a stronger right counts for nothing, nor does a silent hold; without effect there is none."""
    ledger = Ledger(flow())
    for unit in {0, 1} - {*held}:
        ledger.decide(unit, HIGH, VALIDITY, WHY)
    holds = [Hold((unit,), ACCURACY, OTHER) for unit in (0, 1)]
    silent = [Hold((2,), ACCURACY, OTHER)]
    Ruling(holds, Note("rule", "here", "stay"), says_count=True, silent=silent).enter(ledger)
    assert [note.text for note in ledger.notes] == ([text] if text else []) and ledger.take().is_high(2)


def test_a_rule_that_only_warns() -> None:
    """It says what it would hold of what is low, and holds nothing."""
    ledger = Ledger(flow())
    ledger.decide(0, LOW, LIST, WHY)
    rulings = [Ruling([Hold((unit,), ACCURACY, OTHER)], Note("rule", str(unit), "stays")) for unit in (0, 1)]
    found = warned(Findings(rulings, notes=[Note("other", "", "said")]), ledger.take())
    assert not found.rulings and [(note.topic, note.where) for note in found.notes] == [
        ("rule (not held)", "0"),
        ("other", ""),
    ]


def test_of_two_findings_the_first_counts_and_the_least_worth() -> None:
    first = Findings(released={0: WHY}, byte_worth={0: -1, 1: 1}, floors={3: -1.0}, integer_valued=frozenset({5}))
    later = Findings(released={0: OTHER, 1: OTHER}, byte_worth={0: 0, 1: -1}, floors={3: -2.0})
    both = first | later
    assert both.released == {0: WHY, 1: OTHER} and both.byte_worth == {0: -1, 1: -1}
    assert both.floors == {3: -1.0} and both.integer_valued == {5}
