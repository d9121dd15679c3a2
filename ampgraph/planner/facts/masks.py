"""Masks: constants far below the low minimum, put upon scores before a Softmax, where minus infinity means the same."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op
from ...core.graph import LOW
from ...core.walk import downstream, upstream
from ...oplists.options import Options
from ...oplists.traits import Trait
from ..decisions import Decisions
from .values import TRUTHS, Values

ALL = (FLOAT32, *LOW)
ON_THE_WAY: tuple[Trait, ...] = ("mask_path", "scalings")
"""Traits of operators between a mask's constant and its Softmax."""
TOWARDS_SCORES: tuple[Trait, ...] = (*ON_THE_WAY, "multiplies")
"""Traits of the operators by which a mask reaches its Softmax."""
SHRINKS = 1 / 64
"""How much a stored number may shrink a masked score: what was half the low minimum still hides it."""


class Masks:
    """Which values are masks: added to scores before a Softmax. ``truths``: intervals, in which integers of which
    nothing is known count as 0 or 1 (`Facts.truths`)."""

    def __init__(self, flow: Dataflow, options: Options, truths: Values) -> None:
        self.flow, self.options, self.traits, self.truths = flow, options, options.lists.traits, truths

    @cached_property
    def scores(self) -> set[int]:
        """For masks: the values on the ways to a Softmax, through arithmetic and moves. No other value can be one."""
        through = self.traits.operators(*TOWARDS_SCORES)
        readers = self.flow.with_roles(self.traits.operators("softmaxes", "attention_bias"))
        read = {value for op in readers for value in op.inputs if value != NONE}
        before = upstream(self.flow, read, lambda op: op.inputs if op.role in through else ())
        return read.union(v for op in before if op.role in through for v in op.inputs if v != NONE)

    def has(self, value: int, types: tuple[str, ...] = (FLOAT32,), multiplied: bool = False) -> bool:
        """Whether a value is a mask alone: every path from it ends in a Softmax, through additions, selections, moves,
        conversions to ``types``, scalings that hardly shrink it, and if ``multiplied`` products with truths."""
        if value not in self.scores:
            return False
        traits, ended = self.traits, False
        ends = traits.operators("softmaxes", "attention_bias")
        for use in downstream(self.flow, [value], lambda op: () if op.role in ends else op.outputs):
            if use.op == NONE:
                return False
            op = self.flow.ops[use.op]
            if traits.has(op.role, "softmaxes") or traits.at(op.role, "attention_bias", use.index):
                ended = True
                continue
            stays = not traits.has(op.role, "conversions") or self.flow.values[op.outputs[0]].dtype in types
            moved = stays and traits.at(op.role, "mask_path", use.index)
            if not (moved or self._shrinks(op, use.index) or (multiplied and self._is_times_truths(op, use.index))):
                return False
        return ended

    def _shrinks(self, op: Op, place: int) -> bool:
        """For masks: whether an operator multiplies or divides an operand, by its place, by a stored number that makes
        it smaller, and no smaller than `SHRINKS` of itself."""
        if not self.traits.has(op.role, "scalings") or len(op.inputs) != 2:
            return False
        divides, number = self.traits.positions(op.role, "divides"), self.flow.scalar(op.inputs[1 - place])
        if not number or place in divides:
            return False
        return SHRINKS <= (1 / number if divides else number) <= 1

    def _is_times_truths(self, op: Op, place: int) -> bool:
        """For masks: whether the other operand of a product holds zeros and ones (1 - mask), so that the mask constant,
        its operand at ``place``, stays itself or becomes 0."""
        if not self.traits.has(op.role, "multiplies") or len(op.inputs) != 2:
            return False
        span = self.truths.interval(op.inputs[1 - place])
        return span.whole and TRUTHS.low <= span.low and span.high <= TRUTHS.high

    def broken_number(self, op: Op) -> str:
        """Why the target fails at the number by which an operator makes a mask (`Broken.mask_below`); "": it does
        not."""
        broken = self.options.kernels.broken.get(op.kind)
        reason = broken.reasons.get(self.options.dtype) if broken is not None and broken.mask_below else None
        if broken is None or reason is None or not self.has(op.outputs[0], ALL):
            return ""
        numbers = [self.flow.scalar(v) for v in op.inputs[1:] if v != NONE]
        if not any(number is not None and number < broken.mask_below for number in numbers):
            return ""
        return reason if self.flow.with_roles(self.traits.operators("norms")) else ""

    def most_added(self, masks: Iterable[int]) -> int:
        """How many of these masks (values) add up before one Softmax, 1 at least: their sum must not overflow."""
        count, most = dict.fromkeys(masks, 1), 1
        for op in self.flow.ops if count else ():
            found = [count[v] for v in op.inputs if v in count]
            if found and op.role in self.traits.operators(*ON_THE_WAY):
                total = sum(found) if self.traits.has(op.role, "additions") else max(found)
                count.update(dict.fromkeys(op.outputs, total))
                most = max(most, total)
        return most

    def reads_low(self, settled: Decisions, value: int) -> bool:
        """Whether any operator between a mask (a value) and its Softmax reads it low, where it would be -inf."""

        def further(op: Op) -> list[int]:
            return op.outputs if op.role in self.traits.operators(*ON_THE_WAY) else []

        return any(settled.is_low(use.unit) for use in downstream(self.flow, [value], further))
