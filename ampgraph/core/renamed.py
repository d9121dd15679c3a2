"""The rule for public names that change: the old one is taken for one minor version, with a DeprecationWarning; in a
file that a user wrote, with a FutureWarning, which everybody sees.

@renamed_keywords("0.3", told="progress")
def verify(reference, model, *, progress=None): ...
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def warn_renamed(old: str, new: str, gone: str, stacklevel: int = 2) -> None:
    """Says that a name has another now, and with which version the old one goes; ``stacklevel`` as in `warnings`."""
    message = f"{old} is now {new}; the old name goes with {gone}"
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel + 1)


def warn_renamed_in_file(file: str, names: Mapping[str, str], gone: str) -> None:
    """Says that a file is written in old words, in one message; Python shows the same message once."""
    changed = ", ".join(f"'{old}' is now '{new}'" for old, new in names.items())
    warnings.warn(f"{file}: {changed}; the old names go with {gone}", FutureWarning, stacklevel=1)


def renamed_keywords(gone: str, **names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """For a function whose keywords were renamed: ``old="new"``. Raises TypeError where both are given."""

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            return function(*args, **_renamed(kwargs, names, function.__name__, gone))

        return run

    return decorated


def _renamed(given: Mapping[str, Any], names: Mapping[str, str], function: str, gone: str) -> Mapping[str, Any]:
    if not names.keys() & given.keys():
        return given
    found: dict[str, Any] = {}
    for name, value in given.items():
        new = names.get(name, name)
        if new in found or (new != name and new in given):
            raise TypeError(f"{function}() got both '{name}' and '{new}', which are the same")
        if new != name:
            warn_renamed(f"{function}({name}=)", f"{new}=", gone, 3)
        found[new] = value
    return found
