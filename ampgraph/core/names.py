"""Names: those that nothing in a graph has yet, and how a node is named to `--fp32` and `--low`."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

SORTS = ("op", "scope", "value")
"""What a pattern may begin with, before a colon."""


class FreshNames:
    """Gives ``name``, or the first of name_1, name_2 ... that is not taken, and remembers it."""

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
    """A user's pattern (as --fp32 takes it) for one node: its name, or the value that it writes where it has none."""
    return literal(name) if name and name.partition(":")[0] not in SORTS else f"value:{literal(value)}"


def literal(name: str) -> str:
    """A user's pattern (a glob) that means one name: a name with brackets would mean others too."""
    if fnmatch.translate(name) == fnmatch.translate(name.replace("[", "").replace("*", "").replace("?", "")):
        return name
    return "".join(f"[{c}]" if c in "[*?" else c for c in name)
