"""One reader of KEY=VALUE for optimizers, schedules and loss scales."""

from __future__ import annotations

import pytest

from ampgraph.training.option_text import BadOption, read_options


def test_options_keep_their_order() -> None:
    assert list(read_options("b=2, a = 1", ("a", "b")).items()) == [("b", "2"), ("a", "1")]
    assert read_options("", ("a",)) == {}


@pytest.mark.parametrize(
    ("text", "message", "form", "twice"),
    [
        ("a", "unknown 'a'", True, False),
        ("a=", "unknown 'a='", True, False),
        ("c=1", "unknown 'c=1'", False, False),
        ("a=1,a=2", "'a' is given twice", False, True),
    ],
)
def test_bad_options(text: str, message: str, form: bool, twice: bool) -> None:
    with pytest.raises(BadOption) as found:
        read_options(text, ("a", "b"))
    assert (str(found.value), found.value.form, found.value.twice) == (message, form, twice)
