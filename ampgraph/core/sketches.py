"""Small pictures and tables for notebooks, where scripts, styles and even images may be left out: text stays then.

They are in the core since plans and ranges, which are there, show themselves in notebooks.

Every picture is an ``img`` with its drawing in it and with words in ``alt``; tables have no attributes but those.
"""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

Part = TypeVar("Part")

COLOURS = {"float16": "#6aa5ff", "bfloat16": "#63c088", "float32": "#ffb652", "float64": "#ff8a75"}
GREY, INK, HOT = "#c3c9d4", "#7a8496", "#e2263c"  # for light and dark notebooks alike
PARTS = 300  # pieces of a sketch at most: of more values each piece stands for several


class Html(str):
    """Text that is markup already."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
    """A table in HTML for any object's notebook view, without a head if that is empty; cells but `Html` are escaped."""
    lines = [_table_row("th", head)] if head else []
    return Html(f"<table>{''.join([*lines, *(_table_row('td', row) for row in rows)])}</table>")


def _table_row(tag: str, cells: Sequence[str]) -> str:
    """A row of a notebook's table in HTML; ``tag``: ``th`` for its head, ``td`` for the others."""
    return f"<tr>{''.join(f'<{tag}>{markup(cell)}</{tag}>' for cell in cells)}</tr>"


def markup(text: str) -> str:
    """A text escaped for the HTML of a notebook; `Html` as it is."""
    return text if isinstance(text, Html) else html.escape(text)


def heading(text: str, behind: str = "") -> Html:
    """A paragraph in a notebook: ``text`` in bold, and ``behind`` as it is behind it."""
    return Html(f"<p><b>{markup(text)}</b>{markup(behind)}</p>")


def collapsible(title: str, lines: Sequence[str]) -> Html:
    """Lines of text in a notebook behind a title that opens them."""
    text = html.escape("\n".join(lines))
    return Html(f"<details><summary>{html.escape(title)}</summary><pre>{text}</pre></details>")


def svg(drawn: str, width: int, height: int) -> str:
    """A sketch's elements of SVG (``drawn``) as the text of an SVG file, ``width`` by ``height`` pixels."""
    box = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f"<svg {box}>{drawn}</svg>"


def image(drawn: str, width: int, height: int, words: str) -> Html:
    """A sketch's elements of SVG (``drawn``) as a picture in a notebook; ``words`` say the same as text."""
    data = base64.b64encode(svg(drawn, width, height).encode()).decode()
    alt = html.escape(words)
    return Html(
        f'<img alt="{alt}" title="{alt}" width="{width}" height="{height}" src="data:image/svg+xml;base64,{data}">'
    )


def bar(parts: Mapping[str, int], whole: int = 0, width: int = 240) -> Html:
    """A sketch of parts (type -> how much) as one bar of width ``whole``, or of their sum if that is more."""
    whole = max(whole, sum(parts.values()), 1)
    x, drawn = 0.0, [_svg_rectangle(0, width, 0, 12, "#8884")]
    for name, count in parts.items():
        drawn.append(_svg_rectangle(x, width * count / whole, 0, 12, COLOURS.get(name, GREY)))
        x += width * count / whole
    return image("".join(drawn), width, 12, ", ".join(f"{count:,} {name}" for name, count in parts.items() if count))


def strip(types: Sequence[str], words: str, width: int = 480) -> Html:
    """A sketch of types along a graph: a strip in their colours, of each piece that of the most frequent. ``words`` say
    the same as text."""
    return image(strip_elements(types, width), width, 16, words)


def strip_elements(types: Sequence[str], width: int, x: float = 0, y: float = 0) -> str:
    """The SVG elements of a sketch's strip (see `strip`), from ``x`` and ``y`` on, 16 pixels high."""
    pieces = _equal_pieces(types)
    size = width / max(len(pieces), 1)
    return "".join(
        _svg_rectangle(x + i * size, size + 0.3, y, 16, COLOURS.get(max(piece, key=piece.count), GREY))
        for i, piece in enumerate(pieces)
    )


def heights(values: Sequence[float], limit: float, words: str, width: int = 480, height: int = 60) -> Html:
    """A sketch of numbers above zero as bars by logarithm, of each piece the largest; red above ``limit``, a line."""
    pieces = [max(piece) for piece in _equal_pieces(values)]
    logs = [math.log10(value) for value in (*pieces, limit)]
    low, high = min(logs) - 0.2, max(logs) + 0.2
    size = width / max(len(pieces), 1)

    def top(value: float) -> float:
        return height * (high - math.log10(value)) / (high - low)

    drawn = [
        _svg_rectangle(i * size, max(size - 0.2, 0.5), top(value), height, HOT if value > limit else COLOURS["float16"])
        for i, value in enumerate(pieces)
    ]
    line = f'<path d="M0,{top(limit):.1f}H{width}" stroke="{INK}" stroke-dasharray="5 3"/>'
    return image("".join(drawn) + line, width, height, words)


def scatter(points: Sequence[tuple[float, float, bool]], words: str, width: int = 360, height: int = 140) -> Html:
    """A sketch of points (x from 0, y above zero by its logarithm, whether chosen): chosen ones are larger and red."""
    most = max([x for x, _, _ in points] or [0.0]) or 1.0
    logs = [math.log10(y) for _, y, _ in points] or [0.0]
    low, high = min(logs) - 0.2, max(logs) + 0.2
    drawn = [f'<path d="M10,4V{height - 8}H{width - 4}" fill="none" stroke="{INK}"/>']
    for x, y, chosen in points:
        down = 10 + (height - 28) * (high - math.log10(y)) / (high - low)
        place = f'cx="{16 + (width - 32) * x / most:.1f}" cy="{down:.1f}"'
        drawn.append(f'<circle {place} r="{5 if chosen else 3}" fill="{HOT if chosen else COLOURS["float16"]}"/>')
    return image("".join(drawn), width, height, words)


def _equal_pieces(values: Sequence[Part]) -> list[Sequence[Part]]:
    """A sketch's values in order, in at most `PARTS` pieces of one length; the last may be shorter."""
    size = math.ceil(len(values) / PARTS) or 1
    return [values[start : start + size] for start in range(0, len(values), size)]


def _svg_rectangle(x: float, width: float, y: float, height: float, colour: str) -> str:
    """A rectangle of a sketch in SVG, with its upper left corner at ``x`` and ``y``, in pixels."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'
