"""What all reports in plain text are made of."""

from __future__ import annotations

from collections.abc import Iterable


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def in_rows(rows: Iterable[tuple[str, str]], width: int = 11) -> list[str]:
    """``name  text``, continued lines without a name."""
    return [f"{name:<{width}} {text}".rstrip() for name, text in rows]
