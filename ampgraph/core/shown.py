"""Reports as data that shows itself: as text where it is printed, in a notebook as HTML, and as plain data for JSON."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass

from .json_types import Json, JsonObject


def plain(value: object) -> Json:
    """What a report holds as JSON has it: what it says of itself, or its fields; null for no finite number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if hasattr(value, "to_dict"):
        found: JsonObject = value.to_dict()
        return found
    if is_dataclass(value):
        return named(value)
    assert value is None or isinstance(value, (bool, int, str)), value
    return value


def named(report: object, *names: str) -> JsonObject:
    """Some attributes of a report, all its fields if none is named, as plain data."""
    own = [field.name for field in fields(report)] if is_dataclass(report) else []
    return {name: plain(getattr(report, name)) for name in names or own}


class Data:
    """A dataclass that a report consists of."""

    __slots__ = ()

    def to_dict(self) -> JsonObject:
        """Plain data for JSON; null for a number that is not finite."""
        return named(self)


class Shown(Data):
    """What a verb returns. Its text is that of the command."""

    __slots__ = ()

    def lines(self) -> list[str]:
        """The report of the command."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        """For notebooks, which may be light or dark, and may leave out scripts and styles: there are none."""
        return f'<pre style="line-height: 1.3; overflow-x: auto">{html.escape(repr(self))}</pre>'
