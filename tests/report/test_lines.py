"""Lines of reports: what is cut, counted and aligned."""

from __future__ import annotations

import math

from ampgraph.report.lines import and_more, columns, finite, first, grouped, in_rows, middle_left_out, shortened, titled


def test_rows_and_columns() -> None:
    rows = titled("nodes", ["5 float16", "1 float32"]) + titled("none", [])
    assert rows == [("nodes", "5 float16"), ("", "1 float32")]
    assert in_rows(rows, 6) == ["nodes  5 float16", "       1 float32"]
    assert columns([("a", "bb"), ("aaa", "b")]) == ["a    bb", "aaa  b"]
    assert columns([("1", "x"), ("100", "y")], ">") == ["  1  x", "100  y"]


def test_what_is_left_is_counted() -> None:
    assert first(["a", "b"], 2) == "a, b" and first(["a", "b", "c"], 2) == "a, b and 1 more"
    assert first(["a", "b", "c"], 2, " ...") == "a, b ..." and first([], 2) == ""
    assert and_more("abc", 2, "!") == ["and 1 more!"] and and_more("abc", 3) == []


def test_groups_come_by_size_and_then_as_they_came() -> None:
    assert grouped("abcbd", str.upper) == [("B", ["b", "b"]), ("A", ["a"]), ("C", ["c"]), ("D", ["d"])]


def test_long_texts_are_cut() -> None:
    assert shortened("short", 5) == "short" and len(shortened("x" * 50, 20)) == 20
    assert shortened("one two three four five", 20) == "one two three..."
    assert shortened("a float32 sum (of a long row)", 25) == "a float32 sum..."  # no parenthesis stays open
    assert middle_left_out("abcdefghij", 7) == "ab...ij" and middle_left_out("abc", 3) == "abc"
    assert finite(0.12345) == "0.123" and finite(math.nan, other="none") == "none"
