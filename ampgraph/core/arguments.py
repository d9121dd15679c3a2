"""Arguments of Python callers that are of a wrong kind: one AmpError that names them, where Python's own would not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from .errors import AmpError

NAMES = {"str": "a text", "PathLike": "a path", "bool": "True", "bool_": "False", "Mapping": "a mapping"}


def check_kind(name: str, value: object, kinds: tuple[type, ...], hint: str) -> None:
    """Checks an argument: raises AmpError AMP301, with ``hint``, for a value of none of ``kinds``, unless None."""
    if value is not None and not isinstance(value, kinds):
        wanted = " or ".join(NAMES.get(kind.__name__, f"a {kind.__name__}") for kind in kinds)
        raise AmpError("AMP301", f"{name}= is of type {type(value).__name__}, not {wanted}", hint=hint)


def check_callables(name: str, value: object) -> None:
    """Checks an argument: raises AmpError AMP301 for anything but several functions, for one alone and None too."""
    given = list(value) if isinstance(value, Iterable) and not isinstance(value, (str, bytes)) else None
    for one in [value] if given is None else given:
        if given is None or not callable(one):
            hint = f"{name}=[one, another]"
            raise AmpError("AMP301", f"{name}= holds {one!r}, which is not a function in a list", hint=hint)


def check_callable(name: str, value: object) -> None:
    """Checks an argument: raises AmpError AMP301 for what cannot be called; None is not checked."""
    if value is not None and not callable(value):
        hint = "give a function, or omit it"
        raise AmpError("AMP301", f"{name}= is of type {type(value).__name__}, not a function", hint=hint)


def check_texts(name: str, value: object) -> None:
    """Checks an argument: raises AmpError AMP301 for what is no text and no texts; None and iterators are not
    checked."""
    if value is None or isinstance(value, (str, Iterator)):
        return
    if not isinstance(value, Iterable) or not all(isinstance(one, str) for one in value):
        message = f"{name}= is of type {type(value).__name__}, not texts"
        raise AmpError("AMP301", message, hint=f'{name}=["one", "another"]')


Check = Callable[[str, object], None]


def _check_of_kinds(hint: str, *kinds: type, also: tuple[type, ...] = ()) -> Check:
    """For a verb's arguments: a check for ``kinds``, which the message names, or ``also``. ``hint``: {} is the name."""
    return lambda name, value: None if isinstance(value, also) else check_kind(name, value, kinds, hint.format(name))


CHECKS: dict[str, Check] = {
    "PathLike": _check_of_kinds("give the name of a file", str, os.PathLike),
    "PathLike | Feeds": _check_of_kinds("give the name of a file, or arrays by name", str, os.PathLike, Mapping),
    "bool": _check_of_kinds("{}=True", bool, np.bool_, also=(int,)),
    "bool | str": _check_of_kinds("{}=True", bool, np.bool_, also=(int, str)),
    "str": _check_of_kinds("--help has the words", str),
    "Progress": check_callable,
    "OnStep": check_callable,
    "OnEpoch": check_callable,
    "Callable[[str], None]": check_callable,
    "Mapping[str, int]": _check_of_kinds("{}={{name: value}}", Mapping),
    "Mapping[str, str]": _check_of_kinds("{}={{name: value}}", Mapping),
    "Sequence[str]": check_texts,
    "str | Sequence[str]": check_texts,
}
"""An argument's annotation as text, without ``| None`` -> its check."""


def check_annotated(verb: Callable[..., object], given: Mapping[str, object]) -> None:
    """Checks a verb's arguments by its annotations, as every verb begins: raises AmpError AMP301 for one of another
    kind. An annotation that `CHECKS` does not have is not checked.

    ``given``: name -> argument, which `locals()` is where the verb begins; names that are no parameters are left out.
    """
    for name, value in given.items():
        check = CHECKS.get(str(verb.__annotations__.get(name)).removesuffix(" | None"))
        if check is not None:
            check(name, value)
