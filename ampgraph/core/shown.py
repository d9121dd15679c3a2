"""Reports as data that shows itself: as text where it is printed, in a notebook as HTML, and as plain data for JSON."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING

from .json_types import Json, JsonObject
from .renamed import old_attributes, warn_renamed
from .sketches import Html, collapsible


def plural(count: int, word: str) -> str:
    """A count with its noun, as "1 byte" and "2,000 bytes"."""
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def json_value(value: object) -> Json:
    """Any value of a report as plain data for JSON: an object by its own `to_dict`, else a dataclass by its fields;
    None for a float that is not finite. Tuples become lists, keys texts; nothing else may be among them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [json_value(one) for one in value]
    if isinstance(value, Mapping):
        return {str(key): json_value(one) for key, one in value.items()}
    if hasattr(value, "to_dict"):
        found: JsonObject = value.to_dict()
        return found
    if is_dataclass(value):
        return json_fields(value)
    assert value is None or isinstance(value, (bool, int, str)), value
    return value


def json_fields(report: object, *names: str) -> JsonObject:
    """For JSON of any report: its attributes ``names``, or all fields, as plain data by name, also by old names."""
    if not names:
        assert is_dataclass(report)
        names = tuple(field.name for field in fields(report))
    return with_old_names(report, {name: json_value(getattr(report, name)) for name in names})


def with_old_names(report: object, found: JsonObject) -> JsonObject:
    """For JSON of any report: its plain data ``found``, with values that were renamed by their old names as well."""
    old = old_attributes(type(report).__name__)
    return found | {name: found[new] for name, new in old.items() if new in found}


class Data:
    """The base of reports and their parts, which are dataclasses: it makes JSON, and knows old names of attributes."""

    __slots__ = ()

    def to_dict(self) -> JsonObject:
        """Any report, or part of one, as plain data for JSON: its fields by name; null for a number not finite."""
        return json_fields(self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """An attribute by the name that it had before, with a DeprecationWarning; AttributeError for any other."""
            report = type(self).__name__
            new = old_attributes(report).get(name)
            if new is None:
                raise AttributeError(f"'{report}' object has no attribute '{name}'", name=name, obj=self)
            warn_renamed(f"{report}.{name}")
            return getattr(self, new)


class Shown(Data):
    """The base of reports that verbs return: it shows them as text, which the command prints, and in notebooks."""

    __slots__ = ()

    def lines(self) -> list[str]:
        """The text of what shows itself, by lines. Every class has its own."""
        raise NotImplementedError

    def _full(self) -> list[str]:
        """The text of what shows itself, with all that it can say, by lines: what a notebook folds away."""
        return self.lines()

    def _overview(self) -> Iterable[Html]:
        """Headings, tables and pictures that a notebook shows above the report; nothing where the report is enough."""
        return ()

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        """For notebooks: the overview with the full text folded away below it, or the text alone where there is none.
        Notebooks may be light or dark, and may leave out scripts and styles, which it does without."""
        parts = "".join(self._overview())
        if parts:
            return parts + collapsible("report", self._full())
        return f'<pre style="line-height: 1.3; overflow-x: auto">{html.escape(repr(self))}</pre>'
