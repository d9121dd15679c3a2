"""The page that a verb writes beside what it returns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.files import refuse_output, sources_of, text_file
from ...formats.kinds import PathLike

if TYPE_CHECKING:
    from ...core.graph import Graph
    from ..summary import Choices, Summary

OPTION = "--html"


def refuse_page(path: PathLike | None, *sources: object) -> None:
    """Pages of reports: raises AmpError AMP105 where none can be written, AMP106 where it would replace a source."""
    if path is not None:
        refuse_output(Path(path), sources_of(*sources), OPTION)


def write_page(path: PathLike | None, page: Callable[[], str]) -> None:
    """Writes the HTML that a report's ``page`` makes, whole or not at all, if ``path`` is given. AmpError AMP105."""
    with text_file(path, page, OPTION):
        pass


def picture_conversion(path: PathLike | None, graph: Graph, summary: Summary | None, made: Choices | None) -> None:
    """Writes the page of `convert`, the report's picture, if ``path`` is given: the graph as it is now."""
    if path is not None and summary is not None and made is not None:
        from ..inspect import seen_as
        from .page import conversion_page

        refuse_page(path, summary.output)  # whose name may have been chosen since
        name = Path(summary.output or summary.model).name
        write_page(path, conversion_page(seen_as(name, graph), summary, made.chosen).html)
