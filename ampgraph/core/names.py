"""Names that nothing in a graph has yet."""

from __future__ import annotations

from collections.abc import Iterable


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
