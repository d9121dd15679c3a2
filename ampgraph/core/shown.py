"""Reports that show themselves: as text where they are printed, in a notebook as HTML."""

from __future__ import annotations

import html
import importlib
from typing import ClassVar


class Shown:
    """What a verb returns. Its text is that of the command: ``LINES`` names the function of a report's lines.

    By its module and name, since that module knows this report's class and is loaded when somebody looks."""

    __slots__ = ()

    LINES: ClassVar[str]

    def __repr__(self) -> str:
        module, _, name = self.LINES.rpartition(".")
        lines: list[str] = getattr(importlib.import_module(module), name)(self)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The same for notebooks, which may be light or dark: no colour is set."""
        return f'<pre style="line-height: 1.3; overflow-x: auto">{html.escape(repr(self))}</pre>'
