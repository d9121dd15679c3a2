"""One case of a guard: a graph, inputs, and what removing the guard would break."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

F = np.float32
LOWEST = float(np.finfo(np.float32).min)
ALL = ("O1", "O2", "O3", "auto")
HOLDING = ("O1", "O2", "auto")  # the levels at which accuracy guards hold


@dataclass(frozen=True)
class Case:
    """``guard`` does it, ``without`` it shows at these levels; ``notes`` are the topics that the plan reports.
    ``exact``: not one element may differ."""

    name: str
    guard: str
    graph: str
    feeds: Mapping[str, Any]
    weights: Mapping[str, Any] = field(default_factory=dict)
    levels: tuple[str, ...] = HOLDING
    without: tuple[str, ...] = ("O2",)
    notes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float16",)
    opset: int = 17
    exact: bool = False


def rows(*values: float) -> np.ndarray:
    return np.array([values], F)


WEIGHT = "weight"


X4 = {"x": rows(0.0, 0.0, 1e-3, 2.0)}


POSITIONS = {"p": np.arange(8192, dtype=np.int64).reshape(1, 8192)}


BOTH = ("float16", "bfloat16")
