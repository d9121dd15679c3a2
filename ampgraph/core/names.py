"""Names: those that nothing in a graph has yet, and how a node is named to `--fp32` and `--low`."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

SORTS = ("op", "scope", "value")
"""What a pattern may begin with, before a colon."""


class FreshNames:
    """Gives unique names for a graph: called with ``name``, it returns that, or the first of name_1, name_2 ... that is
    not taken, and takes it. ``taken``: the names that the graph has already; None among them is left out."""

    def __init__(self, taken: Iterable[str | None] = ()) -> None:
        self._taken = set(taken)
        self._last: dict[str, int] = {}  # thousands of nodes may ask for one name

    def __call__(self, name: str) -> str:
        made = name
        while made in self._taken:
            number = self._last[name] = self._last.get(name, 0) + 1
            made = f"{name}_{number}"
        self._taken.add(made)
        return made


def pattern_for(name: str, value: str) -> str:
    """A user's pattern (as --fp32 takes it) that means one node: its name, or ``value:`` with the value that it writes
    where it has no name, or one that begins like a pattern of another sort (``op:``)."""
    return literal(name) if name and name.partition(":")[0] not in SORTS else f"value:{literal(value)}"


def literal(name: str) -> str:
    """A user's pattern (a glob) that means this one name: characters that are special in globs stand in brackets."""
    if fnmatch.translate(name) == fnmatch.translate(name.replace("[", "").replace("*", "").replace("?", "")):
        return name
    return "".join(f"[{c}]" if c in "[*?" else c for c in name)
