"""``-`` as a model: read from stdin, written to stdout, by files that are gone afterwards."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import AmpError

PIPE = "-"


@dataclass(frozen=True)
class Piped:
    """The files that stand for what was given. ``result`` None: nothing goes to stdout."""

    model: str
    output: Path | None
    result: Path | None = None

    def deliver(self) -> None:
        """Sends the result to stdout, if there is one and it goes there. Raises AmpError AMP105 for several files."""
        if self.result is None or not self.result.is_file():
            return
        if len(list(self.result.parent.iterdir())) > 1:
            message = "the weights are in a file of their own, and stdout takes one file"
            raise AmpError("AMP105", message, where=PIPE, hint="name a file with -o")
        sys.stdout.buffer.write(self.result.read_bytes())
        sys.stdout.buffer.flush()


@contextlib.contextmanager
def _named_as_given(folder: str) -> Iterator[None]:
    """An error about a file of a folder that is gone afterwards is one about ``-``."""
    try:
        yield
    except AmpError as error:
        if error.where.startswith(folder):
            error.where = PIPE
        raise


@contextlib.contextmanager
def piped(model: str, output: str | None, dry_run: bool) -> Iterator[Piped]:
    """Files for a model and a result of which either may be ``-``; a model from stdin, which is ONNX, goes to stdout.

    Raises AmpError AMP105 where stdout is a terminal.
    """
    if PIPE not in (model, output):
        yield Piped(model, None if output is None else Path(output))
        return
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as folder, _named_as_given(folder):
        source, place = model, output
        if model == PIPE:
            source, place = str(Path(folder, "stdin.onnx")), output or PIPE
            Path(source).write_bytes(sys.stdin.buffer.read())
        if place != PIPE:
            yield Piped(source, None if place is None else Path(place))
            return
        if sys.stdout.isatty() and not dry_run:
            raise AmpError("AMP105", "a model cannot be printed on a terminal", where=PIPE, hint="name a file with -o")
        result = Path(folder, "made", f"stdout{Path(source).suffix}")
        result.parent.mkdir()
        yield Piped(source, result, result)
