"""The console entry: Ctrl-C is heard before anything slow is imported; and completion in bash, which ends words at
``:`` and ``=``: words are joined before completion, and split after."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO

from ..core.spellings import option_words
from .terminal import INTERRUPTED, Interrupted, fail, ignore_interrupts, prepare_streams

ASKS, WORDS, CURRENT = "_AMPGRAPH_COMPLETE", "COMP_WORDS", "COMP_CWORD"
BREAKS = ":="


def join_pieces(pieces: list[str], current: int) -> tuple[list[str], int]:
    """Completion in bash: (words, place of the current one) from bash's pieces and the place of its current one:
    ``op``, ``:``, ``So`` are one word. A ``current`` behind the last piece is an empty word."""
    words: list[str] = []
    at, open_end = 0, False
    for number, piece in enumerate(pieces):
        breaks = piece != "" and not piece.strip(BREAKS)
        if words and (breaks or open_end):
            words[-1] += piece
        else:
            words.append(piece)
        open_end = breaks
        if number == current:
            at = len(words) - 1
    return (words, at) if current < len(pieces) else ([*words, ""], len(words))


def print_completions(run: Callable[[], None]) -> None:
    """Completion in bash: lets ``run`` print completions of the joined words, and prints of each what bash puts in the
    place of its last piece: without what stands before the last colon."""
    given = os.environ[WORDS]
    pieces = given.split("\n" if "\n" in given else " ")
    words, at = join_pieces(pieces, int(os.environ[CURRENT]))
    os.environ.update({WORDS: "\n".join(words), CURRENT: str(at)})
    before = words[at][: words[at].rfind(":") + 1] if len(words) < len(pieces) else ""
    printed = StringIO()
    try:
        with redirect_stdout(printed):
            run()
    finally:
        sys.stdout.write("".join(line.removeprefix(before) for line in printed.getvalue().splitlines(keepends=True)))


def main() -> None:
    """Runs the command line, or in a shell's completion prints completions; it ends by an exit code."""
    prepare_streams()
    sys.argv[1:] = option_words(sys.argv[1:])
    try:
        from .app import app

        if os.environ.get(ASKS) == "complete_bash" and {WORDS, CURRENT} <= os.environ.keys():
            print_completions(lambda: app(prog_name="ampgraph"))
        app(prog_name="ampgraph")
    except Interrupted:
        fail(INTERRUPTED, "interrupted")
    finally:
        ignore_interrupts()
