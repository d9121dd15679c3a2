"""The console entry: Ctrl-C is heard before anything slow is imported."""

from __future__ import annotations

import sys

from ..core.spellings import option_words
from .bash_words import asked_by_bash, complete
from .terminal import INTERRUPTED, Interrupted, done, fail, prepare_streams


def main() -> None:
    """Runs the command line."""
    prepare_streams()
    sys.argv[1:] = option_words(sys.argv[1:])
    try:
        from .app import app

        if asked_by_bash():
            complete(lambda: app(prog_name="ampgraph"))
        app(prog_name="ampgraph")
    except Interrupted:
        fail(INTERRUPTED, "interrupted")
    finally:
        done()
