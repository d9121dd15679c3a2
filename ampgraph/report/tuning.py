"""The report of `tune`, and which nodes matter how much: what each unit costs in error alone."""

from __future__ import annotations

import csv
import io
import json
import math
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..core import sketches
from ..core.dataflow import FLOAT32
from ..core.json_types import JsonObject
from ..core.metric_names import OVER_ALL
from ..core.plan import Plan
from ..core.shown import Data, Shown, json_fields, plural
from .lines import and_more, columns, finite, in_rows, titled

PATTERNS = 24  # patterns that the text shows; --json has all
SHORT = {
    "l2": "relative L2",
    "max": "largest difference, relative",
    "argmax": "share of other classes",
    "cosine": "1 - cosine",
}  # what --help says in more words


SHOWN = 20  # rows of the text; the data has all
COLUMNS = ("patterns", "kinds", "bytes", "share", "alone_low", "alone_float32", "measured")


@dataclass(frozen=True)
class UnitSensitivity(Data):
    """What the nodes of one decision, a unit, cost in error.

    Attributes:
        patterns: what names the nodes to ``fp32=`` and ``low=``.
        kinds: their operators.
        bytes: what they write and store in float32.
        share: their part of the squared error of the level's plan; None where that is infinite and they make it so.
        alone_low: the error with these low and every other unit in float32.
        alone_float32: the error of the level's plan with these in float32.
        measured: whether the two errors are of strict runs of their own; else they follow from the share, as if squared
            errors added up.
    """

    patterns: tuple[str, ...]
    kinds: tuple[str, ...]
    bytes: int
    share: float | None
    alone_low: float
    alone_float32: float
    measured: bool


