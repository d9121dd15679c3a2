"""The page that shows a model, as text: one HTML file that needs no other file and no network; and of each verb what
its page shows."""

from __future__ import annotations

import html
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from ...core.annotations import reasons_in, split_reason
from ...core.dataflow import FLOAT32
from ...core.graph import DescribedGraph, Stored
from ...core.json_types import Json, JsonObject
from ...core.names import literal
from ...core.shown import plural
from ...core.verdict import OK
from ...planner.policies.registry import names
from ..fusions import Fusions
from ..inspect import Inspection, ModelView
from ..summary import ORDINARY, Chosen, Summary, no_guard_text
from ..tuning import Tuning
from ..verification import Verification
from .drawing import INPUT, OUTPUT, Drawing, Reasons, draw

ASSETS = "assets"
_PLACE = re.compile(r"\{\{([a-z.]+)\}\}")


@dataclass(frozen=True)
class Bar:
    """A bar of the page, of parts by precision. Bars of one ``sort`` (nodes, weights) are drawn to one scale;
    ``words``: what the bar says beside it."""

    sort: str
    label: str
    parts: Mapping[str, int]
    words: str


@dataclass(frozen=True)
class Page:
    """What a page shows.

    Attributes:
        report: the lines that the command prints.
        bars: nodes, and bytes of weights before and after, by precision.
        heat: a number by node label, such as its part of the error; ``heat_title`` says what it is.
        frontier: candidates of `tune`: step, error (None: not finite), bytes, chosen.
        guards: the guards among the rules of the nodes; ``guards_said``: a sentence for where none held any node.
        target: what `runtime_data` tells of the runtime; None where nobody asked.
        verdict: what was found, in a line that stands first; ``met``: whether that is good.
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
    verdict: str = ""
    met: bool = True

    def html(self) -> str:
        """The page as HTML text, the same for the same page: the template with its scripts and the data put in."""
        data = json.dumps(self._data(), ensure_ascii=True, separators=(",", ":"))
        words = {"title": html.escape(self.title), "data": data.replace("<", "\\u003c")}  # no tag ends the script
        return _PLACE.sub(lambda found: words.get(found[1]) or asset(found[1]), asset("page.html"))

    def _data(self) -> JsonObject:
        """What the page's script draws, as JSON. A text of a node or edge is a number, its place in ``strings``, as
        many come often."""
        words = _TextTable()
        drawing = self.drawing
        nodes: list[Json] = [
            [*map(words, (n.name, n.kind, n.precision, n.rule, n.reason)), n.bytes, folder]
            for n, folder in zip(drawing.nodes, drawing.folders.of_nodes, strict=True)
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
            "verdict": {"words": self.verdict, "met": self.met},
            "strings": list(words.found),
        }

    def _scales(self) -> JsonObject:
        """For the picture's page: the number that the whole width stands for, by the label of each bar: the largest sum
        of the bars of its sort."""
        most: dict[str, int] = {}
        for bar in self.bars:
            most[bar.sort] = max(most.get(bar.sort, 0), sum(bar.parts.values()))
        return {bar.label: most[bar.sort] for bar in self.bars}

    def _heat(self) -> Json:
        """For the picture's page: the title of the heat and pairs of a node's place and its number; None where nothing
        was measured."""
        if not self.heat:
            return None
        found: list[Json] = [[i, self.heat[n.name]] for i, n in enumerate(self.drawing.nodes) if n.name in self.heat]
        return {"title": self.heat_title, "nodes": found}


class _TextTable:
    """The texts of a page, each stored once: calling it with a text gives its number."""

    def __init__(self) -> None:
        self.found: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        """The number by which the page's script knows a text."""
        return self.found.setdefault(text, len(self.found))


@cache
def asset(name: str) -> str:
    """The text of a file in ``assets``, a template, script or style sheet of a picture's page."""
    return (resources.files(__package__) / ASSETS / name).read_text(encoding="utf-8")


