"""The page that a verb writes beside what it returns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..core.files import refuse_output, sources_of, text_file
from .kinds import PathLike

if TYPE_CHECKING:
    from ..core.graph import Graph
    from ..report.inspect import Inspection
    from ..report.picture.page import Page
    from ..report.summary import Choices, Summary
    from ..report.tuning import Tuning
    from ..report.verification import Verification

OPTION = "--html"


def refuse_page(path: PathLike | None, *sources: object) -> None:
    """Raises AmpError AMP105 for a place that can hold no file, AMP106 for one of the sources; before any work."""
    if path is not None:
        refuse_output(Path(path), sources_of(*sources), OPTION)


def write_page(path: PathLike, page: Page) -> None:
    """Writes the page, whole or not at all. Raises AmpError AMP105."""
    with text_file(path, page.html, OPTION):
        pass


def picture_inspection(path: PathLike | None, model: object, against: object, found: Inspection) -> None:
    """Writes the page of `inspect`, if ``path`` is given."""
    if path is not None:
        from ..report.inspect import see
        from ..report.picture.page import inspection_page

        write_page(path, inspection_page(see(model), found, None if against is None else see(against)))


def picture_conversion(path: PathLike | None, graph: Graph, summary: Summary | None, made: Choices | None) -> None:
    """Writes the page of `convert`, if ``path`` is given: the graph as it is now."""
    if path is not None and summary is not None and made is not None:
        from ..report.inspect import Seen
        from ..report.picture.page import conversion_page

        refuse_page(path, summary.output)  # whose name may have been chosen since
        graph.prepare()
        name = Path(summary.output or summary.model).name
        write_page(path, conversion_page(Seen(name, graph, graph.dataflow(), graph.census()), summary, made.chosen))


def picture_verification(path: PathLike | None, model: object, found: Verification) -> None:
    """Writes the page of `verify`, if ``path`` is given."""
    if path is not None:
        from ..report.inspect import see
        from ..report.picture.page import verification_page

        write_page(path, verification_page(see(model), found))


def picture_tuning(path: PathLike | None, model: object, found: Tuning) -> None:
    """Writes the page of `tune`, if ``path`` is given: of what it wrote, else of the model."""
    if path is not None:
        from ..report.inspect import see
        from ..report.picture.page import tuning_page

        write_page(path, tuning_page(see(found.output or model), found))
