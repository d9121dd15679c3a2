"""The console entry: Ctrl-C is heard before anything slow is imported."""

from __future__ import annotations

from .bash_words import asked_by_bash, complete
from .terminal import INTERRUPTED, Interrupted, done, fail, prepare_streams


def main() -> None:
    """Runs the command line."""
    prepare_streams()
    try:
        from .app import app

        if asked_by_bash():
            complete(lambda: app(prog_name="ampgraph"))
        app(prog_name="ampgraph")
    except Interrupted:
        fail(INTERRUPTED, "interrupted")
    finally:
        done()