# -- of the commands: what each found, around the graph that it is about ----------------------------------------------


def runtime_data(found: Fusions | None, drawing: Drawing) -> JsonObject | None:
    """What the page says of a target's runtime, as data; None where nobody asked for a target. Nodes are places in the
    drawing.

    ``main``: the provider that runs most nodes, "" for none; ``elsewhere``: other provider -> its nodes; ``kernels``:
    [operator, provider, nodes] of those that compute several nodes, or one by another operator; ``gone``: nodes that
    no kernel computes, as they were folded.
    """
    if found is None:
        return None
    if found.after is None:
        return {"title": f"on {found.device}: cannot be told: {found.note}", "kernels": []}
    numbers = {box.makes: number for number, box in enumerate(drawing.nodes) if box.makes}
    runs: dict[int, str] = {}  # node -> provider
    kernels: list[Json] = []
    for node in found.nodes:
        members = [numbers[name] for name in node.computes if name in numbers]
        runs |= dict.fromkeys(members, node.provider)
        same_operator = all(drawing.nodes[number].kind == node.kind for number in members)
        if len(members) > 1 or not same_operator:
            kernels.append([node.kind, node.provider, [*sorted(members)]])
    counts = Counter(runs.values()).most_common(1)
    main = counts[0][0] if counts else ""
    elsewhere: dict[str, list[Json]] = {}
    for number, provider in sorted(runs.items()):
        if provider != main:
            elsewhere.setdefault(provider, []).append(number)
    places: JsonObject = {}
    places.update(elsewhere)
    return {
        "title": f"on {found.device}, as {found.runtime} {found.how} it; nothing was run",
        "main": main,
        "elsewhere": places,
        "kernels": kernels,
        "gone": [
            number
            for number, box in enumerate(drawing.nodes)
            if box.makes and box.kind not in (INPUT, OUTPUT) and number not in runs
        ],
    }


ERROR = "error in the sample that was looked at"  # the title of the heat of `verify`
SHARE = "part of the squared error"  # and of `tune`


def inspection_page(seen: ModelView, found: Inspection, original: ModelView | None = None) -> Page:
    """The page of `inspect`: the model with the reasons that its file says; ``original``: what it was made from, if
    given, for the bytes of weights before."""
    drawing = draw(seen.flow, _reasons_in_metadata(seen))
    bars = [_node_bar(found.nodes)]
    bars += [_weight_bar("weights before", original.census.weights)] if original else []
    bars.append(_weight_bar("weights after" if original else "weights", found.weights))
    return Page(
        f"ampgraph inspect {seen.label}", drawing, found.lines(), bars, guards=_guards_in(drawing),
        target=runtime_data(found.fusions, drawing),
    )  # fmt: skip


def conversion_page(seen: ModelView, found: Summary, chosen: Sequence[Chosen]) -> Page:
    """The page of `convert`: the result (``seen``), with the reason of every node of the model that something was
    decided of (``chosen``)."""
    reasons = Reasons(
        {id(one.native): (one.why.rule, one.why.text) for one in chosen},
        {one.name: (one.why.rule, one.why.text) for one in chosen},
        {id(one.native): one.span for one in chosen if one.span},
    )
    drawing = draw(seen.flow, reasons)
    bars = [
        _node_bar({**found.nodes, "other": found.other}),
        _weight_bar("weights before", found.weights_before),
        _weight_bar("weights after", found.weights_after),
    ]
    return Page(
        f"ampgraph convert {seen.label}", drawing, found.lines(every=True), bars, guards=_guards_in(drawing),
        guards_said="" if found.guards else no_guard_text(found),
        verdict=f"check: {found.check}" if found.check else "", met=found.check is None or found.check.outcome == OK,
    )  # fmt: skip


