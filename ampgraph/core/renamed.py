"""The rule for public names that change: the old one is taken for one minor version, with a DeprecationWarning; in a
file that a user wrote, with a FutureWarning, which everybody sees.

@renamed_keywords("told")
def verify(reference, model, *, progress=None): ...
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Renamed:
    """A public name that changed. ``where``: what takes it; ``gone``: the version that no longer does."""

    where: str
    old: str
    new: str
    gone: str


RENAMED = (
    Renamed("module", "ampgraph.mindspore", "ampgraph.training.mindspore", "0.3"),
    Renamed("verify, tune, calibrate, inspect in Python", "told=", "progress=", "0.3"),
    Renamed("train in Python", "plot=", "html=", "0.3"),
    Renamed("ampgraph train", "--plot", "--html", "0.3"),
    *(
        Renamed("list files", old, new, "0.3")
        for old, new in {"white": "allow", "gray": "infer", "black": "deny", "kept": "fp32"}.items()
    ),
)
"""The only list of old names, of which docs/reference/renamed.md is made; no other name can be warned of."""
_BY_OLD = {one.old: one for one in RENAMED}


def is_now(old: str, said: str = "") -> str:
    """The sentence about an old name of `RENAMED`. ``said``: the name as the caller wrote it, where it is longer."""
    name = _BY_OLD[old]
    return f"{said or old} is now {name.new}; the old name goes with {name.gone}"


def warn_renamed(old: str, said: str = "", stacklevel: int = 2) -> None:
    """Warns of an old name of `RENAMED`; ``said`` as in `is_now`, ``stacklevel`` as in `warnings`."""
    message = is_now(old, said)
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel + 1)


def warn_renamed_in_file(file: str, names: Mapping[str, str]) -> None:
    """Says that a file is written in old words, in one message; Python shows the same message once."""
    changed = ", ".join(f"'{old}' is now '{new}'" for old, new in names.items())
    gone = " and ".join(sorted({_BY_OLD[old].gone for old in names}))
    warnings.warn(f"{file}: {changed}; the old names go with {gone}", FutureWarning, stacklevel=1)


def renamed_keywords(*old: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """For a function that took other keywords, ``old``, before. Raises TypeError where both are given."""
    names = {one: _BY_OLD[f"{one}="].new.rstrip("=") for one in old}

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            return function(*args, **_renamed(kwargs, names, function.__name__))

        return run

    return decorated


def _renamed(given: Mapping[str, Any], names: Mapping[str, str], function: str) -> Mapping[str, Any]:
    if not names.keys() & given.keys():
        return given
    found: dict[str, Any] = {}
    for name, value in given.items():
        new = names.get(name, name)
        if new in found or (new != name and new in given):
            raise TypeError(f"{function}() got both '{name}' and '{new}', which are the same")
        if new != name:
            warn_renamed(f"{name}=", f"{function}({name}=)", 3)
        found[new] = value
    return found
