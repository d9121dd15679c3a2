"""What all reports in plain text are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence, Sized
from typing import TypeVar

Rows = list[tuple[str, str]]
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


def in_rows(rows: Iterable[tuple[str, str]], width: int = 11) -> list[str]:
    """Lines of a report, in rows of "name text"; lines that continue a text have no name. ``width``: of the names."""
    return [f"{name:<{width}} {text}".rstrip() for name, text in rows]


def titled(title: str, lines: Sequence[str]) -> Rows:
    """Lines of a report with a title in front of the first."""
    return list(zip([title, *[""] * len(lines)], lines, strict=False))


def columns(table: Sequence[Sequence[str]], align: str = "<") -> list[str]:
    """A report's table as text, its cells aligned by column; ``align`` says left or right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)][:-1]
    return [
        "  ".join([*(f"{cell:{align}{w}}" for cell, w in zip(row, widths, strict=False)), row[-1]]) for row in table
    ]


def first(names: Sequence[str], most: int, more: str = "") -> str:
    """Of a report's line: the first of some names, and ``more``, or how many more there are."""
    left = (more or f" and {len(names) - most:,} more") if len(names) > most else ""
    return f"{', '.join(names[:most])}{left}"


def and_more(items: Sized, most: int, end: str = "") -> list[str]:
    """A report's line that says how many items there are beyond ``most``; none where there are none."""
    return [f"and {len(items) - most:,} more{end}"] if len(items) > most else []


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> list[tuple[Key, list[Item]]]:
    """For a report: items in groups of one key, the largest group first, else as they come."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return sorted(groups.items(), key=lambda group: -len(group[1]))


def shortened(text: str, most: int) -> str:
    """For a report: a text of at most ``most`` characters, cut between words where there are any, and before a
    parenthesis that would stay open."""
    if len(text) <= most:
        return text
    start = text[: most - 3]
    start = start[: start.rfind(" ")] if " " in start[most // 2 :] else start
    while start.count("(") > start.count(")"):
        start = start[: start.rindex("(")].rstrip()
    return start + "..."


def middle_left_out(name: str, most: int) -> str:
    """For a report: a name of at most so many characters; its middle is left out, since both ends tell something."""
    half = (most - 3) // 2
    return name if len(name) <= most else f"{name[: most - 3 - half]}...{name[-half:]}"


def finite(error: float, digits: str = ".3g", other: str = "not finite") -> str:
    """An error as a table shows it; ``other`` where it is not finite."""
    return f"{error:{digits}}" if math.isfinite(error) else other
