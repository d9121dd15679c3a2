"""Rows of tables: what a model takes off its inputs and divides them by says what numbers they are.

Pressures of 1013 and a few, years, salaries: (x - mean) / deviation with stored numbers, as a scaler, a
BatchNormalization or a product and a sum. Numbers about zero would be far from all that such a model was made for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core.arrays import Array
from ...core.dataflow import NONE, Dataflow, Op
from ...oplists.traits import has, positions
from .numbers import Numbers

STEPS = 4  # operators from an input
LARGEST = 1 << 16  # columns
SHARE = 0.1  # of a mean, which is the deviation where nothing tells one


@dataclass(frozen=True)
class Table:
    """The mean and the deviation of each column."""

    means: Array
    deviations: Array

    def rows(self, numbers: Numbers, shape: tuple[int, ...], scale: float) -> Array:
        """float32 of ``shape``, whose last axis has the columns, with ``scale`` times the deviations."""
        made: Array = self.means + self.deviations * numbers.normal(shape) * np.float32(scale)
        return made.astype(np.float32)


def table_of(flow: Dataflow, value: int, width: int) -> Table | None:
    """What the first operators behind a value say of its ``width`` columns; None where they say nothing."""
    gain, offset, steps = np.ones(width), np.zeros(width), 0
    while steps < STEPS and (found := _step(flow, value, width)) is not None:
        op, factor, term = found
        gain, offset, value, steps = gain * factor, offset * factor + term, op.outputs[0], steps + 1
    if not steps or not offset.any() or not np.all(gain) or not np.all(np.isfinite(offset / gain)):
        return None
    means = -offset / gain
    if np.all(gain == 1) and np.ptp(offset) == 0:  # log(x + 1) says nothing of a mean
        return None
    deviations = np.maximum(abs(means) * SHARE, SHARE) if np.all(gain == 1) else 1 / abs(gain)
    return Table(means.astype(np.float32), deviations.astype(np.float32))


def _step(flow: Dataflow, value: int, width: int) -> tuple[Op, Array, Array] | None:
    """A reader that multiplies or shifts each column by a stored number, with the factor and the term."""
    for op in flow.readers(value):
        if has(op.role, "stored_statistics") and op.inputs[0] == value:
            rows = [_columns(flow, v, width) for v in op.inputs[3:5]]
            if len(rows) == 2 and rows[0] is not None and rows[1] is not None:
                factor = 1 / np.sqrt(rows[1] + 1e-12)
                return op, factor, -rows[0] * factor
        other = next((v for v in op.inputs if v != value), NONE)
        stored = _columns(flow, other, width) if has(op.role, "affine") and len(op.inputs) == 2 else None
        if stored is None or (other == op.inputs[0] and not _commutes(op)):
            continue
        if has(op.role, "scalings"):
            return op, 1 / stored if positions(op.role, "divides") else stored, np.zeros(width)
        return op, np.ones(width), -stored if positions(op.role, "subtracts") else stored
    return None


def _commutes(op: Op) -> bool:
    return not positions(op.role, "divides") and not positions(op.role, "subtracts")


def _columns(flow: Dataflow, value: int, width: int) -> Array | None:
    """A stored number for each column, or one for all; none of them zero in a quotient."""
    item = flow.values[value] if value != NONE else None
    array = flow.weights.array(item, LARGEST) if item is not None and item.weight else None
    if array is None or array.dtype.kind != "f" or array.size not in (1, width):
        return None
    columns: Array = np.broadcast_to(np.asarray(array, np.float64).reshape(-1), (width,))
    return columns
