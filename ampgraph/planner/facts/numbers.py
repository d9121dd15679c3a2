"""Numbers that follow from the file alone: stored ones, sizes that it says, and arithmetic on them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from ...core.arrays import Array
from ...core.dataflow import FLOAT32, NONE, Dataflow, Op
from ...oplists.traits import Trait, Traits

STEPS = 32  # operators looked back
FEW = 16  # elements: sizes of a tensor, and numbers beside them
STEPS_OF_SLICE = 4  # the operand
EXACT = 2.0**53
"""Whole numbers below this are what they are in float64, in which they are counted here."""
WHOLE: Mapping[str, float] = MappingProxyType(
    {
        "float16": 2.0**11,
        "bfloat16": 2.0**8,
        "float64": EXACT,
        "int8": 2.0**7,
        "int16": 2.0**15,
        "int32": 2.0**31,
        "int64": EXACT,
    }
)
"""Of types, whole numbers of smaller magnitude are held as they are."""
ARITHMETIC: Mapping[Trait, np.ufunc] = MappingProxyType(
    {
        "additions": np.add,
        "subtracts": np.subtract,
        "multiplies": np.multiply,
        "divides": np.divide,
        "powers": np.power,
    }
)


class KnownNumbers:
    """The numbers of a model that are known before it runs, as float32 has them."""

    def __init__(self, flow: Dataflow, traits: Traits) -> None:
        self.flow, self.traits = flow, traits
        self._rows: dict[int, Array] = {}

    def number(self, value: int) -> float | None:
        """The number in a tensor of one element, None where it is not known."""
        found = self.row(value)
        return float(found[0]) if found is not None and found.size == 1 and np.isfinite(found[0]) else None

    def row(self, value: int) -> Array | None:
        """The numbers of a tensor of few in their order; NaN for a size that is open."""
        return self._row(value, STEPS)

    def _row(self, value: int, steps: int) -> Array | None:
        if value not in self._rows and (found := self._found(value, steps)) is not None:
            self._rows[value] = found
        return self._rows.get(value)

    def _found(self, value: int, steps: int) -> Array | None:
        item = self.flow.values[value] if value != NONE else None
        if item is None or item.weight:
            few = item is not None and self.flow.weights.size(item) <= FEW
            array = self.flow.weights.array(item) if item is not None and few else None
            return None if array is None or array.dtype.kind not in "fiu" else array.reshape(-1)
        op = self.flow.writer(value)
        if op is None or not op.inputs or not steps:
            return None
        if self.traits.has(op.role, "shapes"):
            return self._sizes(op)
        if self.traits.has(op.role, "fills"):
            return self._fill(op)
        return self._made(op, steps - 1)

    def _sizes(self, op: Op) -> Array | None:
        shape = self.flow.certain_shape(self.flow.values[op.inputs[0]])
        start, end = (self.flow.number(op, name) for name in ("start", "end"))
        part = None if shape is None else shape[int(start or 0) : None if end is None else int(end)]
        if part is None or self.flow.shape(op.outputs[0]) != (len(part),):
            return None
        return np.array([size if isinstance(size, int) else np.nan for size in part])

    def _fill(self, op: Op) -> Array | None:
        fill = self.flow.attribute(op, "value")
        one = self.flow.shape(op.outputs[0]) in ((), (1,))
        return (fill.reshape(-1)[:1] if isinstance(fill, np.ndarray) else np.zeros(1)) if one else None

    def _made(self, op: Op, steps: int) -> Array | None:
        """What an operator makes of numbers that are known."""
        first = self._row(op.inputs[0], steps)
        if first is None:
            return None
        if any(self.traits.has(op.role, trait) for trait in ("conversions", "keeps_order")):
            return self._converted(op, first)
        known: list[Array] = []
        for value in op.inputs[1:]:
            row = self._row(value, steps) if value != NONE else None
            if row is not None:
                known.append(row)
            elif value != NONE:
                return None  # at once: each further look may go as far back
        dtype = self.flow.values[op.outputs[0]].dtype
        if dtype == FLOAT32:
            return self._computed(op, [first, *known])
        kind = self._arithmetic(op)
        if kind is not None:
            return self._counted(kind, [first, *known]) if dtype == "int64" else None
        shape = self.flow.shape(op.inputs[0])
        return self._picked(op, first, known) if shape is not None and len(shape) == 1 else None

    def _converted(self, op: Op, row: Array) -> Array | None:
        """Whole numbers that the type holds, and float32 of any: other types round, or begin anew."""
        dtype = self.flow.values[op.outputs[0]].dtype
        if dtype == FLOAT32:
            return row.astype(np.float32)
        known, limit = row[~np.isnan(row)], WHOLE.get(dtype, 0.0)
        return row if bool(((np.rint(known) == known) & (np.abs(known) < limit)).all()) else None

    def _picked(self, op: Op, row: Array, where: list[Array]) -> Array | None:
        """One or more of a row of sizes: by their places, or from one place to another."""
        if self.traits.has(op.role, "lookups") and len(where) == 1:
            inside = (where[0] >= -row.size) & (where[0] < row.size)
            return row[where[0].astype(np.int64)] if inside.all() else None
        if not self.traits.has(op.role, "slices") or len(where) < 2 or any(part.size != 1 for part in where):
            return None
        steps = where[-1][0] if len(op.inputs) > STEPS_OF_SLICE and op.inputs[STEPS_OF_SLICE] != NONE else 1
        if steps != 1 or not all(np.isfinite(part[0]) for part in where):
            return None
        return row[int(where[0][0]) : int(where[1][0])]

    def _computed(self, op: Op, rows: list[Array]) -> Array | None:
        """Arithmetic on single numbers, in float32."""
        if any(row.size != 1 for row in rows):
            return None
        numbers = [row.astype(np.float32) for row in rows]
        kind = self._arithmetic(op)
        with np.errstate(all="ignore"):
            if len(numbers) == 1 and self.traits.has(op.role, "roots"):
                return np.asarray(np.sqrt(numbers[0]))
            if len(numbers) == 1 and kind == "divides":
                return np.asarray(np.float32(1) / numbers[0])
            return np.asarray(ARITHMETIC[kind](*numbers)) if kind is not None and len(numbers) == 2 else None

    def _arithmetic(self, op: Op) -> Trait | None:
        return next((trait for trait in ARITHMETIC if self.traits.has(op.role, trait)), None)

    def _counted(self, kind: Trait, rows: list[Array]) -> Array | None:
        """Arithmetic on two whole numbers; a quotient of sizes, which is cut off."""
        if len(rows) != 2 or any(row.size != 1 for row in rows) or kind == "powers":
            return None
        one, other = (row.astype(np.float64) for row in rows)
        if kind != "divides":
            made = np.asarray(ARITHMETIC[kind](one, other))
        elif one >= 0 and other > 0:
            made = np.floor(one / other)
        else:
            return None
        return made if all(abs(float(row[0])) < EXACT for row in (one, other, made)) else None
