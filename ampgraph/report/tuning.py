"""The report of `tune`, as data and as plain text."""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict, dataclass

from ..core.json_types import JsonObject
from ..core.plan import Plan
from .lines import in_rows, plural

PATTERNS = 24  # shown; --json has all
METRICS = {
    "l2": "relative L2",
    "max": "largest difference, relative",
    "argmax": "share of other classes",
    "cosine": "1 - cosine",
}


@dataclass(frozen=True)
class Candidate:
    """A conversion that was run: how it came about, its error, the nodes and bytes that it has in float32."""

    step: str
    error: float
    nodes: int
    bytes: int
    promoted: int  # groups
    chosen: bool = False

    def to_dict(self) -> JsonObject:
        """Plain data for JSON; null for an infinite error."""
        return {**asdict(self), "error": self.error if math.isfinite(self.error) else None}


@dataclass(frozen=True)
class Tuning:
    """What `tune` found.

    Attributes:
        met: whether the tolerance is met; if not, ``plan`` is None and nothing was written.
        error: of the chosen candidate, or the smallest that was reached.
        patterns: for ``fp32=`` or ``--fp32``, beside those that were given.
        frontier: candidates that none beats in bytes and in error, the smallest first.
        candidates: all, in the order of the runs.
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

    def to_dict(self) -> JsonObject:
        """Plain data for JSON; without the plan."""
        names = ("model", "output", "met", "tolerance", "metric", "level", "dtype", "runs", "samples", "nodes")
        return {name: getattr(self, name) for name in names} | {
            "error": self.error if math.isfinite(self.error) else None,
            "patterns": list(self.patterns),
            "frontier": [point.to_dict() for point in self.frontier],
            "candidates": [point.to_dict() for point in self.candidates],
            "notes": list(self.notes),
        }


def tuning_lines(found: Tuning) -> list[str]:
    """The report of `tune`."""
    over = "on average" if found.metric == "argmax" else "for 9 of 10 samples"
    rows = [
        ("model", found.model),
        ("result", found.output or "not written" + ("" if found.met else ": the tolerance is missed")),
        ("options", f"level {found.level}, {found.dtype}"),
        ("tolerance", f"{found.tolerance:g} on {METRICS[found.metric]} of the worst output, {over}"),
    ]
    rows += [("samples" if i == 0 else "", note) for i, note in enumerate(found.notes)]
    rows.append(("runs", f"{plural(found.runs, 'strict run')} over {plural(found.samples, 'sample')}"))
    lines = in_rows(rows)
    lines += ["", *_table(found.frontier), ""]
    return lines + in_rows([("verdict", _verdict(found)), *_patterns(found)])


def _table(points: tuple[Candidate, ...]) -> list[str]:
    head = ("float32 nodes", "bytes", "error", "candidate")
    rows = [(f"{p.nodes:,}", f"{p.bytes:,}", _error(p.error), p.step + " <- chosen" * p.chosen) for p in points]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(3)]
    return ["  ".join([*(f"{row[i]:>{widths[i]}}" for i in range(3)), row[3]]) for row in (head, *rows)]


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
