"""How much a command says: --quiet and --verbose, which every command has."""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import typer

from ..core.errors import AmpError


class Volume(enum.Enum):
    """What is printed besides errors and JSON."""

    QUIET = "nothing"
    USUAL = "the report, and a bar on a terminal"
    VERBOSE = "each stage with its time too, and where an error happened"


_volume = ContextVar("volume", default=Volume.USUAL)
_FLAGS = {
    "quiet": typer.Option(False, "--quiet", "-q", help="Print errors alone, and JSON if it is asked for."),
    "verbose": typer.Option(False, "--verbose", "-v", help="Print each stage and its time, on stderr."),
}


def quiet() -> bool:
    """Whether nothing is to be said but errors."""
    return _volume.get() is Volume.QUIET


def verbose() -> bool:
    """Whether all is to be said."""
    return _volume.get() is Volume.VERBOSE


def hush() -> None:
    """From here on nothing is said but errors."""
    _volume.set(Volume.QUIET)


def with_volume(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command both flags. Raises AmpError AMP301 where a user gives both."""
    signature = inspect.signature(command, eval_str=True)

    @functools.wraps(command)
    def run(*args: Any, quiet: bool = False, verbose: bool = False, **values: Any) -> None:
        if quiet and verbose:
            raise AmpError("AMP301", "--quiet and --verbose exclude each other", hint="omit one of the two")
        _volume.set(Volume.QUIET if quiet else Volume.VERBOSE if verbose else Volume.USUAL)
        command(*args, **values)  # what it raises is said as loud

    kind = inspect.Parameter.KEYWORD_ONLY
    flags = [inspect.Parameter(name, kind, default=flag, annotation=bool) for name, flag in _FLAGS.items()]
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *flags])  # type: ignore[attr-defined]
    return run
