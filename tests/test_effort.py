"""The counts of work and the shares of grids do what the tests that use them rely on."""

from __future__ import annotations

from functools import partial

import pytest

import share
from effort import TooMuchWork, assert_linear, lines_run


def turns(count: int) -> int:
    total = 0
    for number in range(count):
        total += number
    return total


def every_pair(count: int) -> int:
    return sum(1 for one in range(count) for other in range(count) if one < other)


def test_what_is_linear_passes_and_a_square_does_not():
    assert_linear(lambda count: partial(turns, count), 50)
    with pytest.raises(AssertionError):
        assert_linear(lambda count: partial(every_pair, count), 50)


def test_lines_are_counted_and_a_call_ends_beyond_the_most():
    assert lines_run(partial(turns, 100)) > lines_run(partial(turns, 50)) + 99
    with pytest.raises(TooMuchWork):
        lines_run(partial(turns, 1_000_000), most=500)


def test_a_share_is_a_part_that_new_cells_do_not_move(monkeypatch):
    monkeypatch.setattr(share, "FULL", False)
    cells = [f"cell {number}" for number in range(300)]
    taken = share.share(cells, 3)
    assert 60 <= len(taken) <= 140 and taken == [cell for cell in share.share(["new", *cells], 3) if cell != "new"]
    assert {choice for cell in cells for choice in share.turn(cell, "abcd")} == set("abcd")
    assert all(len(share.turn(cell, "abcd", 2)) == 2 for cell in cells)


def test_a_full_run_takes_every_cell(monkeypatch):
    monkeypatch.setattr(share, "FULL", True)
    assert share.share("abc", 3) == list("abc") == share.turn("x", "abc")
