"""What a test knows to be there, for the type checker and for the reader of a failure."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    """The value, which is not None: a test that finds None fails here."""
    assert value is not None
    return value
