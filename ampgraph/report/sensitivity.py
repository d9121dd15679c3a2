"""Which nodes matter how much: what each unit costs in error alone, as data, text and comma-separated values."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from ..core.json_types import JsonObject

SHOWN = 20  # rows of the text; the data has all
COLUMNS = ("patterns", "kinds", "bytes", "share", "alone_low", "alone_float32", "measured")


@dataclass(frozen=True)
class UnitSensitivity:
    """Nodes that one decision holds.

    Attributes:
        patterns: what names them to ``fp32=`` and ``low=``.
        kinds: their operators.
        bytes: what they write and store in float32.
        share: of the squared error of the level's plan; None where that is infinite and it is their doing.
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

    def to_dict(self) -> JsonObject:
        """Plain data for JSON; null for an infinite error."""
        errors = {name: getattr(self, name) for name in ("alone_low", "alone_float32")}
        return {**asdict(self), **{name: e if math.isfinite(e) else None for name, e in errors.items()}}


@dataclass(frozen=True, repr=False)
class Sensitivity:
    """All units that a level makes low, the one that contributes most first. ``error``: of the level's plan."""

    level: str
    metric: str
    error: float
    units: tuple[UnitSensitivity, ...]

    def __len__(self) -> int:
        return len(self.units)

    def __iter__(self) -> Iterator[UnitSensitivity]:
        return iter(self.units)

    def __repr__(self) -> str:
        return "\n".join(sensitivity_lines(self))

    def to_dict(self) -> JsonObject:
        """Plain data for JSON; null for an infinite error."""
        error = self.error if math.isfinite(self.error) else None
        units = [unit.to_dict() for unit in self.units]
        return {"level": self.level, "metric": self.metric, "error": error, "units": units}

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def to_csv(self) -> str:
        """A line for each unit behind a line of names; what a unit has several of stands between spaces."""
        out = io.StringIO()
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(COLUMNS)
        for unit in self.units:
            share = "" if unit.share is None else f"{unit.share:.6g}"
            errors = [f"{error:.6g}" for error in (unit.alone_low, unit.alone_float32)]
            rows.writerow([" ".join(unit.patterns), " ".join(unit.kinds), unit.bytes, share, *errors, unit.measured])
        return out.getvalue()


def sensitivity_lines(found: Sensitivity) -> list[str]:
    """A table of the units that contribute most."""
    head = ("alone low", "alone float32", "share", "", "unit")
    rows = [
        (
            _error(unit.alone_low),
            _error(unit.alone_float32),
            "all" if unit.share is None else f"{100 * unit.share:.3g} %",
            "measured" if unit.measured else "estimated",
            f"{' '.join(dict.fromkeys(unit.kinds))} ({' '.join(unit.patterns[:3])})",
        )
        for unit in found.units[:SHOWN]
    ]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(4)]
    lines = ["  ".join([*(f"{row[i]:>{widths[i]}}" for i in range(4)), row[4]]) for row in (head, *rows)]
    more = len(found.units) - SHOWN
    return lines + ([f"and {more:,} more"] if more > 0 else [])


def _error(error: float) -> str:
    return f"{error:.3g}" if math.isfinite(error) else "not finite"
