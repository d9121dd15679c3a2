"""Masks: constants far below the low minimum, put upon scores before a Softmax, where minus infinity means the same."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op
from ...core.graph import LOW
from ...core.walk import source, upstream
from ...oplists.traits import Trait
from ..decisions import Decisions
from ..options import Options
from .intervals import TRUTHS, Intervals

ALL = (FLOAT32, *LOW)
ON_THE_WAY: tuple[Trait, ...] = ("mask_path", "scalings")
"""Traits of operators between a mask's constant and its Softmax."""
TOWARDS_SCORES: tuple[Trait, ...] = (*ON_THE_WAY, "multiplies")
"""Traits of the operators by which a mask reaches its Softmax."""
SHRINKS = 1 / 64
"""How much a stored number may shrink a masked score: what was half the low minimum still hides it."""
COARSE = 64  # from there on float16's steps are 1/16 and more: a score that is off by half of one is off by 3 %
FINE = 1 << 20  # from there on float32 does not know the scores either
READ = 1 << 20  # elements: a larger stored mask is not read


class Masks:
    """What is put upon scores before a Softmax."""

    def __init__(self, flow: Dataflow, options: Options, whole: Intervals) -> None:
        self.flow, self.options, self.traits, self.whole = flow, options, options.lists.traits, whole

    @cached_property
    def scores(self) -> set[int]:
        """What a Softmax may read, through arithmetic and moves: most values of a model are none, and so no mask."""
        through = frozenset[str]().union(*map(self.traits.operators, TOWARDS_SCORES))
        readers = self.flow.with_roles(self.traits.operators("softmaxes") | self.traits.operators("attention_bias"))
        read = {value for op in readers for value in op.inputs if value != NONE}
        before = upstream(self.flow, read, lambda op: op.inputs if op.role in through else ())
        return read.union(v for op in before if op.role in through for v in op.inputs if v != NONE)

    def has(self, value: int, types: tuple[str, ...] = (FLOAT32,), multiplied: bool = False) -> bool:
        """Whether every path from a tensor ends in Softmax through additions, selections and moves alone, through
        conversions to some types, and scaled with the scores. ``multiplied``: or through products with zeros and ones.
        """
        if value not in self.scores:
            return False
        work, seen, ended = [value], set[int](), False
        while work:
            current = work.pop()
            if current in seen:
                continue
            seen.add(current)
            for use in self.flow.uses[current]:
                if use.op == NONE:
                    return False
                op, traits = self.flow.ops[use.op], self.traits
                moved = traits.at(op.role, "mask_path", use.index) and self._stays(op, types)
                if traits.has(op.role, "softmaxes") or traits.at(op.role, "attention_bias", use.index):
                    ended = True
                elif moved or self._shrinks(op, use.index) or (multiplied and self._hides_by_whole(op, use.index)):
                    work += op.outputs
                else:
                    return False
        return ended

    def _shrinks(self, op: Op, place: int) -> bool:
        """Whether an operator makes an operand smaller by a stored number, and by no more than that."""
        if not self.traits.has(op.role, "scalings") or len(op.inputs) != 2:
            return False
        divides, number = self.traits.positions(op.role, "divides"), self.flow.scalar(op.inputs[1 - place])
        if not number or place in divides:
            return False
        return SHRINKS <= (1 / number if divides else number) <= 1

    def _hides_by_whole(self, op: Op, place: int) -> bool:
        """Whether an operator multiplies an operand by zeros and ones, as 1 - mask is: any other number would turn what
        hides into what is preferred, or pass the low type's range."""
        if not self.traits.has(op.role, "multiplies") or len(op.inputs) != 2:
            return False
        span = self.whole.of(op.inputs[1 - place])
        return span.whole and TRUTHS.low <= span.low and span.high <= TRUTHS.high

    def _stays(self, op: Op, types: tuple[str, ...]) -> bool:
        """Whether an operator is no conversion to another type."""
        return not self.traits.has(op.role, "conversions") or self.flow.values[op.outputs[0]].dtype in types

    def broken_number(self, op: Op) -> str:
        """Why the target's runtime fails at the number by which an operator makes a mask, which it reads where that
        stands behind what is masked; an empty string where it does not."""
        broken = self.options.kernels.broken.get(op.kind)
        reason = broken.reasons.get(self.options.dtype) if broken is not None and broken.mask_below else None
        if broken is None or reason is None or not self.has(op.outputs[0], ALL):
            return ""
        numbers = [number for v in op.inputs[1:] if v != NONE and (number := self.flow.scalar(v)) is not None]
        if not any(number < broken.mask_below for number in numbers):
            return ""
        return reason if any(self.traits.has(other.role, "norms") for other in self.flow.ops) else ""

    def most_added(self, masks: Iterable[int]) -> int:
        """How many masks add up before one Softmax: their sum, and a score, must not overflow either."""
        count, most = dict.fromkeys(masks, 1), 1
        for op in self.flow.ops if count else ():
            found = [count[v] for v in op.inputs if v in count]
            if found and any(self.traits.has(op.role, trait) for trait in ON_THE_WAY):
                total = sum(found) if self.traits.has(op.role, "additions") else max(found)
                count.update(dict.fromkeys(op.outputs, total))
                most = max(most, total)
        return most

    def reads_low(self, settled: Decisions, value: int) -> bool:
        """Whether anything on the way from a mask constant to its Softmax is low, becoming -inf there."""
        work, seen = [value], set[int]()
        while work:
            current = work.pop()
            if current in seen:
                continue
            seen.add(current)
            for use in self.flow.uses[current]:
                if settled.is_low(use.unit):
                    return True
                op = self.flow.ops[use.op] if use.op != NONE else None
                if op is not None and any(self.traits.has(op.role, trait) for trait in ON_THE_WAY):
                    work += op.outputs
        return False

    # -- numbers like -10,000 -----------------------------------------------------------------------------------------

    def is_shifted(self, value: int) -> bool:
        """Whether a value is a mask less its own largest number in each row, or its smallest for one that is taken
        away."""
        flow, traits, casts = self.flow, self.traits, self.traits.operators("casts")
        writer = flow.writer(value)
        if writer is None or not traits.has(writer.role, "cancels") or len(writer.inputs) != 2:
            return False
        mask, largest = (source(flow, v, casts) for v in writer.inputs)
        most = flow.writer(largest)
        ends = most is not None and any(traits.has(most.role, trait) for trait in ("row_maxima", "row_minima"))
        return most is not None and ends and source(flow, most.inputs[0], casts) == mask

    def hidden_by(self, value: int) -> float:
        """The largest number of such a size that is stored behind a value, through arithmetic and moves; 0 for none."""
        flow, traits = self.flow, self.traits
        through = traits.operators("affine") | traits.operators("mask_path")
        work, seen, largest = [value], set[int](), 0.0
        while work:
            current = work.pop()
            if current == NONE or current in seen or self.is_shifted(current):
                continue
            seen.add(current)
            writer = flow.writer(current)
            if flow.values[current].weight:
                largest = max(largest, self._hidden_row(current))
            elif writer is not None and writer.role in through:
                work += writer.inputs
        return largest

    def _hidden_row(self, value: int) -> float:
        """The size of the numbers of which a stored tensor is made, or some row of it; 0 where that is no mask."""
        item = self.flow.values[value]
        array = self.flow.weights.array(item, limit=4 * READ) if item.dtype == "float32" else None
        if array is None or not array.size:
            return 0.0
        rows = np.abs(array.reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1))
        least = float(rows.min(-1).max())
        return least if COARSE <= least <= FINE else 0.0
