"""Options as text: ``KEY=VALUE,KEY=VALUE``, as optimizers, schedules, loss scales and penalties have them; what reads
them takes the types from the fields of a dataclass."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from ..core.errors import nearest


class BadOption(Exception):
    """A word of an optimizer or the like in text that is no option, or whose value has another type; whoever reads the
    text says which text it was. ``hint``: what there is instead."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def types_of(options: type) -> dict[str, str]:
    """Optimizers and the like in text: name -> type of each field of its dataclass, as its annotation says it: ``int``,
    ``float | None``."""
    return {field.name: str(field.type) for field in fields(options)}


def read_options(text: str, types: Mapping[str, str]) -> dict[str, Any]:
    """Options of optimizers and the like in text: key -> value, in order; an empty text holds none. Raises BadOption.

    A value is a text (of type ``str``), ``yes`` or ``no`` (``bool``), or a number; ``none`` where None is allowed. A
    number of type ``int`` that is not whole is left to whoever checks its bounds.
    """
    given: dict[str, Any] = {}
    for word in text.split(",") if text else ():
        key, _, value = (part.strip() for part in word.partition("="))
        if not value or key not in types or key in given:
            message = f"'{word}' is not KEY=VALUE" if not value else f"unknown option '{key}'"
            message = f"'{key}' is given twice" if key in given else message
            raise BadOption(message, nearest(key, list(types)) or f"there are: {', '.join(types)}")
        given[key] = _value(key, value, types[key])
    return given


def split_pattern(text: str, kinds: Sequence[str]) -> tuple[str, str]:
    """An optimizer for some parameters in text, ``PATTERN=FORM``: pattern and form; an empty pattern for a form alone.
    A form begins with one of ``kinds``; a name may hold = and :, and so may a form."""
    places = [place for place, letter in enumerate(text) if letter == "=" and place]
    rows = [(text[:place], text[place + 1 :]) for place in places]
    found = next((row for row in rows if row[1].partition(":")[0] in kinds), None)
    if found is None and rows and ":" not in rows[0][0]:  # the kind is what is misspelt
        return rows[0]
    return found or ("", text)


def _value(key: str, text: str, kind: str) -> str | float | None:
    """The value of an option of an optimizer or the like in text. Raises BadOption for a text that says none."""
    kind, _, optional = kind.partition(" | ")
    if kind == "str":
        return text
    if kind == "bool":
        if text not in ("yes", "no"):
            raise BadOption(f"{key}={text} is neither yes nor no", f"{key}=yes")
        return text == "yes"
    if optional and text == "none":
        return None
    number = read_number(key, text)
    return int(number) if kind == "int" and number.is_integer() else number


def read_number(key: str, text: str) -> float:
    """A number of an optimizer or the like in text, `2^16` too. Raises BadOption."""
    base, caret, exponent = text.partition("^")
    try:
        number = float(base) ** int(exponent) if caret else float(base)
    except (ValueError, OverflowError, ZeroDivisionError):
        number = math.nan
    if not math.isfinite(number):
        raise BadOption(f"{key}={text} is not a number", "for example 65536, 2^16 or 0.5")
    return number
