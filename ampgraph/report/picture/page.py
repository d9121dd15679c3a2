"""The page as text: one file that needs no other, and no network."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from ...core.json_types import Json, JsonObject
from .drawing import Drawing

ASSETS = "assets"
_PLACE = re.compile(r"\{\{([a-z.]+)\}\}")


@dataclass(frozen=True)
class Bar:
    """Parts of a whole by precision; bars of one ``label`` are drawn to one scale."""

    label: str
    parts: Mapping[str, int]
    words: str


@dataclass(frozen=True)
class Page:
    """What a page shows.

    Attributes:
        title: of the page.
        drawing: the graph.
        report: the lines that the command prints.
        bars: nodes, and bytes of weights before and after, by precision.
        heat: a number by node label, such as its part of the error; ``heat_title`` says what it is.
        frontier: candidates of `tune`: step, error (None: not finite), bytes, chosen.
        guards: the rules among those of the nodes that are guards; ``guards_said``: what is said of them all.
        target: what `on_target` tells of the runtime; None where nobody asked.
    """

    title: str
    drawing: Drawing
    report: Sequence[str] = ()
    bars: Sequence[Bar] = ()
    heat: Mapping[str, float] = field(default_factory=dict)
    heat_title: str = ""
    frontier: Sequence[JsonObject] = ()
    guards: Sequence[str] = ()
    guards_said: str = ""
    target: JsonObject | None = None

    def html(self) -> str:
        """The same page has the same text."""
        data = json.dumps(self._data(), ensure_ascii=True, separators=(",", ":"))
        words = {"title": html.escape(self.title), "data": data.replace("<", "\\u003c")}
        return _PLACE.sub(lambda found: words.get(found[1]) or _asset(found[1]), _asset("page.html"))

    def _data(self) -> JsonObject:
        words = _Words()
        drawing = self.drawing
        nodes: list[Json] = [
            [*map(words, (n.name, n.kind, n.precision, n.rule, n.reason)), n.bytes, folder]
            for n, folder in zip(drawing.nodes, drawing.folders.of, strict=True)
        ]
        edges: list[Json] = [
            [e.source, e.target, *map(words, (e.value, e.dtype, e.shape, e.cast))] for e in drawing.edges
        ]
        folders: list[Json] = [
            [words(name), parent] for name, parent in zip(drawing.folders.names, drawing.folders.parents, strict=True)
        ]
        return {
            "nodes": nodes,
            "edges": edges,
            "folders": folders,
            "bars": [
                {"label": b.label, "parts": [[p, n] for p, n in b.parts.items()], "words": b.words} for b in self.bars
            ],
            "scale": self._scales(),
            "heat": self._heat(),
            "frontier": list(self.frontier),
            "spans": {str(i): words(n.span) for i, n in enumerate(drawing.nodes) if n.span},
            "guards": {"rules": list(self.guards), "said": self.guards_said},
            "target": self.target,
            "report": list(self.report),
            "strings": list(words.found),
        }

    def _scales(self) -> JsonObject:
        most: dict[str, Json] = {}
        for bar in self.bars:
            kind = bar.label.split()[0]
            most[kind] = max(int(str(most.get(kind, 0))), sum(bar.parts.values()))
        return {bar.label: most[bar.label.split()[0]] for bar in self.bars}

    def _heat(self) -> Json:
        if not self.heat:
            return None
        found: list[Json] = [[i, self.heat[n.name]] for i, n in enumerate(self.drawing.nodes) if n.name in self.heat]
        return {"title": self.heat_title, "nodes": found}


class _Words:
    """Texts by number, each stored once."""

    def __init__(self) -> None:
        self.found: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        """The number of a text."""
        return self.found.setdefault(text, len(self.found))


@cache
def _asset(name: str) -> str:
    return (resources.files(__package__) / ASSETS / name).read_text(encoding="utf-8")
