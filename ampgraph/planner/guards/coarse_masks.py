"""Masks of numbers like -10,000 that are added to scores: low, a row that they hide whole forgets its scores.

Softmax of scores - 10,000 is that of the scores, and float32 keeps three digits of them there. float16 knows every
eighth number, so that all places of such a row become alike. Rows of which something is seen lose nothing.
Masks that are made of inputs alone are written less their largest number in each row, which mends it: `planner.shifts`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...core.dataflow import NONE, Op
from ...core.plan import Note
from ..context import Context
from ..decisions import describe
from ..stages import Settled
from .masks import is_mask, reads_low

COARSE = 64  # from there on float16's steps are 1/16 and more: a score that is off by half of one is off by 3 %
FINE = 1 << 20  # from there on float32 does not know the scores either
READ = 1 << 20  # elements: a larger stored mask is not read


def report_coarse_masks(context: Context, settled: Settled) -> Iterator[Note]:
    """One note for each number that is added low."""
    found: dict[float, list[Op]] = {}
    adding = context.traits.operators("affine") - context.traits.operators("scalings")
    for op in context.flow.with_roles(adding):
        value = op.outputs[0]
        if is_mask(context, value) and not is_shifted(context, value) and _is_low(context, settled, op):
            number = max(hidden_by(context, v) for v in op.inputs)  # last: what is behind an addition may be long
            if number:
                found.setdefault(number, []).append(op)
    for number, ops in sorted(found.items()):
        many = f", and {len(ops) - 1} more" if len(ops) > 1 else ""
        lost = "rows hidden whole lose their scores; if there are such, hold it and its Softmax with --fp32"
        text = f"adds masks of {number:,.0f} in {context.options.dtype}{many}: {lost}"
        yield Note("mask", describe(context.flow, ops[0]), text)


def _is_low(context: Context, settled: Settled, op: Op) -> bool:
    """Whether the sum is low, or is rounded on its way to a Softmax."""
    return any(settled.is_low(unit) for unit in op.slots.values()) or reads_low(context, settled, op.outputs[0])


def is_shifted(context: Context, value: int) -> bool:
    """Whether a value is a mask less its own largest number in each row, or its smallest for one that is taken away."""
    flow, traits = context.flow, context.traits
    writer = flow.writer(value)
    if writer is None or not traits.has(writer.role, "cancels") or len(writer.inputs) != 2:
        return False
    mask, largest = (_unconverted(context, v) for v in writer.inputs)
    most = flow.writer(largest)
    ends = most is not None and any(traits.has(most.role, trait) for trait in ("row_maxima", "row_minima"))
    return most is not None and ends and _unconverted(context, most.inputs[0]) == mask


def _unconverted(context: Context, value: int) -> int:
    """A value before conversions."""
    while (writer := context.flow.writer(value)) is not None and context.traits.has(writer.role, "casts"):
        value = writer.inputs[0]
    return value


def hidden_by(context: Context, value: int) -> float:
    """The largest number of such a size that is stored behind a value, through arithmetic and moves; 0 for none."""
    flow, traits, seen, work = context.flow, context.traits, set[int](), [value]
    largest = 0.0
    while work:
        current = work.pop()
        if current == NONE or current in seen:
            continue
        seen.add(current)
        writer = flow.writer(current)
        if is_shifted(context, current):
            continue
        if flow.values[current].weight:
            largest = max(largest, _hidden_row(context, current))
        elif writer is not None and any(traits.has(writer.role, t) for t in ("affine", "mask_path")):
            work += writer.inputs
    return largest


def _hidden_row(context: Context, value: int) -> float:
    """The size of the numbers of which a stored tensor is made, or some row of it; 0 where that is no mask."""
    item = context.flow.values[value]
    array = context.flow.weights.array(item, limit=4 * READ) if item.dtype == "float32" else None
    if array is None or not array.size:
        return 0.0
    rows = np.abs(array.reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1))
    least = float(rows.min(-1).max())
    return least if COARSE <= least <= FINE else 0.0
