"""What all reports in plain text are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence, Sized
from typing import TypeVar

Rows = list[tuple[str, str]]
"""Rows of a report: (name, text); "" as the name where a row goes on with the one before."""
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


def in_rows(rows: Iterable[tuple[str, str]], width: int = 11) -> list[str]:
    """The `Rows` of a report as lines: the name, as wide as ``width``, and the text behind it."""
    return [f"{name:<{width}} {text}".rstrip() for name, text in rows]


def titled(title: str, lines: Sequence[str]) -> Rows:
    """Lines of a report as `Rows`: the first has the title as its name; none where there are no lines."""
    return list(zip([title, *[""] * len(lines)], lines, strict=False))


def columns(table: Sequence[Sequence[str]], align: str = "<") -> list[str]:
    """A report's table, of one row or more, as lines with columns aligned to the left (``<``) or the right (``>``)."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)][:-1]
    return [
        "  ".join([*(f"{cell:{align}{w}}" for cell, w in zip(row, widths, strict=False)), row[-1]]) for row in table
    ]


def first(names: Sequence[str], most: int, more: str = "") -> str:
    """For a line of a report: the first names, at most ``most``, with commas between them; where there are more, then
    ``more``, or how many more there are if that is ""."""
    if len(names) <= most:
        return ", ".join(names)
    return ", ".join(names[:most]) + (more or f" and {len(names) - most:,} more")


def and_more(items: Sized, most: int, end: str = "") -> list[str]:
    """The line of a report on how many items there are beyond ``most``, and ``end``; no line where there are none."""
    return [f"and {len(items) - most:,} more{end}"] if len(items) > most else []


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> list[tuple[Key, list[Item]]]:
    """For a report: (key, items) for each key of the items, the largest group first, else in the order of the items."""
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
    """For a report: a name in at most ``most`` characters; of a longer one the middle is left out."""
    half = (most - 3) // 2
    return name if len(name) <= most else f"{name[: most - 3 - half]}...{name[-half:]}"


def finite(error: float, digits: str = ".3g", other: str = "not finite") -> str:
    """An error as a table of a report shows it, in the format ``digits``; ``other`` where it is not finite."""
    return f"{error:{digits}}" if math.isfinite(error) else other
