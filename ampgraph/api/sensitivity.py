"""The table of sensitivities behind `tune`: from what its search has measured, and some runs more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ..numerics.search import ConfirmedSearch, Point
from ..report.sensitivity import Sensitivity, UnitSensitivity
from .bench import Bench

MEASURED = 8  # units of the table that get runs of their own, two each


def sensitivity_of(bench: Bench, search: ConfirmedSearch) -> Sensitivity:
    """Every unit's part in the error of the level's plan, the largest measured by runs of their own."""
    start = search.points[0]
    weights = _weights(bench, start)
    order = sorted(range(len(bench.groups)), key=lambda i: (-weights[i], i))
    rows = [_estimated(bench, i, weights, start) for i in order]
    for place, i in enumerate(order[:MEASURED]):
        if weights[i]:
            rows[place] = _measured(bench, i, rows[place])
    return Sensitivity(bench.options.level.name, bench.judge.metric.name, start.error, tuple(rows))


def _weights(bench: Bench, start: Point) -> Sequence[float]:
    """What each unit contributes to the squared error of the level's plan."""
    if not bench.groups:
        return []
    weights = bench.measure(start.promoted)
    forced = frozenset(i for i, weight in enumerate(weights) if math.isinf(weight))
    rest = bench.measure(forced) if forced else weights
    return [math.inf if i in forced else weight for i, weight in enumerate(rest)]


def _estimated(bench: Bench, i: int, weights: Sequence[float], start: Point) -> UnitSensitivity:
    """As if squared errors added up; weights are their sums over the samples."""
    group, weight = bench.groups[i], weights[i]
    total = sum(w for w in weights if math.isfinite(w))
    share = None if math.isinf(weight) else weight / total if total else 0.0
    others = total - weight if share is not None else total
    overflows = any(math.isinf(w) for j, w in enumerate(weights) if j != i)
    scale = start.error**2 / total if math.isfinite(start.error) and total else 1 / len(bench.samples)
    low, rest = math.sqrt(weight * scale), math.inf if overflows else math.sqrt(max(0.0, others) * scale)
    return UnitSensitivity(group.patterns, group.kinds, group.bytes, share, low, rest, False)


def _measured(bench: Bench, i: int, row: UnitSensitivity) -> UnitSensitivity:
    others = frozenset(range(len(bench.groups))) - {i}
    low, rest = bench.run(others, "one unit low").error, bench.run(frozenset([i]), "one unit in float32").error
    return replace(row, alone_low=low, alone_float32=rest, measured=True)
