"""The page as text: one file that needs no other, and no network."""

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
from ..inspect import Inspection, Seen
from ..summary import ORDINARY, Chosen, Summary, no_guard
from ..tuning import Tuning
from ..verification import Verification
from .drawing import INPUT, OUTPUT, Drawing, Reasons, draw

ASSETS = "assets"
_PLACE = re.compile(r"\{\{([a-z.]+)\}\}")


@dataclass(frozen=True)
class Bar:
    """Parts of a whole by precision; bars of one sort (nodes, weights) are drawn to one scale."""

    sort: str
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
        """The page as HTML; the same page gives the same text."""
        data = json.dumps(self._data(), ensure_ascii=True, separators=(",", ":"))
        words = {"title": html.escape(self.title), "data": data.replace("<", "\\u003c")}
        return _PLACE.sub(lambda found: words.get(found[1]) or asset(found[1]), asset("page.html"))

    def _data(self) -> JsonObject:
        """What the page's script draws, as JSON; texts are numbers of a table, as many come often."""
        words = _TextTable()
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
            "verdict": {"words": self.verdict, "met": self.met},
            "strings": list(words.found),
        }

    def _scales(self) -> JsonObject:
        """The length that stands for the whole width of each bar: bars of one kind share it."""
        most: dict[str, Json] = {}
        for bar in self.bars:
            most[bar.sort] = max(int(str(most.get(bar.sort, 0))), sum(bar.parts.values()))
        return {bar.label: most[bar.sort] for bar in self.bars}

    def _heat(self) -> Json:
        """For the picture's page: the number of each node that has one, None where nothing was measured."""
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
    """A script or style sheet for a picture's page, as text to go into it."""
    return (resources.files(__package__) / ASSETS / name).read_text(encoding="utf-8")


# -- of the commands: what each found, around the graph that it is about ----------------------------------------------


def on_target(found: Fusions | None, drawing: Drawing) -> JsonObject | None:
    """What the page says of a target's runtime, as data; None where nobody asked for a target.

    ``main``: where most nodes run; ``elsewhere``: provider -> nodes; ``kernels``: [operator, provider, nodes] of those
    that compute several nodes, or one by another operator; ``gone``: nodes that none computes, since they were folded.
    """
    if found is None:
        return None
    if found.after is None:
        return {"title": f"on {found.device}: cannot be told: {found.note}", "kernels": []}
    numbers = {box.makes: number for number, box in enumerate(drawing.nodes) if box.makes}
    runs: dict[int, str] = {}
    kernels: list[Json] = []
    for node in found.nodes:
        members = [numbers[name] for name in node.computes if name in numbers]
        runs |= dict.fromkeys(members, node.provider)
        if len(members) > 1 or [drawing.nodes[number].kind for number in members] not in ([], [node.kind]):
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


ERROR = "error in the sample that was looked at"
SHARE = "part of the squared error"


def inspection_page(seen: Seen, found: Inspection, original: Seen | None = None) -> Page:
    """The page of `inspect`; reasons are those that the file says."""
    drawing = draw(seen.flow, _reasons_in_metadata(seen))
    bars = [_node_bar(found.nodes)]
    bars += [_weight_bar("weights before", original.census.weights)] if original else []
    bars.append(_weight_bar("weights after" if original else "weights", found.weights))
    return Page(
        f"ampgraph inspect {seen.label}", drawing, found.lines(), bars, guards=_guards_in(drawing),
        target=on_target(found.fusions, drawing),
    )  # fmt: skip


def conversion_page(seen: Seen, found: Summary, chosen: Sequence[Chosen]) -> Page:
    """The page of `convert`: the result, with the reason of every node that something was decided of."""
    said = [(id(one.native), one.name, (one.why.rule, one.why.text)) for one in chosen]
    reasons = Reasons(
        {node: why for node, _, why in said},
        {name: why for _, name, why in said},
        {id(one.native): one.span for one in chosen if one.span},
    )
    drawing = draw(seen.flow, reasons)
    counts = {**found.nodes, "other": found.other}
    bars = [
        _node_bar(counts),
        _weight_bar("weights before", found.weights_before),
        _weight_bar("weights after", found.weights_after),
    ]
    return Page(
        f"ampgraph convert {seen.label}", drawing, found.lines(every=True), bars, guards=_guards_in(drawing),
        guards_said="" if found.guards else no_guard(found),
        verdict=f"check: {found.check}" if found.check else "", met=found.check is None or found.check.outcome == OK,
    )  # fmt: skip


