"""Whether outputs are near to what they should be, element by element."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Tolerance(NamedTuple):
    """`absolute + of_max * max|reference| + relative * |reference|`."""

    absolute: float = 1e-5
    of_max: float = 5e-3
    relative: float = 2e-2


def difference(reference: Any, result: Any, tolerance: Tolerance = Tolerance()) -> str:  # noqa: B008
    """How two arrays, or sequences of them, differ, in words; empty where they are near, or equal if they are no
    floats."""
    if isinstance(reference, list) or isinstance(result, list):
        if not isinstance(reference, list) or not isinstance(result, list) or len(reference) != len(result):
            return "sequences of different lengths"
        return next(filter(None, (difference(a, b, tolerance) for a, b in zip(reference, result, strict=True))), "")
    if reference is None or result is None:
        return "" if reference is result else "one of the two is empty"
    a, b = np.asarray(reference), np.asarray(result)
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return f"{b.dtype} {list(b.shape)} instead of {a.dtype} {list(a.shape)}"
    if a.dtype.kind not in "fV" or a.dtype.names:
        return f"{int((a != b).sum())} of {a.size} elements differ" if (a != b).any() else ""
    a, b = a.astype(np.float64), b.astype(np.float64)
    largest = float(np.abs(a[np.isfinite(a)]).max(initial=0))
    limit = tolerance.absolute + tolerance.of_max * largest
    far = ~np.isclose(b, a, tolerance.relative, limit, equal_nan=True)
    return f"{int(far.sum())} of {a.size} elements are off, {b[far][0]:.3g} for {a[far][0]:.3g}" if far.any() else ""
