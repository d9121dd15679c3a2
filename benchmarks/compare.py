"""How far outputs are from their float32 reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def errors(outputs: Sequence[Any], reference: Sequence[np.ndarray]) -> dict[str, Any]:
    """The worst output's relative L2 and absolute error, and how many values stopped being finite or changed shape."""
    worst: dict[str, Any] = {"max_abs": 0.0, "rel_l2": 0.0, "nonfinite": 0, "mismatch": 0}
    if len(outputs) != len(reference):
        return {**worst, "mismatch": abs(len(outputs) - len(reference))}
    for got, want in zip(outputs, reference, strict=True):
        got = np.asarray(got)
        if got.shape != want.shape:
            worst["mismatch"] += 1
        elif want.dtype.kind != "f":
            worst["mismatch"] += int((got != want).sum())
        elif want.size:
            a, b = want.astype(np.float64), got.astype(np.float64)
            finite = np.isfinite(a) & np.isfinite(b)
            worst["nonfinite"] += int((np.isfinite(a) & ~np.isfinite(b)).sum())
            # What is not finite is counted, not averaged: it would hide the rest.
            delta = np.where(finite, a, 0) - np.where(finite, b, 0)
            norm = np.linalg.norm(np.where(np.isfinite(a), a, 0))
            worst["max_abs"] = max(worst["max_abs"], float(np.abs(delta).max()))
            worst["rel_l2"] = max(worst["rel_l2"], float(np.linalg.norm(delta) / (norm + 1e-30)))
    return worst
