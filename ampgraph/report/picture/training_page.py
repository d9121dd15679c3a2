"""The page of `train`: losses, loss scale, skipped steps, gradient norm and learning rate over the steps."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence

from ...core.shown import plural
from ...training.run.step_log import StepRow
from .page import asset

POINTS = 1000  # of one curve at most; of more steps the least and the largest of each piece are drawn
WIDTH, HEIGHT, LEFT = 760, 150, 64  # of a figure, in its units; LEFT: of the axis
STYLE = ".curve { fill: none; stroke: var(--pick); stroke-width: 1.3; } .skip { stroke: var(--hot); opacity: .7; } "
STYLE += ".measured { fill: var(--hot); } "
STYLE += (
    "body { display: block; padding: 16px; max-width: 860px; margin: auto; height: auto; } figure { margin: 14px 0; }"
)

CURVES: tuple[tuple[str, str, Callable[[StepRow], float | None]], ...] = (
    ("loss", "linear", lambda row: row.loss if row.finite else None),
    ("loss scale", "log", lambda row: row.scale),
    ("gradient norm", "log", lambda row: row.grad_norm if row.finite else None),
    ("learning rate", "linear", lambda row: row.learning_rate),
)
"""Title, sort of the vertical axis, and the number of a step; None for a step that has none."""


def training_page(
    title: str, rows: Sequence[StepRow], report: Sequence[str] = (), measured: Sequence[tuple[int, float]] = ()
) -> str:
    """The page of `train` as HTML, one file; the same rows give the same text. ``report``: lines to print below the
    curves; ``measured``: (step, loss of validation)."""
    skipped = [row.step for row in rows if not row.finite]
    parts = [
        _figure(name, axis, [(row.step, value(row)) for row in rows], skipped, measured if name == "loss" else ())
        for name, axis, value in CURVES
    ]
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
    words = f"{plural(len(rows), 'step')}, {len(skipped):,} skipped"
    words += "; a red line is a step that was not finite and skipped, a red dot a loss of validation"
    name = html.escape(title)
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<title>{name}</title><style>{asset("page.css")}{STYLE}'
        f"</style></head>"
        f"<body><h1>{name}</h1><p>{words}</p>\n"
        f"{''.join(parts)}<pre>{html.escape(chr(10).join(report))}</pre></body></html>\n"
    )


def _figure(
    name: str, axis: str, points: list[tuple[int, float | None]], skipped: Sequence[int],
    measured: Sequence[tuple[int, float]],
) -> str:  # fmt: skip
    """Page of `train`: one curve as SVG, with a line for each skipped step and dots for what was measured; "" where it
    has no point. ``axis``: "linear" or "log", which leaves out what is not above 0."""
    found = [(x, y) for x, y in points if y is not None and math.isfinite(y) and (axis == "linear" or y > 0)]
    if not found:
        return ""
    found = _thin_out(found)
    height = (lambda y: math.log10(y)) if axis == "log" else (lambda y: y)
    dots = [(x, y) for x, y in measured if math.isfinite(y)]
    values = [y for _, y in (*found, *dots)]
    least, most = min(values), max(values)
    last = max(x for x, _ in points)
    span = height(most) - height(least)
    span = span if span else 1.0  # a flat curve

    def across(x: int) -> float:
        return LEFT + (WIDTH - LEFT - 8) * (x - 1) / max(last - 1, 1)

    def down(y: float) -> float:
        return 8 + (HEIGHT - 34) * (height(most) - height(y)) / span

    curve = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in found)
    circles = "".join(f'<circle class="measured" cx="{across(x):.1f}" cy="{down(y):.1f}" r="3"/>' for x, y in dots)
    lines = "".join(f'<path class="skip" d="M{across(x):.1f},8V{HEIGHT - 26}"/>' for x in skipped[:POINTS])
    return (
        f'<figure><h2>{name}</h2><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name} over the steps">'
        f'<path class="axis" d="M{LEFT},4V{HEIGHT - 24}H{WIDTH - 6}"/>{lines}'
        f'<polyline class="curve" points="{curve}"/>{circles}'
        f'<text class="small" x="2" y="14">{most:.4g}</text>'
        f'<text class="small" x="2" y="{HEIGHT - 28}">{least:.4g}</text>'
        f'<text class="small" x="{LEFT}" y="{HEIGHT - 8}">1</text>'
        f'<text class="small" x="{WIDTH - 8}" y="{HEIGHT - 8}" text-anchor="end">{last:,}</text></svg></figure>\n'
    )


def _thin_out(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Page of `train`: leaves at most `POINTS` points of a curve, of each piece the least and the largest, so that no
    peak is lost."""
    if len(points) <= POINTS:
        return points
    size = math.ceil(2 * len(points) / POINTS)
    kept: list[tuple[int, float]] = []
    for start in range(0, len(points), size):
        piece = points[start : start + size]
        kept += sorted({min(piece, key=lambda p: p[1]), max(piece, key=lambda p: p[1])})
    return kept
