"""Writes the page of a verb's report, where ``html`` asks for one."""

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
    """For a report's page: raises AmpError AMP105 where ``path`` cannot be written, AMP106 where it is one of the
    ``sources``, a verb's arguments of which those count that are paths. None as ``path``: no page is asked for."""
    if path is not None:
        refuse_output(Path(path), sources_of(*sources), OPTION)


def write_page(path: PathLike | None, page: Callable[[], str]) -> None:
    """Writes the HTML that a report's ``page`` makes, whole or not at all; without a ``path`` it is not made. Raises
    AmpError AMP105."""
    with text_file(path, page, OPTION):
        pass


def picture_conversion(path: PathLike | None, graph: Graph, summary: Summary | None, choices: Choices | None) -> None:
    """Writes the page of `convert` if ``path`` is given: the converted graph, with its summary and what was chosen for
    each node, which the conversion must have been asked for."""
    if path is not None and summary is not None and choices is not None:
        from ..inspect import view_graph
        from .page import conversion_page

        refuse_page(path, summary.output)  # whose name may have been chosen since
        name = Path(summary.output or summary.model).name
        write_page(path, conversion_page(view_graph(name, graph), summary, choices.chosen).html)
