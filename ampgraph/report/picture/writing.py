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
    """Before work begins: raises AmpError AMP105 where no page of a report can be written, AMP106 where it would
    replace one of the files that ``sources`` name (see `sources_of`). ``path``: None for no page."""
    if path is not None:
        refuse_output(Path(path), sources_of(*sources), OPTION)


def write_page(path: PathLike | None, page: Callable[[], str]) -> None:
    """Writes the HTML that ``page`` makes of a report, whole or not at all; nothing if ``path`` is None. Raises
    AmpError AMP105."""
    with text_file(path, page, OPTION):
        pass


def picture_conversion(path: PathLike | None, graph: Graph, summary: Summary | None, made: Choices | None) -> None:
    """Writes the page of `convert`: the graph as it is now, after the conversion, with the summary; nothing if ``path``
    is None. Raises AmpError AMP105, and AMP106 where it would replace the result."""
    if path is not None and summary is not None and made is not None:
        from ..inspect import view_graph
        from .page import conversion_page

        refuse_page(path, summary.output)  # whose name may have been chosen since
        name = Path(summary.output or summary.model).name
        write_page(path, conversion_page(view_graph(name, graph), summary, made.chosen).html)
