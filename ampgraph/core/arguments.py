"""Arguments of Python callers that are of a wrong kind: one AmpError that names them, where Python's own would not."""

from __future__ import annotations

import os
from collections.abc import Iterable

from .errors import AmpError

NAMES = {"str": "a text", "PathLike": "a path"}


def of_kind(name: str, value: object, kinds: tuple[type, ...], hint: str) -> None:
    """Raises AmpError AMP301 for a value that is of none of the kinds; None is not checked."""
    if value is not None and not isinstance(value, kinds):
        wanted = " or ".join(NAMES.get(kind.__name__, f"a {kind.__name__}") for kind in kinds)
        raise AmpError("AMP301", f"{name}= is of type {type(value).__name__}, not {wanted}", hint=hint)


def of_path(name: str, value: object) -> None:
    """Raises AmpError AMP301 for what is no path."""
    of_kind(name, value, (str, os.PathLike), "give the name of a file")


def callables(name: str, value: object) -> None:
    """Raises AmpError AMP301 for what is no sequence of functions."""
    given = list(value) if isinstance(value, Iterable) and not isinstance(value, (str, bytes)) else [value]
    for one in given:
        if not callable(one) or one is value:
            hint = f"{name}=[one, another]"
            raise AmpError("AMP301", f"{name}= holds {one!r}, which is no function in a list", hint=hint)


def a_callable(name: str, value: object) -> None:
    """Raises AmpError AMP301 for what cannot be called; None is not checked."""
    if value is not None and not callable(value):
        hint = "give a function, or leave it away"
        raise AmpError("AMP301", f"{name}= is of type {type(value).__name__}, not a function", hint=hint)
