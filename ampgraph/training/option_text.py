"""Options in text, ``KEY=VALUE,KEY=VALUE``, as optimizers, learning-rate schedules, loss scales and penalties are
written; the types of their values are those of a dataclass's fields."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from ..core.errors import nearest


class BadOption(Exception):
    """Raised for a word in the text of an optimizer or the like that is no option, or whose value has another type; the
    caller makes an AmpError of it that names the whole text. ``hint``: what there is instead."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def types_of(options: type) -> dict[str, str]:
    """Optimizers and the like in text: name -> type of each field of its dataclass, as annotated: ``float | None``."""
    return {field.name: str(field.type) for field in fields(options)}


def read_options(text: str, types: Mapping[str, str]) -> dict[str, Any]:
    """Options of optimizers and the like in text: key -> value, in order; an empty text holds none. Raises BadOption. A
    value is a text (of type ``str``), ``yes`` or ``no`` (``bool``), or a number; ``none`` where None is allowed. A
    number of type ``int`` that is not whole is left to whoever checks its bounds."""
    given: dict[str, Any] = {}
    for word in text.split(",") if text else ():
        key, _, value = (part.strip() for part in word.partition("="))
        if not value or key not in types or key in given:
            message = f"'{word}' is not KEY=VALUE" if not value else f"unknown option '{key}'"
            message = f"'{key}' is given twice" if key in given else message
            raise BadOption(message, nearest(key, list(types)) or f"there are: {', '.join(types)}")
        given[key] = _parse_value(key, value, types[key])
    return given


def split_pattern(text: str, kinds: Sequence[str]) -> tuple[str, str]:
    """Splits the text ``PATTERN=FORM`` of an optimizer or a schedule for some parameters into pattern and form; the
    pattern is "" where the text is a form alone. A form begins with one of ``kinds``, as both may hold = and :."""
    places = [place for place, letter in enumerate(text) if letter == "=" and place]
    rows = [(text[:place], text[place + 1 :]) for place in places]
    found = next((row for row in rows if row[1].partition(":")[0] in kinds), None)
    if found is not None:
        return found
    if rows and ":" not in rows[0][0]:  # a form of a misspelt kind, for whose reader to refuse
        return rows[0]
    return "", text


def _parse_value(key: str, text: str, kind: str) -> str | float | None:
    """The value of an option of an optimizer or the like in text, for a field annotated ``kind``: int, float, bool, str
    or one of these with "| None". Raises BadOption for a text that is no such value."""
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
    """A finite number of an optimizer or the like in text, `2^16` too. Raises BadOption for another."""
    base, caret, exponent = text.partition("^")
    try:
        number = float(base) ** int(exponent) if caret else float(base)
    except (ValueError, OverflowError, ZeroDivisionError):
        number = math.nan
    if not math.isfinite(number):
        raise BadOption(f"{key}={text} is not a number", "for example 65536, 2^16 or 0.5")
    return number