def verification_page(seen: ModelView, found: Verification) -> Page:
    """The page of `verify`: the model, the heat of each node being the error behind it in the sample that was looked
    at."""
    heat = {name: error for name, error in found.errors.items() if math.isfinite(error) and error > 0}
    drawing = draw(seen.flow, _reasons_in_metadata(seen))
    return Page(
        f"ampgraph verify {seen.label}", drawing, found.lines(),
        [_node_bar(drawing.counts()), _weight_bar("weights", seen.census.weights)], heat=heat, heat_title=ERROR,
        verdict=found.verdict, met=found.ok,
    )  # fmt: skip


def tuning_page(seen: ModelView, found: Tuning) -> Page:
    """The page of `tune`: the frontier, and the heat of each node being the part of the error that its unit makes,
    where that was measured. A unit names nodes by patterns, of their names or of what they make."""
    drawing = draw(seen.flow, _reasons_in_metadata(seen))
    shares = {pattern: unit.share for unit in found.sensitivity or () for pattern in unit.patterns if unit.share}
    heat: dict[str, float] = {}
    for node in drawing.nodes:
        for pattern in (literal(node.name), f"value:{literal(node.makes)}"):
            if pattern in shares:
                heat[node.name] = shares[pattern]
    frontier: list[JsonObject] = [
        {"step": p.step, "error": p.error if math.isfinite(p.error) else None, "bytes": p.bytes, "chosen": p.chosen}
        for p in found.candidates
    ]
    return Page(
        f"ampgraph tune {seen.label}", drawing, found.lines(),
        [_node_bar(drawing.counts()), _weight_bar("weights", seen.census.weights)], heat=heat, heat_title=SHARE,
        frontier=frontier, verdict=found.verdict, met=found.met,
    )  # fmt: skip


def _reasons_in_metadata(seen: ModelView) -> Reasons:
    """Picture: the reasons of nodes by name from the model's own metadata, where files are described whose IR version
    has no metadata of nodes; empty for other files."""
    notes = reasons_in(seen.graph.metadata()) if isinstance(seen.graph, DescribedGraph) else {}
    return Reasons(by_name={name: split_reason(text) for name, text in notes.items()})


def _guards_in(drawing: Drawing) -> list[str]:
    """The names of the guards that hold nodes of the drawing in float32, sorted; the lists, the cut and the rules of
    frameworks' policies are no guards."""
    rules = {node.rule for node in drawing.nodes if node.precision == FLOAT32 and node.rule}
    return sorted(rules - ORDINARY - set(names()))


def _node_bar(counts: Mapping[str, int]) -> Bar:
    """A bar of the page that shows how many nodes have each precision."""
    return Bar("nodes", "nodes", counts, ", ".join(f"{count:,} {name}" for name, count in counts.items() if count))


def _weight_bar(label: str, stored: Mapping[str, Stored]) -> Bar:
    """A bar of the page that shows bytes of weights by type."""
    parts = {dtype: held.bytes for dtype, held in stored.items()}
    return Bar("weights", label, parts, plural(sum(parts.values()), "byte"))


# -- the page that compares two models in a browser: `webgpu.mjs` runs them, `measure.mjs` measures --------------------

WEBGPU = {
    "index.html": "webgpu.html", "page.css": "page.css", "webgpu.css": "webgpu.css", "measure.mjs": "measure.mjs",
    "webgpu.mjs": "webgpu.mjs",
}  # fmt: skip
"""The page's file -> the asset that it is."""
DATA = "page.json"


def webgpu_page(data: JsonObject) -> dict[str, str]:
    """The page of `verify --webgpu-page`: the text of each of its files by name. ``data``: models, samples and what
    `verify` found, as `webgpu.mjs` reads them. Raises ValueError for a number that is not finite, which JSON has
    not."""
    texts = {name: asset(source) for name, source in WEBGPU.items()}
    return texts | {DATA: json.dumps(data, ensure_ascii=True, indent=1, allow_nan=False) + "\n"}
