"""Reports that show themselves: as text where they are printed, in a notebook as HTML."""

from __future__ import annotations

import html
import importlib
from types import ModuleType
from typing import ClassVar


class Shown:
    """What a verb returns. Its text is that of the command: ``LINES`` names the function of a report's lines, ``HTML``
    that of its picture for notebooks, where it has one.

    By its module and name, since that module knows this report's class and is loaded when somebody looks."""

    __slots__ = ()

    LINES: ClassVar[str]
    HTML: ClassVar[str] = ""

    def lines(self) -> list[str]:
        """What is printed of it."""
        lines: list[str] = getattr(*_place(self.LINES))(self)
        return lines

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        """For notebooks, which may be light or dark, and may leave out scripts and styles: there are none."""
        if self.HTML:
            shown: str = getattr(*_place(self.HTML))(self)
            return shown
        return f'<pre style="line-height: 1.3; overflow-x: auto">{html.escape(repr(self))}</pre>'


def _place(path: str) -> tuple[ModuleType, str]:
    module, _, name = path.rpartition(".")
    return importlib.import_module(module), name
