"""The report of `tune`, as data and as plain text."""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict, dataclass
from typing import ClassVar

from ..core.json_types import JsonObject
from ..core.metric_names import OVER_ALL
from ..core.plan import Plan
from ..core.shown import Shown
from .lines import in_rows, plural
from .sensitivity import Sensitivity, sensitivity_lines

PATTERNS = 24  # shown; --json has all
SHORT = {
    "l2": "relative L2",
    "max": "largest difference, relative",
    "argmax": "share of other classes",
    "cosine": "1 - cosine",
}  # what --help says in more words


@dataclass(frozen=True)
class Candidate:
    """A conversion that was run: how it came about, its error, and the nodes, the products among them and the bytes
    that it has in float32."""

    step: str
    error: float
    nodes: int
    bytes: int
    promoted: int  # groups
    products: int = 0
    chosen: bool = False

    def to_dict(self) -> JsonObject:
        """Plain data for JSON; null for an infinite error."""
        return {**asdict(self), "error": self.error if math.isfinite(self.error) else None}


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

    LINES: ClassVar[str] = f"{__package__}.tuning.tuning_lines"
    HTML: ClassVar[str] = f"{__package__}.sketched.tuning_html"

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

    def to_dict(self) -> JsonObject:
        """Plain data for JSON; without the plan."""
        names = ("model", "output", "met", "tolerance", "metric", "level", "dtype", "runs", "samples", "nodes")
        return {name: getattr(self, name) for name in names} | {
            "error": self.error if math.isfinite(self.error) else None,
            "patterns": list(self.patterns),
            "frontier": [point.to_dict() for point in self.frontier],
            "candidates": [point.to_dict() for point in self.candidates],
            "notes": list(self.notes),
            "sensitivity": None if self.sensitivity is None else self.sensitivity.to_dict(),
        }


def tuning_lines(found: Tuning) -> list[str]:
    """The report of `tune`."""
    over = "on average" if found.metric in OVER_ALL else "for 9 of 10 samples"
    rows = [
        ("model", found.model),
        ("result", found.output or "not written" + ("" if found.met else ": the tolerance is missed")),
        ("options", f"level {found.level}, {found.dtype}"),
        ("tolerance", f"{found.tolerance:g} on {SHORT.get(found.metric, found.metric)} of the worst output, {over}"),
    ]
    rows += [("samples" if i == 0 else "", note) for i, note in enumerate(found.notes)]
    rows.append(("runs", f"{plural(found.runs, 'strict run')} over {plural(found.samples, 'sample')}"))
    lines = in_rows(rows)
    lines += ["", *_table(found.frontier), ""]
    if found.sensitivity is not None:
        lines += ["sensitivity", *sensitivity_lines(found.sensitivity), ""]
    return lines + in_rows([("verdict", _verdict(found)), *_patterns(found)])


def _table(points: tuple[Candidate, ...]) -> list[str]:
    head = ("float32 nodes", "products", "bytes", "error", "candidate")
    rows = [
        (f"{p.nodes:,}", f"{p.products:,}", f"{p.bytes:,}", _error(p.error), p.step + " <- chosen" * p.chosen)
        for p in points
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(4)]
    return ["  ".join([*(f"{row[i]:>{widths[i]}}" for i in range(4)), row[4]]) for row in (head, *rows)]


def _error(error: float) -> str:
    return f"{error:.3g}" if math.isfinite(error) else "not finite"


def _verdict(found: Tuning) -> str:
    if not found.met:
        error = f"the error stays {found.error:.3g}" if math.isfinite(found.error) else "the result stays not finite"
        best = f"{error}, however much is float32"
        return f"missed: {best}: what is still low was asked to be, or is low in the file"
    chosen = next(point for point in found.candidates if point.chosen)
    nodes = f"{chosen.nodes:,} of {found.nodes:,} nodes in float32"
    return f"met: error {_error(found.error)} with {nodes}, {chosen.bytes:,} bytes"


def _patterns(found: Tuning) -> list[tuple[str, str]]:
    """What was promoted, to paste after `convert`."""
    words = [f"--fp32 {shlex.quote(pattern)}" for pattern in found.patterns[:PATTERNS]]
    rows = [("promoted" if i == 0 else "", "  ".join(words[i : i + 3])) for i in range(0, len(words), 3)]
    if len(found.patterns) > PATTERNS:
        rows.append(("", f"and {len(found.patterns) - PATTERNS:,} more (--json lists all)"))
    return rows if found.met else []
