"""Rows of boxes as sets: which row of the result stands for which of the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core.arrays import Array

WIDTHS = range(4, 8)  # a box alone; with a score, a class, an image
OVERLAP = 0.5  # the least intersection over union of partners
NEAR = 0.1  # without boxes: the largest distance of partners, of each column's range


@dataclass(frozen=True)
class Pairing:
    """Which rows of two outputs are partners: ``pairs`` of (row of the reference, row of the result), in the order of
    the reference; ``rows``: how many either side has."""

    pairs: tuple[tuple[int, int], ...]
    rows: tuple[int, int]

    @property
    def paired(self) -> tuple[int, int]:
        """How many rows have a partner, of how many on both sides together."""
        return 2 * len(self.pairs), sum(self.rows)

    def align(self, reference: Array, result: Array) -> tuple[Array, Array]:
        """The rows of reference and result with partners beside each other, zeros beside a row without partner."""
        ours, theirs = (list(rows) for rows in zip(*self.pairs, strict=True)) if self.pairs else ([], [])
        lost, new = (np.setdiff1d(np.arange(n), used) for n, used in zip(self.rows, (ours, theirs), strict=True))
        want = np.concatenate(
            [reference[ours], reference[lost], np.zeros_like(reference, shape=_rows_shape(result, new))]
        )
        got = np.concatenate([result[theirs], np.zeros_like(result, shape=_rows_shape(reference, lost)), result[new]])
        return want, got


def _rows_shape(array: Array, rows: Array) -> tuple[int, ...]:
    """Paired rows of detections: the shape of ``array`` with as many rows as ``rows`` names."""
    return (len(rows), *array.shape[1:])


def box_columns(rows: Array) -> int | None:
    """Of detections: the column of rows [n, k] at which a box begins, four columns of two corners, the second not less
    than the first; None where none does. The last four columns are tried first.

    The columns beside it must be classes (whole numbers) or scores (0 to 1).
    """
    width = int(rows.shape[1])
    for start in dict.fromkeys((width - 4, *range(width - 3))):
        box = rows[:, start : start + 4]
        others = np.delete(rows, range(start, start + 4), 1)
        fits = [bool((c == np.round(c)).all() or ((c >= 0) & (c <= 1)).all()) for c in others.T]
        if bool((box[:, 2:] >= box[:, :2]).all()) and all(fits):
            return int(start)
    return None


def pair_rows(reference: Array, result: Array, ours: Sequence[Array] = (), theirs: Sequence[Array] = ()) -> Pairing:
    """Of detections: partners among rows [n, k] and [m, k], the nearest first; each row has one at most.

    Rows with boxes are partners where these overlap by half or more and nothing of ``ours`` and ``theirs`` (classes, a
    number a row) and no class among the columns differs. Rows without boxes are where no column differs by more than a
    tenth of its range.
    """
    start = box_columns(reference) if len(reference) else None
    if start is not None:
        classes = [i for i in range(reference.shape[1]) if not start <= i < start + 4 and are_whole(reference[:, i])]
        ours = (*ours, *(reference[:, i] for i in classes))
        theirs = (*theirs, *(result[:, i] for i in classes))
    span = np.maximum(np.ptp(reference, 0), 1e-12) if len(reference) else 1.0
    found: list[tuple[float, int, int, int]] = []
    for i, row in enumerate(reference):
        if start is None:
            near = 1 - np.abs((result - row) / span).max(1, initial=0)
            fits = near >= 1 - NEAR
        else:
            near = _overlap(row[start : start + 4], result[:, start : start + 4])
            fits = near >= OVERLAP
        for one, other in zip(ours, theirs, strict=True):
            fits &= other == one[i]
        found += [(-float(near[j]), abs(i - int(j)), i, int(j)) for j in np.flatnonzero(fits)]
    return Pairing(_best_pairs(sorted(found)), (len(reference), len(result)))


def _best_pairs(candidates: list[tuple[float, int, int, int]]) -> tuple[tuple[int, int], ...]:
    """Of detections: pairs of rows (reference, result), each row once, in order, taken from ``candidates`` (-nearness,
    distance in place, row, row), which are sorted, the best first."""
    ours: set[int] = set()
    theirs: set[int] = set()
    pairs = []
    for _, _, i, j in candidates:
        if i not in ours and j not in theirs:
            pairs.append((i, j))
            ours.add(i)
            theirs.add(j)
    return tuple(sorted(pairs))


def are_whole(array: Array) -> bool:
    """Of detections: whether an array holds whole numbers alone, of any type, as classes do."""
    return array.dtype.kind in "iu" or bool((array == np.round(array)).all())


def _overlap(box: Array, others: Array) -> Array:
    """Intersection over union of a box [4] with others [m, 4]; of boxes without area, whether they are the same."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared = np.prod(np.maximum(high - low, 0), 1)
    areas = np.prod(box[2:] - box[:2]), np.prod(np.maximum(others[:, 2:] - others[:, :2], 0), 1)
    union = areas[0] + areas[1] - shared
    found: Array = np.where(union > 0, shared / np.maximum(union, 1e-30), (others == box).all(1).astype(float))
    return found
