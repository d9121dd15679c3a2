"""How long work says how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]  # what is done, how much of it, of how much; 0 of 0 where that is not known
Count = Callable[[int, int], None]  # how much is done, of how much


def silent(what: str, done: int = 0, total: int = 0) -> None:
    """The `Progress` that says nothing."""
