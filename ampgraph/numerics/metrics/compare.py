"""How far a result is from its reference: one measure for verification, tuning and the conformance suite."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core.arrays import Array, Result


@dataclass(frozen=True)
class Tolerance:
    """`absolute + of_max * max|reference| + relative * |reference|`, element by element."""

    absolute: float = 1e-5
    of_max: float = 5e-3
    relative: float = 2e-2


@dataclass(frozen=True)
class Difference:
    """The distance of one output from its reference; `reason` is empty when it is within the tolerance."""

    max_abs: float
    excess: float
    nonfinite: int
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.reason)


def difference(reference: Result, result: Result, tolerance: Tolerance = Tolerance()) -> Difference:  # noqa: B008
    """Compare two arrays, or two sequences of arrays; exact for anything that is not floating."""
    if isinstance(reference, list) or isinstance(result, list):
        return _sequences(reference, result, tolerance)
    if reference is None or result is None:
        return Difference(0, 0, 0, "" if reference is result else "one of the two is empty")
    a, b = np.asarray(reference), np.asarray(result)
    if a.shape != b.shape:
        return Difference(0, 0, 0, f"shape {list(b.shape)} instead of {list(a.shape)}")
    if a.dtype != b.dtype:
        return Difference(0, 0, 0, f"{b.dtype} instead of {a.dtype}")
    if a.dtype.kind not in "fV" or a.dtype.names:
        wrong = int((a != b).sum())
        return Difference(0, 0, 0, f"{wrong} of {a.size} elements differ" if wrong else "")
    return _floats(a.astype(np.float64), b.astype(np.float64), tolerance)


def _sequences(reference: Result, result: Result, tolerance: Tolerance) -> Difference:
    if not isinstance(reference, list) or not isinstance(result, list) or len(reference) != len(result):
        return Difference(0, 0, 0, "sequences of different lengths")
    parts = [difference(a, b, tolerance) for a, b in zip(reference, result, strict=True)]
    return next((p for p in parts if p), max(parts, key=lambda p: p.max_abs, default=Difference(0, 0, 0)))


def _floats(a: Array, b: Array, tolerance: Tolerance) -> Difference:
    finite = np.isfinite(a)
    # Equal infinities of one sign, NaN where NaN was expected.
    astray = np.where(finite, ~np.isfinite(b), ~((a == b) | (np.isnan(a) & np.isnan(b))))
    both = finite & np.isfinite(b)
    delta = np.abs(np.where(both, a, 0) - np.where(both, b, 0))
    magnitude = np.abs(np.where(finite, a, 0))
    largest = float(magnitude.max(initial=0))
    limit = tolerance.absolute + tolerance.of_max * largest + tolerance.relative * magnitude
    excess = float((delta / limit).max(initial=0)) if limit.size else 0.0
    nonfinite, max_abs = int(astray.sum()), float(delta.max(initial=0))
    reason = ""
    if nonfinite:
        reason = f"{nonfinite} of {a.size} elements are not finite where the reference is, or the reverse"
    elif excess > 1:
        reason = f"off by {max_abs:.3g} (reference up to {largest:.3g}), {excess:.3g} times the tolerance"
    return Difference(max_abs, excess, nonfinite, reason)
