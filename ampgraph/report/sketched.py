"""Reports as notebooks show them: a picture and a table that say it, the command's text behind a click."""

from __future__ import annotations

import html
import math

from ..core.dataflow import FLOAT32
from ..core.sketches import Html, bar, folded, heights, scatter, table
from ..numerics.metrics.agreement import Agreement
from .inspect import OTHER, PRECISIONS, Inspection, Layer
from .lines import plural
from .listing import ListRows
from .text import inspection_lines
from .tuning import Tuning, tuning_lines
from .verification import Verification, verification_lines

LAYERS, DEPTH = 24, 2  # rows of the table of layers, and how deep it goes


def inspection_html(found: Inspection) -> str:
    """Nodes, products, weights and bytes by precision; layers as bars."""
    names = dict.fromkeys((*PRECISIONS, OTHER, *found.weights))
    rows = []
    for name in names:
        stored = found.weights.get(name)
        counts = (found.nodes.get(name, 0), found.heavy.get(name, 0), stored.bytes if stored else 0)
        if any(counts):
            rows.append((name, *(f"{count:,}" for count in counts)))
    parts = {name: stored.bytes for name, stored in found.weights.items()}
    parts = {name: parts[name] for name in sorted(parts, key=[*names].index)}
    head = f"{found.model}: {found.version}, {plural(found.file_nodes, 'node')}, {plural(len(found.casts), 'cast')}"
    return "".join([
        f"<p><b>{html.escape(head)}</b></p>",
        table(("", "nodes", "heavy", "bytes of weights"), rows),
        table((), [("nodes", bar(found.nodes)), ("weights", bar(parts))]),
        table(("layer", "nodes", ""), _layers(found.layers)),
        folded("report", inspection_lines(found)),
    ])  # fmt: skip


def _layers(top: Layer) -> list[tuple[str, str, Html]]:
    """Layers in the order of the graph, as deep as there is room; empty where the exporter named none."""
    found = _inside(top, "", DEPTH)
    found = found if len(found) <= LAYERS else _inside(top, "", 1)
    most = max((sum(layer.nodes.values()) for _, layer in found), default=1)
    rows = [(path, f"{sum(layer.nodes.values()):,}", bar(layer.nodes, most, 160)) for path, layer in found[:LAYERS]]
    return rows + ([(f"and {len(found) - LAYERS:,} more", "", Html(""))] if len(found) > LAYERS else [])


def _inside(layer: Layer, path: str, depth: int) -> list[tuple[str, Layer]]:
    found: list[tuple[str, Layer]] = []
    for name, inner in layer.children.items() if depth else ():
        found += [(f"{path}{name}", inner), *_inside(inner, f"{path}{name}.", depth - 1)]
    return found


def verification_html(found: Verification) -> str:
    """The error of each output, and the error along the graph in the sample that was looked at."""
    rows = [
        (one.name, _state(one.within(found.tolerance)), *_errors(one), _samples(one, found)) for one in found.outputs
    ]
    verdict = f"{found.model} against {found.reference}: {_state(found.ok)}, tolerance {found.tolerance:g}"
    return "".join([
        f"<p><b>{html.escape(verdict)}</b> on {plural(found.samples, 'sample')} ({html.escape(found.run)})</p>",
        table(("output", "verdict", "median", "90th percentile", "worst", "by sample"), rows),
        _along(found),
        folded("report", verification_lines(found)),
    ])  # fmt: skip


def _state(met: bool) -> str:
    return "ok" if met else "missed"


def _samples(output: Agreement, found: Verification) -> Html:
    """The error of each sample as a bar, the tolerance as a line."""
    errors = [error for error in output.judged_errors if math.isfinite(error) and error > 0]
    words = f"error of each of {plural(len(errors), 'sample')}; the line is the tolerance"
    return heights(errors, found.tolerance, words, 160, 30) if errors and found.tolerance > 0 else Html("")


def _errors(output: Agreement) -> tuple[str, str, str]:
    scores = output.scores
    found = [scores.median, scores.p90, scores.worst] if output.judged else []
    one, two, three = [f"{error:.2e}" if math.isfinite(error) else "infinite" for error in found] or ["", "", ""]
    return one, two, three


def _along(found: Verification) -> str:
    errors = {name: error for name, error in found.errors.items() if math.isfinite(error) and error > 0}
    if not errors or found.tolerance <= 0:
        return ""
    worst = max(errors, key=lambda name: errors[name])
    words = f"error behind each of {len(errors):,} nodes, in their order; the largest is {errors[worst]:.2e} at {worst}"
    picture = heights(list(errors.values()), found.tolerance, f"{words}; the line is the tolerance")
    return f"<p>{html.escape(words)}</p>{picture}"


def tuning_html(found: Tuning) -> str:
    """The candidates by their error and the bytes that they keep in float32, the chosen one in red."""
    finite = [point for point in found.candidates if math.isfinite(point.error) and point.error > 0]
    words = f"error of {len(finite):,} candidates, upwards, by their bytes in {FLOAT32}; the chosen one in red"
    rows = [(point.step, f"{point.error:.3g}", f"{point.bytes:,}", "chosen" * point.chosen) for point in found.frontier]
    plot = scatter([(point.bytes, point.error, point.chosen) for point in finite], words)
    state = "met" if found.met else "missed"
    return "".join([
        f"<p><b>{html.escape(found.model)}: tolerance {found.tolerance:g} {state}</b>, error {found.error:.3g}</p>",
        f"<p>{html.escape(words)}</p>{plot}",
        table(("candidate", "error", f"bytes in {FLOAT32}", ""), rows),
        folded("report", tuning_lines(found)),
    ])  # fmt: skip


def listing_html(found: ListRows) -> str:
    """Operators with their class and what becomes of them."""
    rows = [(row.title, row.cls or "in no list", row.at_level, row.reason, row.source) for row in found]
    return table(("operator", "class", f"at {found.level}", "reason", "source"), rows)