@dataclass(frozen=True, repr=False)
class Sensitivity(Shown):
    """The report's table of sensitivities: all units that a level makes low, the one that contributes most first.
    ``error``: of the level's plan."""

    level: str
    metric: str
    error: float
    units: tuple[UnitSensitivity, ...]

    def __len__(self) -> int:
        return len(self.units)

    def __iter__(self) -> Iterator[UnitSensitivity]:
        return iter(self.units)

    def lines(self) -> list[str]:
        """The table of the `SHOWN` units that contribute most to the error, by lines."""
        head = ("alone low", "alone float32", "share", "", "unit")
        rows = [
            (
                finite(unit.alone_low),
                finite(unit.alone_float32),
                "all" if unit.share is None else f"{100 * unit.share:.3g} %",
                "measured" if unit.measured else "estimated",
                f"{' '.join(dict.fromkeys(unit.kinds))} ({' '.join(unit.patterns[:3])})",
            )
            for unit in self.units[:SHOWN]
        ]
        return columns([head, *rows], ">") + and_more(self.units, SHOWN)

    def to_json(self) -> str:
        """The report's table of sensitivities as JSON."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def to_csv(self) -> str:
        """The report's table of sensitivities as CSV: a line of `COLUMNS`, then one for each unit; several patterns or
        kinds stand in one cell with spaces between them, and a share that is None is an empty cell."""
        out = io.StringIO()
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(COLUMNS)
        for unit in self.units:
            share = "" if unit.share is None else f"{unit.share:.6g}"
            errors = [f"{error:.6g}" for error in (unit.alone_low, unit.alone_float32)]
            rows.writerow([" ".join(unit.patterns), " ".join(unit.kinds), unit.bytes, share, *errors, unit.measured])
        return out.getvalue()


@dataclass(frozen=True)
class Candidate(Data):
    """A conversion that `tune` ran: how it came about (``step``), its error, and how many nodes, products among them
    and bytes it has in float32; ``chosen``: whether it is the result."""

    step: str
    error: float
    nodes: int
    bytes: int
    promoted: int  # how many groups of nodes were put back into float32
    products: int = 0
    chosen: bool = False


@dataclass(frozen=True, repr=False)
class Tuning(Shown):
    """What `tune` found.

    Attributes:
        met: whether the tolerance is met; if not, ``plan`` is None and nothing was written.
        error: of the chosen candidate, or the smallest that was reached.
        patterns: for ``fp32=`` or ``--fp32``, beside those that were given.
        frontier: candidates that none beats in error and in cost, the cheapest first: bytes, those of products times 8.
        candidates: all, in the order of the runs.
        sensitivity: which nodes matter how much, where it was asked for.
        runs: strict runs, that is passes over the samples, of candidates and to measure.
    """

    model: str
    output: str | None
    met: bool
    error: float
    tolerance: float
    metric: str
    level: str
    dtype: str
    runs: int
    samples: int
    nodes: int  # that have something to decide
    plan: Plan | None
    patterns: tuple[str, ...]
    frontier: tuple[Candidate, ...]
    candidates: tuple[Candidate, ...]
    notes: tuple[str, ...]
    sensitivity: Sensitivity | None = None

    @property
    def verdict(self) -> str:
        """In the report of `tune`: whether it met the tolerance, and with how much in float32, in a line."""
        return _verdict_line(self)

    def to_dict(self) -> JsonObject:
        """What `tune` found, as plain data for JSON; without the plan."""
        return json_fields(
            self, "model", "output", "met", "tolerance", "metric", "level", "dtype", "runs", "samples", "nodes",
            "error", "patterns", "frontier", "candidates", "notes", "sensitivity",
        )  # fmt: skip

    def lines(self) -> list[str]:
        """The text that `tune` prints, by lines."""
        over = "on average" if self.metric in OVER_ALL else "for 9 of 10 samples"
        rows = [
            ("model", self.model),
            ("result", self.output or "not written" + ("" if self.met else ": the tolerance is missed")),
            ("options", f"level {self.level}, {self.dtype}"),
            ("tolerance", f"{self.tolerance:g} on {SHORT.get(self.metric, self.metric)} of the worst output, {over}"),
            *titled("samples", self.notes),
            ("runs", f"{plural(self.runs, 'strict run')} over {plural(self.samples, 'sample')}"),
        ]
        head = ("float32 nodes", "products", "bytes", "error", "candidate")
        table = [
            (f"{p.nodes:,}", f"{p.products:,}", f"{p.bytes:,}", finite(p.error), p.step + " <- chosen" * p.chosen)
            for p in self.frontier
        ]
        lines = [*in_rows(rows), "", *columns([head, *table], ">"), ""]
        if self.sensitivity is not None:
            lines += ["sensitivity", *self.sensitivity.lines(), ""]
        return lines + in_rows(
            [("verdict", self.verdict), *(titled("promoted", _pattern_lines(self)) if self.met else [])]
        )

    def _overview(self) -> Iterable[sketches.Html]:
        """The top of the page of `tune`: the verdict, a plot of the candidates by their error and the bytes that they
        keep in float32, the chosen one in red, and the frontier as a table."""
        points = [point for point in self.candidates if math.isfinite(point.error) and point.error > 0]
        words = f"error of {len(points):,} candidates, upwards, by their bytes in {FLOAT32}; the chosen one in red"
        rows = [(p.step, f"{p.error:.3g}", f"{p.bytes:,}", "chosen" * p.chosen) for p in self.frontier]
        plot = sketches.scatter([(point.bytes, point.error, point.chosen) for point in points], words)
        state = "met" if self.met else "missed"
        yield sketches.heading(f"{self.model}: tolerance {self.tolerance:g} {state}", f", error {self.error:.3g}")
        yield sketches.Html(f"<p>{sketches.markup(words)}</p>{plot}")
        yield sketches.table(("candidate", "error", f"bytes in {FLOAT32}", ""), rows)


def _verdict_line(found: Tuning) -> str:
    """The verdict of the report of `tune`: with how much float32 it met the tolerance, or the smallest error."""
    if not found.met:
        error = f"the error stays {found.error:.3g}" if math.isfinite(found.error) else "the result stays not finite"
        return f"missed: {error}, however much is float32: what is still low was asked to be, or is low in the file"
    chosen = next(point for point in found.candidates if point.chosen)
    nodes = f"{chosen.nodes:,} of {found.nodes:,} nodes in float32"
    return f"met: error {finite(found.error)} with {nodes}, {chosen.bytes:,} bytes"


def _pattern_lines(found: Tuning) -> list[str]:
    """The report's lines with what `tune` put back into float32, as options to paste behind `convert`, three a line."""
    words = [f"--fp32 {shlex.quote(pattern)}" for pattern in found.patterns[:PATTERNS]]
    lines = ["  ".join(words[i : i + 3]) for i in range(0, len(words), 3)]
    return lines + and_more(found.patterns, PATTERNS, " (--json lists all)")
