"""The ledger's precedence, and the order of the steps, which their types say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ampgraph.core.dataflow import Dataflow
from ampgraph.core.errors import AmpError
from ampgraph.core.plan import Why
from ampgraph.formats import adapters
from ampgraph.planner.decisions import (
    ACCURACY,
    CUT,
    FREE,
    HIGH,
    LIST,
    LOW,
    REGION,
    USER,
    VALIDITY,
    Decisions,
    Hold,
    Ledger,
)  # fmt: skip
from onnx_text import parse

ROOT = Path(__file__).resolve().parents[2]
WHY = Why("test", "because")


@pytest.fixture
def flow() -> Dataflow:
    graph, _ = adapters.load(parse("g (float[4] x) => (float[4] y) { a = Relu (x)  b = Neg (a)  y = Exp (b) }"))
    return graph.dataflow("float16", frozenset())


def after(flow: Dataflow, *words: tuple[int, int]) -> Decisions:
    """One unit after these (side, rank)."""
    ledger = Ledger(flow)
    for side, rank in words:
        ledger.decide(0, side, rank, WHY)
    return ledger.take()


@pytest.mark.parametrize(
    ("words", "side"),
    [
        ([(LOW, LIST)], LOW),
        ([(LOW, LIST), (HIGH, ACCURACY)], HIGH),
        ([(HIGH, ACCURACY), (LOW, LIST)], HIGH),
        ([(HIGH, LIST), (LOW, USER)], LOW),
        ([(LOW, USER), (HIGH, VALIDITY)], HIGH),
        ([(LOW, LIST), (HIGH, LIST)], HIGH),
        ([(HIGH, LIST), (LOW, LIST)], HIGH),
    ],
)
def test_precedence(flow: Dataflow, words: Sequence[tuple[int, int]], side: int) -> None:
    assert after(flow, *words).side(0) == side


def test_a_unit_asked_for_in_both_precisions(flow: Dataflow) -> None:
    with pytest.raises(AmpError) as caught:
        after(flow, (LOW, USER), (HIGH, USER))
    assert caught.value.code == "AMP306"


def test_what_is_tied_is_decided_together(flow: Dataflow) -> None:
    ledger = Ledger(flow)
    ledger.decide(0, LOW, LIST, WHY)
    ledger.decide(1, HIGH, ACCURACY, WHY)
    ledger.tie([0, 1])
    found = ledger.take()
    assert found.find(0) == found.find(1) == 0 and found.is_high(0) and found.is_high(1)
    assert flow.find(1) == 1  # the dataflow is as it was


def test_only_a_list_or_a_region_is_released(flow: Dataflow) -> None:
    for rank, side in ((LIST, FREE), (REGION, FREE), (ACCURACY, HIGH)):
        ledger = Ledger(flow)
        ledger.decide(0, HIGH, rank, WHY)
        ledger.release(0, WHY)
        assert ledger.take().side(0) == side


def test_a_hold_that_is_not_needed_keeps_the_reason(flow: Dataflow) -> None:
    ledger = Ledger(flow)
    ledger.decide(0, HIGH, LIST, WHY)
    assert not ledger.hold(Hold((0,), ACCURACY, Why("other", ""), unless_high=True))
    assert ledger.take().why(0) == WHY
    assert ledger.hold(Hold((0, 1), ACCURACY, Why("other", ""), unless_high=True))
    assert ledger.take().why(0) == Why("other", "")


def test_decisions_that_were_taken_stay(flow: Dataflow) -> None:
    ledger = Ledger(flow)
    before = ledger.take()
    ledger.decide(0, HIGH, CUT, WHY)
    assert before.side(0) == FREE and ledger.take().side(0) == HIGH
