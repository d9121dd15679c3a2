"""Which cell a parameter is of, by its name beside the scope of what reads it.

Names and scopes differ in two ways. A list that is given its cells after it was set as an attribute is in the scope and
not in the names: ``0.table`` is read in ``layers-CellList/0-Block``. And cells of one class that a network calls one
after the other may all have the scope of the first. So a path is known by where it has names and where numbers.
"""

from __future__ import annotations

import re
from collections.abc import Set
from functools import lru_cache

Cell = tuple[tuple[str, str], ...]
"""(name, class) of the cells around an operator, from the outermost one."""


@lru_cache(maxsize=1024)
def _shape(cells: Cell, containers: Set[str]) -> re.Pattern[str]:
    """What the owners of a cell's parameters look like."""
    parts = []
    for name, kind in cells:
        if kind in containers:
            parts.append(rf"(?:{re.escape(name)}\.)?")
        else:
            parts.append(r"\d+\." if name.isdigit() else r"(?!\d+\.)[^.]+\.")
    return re.compile("".join(parts))


def paths(cells: Cell, containers: Set[str]) -> set[str]:
    """What the names of a cell's own parameters begin with: with its lists, or without them."""
    return {".".join(name for name, kind in cells if kind not in left_out) for left_out in (containers, frozenset())}


def is_of(owner: str, cells: Cell, containers: Set[str]) -> bool:
    """Whether ``owner`` is a cell such as the last of ``cells``."""
    return _shape(cells, containers).fullmatch(_path(owner)) is not None


def is_within(owner: str, cells: Cell, containers: Set[str]) -> bool:
    """Whether ``owner`` is such a cell or inside one; else it is around it, and handed its parameter down."""
    return _shape(cells, containers).match(_path(owner)) is not None


def _path(owner: str) -> str:
    return f"{owner}." if owner else ""
