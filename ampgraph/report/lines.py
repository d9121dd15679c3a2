"""What all reports in plain text are made of."""

from __future__ import annotations

from collections.abc import Iterable


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def rewrite_line(what: str, count: int) -> str:
    """``3 groups of nodes written as one LayerNormalization (norm) each``."""
    word = "node" if " and " in what else "group"
    return f"{plural(count, word)}{' of nodes' if word == 'group' else ''} written as {one_of(what)} each"


def one_of(what: str) -> str:
    """``one Div (form)``, and what is no operator as it is."""
    return what if " and " in what or "," in what else f"one {what}"


def in_rows(rows: Iterable[tuple[str, str]], width: int = 11) -> list[str]:
    """``name  text``, continued lines without a name."""
    return [f"{name:<{width}} {text}".rstrip() for name, text in rows]