def verification_page(seen: Seen, found: Verification) -> Page:
    """The page of `verify`: the error behind each node in the sample that was looked at."""
    heat = {name: error for name, error in found.errors.items() if math.isfinite(error) and error > 0}
    drawing = draw(seen.flow, _reasons_in_metadata(seen))
    return Page(
        f"ampgraph verify {seen.label}", drawing, found.lines(),
        [_node_bar(drawing.counts()), _weight_bar("weights", seen.census.weights)], heat=heat, heat_title=ERROR,
        verdict=found.verdict, met=found.ok,
    )  # fmt: skip


def tuning_page(seen: Seen, found: Tuning) -> Page:
    """The page of `tune`: the frontier, and each node's part of the error where that was measured."""
    drawing = draw(seen.flow, _reasons_in_metadata(seen))
    shares = {pattern: unit.share for unit in found.sensitivity or () for pattern in unit.patterns if unit.share}
    named = ((node.name, (literal(node.name), f"value:{literal(node.makes)}")) for node in drawing.nodes)
    heat = {name: shares[pattern] for name, patterns in named for pattern in patterns if pattern in shares}
    frontier: list[JsonObject] = [
        {"step": p.step, "error": p.error if math.isfinite(p.error) else None, "bytes": p.bytes, "chosen": p.chosen}
        for p in found.candidates
    ]
    return Page(
        f"ampgraph tune {seen.label}", drawing, found.lines(),
        [_node_bar(drawing.counts()), _weight_bar("weights", seen.census.weights)], heat=heat, heat_title=SHARE,
        frontier=frontier, verdict=found.verdict, met=found.met,
    )  # fmt: skip


def _reasons_in_metadata(seen: Seen) -> Reasons:
    """Picture: reasons from the model's metadata, for a file whose IR version has none for nodes."""
    notes = reasons_in(seen.graph.metadata()) if isinstance(seen.graph, DescribedGraph) else {}
    return Reasons(by_name={name: split_reason(text) for name, text in notes.items()})


def _guards_in(drawing: Drawing) -> list[str]:
    """The names of the guards that hold nodes of the drawing in float32 (no list, cut or framework's rule)."""
    held = {node.rule for node in drawing.nodes if node.precision == FLOAT32 and node.rule}
    return sorted(held - ORDINARY - set(names()))


def _node_bar(counts: Mapping[str, int]) -> Bar:
    """A bar of the page that shows nodes by precision."""
    return Bar("nodes", "nodes", counts, ", ".join(f"{count:,} {name}" for name, count in counts.items() if count))


def _weight_bar(label: str, stored: Mapping[str, Stored]) -> Bar:
    """A bar of the page that shows bytes of weights by type."""
    parts = {name: of.bytes for name, of in stored.items()}
    return Bar("weights", label, parts, plural(sum(parts.values()), "byte"))


# -- that compares two models in a browser: `webgpu.mjs` runs, `measure.mjs` measures ----------------------------------

WEBGPU = {"index.html": "webgpu.html"} | {
    name: name for name in ("page.css", "webgpu.css", "measure.mjs", "webgpu.mjs")
}
DATA = "page.json"


def webgpu_page(data: JsonObject) -> dict[str, str]:
    """The page of `verify --webgpu-page` by file name; ``data``: models, samples and what `verify` found, as
    `webgpu.mjs` reads them."""
    texts = {name: asset(held) for name, held in WEBGPU.items()}
    return texts | {DATA: json.dumps(data, ensure_ascii=True, indent=1, allow_nan=False) + "\n"}
