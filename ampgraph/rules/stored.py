"""Stored tensors beside the range of a low type."""

from __future__ import annotations

import numpy as np

from ..core.dataflow import Dataflow, Value


def exceeds(flow: Dataflow, value: Value, limit: float, floor: float | None = None) -> bool:
    """Whether a finite element of a stored tensor is larger in magnitude than ``limit``, once what is below ``floor``
    is raised to it."""
    for part in flow.weights.chunks(value):
        magnitude = np.abs(part) if floor is None else np.abs(np.maximum(part, floor))
        if magnitude.max(initial=0) > limit and (magnitude[np.isfinite(magnitude)] > limit).any():
            return True
    return False
